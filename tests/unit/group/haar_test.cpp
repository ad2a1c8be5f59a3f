// SPDX-License-Identifier: MIT
#include <rmsfold/group/haar.hpp>

#include <algorithm>
#include <cmath>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace rmsfold {
namespace {

constexpr Index block = detail::reflection_block;

/// Stewart's recursion, one reflection and one sign at a time. @param negated  the other sign in D.
Matrix<double> one_by_one(Index n, Random random, bool negated = false) {
  Matrix<double> q = Matrix<double>::Identity(n, n);
  if (n > 0) q(n - 1, n - 1) = random.sign();
  for (Index k = 2; k <= n; ++k) {
    RowVector<double> v = normal_matrix(1, k, random);
    const double sign = v[0] < 0 ? -1 : 1;
    v[0] += sign * v.norm();
    const Matrix<double> rest = q.bottomRightCorner(k, k);
    q.bottomRightCorner(k, k) = rest - (2 / v.squaredNorm()) * v.transpose() * (v * rest);
    q.row(n - k) *= negated ? sign : -sign;
  }
  return q;
}

/// How far the columns, of length 1, of two products of `count` reflections may be apart. Alone a reflection errs by at most 10 γ_n: its vector's length, the
/// projection, the update. In a block of b, with |v|² = 2, U⁻¹Vᵀ has rows as long as those of Vᵀ (they are reflected vectors), so norm √(2b): b projections, each
/// off by √2 γ_n, become 2b γ_n; rounding VᵀV (norm of the errors 2b γ_n) and solving with U (the same) 4b² γ_n each. For one of the b: 2 + 8b.
double allowed(Index n, Index count) {
  const double b = static_cast<double>((std::min)(count, block));
  return static_cast<double>(count) * (10 + 10 + 2 + 8 * b) * gamma_n(static_cast<double>(n), 0x1p-53);
}

}  // namespace

TEST_CASE("haar: blocks give the matrix of single reflections", "[group]") {
  // The last row's sign is no reflection: n - 1 of them fill whole blocks when n = block + 1.
  const Index n = GENERATE(0, 1, 2, 3, block - 1, block, block + 1, block + 2, 3 * block + 5);
  CAPTURE(n);
  Random random(53);
  const Matrix<double> expected = one_by_one(n, random);
  const Matrix<double> negated = one_by_one(n, random, true);
  const Orthogonal<double> q = haar_orthogonal<double>(n, random);
  const test::Comparison same = test::compare(q.matrix(), expected, allowed(n, n));
  INFO(same);
  CHECK(same.within());
  if (n >= 2) CHECK_FALSE(test::compare(q.matrix(), negated, allowed(n, n)).within());
  // An entry of a symmetric matrix is at most its norm; both residuals round sums of n products of columns of length 1.
  CHECK(orthogonality_residual(q.matrix()).worst() <= q.orthogonality_defect() + gamma_n(static_cast<double>(n), 0x1p-53) * 2);
}

TEST_CASE("haar: the draws that follow are those after single reflections", "[group]") {
  Random blocks(54), single(54);
  static_cast<void>(haar_orthogonal<double>(7, blocks));
  static_cast<void>(single.sign());
  static_cast<void>(normal_matrix(1, 2 + 3 + 4 + 5 + 6 + 7, single));
  CHECK(blocks.bits() == single.bits());
}

TEST_CASE("haar: a block is the product of its reflections, from the left", "[group]") {
  constexpr Index n = 9, count = 4;
  Random random(55);
  const Matrix<double> v = normal_matrix(count, n, random);
  Matrix<double> start = Matrix<double>::Identity(n, n);  // what comes before the rows of a block is not multiplied yet
  start(1, 1) = -1;
  start.bottomRightCorner(n - count, n - count) = normal_matrix(n - count, n - count, random);
  Matrix<double> expected = start, backwards = start, sum = start;
  for (Index i = 0; i < count; ++i) {
    const auto reflect = [&](Index row, Matrix<double>& x) {
      const Matrix<double> projection = v.row(row) * x;
      x -= (2 / v.row(row).squaredNorm()) * v.row(row).transpose() * projection;
    };
    reflect(count - 1 - i, expected);
    reflect(i, backwards);
    sum -= (2 / v.row(i).squaredNorm()) * v.row(i).transpose() * (v.row(i) * start);  // U its diagonal only
  }
  Matrix<double> got = start;
  detail::reflect(v, got);
  const double scale = start.colwise().norm().maxCoeff();
  const test::Comparison product = test::compare(got, expected, allowed(n, count) * scale);
  INFO(product);
  CHECK(product.within());
  CHECK_FALSE(test::compare(got, backwards, allowed(n, count) * scale).within());
  CHECK_FALSE(test::compare(got, sum, allowed(n, count) * scale).within());
}

}  // namespace rmsfold
