// SPDX-License-Identifier: MIT
// One token through a norm and a linear layer, 4096 -> 11008: the norm deferred behind the product (identity 10)
// against the norm with its gain and then the same product. Both read the same weights: a folded copy elsewhere in
// memory is up to 2 % faster or slower by where it happens to be.

#include <rmsfold/fold/deferred.hpp>

#include <rmsfold/core/random.hpp>

#include "support.hpp"

namespace rmsfold::bench {
namespace {

void deferred(benchmark::State& state) {
  constexpr Index in = 4096, out = 11008;
  Random random(1);
  RowVector<float> gain(in);
  for (float& g : gain.reshaped()) g = static_cast<float>(1 + 0.1 * random.normal());
  const RMSNorm<float> norm(gain, 1e-6);
  const Linear<float> reader{normal_matrix(out, in, random).cast<float>(), std::nullopt};
  const Matrix<float> x = normal_matrix(1, in, random).cast<float>();
  const double elements = static_cast<double>(in) * static_cast<double>(out);
  Matrix<float> a(1, out), b(1, out);
  side_by_side(
      state, 1, 1, elements, elements * sizeof(float),
      [&](Index, Index) {
        a = apply_deferred(norm.without_gain(), reader, x);
        benchmark::DoNotOptimize(a.data());
      },
      [&](Index, Index) {
        const Matrix<float> y = norm.apply(x);
        b.noalias() = y * reader.weight.transpose();
        benchmark::DoNotOptimize(b.data());
      });
}

BENCHMARK(deferred)->Iterations(101)->UseManualTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rmsfold::bench

BENCHMARK_MAIN();
