// SPDX-License-Identifier: MIT
// A dense rotation, along rows and down columns, against one large product of the same number of operations: by Eigen, or, with RMSFOLD_BLAS, by the BLAS.

#include <rmsfold/group/orthogonal.hpp>

#include <rmsfold/core/random.hpp>

#include <string>

#include "support.hpp"

namespace rmsfold::bench {
namespace {

/// @param down  columns instead of rows.
void rotate(benchmark::State& state, bool down) {
  constexpr Index n = 4096;
  constexpr Index others = 2048;
  const int threads = static_cast<int>(state.range(0));
  Random random(1);
  const Orthogonal<double> q(Matrix<double>(normal_matrix(n, n, random) / 64), Unchecked{});  // of norm 2: entries stay finite
  Matrix<double> x = normal_matrix(others, n, random);
  Matrix<double> product(others, n);
  side_by_side(
      state, threads, others, 2.0 * others * n * n, 0,
      [&](Index first, Index last) {  // down: each thread has an array of its own columns
        down ? q.apply(x.data() + first * n, 1, last - first) : q.apply(x.data() + first * n, last - first, 1);
      },
      [&](Index first, Index last) {
        product.middleRows(first, last - first).noalias() = x.middleRows(first, last - first) * q.matrix();
        benchmark::ClobberMemory();
      });
  state.counters["GFLOP/s"] = 1 / state.counters["ns"];
  state.counters.erase("ns");
  state.counters.erase("GB/s");
}

}  // namespace
}  // namespace rmsfold::bench

int main(int argc, char** argv) {
  using namespace rmsfold;
  for (const bool down : {false, true}) {
    benchmark::RegisterBenchmark(down ? "columns/f64/4096" : "rows/f64/4096", [=](benchmark::State& state) { bench::rotate(state, down); })
        ->ArgName("threads")
        ->Arg(1)
        ->Arg(2)
        ->Iterations(5)
        ->Repetitions(1)  // seconds each
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
