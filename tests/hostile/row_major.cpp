// SPDX-License-Identifier: MIT
/// @file
/// The library in a build where Eigen's default storage order is turned round, as some users do: the same meaning.
#define EIGEN_DEFAULT_TO_ROW_MAJOR
#include <rmsfold/rmsfold.hpp>

#include <cstddef>
#include <cstdio>
#include <span>
#include <vector>

namespace {

using namespace rmsfold;

/// The user's own matrix type, now row-major.
Eigen::MatrixXd random_matrix(Index rows, Index cols, Random& random) {
  Eigen::MatrixXd m(rows, cols);
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < cols; ++j) m(i, j) = random.normal();
  }
  return m;
}

/// \f$(xP)_j = s_j\,x_{source(j)}\f$, written out by hand: a rotation acts from the right, and not from the left or as its inverse.
bool acts_from_the_right() {
  Random random(3);
  const SignedPermutation p = SignedPermutation::random(5, random);
  const Eigen::MatrixXd x = random_matrix(2, 5, random);
  const Matrix<double> y = act(p, x);
  for (Index i = 0; i < y.rows(); ++i) {
    for (Index j = 0; j < y.cols(); ++j) {
      const auto column = static_cast<std::size_t>(j);
      if (y(i, j) != p.sign()[column] * x(i, p.source()[column])) return false;
    }
  }
  return true;
}

bool checker_passes() {
  Random random(5);
  const RMSNorm<double> norm(random_matrix(1, 6, random).row(0), 1e-6);
  const std::vector<Linear<double>> readers{{random_matrix(4, 6, random), {}}};
  const Orthogonal<double> q = haar_orthogonal<double>(6, random);
  return check_equivalence(norm, std::span<const Linear<double>>(readers), q, random_matrix(3, 6, random)).passed();
}

}  // namespace

int main() {
  static_assert(Eigen::MatrixXd::IsRowMajor);
  if (!acts_from_the_right()) {
    std::puts("EIGEN_DEFAULT_TO_ROW_MAJOR changes what a rotation does");
    return 1;
  }
  if (!checker_passes()) {
    std::puts("the checker fails a sound site under EIGEN_DEFAULT_TO_ROW_MAJOR");
    return 1;
  }
  return 0;
}
