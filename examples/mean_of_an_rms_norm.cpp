// SPDX-License-Identifier: MIT
// Removing the mean of the embedding is a LayerNorm step. On an RMSNorm model it is another function, and the library
// does not let you ask for it:
//   centre_embedding(rms_norm, table);   // does not compile: "an identity before a LayerNorm only"
#include <cmath>

#include <rmsfold/rmsfold.hpp>

int main() {
  using namespace rmsfold;
  const Index n = 32;
  Random random(41);
  const RMSNorm<double> norm(RowVector<double>::Constant(n, 1.5), 1e-6);
  const Linear<double> reader{normal_matrix(20, n, random), std::nullopt};

  fmt::print("mean of a row / its RMS   outputs moved by\n");
  bool passed = true;
  for (const double mean : {0.0, 0.01, 0.1, 0.5}) {
    Matrix<double> table = normal_matrix(200, n, random);
    for (Index v = 0; v < table.rows(); ++v)
      table.row(v).array() += mean - table.row(v).mean();  // every row has exactly this mean, but for rounding
    Matrix<double> centred = table;
    for (Index v = 0; v < table.rows(); ++v) centred.row(v).array() -= centred.row(v).mean();

    const Matrix<double> want = reader.apply(norm.apply(table));
    const double moved = (reader.apply(norm.apply(centred)) - want).norm() / want.norm();
    const double share = mean * std::sqrt(static_cast<double>(table.size())) / table.norm();
    fmt::print("{:<25.3f} {:.2e}\n", share, moved);
    passed &= mean == 0 ? moved < 1e-14 : moved > share / 2;
  }
  fmt::print(
      "\nNo later step gives it back: every norm downstream reads the mean too. It is an identity only where all rows "
      "have mean zero already.\n");
  return passed ? 0 : 1;
}
