// SPDX-License-Identifier: MIT
// A rotation merged the right way and the wrong way into the layers behind an RMSNorm, with the error of each.
#include <cmath>

#include <rmsfold/rmsfold.hpp>

int main() {
  using namespace rmsfold;
  const Index n = 64;
  Random random(7);
  RowVector<float> gain(n);
  for (float& g : gain) g = static_cast<float>(std::exp(0.5 * random.normal()));  // spread like trained gains

  const RMSNorm<float> norm(gain, 1e-6);
  const std::vector<Linear<float>> readers{{rounded<float>(normal_matrix(96, n, random)), std::nullopt}};
  const Hadamard q = Hadamard::random(n, random);

  // rotate_norm(norm, q);                                   // does not compile: "fold the gain first"
  const Folded<float> folded = fold_and_rotate(norm, readers, q);  // rms(xQ)·(W·diag(g)·Q)ᵀ, rounded once
  fmt::print("readers now: {} x {}, behind a norm without a gain\n\n", folded.readers[0].out(), folded.readers[0].in());

  const EquivalenceReport report = check_equivalence(norm, readers, q, normal_matrix(5, n, random));
  fmt::print("{}", to_table(report));
  return report.passed() ? 0 : 1;
}
