// SPDX-License-Identifier: MIT
/// @file
/// A stranger's program on rmsfold::rmsfold: the checker in one call, on a norm, its reader and a rotation.
#include <rmsfold/rmsfold.hpp>

#include <cstdio>
#include <span>
#include <vector>

int main() {
  rmsfold::Random random(5);
  rmsfold::RowVector<float> gain(8);
  for (float& g : gain) g = static_cast<float>(0.5 + random.uniform());
  rmsfold::Matrix<float> weight(3, 8);
  for (float& w : weight.reshaped()) w = static_cast<float>(random.normal());
  const std::vector<rmsfold::Linear<float>> readers{{weight, {}}};
  const rmsfold::Hadamard q = rmsfold::Hadamard::random(8, random);
  const rmsfold::Matrix<float> x = rmsfold::Matrix<float>::Constant(2, 8, 0.5f);

  const rmsfold::EquivalenceReport report =
      rmsfold::check_equivalence(rmsfold::RMSNorm<float>(gain, 1e-5), std::span<const rmsfold::Linear<float>>(readers), q, x);
  std::fputs(rmsfold::to_table(report).c_str(), stdout);
  return report.passed() && !report.naive_merged.within_bound() ? 0 : 1;
}
