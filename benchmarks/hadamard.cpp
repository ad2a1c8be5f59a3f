// SPDX-License-Identifier: MIT
// The fast Hadamard transform against an in-place scale of the same array, along rows and down columns.

#include <rmsfold/group/hadamard.hpp>

#include <string>

#include "support.hpp"

namespace rmsfold::bench {
namespace {

template <class S>
void scale(S* data, Index count) {
  for (Index i = 0; i < count; ++i) data[i] *= S(1.0009765625);
  benchmark::ClobberMemory();
}

/// @param down  columns instead of rows. @param random  with signs and moves.
template <class S>
void transform(benchmark::State& state, Index n, bool down, bool random) {
  const int threads = static_cast<int>(state.range(0));
  const Index others = (std::max)(Index{256}, (Index{1} << 24) / n / 64 * 64);
  Random stream(1);
  const Hadamard q = random ? Hadamard::random(n, stream) : Hadamard(n);
  Buffer<S> x(n * others);
  const double elements = static_cast<double>(n) * static_cast<double>(others);
  side_by_side(
      state, threads, others, elements, 2 * elements * sizeof(S),
      [&](Index first, Index last) {  // down: each thread has an array of its own columns
        down ? q.apply(x.data() + first * n, 1, last - first) : q.apply(x.data() + first * n, last - first, 1);
      },
      [&](Index first, Index last) { scale(x.data() + first * n, (last - first) * n); });
}

template <class S>
void add(const std::string& name, Index n, bool down, bool random) {
  benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { transform<S>(state, n, down, random); })
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->Iterations(9)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace rmsfold::bench

int main(int argc, char** argv) {
  using namespace rmsfold::bench;
  for (const bool down : {false, true}) {
    const std::string where = down ? "columns" : "rows";
    for (const bool random : {false, true}) {
      add<float>(where + (random ? "_random" : "") + "/f32/4096", 4096, down, random);
      add<double>(where + (random ? "_random" : "") + "/f64/4096", 4096, down, random);
    }
    // An odd part, to be compared with 4096 per element (ns): 12, 20, 28, 36, 40, 44, 52, 148, 172 times a power of
    // two.
    for (const rmsfold::Index n : {3072, 5120, 7168, 9216, 10240, 11264, 13312, 18944, 11008, 576, 896, 2560}) {
      add<float>(where + "/f32/" + std::to_string(n), n, down, false);
      add<double>(where + "/f64/" + std::to_string(n), n, down, false);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
