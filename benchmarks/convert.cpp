// SPDX-License-Identifier: MIT
// Conversions of stored elements against memcpy of the same bytes: to double, back, and a gain folded with one
// rounding.

#include <rmsfold/tensor/convert.hpp>

#include <cstring>
#include <span>
#include <string>

#include "support.hpp"

namespace rmsfold::bench {
namespace {

constexpr Index rows = 2048;
constexpr Index cols = 4096;

/// Through a row of doubles that stays in cache, as a checkpoint passes: load, and round.
template <class S>
void there_and_back(benchmark::State& state, bool gain) {
  const int threads = static_cast<int>(state.range(0));
  Buffer<S> from(rows * cols), to(rows * cols);
  const std::vector<double> factors(static_cast<std::size_t>(cols), 1.25);
  const double elements = static_cast<double>(rows * cols);
  side_by_side(
      state, threads, rows, elements, 2 * elements * sizeof(S),
      [&](Index first, Index last) {
        std::vector<double> row(static_cast<std::size_t>(cols));
        for (Index r = first; r < last; ++r) {
          const auto in = std::as_bytes(std::span<const S>(from.data() + r * cols, static_cast<std::size_t>(cols)));
          const auto out = std::as_writable_bytes(std::span<S>(to.data() + r * cols, static_cast<std::size_t>(cols)));
          if (gain) {
            benchmark::DoNotOptimize(scale_rounded<S>(in, factors, out));
          } else {
            load_as_double<S>(in, row);
            benchmark::DoNotOptimize(store_rounded<S>(row, out));
          }
        }
      },
      [&](Index first, Index last) {
        std::memcpy(static_cast<void*>(to.data() + first * cols), from.data() + first * cols,
                    static_cast<std::size_t>((last - first) * cols) * sizeof(S));
        benchmark::ClobberMemory();
      });
}

template <class S>
void add(const std::string& name) {
  for (const bool gain : {false, true}) {
    benchmark::RegisterBenchmark(((gain ? "gain/" : "load_store/") + name).c_str(),
                                 [=](benchmark::State& state) { there_and_back<S>(state, gain); })
        ->ArgName("threads")
        ->Arg(1)
        ->Arg(2)
        ->Iterations(15)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace rmsfold::bench

int main(int argc, char** argv) {
  using namespace rmsfold;
  bench::add<BF16>("bf16");
  bench::add<F16>("f16");
  bench::add<float>("f32");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
