// SPDX-License-Identifier: MIT
#include <rmsfold/group/pca.hpp>

#include <cmath>
#include <limits>

#include <rmsfold/group/haar.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace rmsfold {

using test::has_text;

namespace {

/// \f$Q\Lambda Q^T\f$, made exactly symmetric.
Matrix<double> with_axes(const Matrix<double>& q, const RowVector<double>& variances) {
  const Matrix<double> c = q * variances.asDiagonal() * q.transpose();
  return 0.5 * (c + c.transpose());
}

/// What `with_axes` rounds, in norm: n + 1 operations on terms that sum to \f$|Q|\Lambda|Q|^T\f$, of norm
/// \f$n\lambda_1\f$ at most.
double composing(Index n, double largest) {
  return gamma_n(static_cast<double>(n + 2), 0x1p-53) * static_cast<double>(n) * largest;
}

}  // namespace

// Davis and Kahan: an axis is off by at most (what the decomposition leaves + what composing C rounds) / gap, in sine;
// twice that in the difference of the unit vectors.
TEST_CASE("principal axes: planted ones are found, in order", "[group]") {
  constexpr Index n = 6;
  Random random(110);
  const Orthogonal<double> planted = haar_orthogonal<double>(n, random);
  RowVector<double> variances(n);
  variances << 32, 16, 8, 4, 2, 1;
  const Matrix<double> c = with_axes(planted.matrix(), variances);
  const PrincipalAxes found = principal_axes(c);
  REQUIRE(found.converged);
  const double off = found.residual + composing(n, 32) + 32 * planted.orthogonality_defect();
  CHECK(found.residual <= 32 * n * gamma_n(10 * n, 0x1p-53));  // tridiagonal QR: backward stable, a few n u
  CHECK(test::compare(found.variances, variances, off).within());

  const Matrix<double>& q = found.q.matrix();
  Matrix<double> expected = planted.matrix();
  Matrix<double> allowed(n, n);
  for (Index j = 0; j < n; ++j) {
    Index largest = 0;
    expected.col(j).cwiseAbs().maxCoeff(&largest);
    if (expected(largest, j) < 0) expected.col(j) *= -1;
    const double gap = variances[j] / 2;  // to the next below, the nearer one; of the last, to the one above it
    allowed.col(j).setConstant(2 * off / (j + 1 < n ? gap : 1));
  }
  CHECK(test::compare(q, expected, allowed).within());
  CHECK_FALSE(test::compare(q, expected.transpose(), allowed).within());
  CHECK_FALSE(test::compare(q, expected.rowwise().reverse(), allowed).within());  // ascending
  CHECK_NOTHROW(Orthogonal<double>(q));

  // Reconstruction; in ascending order, or with the axes in rows, it is another matrix.
  const double composed = off + composing(n, 32);
  CHECK(test::compare(with_axes(q, found.variances), c, composed).within());
  CHECK_FALSE(test::compare(with_axes(q, found.variances.reverse()), c, composed).within());
  CHECK_FALSE(test::compare(with_axes(q.transpose(), found.variances), c, composed).within());
}

TEST_CASE("principal axes: of a batch they make its coordinates uncorrelated", "[group]") {
  constexpr Index n = 24;
  constexpr Index tokens = 50;
  Random random(111);
  const Matrix<double> x = normal_matrix(tokens, n, random) * normal_matrix(n, n, random);
  const Matrix<double> c = second_moment(x);
  CHECK(c == c.transpose());
  // Sums of `tokens` products; both ways.
  const double summing = 2 * gamma_n(tokens + 3, 0x1p-53) * x.squaredNorm() / tokens;
  CHECK(test::compare(c, x.transpose() * x / tokens, summing).within());
  CHECK(test::compare(second_moment(x.cast<float>()), second_moment(x.cast<float>().cast<double>()), 0).within());

  const PrincipalAxes axes = principal_axes(c);
  REQUIRE(axes.converged);
  for (Index j = 0; j + 1 < n; ++j) CHECK(axes.variances[j] >= axes.variances[j + 1]);
  for (Index j = 0; j < n; ++j) {
    Index largest = 0;
    axes.q.matrix().col(j).cwiseAbs().maxCoeff(&largest);
    CHECK(axes.q.matrix()(largest, j) > 0);
  }
  // QᵀCQ = Λ to the residual; rotating the rows adds γ_n‖x‖ per entry and token, √n in norm, twice.
  const double rotating = 2 * std::sqrt(static_cast<double>(n)) * gamma_n(n + 1, 0x1p-53) * x.squaredNorm() / tokens;
  const double allowed = axes.residual + axes.q.orthogonality_defect() * axes.variances[0] + 2 * summing + rotating;
  const Matrix<double> diagonal = axes.variances.asDiagonal();
  CHECK(test::compare(second_moment(act(axes.q, x)), diagonal, allowed).within());
  CHECK_FALSE(test::compare(second_moment(act_transposed(axes.q, x)), diagonal, allowed).within());
}

TEST_CASE("principal axes: repeated variances, none at all, and no dimension", "[group]") {
  const PrincipalAxes round = principal_axes(Matrix<double>::Identity(5, 5));
  CHECK(round.converged);
  CHECK(round.variances == RowVector<double>::Ones(5));
  CHECK_NOTHROW(Orthogonal<double>(round.q.matrix()));
  CHECK(principal_axes(Matrix<double>::Zero(3, 3)).variances == RowVector<double>::Zero(3));
  CHECK(principal_axes(Matrix<double>(0, 0)).q.dim() == 0);
}

TEST_CASE("principal axes: misuse", "[group]") {
  CHECK_THROWS_AS(principal_axes(Matrix<double>::Ones(2, 3)), ShapeError);
  CHECK_THROWS_AS(second_moment(Matrix<double>(0, 3)), ShapeError);
  CHECK_THROWS_AS(principal_axes(test::rows({{1, 2}, {2.5, 1}})), InvariantError);
  CHECK_THROWS_WITH(principal_axes(test::rows({{1, 2}, {2.5, 1}})), has_text("differ by 0.5"));
  CHECK_THROWS_WITH(principal_axes(test::rows({{1, 0}, {0, std::numeric_limits<double>::infinity()}})),
                    has_text("(1, 1)"));
}

}  // namespace rmsfold
