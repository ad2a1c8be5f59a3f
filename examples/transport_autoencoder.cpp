// SPDX-License-Identifier: MIT
// A sparse autoencoder trained on one model, used on another whose channels are shuffled and partly negated. Moved by the
// signed permutation it finds the same features; moved by the permutation alone it finds noise.
#include <cmath>
#include <vector>

#include <rmsfold/fold/autoencoder.hpp>
#include <rmsfold/fold/transport.hpp>
#include <rmsfold/rmsfold.hpp>

using namespace rmsfold;

/// Squared error of reconstruction, over the squared length of what was to be rebuilt.
double error_on(const Autoencoder<float>& sae, const Matrix<double>& x) { return (sae.apply(x) - x).squaredNorm() / x.squaredNorm(); }

int main() {
  const Index n = 128, features = 192, tokens = 200;
  Random random(11);

  // Model A: its stream is a sum of few directions out of 192, around a mean. The planted autoencoder knows them: each feature
  // listens to its direction and must hear more than the others' cross-talk.
  Matrix<double> directions = normal_matrix(features, n, random);
  directions.rowwise().normalize();
  const RowVector<double> mean = normal_matrix(1, n, random);
  Matrix<double> strength = Matrix<double>::Zero(tokens, features);
  for (Index t = 0; t < tokens; ++t) {
    for (int active = 0; active < 3; ++active) strength(t, static_cast<Index>(random.below(192))) = 4 + random.uniform();
  }
  const Matrix<double> x = (strength * directions).rowwise() + mean;
  const Matrix<double> decoder = 1.8 * directions;
  const Autoencoder<float> sae{
      {rounded<float>(directions), RowVector<float>::Constant(features, -2)}, rounded<float>(decoder), rounded<float>(mean)};

  // Model B is A in other coordinates. Its RMSNorms keep their gains (permuted), so nothing in its weights looks rotated.
  const SignedPermutation p = SignedPermutation::random(n, random);
  const Matrix<double> x_in_b = act(p, x);

  const Autoencoder<float> moved = rotate_autoencoder(sae, p);
  const Autoencoder<float> unsigned_only = rotate_autoencoder(sae, p.unsigned_part());
  const Matrix<double> z = sae.encode(x);
  const auto features_off = [&](const Autoencoder<float>& other) { return (other.encode(x_in_b) - z).norm() / z.norm(); };

  fmt::print("{:<34}{:>22}{:>22}\n", "autoencoder", "features differ by", "relative error");
  fmt::print("{:<34}{:>22}{:>22.6f}\n", "A's, on A", "", error_on(sae, x));
  fmt::print("{:<34}{:>22.1e}{:>22.6f}\n", "on B, moved by P", features_off(moved), error_on(moved, x_in_b));
  fmt::print("{:<34}{:>22.1e}{:>22.6f}\n", "on B, permuted, signs forgotten", features_off(unsigned_only), error_on(unsigned_only, x_in_b));
  fmt::print("{:<34}{:>22.1e}{:>22.6f}\n\n", "on B, not moved", features_off(sae), error_on(sae, x_in_b));

  // A list of channels needs its signs as much.
  const std::vector<SignedIndex> list{{17, -1}, {3, 1}, {40, 1}};
  for (std::size_t k = 0; const SignedIndex& to : transport_indices(list, p)) {
    fmt::print("channel {:>2} of A, sign {:+d}, is channel {:>2} of B, sign {:+d}\n", list[k].index, list[k].sign, to.index, to.sign);
    if (x_in_b(0, to.index) * to.sign != x(0, list[k].index) * list[k].sign) return 1;
    ++k;
  }

  // Right: the sums run over the channels in another order, each within gamma(n + 2) of its terms' absolute values, which for features
  // of size 2 are below 2·|x - mean| < 100. Wrong: by the size of things.
  const double allowed = 2 * 50 * gamma_n(static_cast<double>(n) + 2, unit_roundoff<double>());
  const bool right = features_off(moved) <= allowed && std::fabs(error_on(moved, x_in_b) - error_on(sae, x)) <= allowed;
  const bool wrong = features_off(unsigned_only) > 0.5 && error_on(unsigned_only, x_in_b) > 2 * error_on(sae, x);
  return right && wrong ? 0 : 1;
}
