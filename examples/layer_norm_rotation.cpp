// SPDX-License-Identifier: MIT
// A LayerNorm model can be rotated without becoming an RMSNorm model: by a Q that fixes the ones vector, since the mean
// of xQ is then that of x.
#include <cmath>

#include <rmsfold/rmsfold.hpp>

int main() {
  using namespace rmsfold;
  const Index n = 48;
  Random random(31);
  RowVector<float> gain(n);
  for (float& g : gain) g = static_cast<float>(std::exp(0.5 * random.normal()));
  const LayerNorm<float> norm(gain, rounded<float>(RowVector<double>(normal_matrix(1, n, random))), 1e-5);
  const std::vector<Linear<float>> readers{
      {rounded<float>(normal_matrix(40, n, random)), rounded<float>(RowVector<double>(normal_matrix(1, 40, random)))}};
  const Matrix<double> x = normal_matrix(6, n, random).array() + 1.5;  // a mean to be subtracted
  const Matrix<double> want = readers[0].apply(norm.apply(x));
  const auto off = [&](const Matrix<double>& got) { return (got - want).norm() / want.norm(); };

  // Q = H·S·Hᵀ·P, with H's first column constant: orthogonal, O(n log n), and Q·1 = 1.
  const HadamardFixingOnes q = HadamardFixingOnes::random(n, random);
  const FoldedLayerNorm<float> folded =
      fold_and_rotate(norm, readers, q, MissingBias::keep);  // gain into the weight, bias into the reader's bias
  const double right = off(folded.readers[0].apply(folded.norm.apply(act(q, x))));

  // The same with a generic Hadamard rotation, by hand: rotate_norm(norm.without_gain(), generic) does not compile.
  const Hadamard generic = Hadamard::random(n, random);
  const FoldedLayerNorm<float> unrotated = fold_gain(norm, readers, MissingBias::keep);
  const double wrong = off(rotate_reader(unrotated.readers[0], generic).apply(unrotated.norm.apply(act(generic, x))));

  // Or move the mean into the writers, which leaves an RMSNorm that any rotation passes: for engines that have one.
  const UnitRMSNorm<float> rms = as_rms_norm(unrotated.norm);
  const Matrix<double> centred = centre_embedding(norm, x);  // stands for every writer of the stream
  const double converted = off(rotate_reader(unrotated.readers[0], generic).apply(rms.apply(act(generic, centred))));

  fmt::print("Q fixes the ones vector, LayerNorm stays       {:.2e}\n", right);
  fmt::print("generic Q, LayerNorm stays                     {:.2e}   WRONG: Q·1 is not ±1\n", wrong);
  fmt::print("generic Q, writers centred, now an RMSNorm     {:.2e}\n", converted);
  return right < 1e-6 && converted < 1e-6 && wrong > 0.1 ? 0 : 1;  // a float's roundoff is 6e-8
}
