// SPDX-License-Identifier: MIT
#include <rmsfold/group/procrustes.hpp>

#include <cmath>
#include <limits>

#include <rmsfold/group/haar.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace rmsfold {

using test::has_text;

namespace {

constexpr Index n = 5;
constexpr Index rows = 20;

/// What B = AQ rounds, in norm.
double rotating(const Matrix<double>& a) { return gamma_n(n, 0x1p-53) * std::sqrt(static_cast<double>(n)) * a.norm(); }

}  // namespace

// The orthogonal factor of AᵀB moves by at most ‖Δ‖_F/σ_n (Higham, Functions of Matrices, theorem 8.9:
// 2/(σ_{n-1}+σ_n)).
TEST_CASE("procrustes: a planted rotation is recovered, of either determinant", "[group]") {
  Random random(120);
  const Matrix<double> a = normal_matrix(rows, n, random);
  Matrix<double> q = haar_orthogonal<double>(n, random).matrix();
  for (int determinant = 0; determinant < 2; ++determinant) {
    q.row(0) *= -1;
    const Matrix<double> b = a * q;
    const ProcrustesResult found = procrustes(a, b);
    CHECK((found.converged && found.unique));
    CHECK(found.rank == n);
    CHECK(found.singular.size() == n);
    CHECK(found.singular[n - 1] > found.threshold);
    const double off = (rotating(a) * a.norm() + found.threshold) / found.singular[n - 1];
    // And what the projection leaves.
    const double allowed = off + found.q.orthogonality_defect();
    CHECK(test::compare(found.q.matrix(), q, allowed).within());
    CHECK_FALSE(test::compare(found.q.matrix(), q.transpose(), allowed).within());
    CHECK(found.residual <= 2 * rotating(a) + allowed * std::sqrt(static_cast<double>(n)) * a.norm());
    CHECK_NOTHROW(Orthogonal<double>(found.q.matrix()));
    // A and B swapped: the transpose.
    CHECK(test::compare(procrustes(b, a).q.matrix(), q.transpose(), 2 * allowed).within());
    CHECK_FALSE(test::compare(procrustes(b, a).q.matrix(), q, 2 * allowed).within());
  }
}

TEST_CASE("procrustes: with noise nothing near does better", "[group]") {
  Random random(121);
  const Matrix<double> a = normal_matrix(rows, n, random);
  const Matrix<double> planted = haar_orthogonal<double>(n, random).matrix();
  const Matrix<double> b = a * planted + 0.1 * normal_matrix(rows, n, random);
  const ProcrustesResult found = procrustes(a, b);
  const Matrix<double>& q = found.q.matrix();
  CHECK(found.residual == Matrix<double>(a * q - b).norm());
  CHECK(found.residual < Matrix<double>(a * planted - b).norm());
  for (const double angle : {0.01, -0.01}) {
    for (Index i = 1; i < n; ++i) {
      Matrix<double> turned = q;
      turned.col(0) = std::cos(angle) * q.col(0) + std::sin(angle) * q.col(i);
      turned.col(i) = std::cos(angle) * q.col(i) - std::sin(angle) * q.col(0);
      CHECK(found.residual < Matrix<double>(a * turned - b).norm());
    }
  }
}

TEST_CASE("procrustes: data that leave directions open are flagged", "[group]") {
  Random random(122);
  Matrix<double> a = normal_matrix(rows, 3, random) * normal_matrix(3, n, random);  // rank 3
  const Matrix<double> q = haar_orthogonal<double>(n, random).matrix();
  const Matrix<double> b = a * q;
  const ProcrustesResult found = procrustes(a, b);
  CHECK(found.converged);
  CHECK_FALSE(found.unique);
  CHECK(found.rank == 3);
  CHECK_NOTHROW(Orthogonal<double>(found.q.matrix()));
  // It is a solution all the same: where the data do determine Q, as above.
  const double off = (rotating(a) * a.norm() + found.threshold) / found.singular[2] + found.q.orthogonality_defect();
  CHECK(found.residual <= 2 * rotating(a) + off * std::sqrt(static_cast<double>(n)) * a.norm());
  // One token fewer than dimensions: not unique either; none at all: nothing is known.
  CHECK_FALSE(procrustes(normal_matrix(n - 1, n, random), normal_matrix(n - 1, n, random)).unique);
  CHECK(procrustes(Matrix<double>(0, n), Matrix<double>(0, n)).rank == 0);
  CHECK(procrustes(Matrix<double>(3, 0), Matrix<double>(3, 0)).unique);
}

TEST_CASE("procrustes: misuse", "[group]") {
  CHECK_THROWS_AS(procrustes(Matrix<double>::Ones(3, 2), Matrix<double>::Ones(2, 2)), ShapeError);
  CHECK_THROWS_AS(procrustes(Matrix<double>::Ones(2, 3), Matrix<double>::Ones(2, 2)), ShapeError);
  Matrix<double> bad = Matrix<double>::Ones(2, 2);
  bad(1, 0) = std::numeric_limits<double>::quiet_NaN();
  CHECK_THROWS_WITH(procrustes(bad, Matrix<double>::Ones(2, 2)), has_text("(1, 0) of the first"));
  CHECK_THROWS_AS(procrustes(Matrix<double>::Ones(2, 2), bad), InvariantError);
}

// Newton-Schulz started at 2I converges, to -I; at 2.1I to I. The nearest orthogonal matrix is I.
TEST_CASE("polar: far from orthogonal it is still the nearest that is found", "[group]") {
  Random random(123);
  const Matrix<double> q = haar_orthogonal<double>(6, random).matrix();
  for (const double factor : {0.1, 1.8, 2.0, 2.1, 10.0}) {
    CAPTURE(factor);
    const PolarResult polar = nearest_orthogonal(factor * q);
    CHECK(polar.converged);
    // As in the test of D11: a small multiple of n u per step.
    CHECK(test::compare(polar.q.matrix(), q, 4 * (polar.steps + 1) * gamma_n(6, 0x1p-53) * 6).within());
    CHECK(std::fabs(polar.moved - std::fabs(factor - 1) * q.cwiseAbs().maxCoeff()) <= 1e-12 * factor);
  }
  // σ = 2 and 1/2 in one matrix: not a multiple of a rotation.
  Matrix<double> stretched = q;
  stretched.col(0) *= 2;
  stretched.col(1) *= 0.5;
  CHECK(test::compare(nearest_orthogonal(stretched).q.matrix(), q, 4 * 20 * gamma_n(6, 0x1p-53) * 6).within());
}

}  // namespace rmsfold
