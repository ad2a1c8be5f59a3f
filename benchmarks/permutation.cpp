// SPDX-License-Identifier: MIT
// Signed permutations of rows and of entries along rows against memcpy of the same bytes.

#include <rmsfold/group/signed_permutation.hpp>

#include <cstring>
#include <string>

#include "support.hpp"

namespace rmsfold::bench {
namespace {

template <class S>
void permute(benchmark::State& state, bool down) {
  constexpr Index n = 4096;
  const int threads = static_cast<int>(state.range(0));
  Random random(1);
  const SignedPermutation p = SignedPermutation::random(n, random);
  Buffer<S> x(n * n), y(n * n);
  const double elements = static_cast<double>(n) * static_cast<double>(n);
  side_by_side(
      state, threads, n, elements, 2 * elements * sizeof(S),
      [&](Index first, Index last) {  // down: each thread has an array of its own columns
        down ? p.apply(x.data() + first * n, 1, last - first) : p.apply(x.data() + first * n, last - first, 1);
      },
      [&](Index first, Index last) {
        std::memcpy(static_cast<void*>(y.data() + first * n), x.data() + first * n,
                    static_cast<std::size_t>((last - first) * n) * sizeof(S));
        benchmark::ClobberMemory();
      });
}

template <class S>
void add(const std::string& name) {
  for (const bool down : {false, true}) {
    benchmark::RegisterBenchmark(((down ? "of_rows/" : "along_rows/") + name).c_str(),
                                 [=](benchmark::State& state) { permute<S>(state, down); })
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
  bench::add<float>("f32");
  bench::add<double>("f64");
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
