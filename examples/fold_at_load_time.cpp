// SPDX-License-Identifier: MIT
// An inference engine that folds gains when it loads a model: its loop then has no gain to read, and the norm is one
// scalar per token, which can be applied behind the matrix product.
#include <cmath>

#include <rmsfold/rmsfold.hpp>

namespace {

using namespace rmsfold;

/// What the checkpoint holds for one MLP: bf16 weights behind a norm with a gain.
struct StoredLayer {
  RMSNorm<BF16> norm;
  std::vector<Linear<BF16>> readers;  // gate, up
};

/// What the engine keeps.
struct LoadedLayer {
  UnitRMSNorm<BF16> norm;
  std::vector<Linear<BF16>> readers;
};

LoadedLayer load(const StoredLayer& stored) {
  Folded<BF16> folded =
      fold_gain(stored.norm, stored.readers);  // W·diag(g), rounded once; throws when a product overflows bf16
  return {folded.norm, std::move(folded.readers)};
}

}  // namespace

int main() {
  const Index n = 96;
  Random random(11);
  RowVector<double> gain(n);
  for (double& g : gain) g = std::exp(0.5 * random.normal());
  const StoredLayer stored{RMSNorm<BF16>(rounded<BF16>(gain), 1e-5),
                           {{rounded<BF16>(normal_matrix(160, n, random)), std::nullopt},
                            {rounded<BF16>(normal_matrix(160, n, random)), std::nullopt}}};
  const LoadedLayer layer = load(stored);

  double folding = 0, deferring = 0;         // largest error over its bound
  for (int token = 0; token < 8; ++token) {  // the loop: one row at a time, in float, as engines do
    const Matrix<float> x = normal_matrix(1, n, random).cast<float>();
    for (std::size_t r = 0; r < stored.readers.size(); ++r) {
      const Matrix<float> want = stored.readers[r].apply(stored.norm.apply(x));
      const Matrix<float> folded = layer.readers[r].apply(layer.norm.apply(x));
      const Matrix<float> deferred =
          apply_deferred(layer.norm, layer.readers[r], x);  // the product runs on raw x; one scalar at the end

      // Storing a product in bf16 moves it by at most 2^-8 of itself; float sums of n terms, and the norm, round both
      // sides.
      const Matrix<double> z = layer.norm.apply(x).cast<double>();
      const Matrix<double> magnitude = z.cwiseAbs() * widened(layer.readers[r].weight).cwiseAbs().transpose();
      const double sums = 2 * gamma_n(static_cast<double>(n) + 8, 0x1p-24);
      folding = (std::max)(
          folding, ((folded - want).cast<double>().array().abs() / ((unit_roundoff<BF16>() + sums) * magnitude.array()))
                       .maxCoeff());
      deferring = (std::max)(
          deferring, ((deferred - folded).cast<double>().array().abs() / (sums * magnitude.array())).maxCoeff());
    }
  }
  fmt::print("folded at load time, against the norm with its gain   {:.3f} of what rounding W·diag(g) to bf16 may do\n",
             folding);
  fmt::print("norm deferred behind the product, against that        {:.3f} of what float sums may round\n", deferring);
  return folding <= 1 && deferring <= 1 ? 0 : 1;
}
