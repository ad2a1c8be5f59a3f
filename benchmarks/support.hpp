// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Side by side: a candidate and its baseline in turns, on one or two threads, and the ratio of their times.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include <rmsfold/core/concepts.hpp>
#include <rmsfold/core/work_buffer.hpp>

namespace rmsfold::bench {

/// A work buffer as the program allocates it, touched before it is measured.
template <class T>
class Buffer {
 public:
  explicit Buffer(Index count) : values_(memory_.first_of<T>(static_cast<std::size_t>(count))) {
    const std::span<std::byte> bytes = std::as_writable_bytes(values_);
    std::fill(bytes.begin(), bytes.end(), std::byte{0x3c});
  }
  T* data() { return values_.data(); }

 private:
  WorkBuffer memory_;
  std::span<T> values_;
};

/// Seconds of `work(first, last)` over 0 … count on this many threads.
template <class Work>
double seconds(int threads, Index count, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  {
    std::vector<std::jthread> others;
    for (int t = 1; t < threads; ++t)
      others.emplace_back([&, t] { work(count * t / threads, count * (t + 1) / threads); });
    work(Index{0}, count / threads);
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// Runs both in turns. Counters: `ratio` of the medians (baseline / candidate: 1 is as fast), `best` of the minima
/// (which is what remains on a machine that others use), `ns` of the candidate at its best for each element, `GB/s` of
/// the baseline at its best, counting `bytes` read and written.
template <class Candidate, class Baseline>
void side_by_side(benchmark::State& state, int threads, Index count, double elements, double bytes,
                  const Candidate& candidate, const Baseline& baseline) {
  std::vector<double> candidates, baselines;
  seconds(threads, count, baseline);
  seconds(threads, count, candidate);
  for ([[maybe_unused]] auto unused : state) {
    baselines.push_back(seconds(threads, count, baseline));
    candidates.push_back(seconds(threads, count, candidate));
    state.SetIterationTime(candidates.back());
  }
  state.counters["ratio"] = median(baselines) / median(candidates);
  const double candidate_best = *std::min_element(candidates.begin(), candidates.end());
  const double baseline_best = *std::min_element(baselines.begin(), baselines.end());
  state.counters["best"] = baseline_best / candidate_best;
  state.counters["ns"] = candidate_best / elements * 1e9;
  state.counters["GB/s"] = bytes / baseline_best * 1e-9;
}

}  // namespace rmsfold::bench
