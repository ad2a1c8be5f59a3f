// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Splitting independent work over threads; results never depend on how many there are.

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <rmsfold/core/concepts.hpp>

namespace rmsfold {

/// Most threads that are used unless more are asked for: each has its buffers, and few disks keep more of them busy.
inline constexpr unsigned default_threads_at_most = 16;

/// `threads`, or when that is 0 one per processor, up to `default_threads_at_most`.
[[nodiscard]] inline unsigned thread_count(unsigned threads) noexcept {
  return threads != 0 ? threads : std::clamp(std::thread::hardware_concurrency(), 1u, default_threads_at_most);
}

/// Calls `body(state, i)` for i = 0 … count-1 on up to `threads` threads, each with a state of its own; jobs start in order, and end in any.
///
/// When a job throws, no further ones start, and the exception of the first of the failed jobs is rethrown when all have stopped: which one that is does not depend on
/// the threads.
/// @param threads     see `thread_count`.
/// @param make_state  called once on each thread, for what a worker keeps from job to job.
template <class MakeState, class Body>
void parallel_for(Index count, unsigned threads, const MakeState& make_state, const Body& body) {
  threads = static_cast<unsigned>((std::min)(static_cast<Index>(thread_count(threads)), count));
  std::atomic<Index> next{0};
  std::exception_ptr failure;
  Index failed = count;
  std::mutex failure_guard;
  const auto work = [&] {
    Index i = 0;
    try {
      auto state = make_state();
      for (i = next++; i < count; i = next++) body(state, i);
    } catch (...) {
      const std::lock_guard lock(failure_guard);
      if (!failure || i < failed) {
        failure = std::current_exception();
        failed = i;
      }
      next = count;
    }
  };
  {
    std::vector<std::jthread> workers;
    workers.reserve(threads);
    for (unsigned t = 1; t < threads; ++t) workers.emplace_back(work);
    if (count > 0) work();
  }
  if (failure) std::rethrow_exception(failure);
}

/// The same without a state.
template <class Body>
void parallel_for(Index count, unsigned threads, const Body& body) {
  struct None {};
  parallel_for(count, threads, [] { return None{}; }, [&](None&, Index i) { body(i); });
}

}  // namespace rmsfold
