// SPDX-License-Identifier: MIT
#include <rmsfold/group/orthogonal.hpp>

#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>
#include <rmsfold/group/polar.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/laws.hpp"

namespace rmsfold {

using test::has_text;

template class Orthogonal<float>;
template class Orthogonal<double>;

TEMPLATE_TEST_CASE("orthogonal: laws, of a Haar matrix", "[group]", float, double) {
  const Index n = GENERATE(0, 1, 2, 5, 64);
  CAPTURE(n);
  Random random(41);
  const Orthogonal<TestType> q = haar_orthogonal<TestType>(n, random);
  const Matrix<double> matrix = q.matrix().template cast<double>();
  test::check_laws(q, matrix, 42);
  if (n >= 5) CHECK(test::smallest_gauge(matrix, q.orthogonality_defect()) == Orthogonal<TestType>::gauge);
}

TEMPLATE_TEST_CASE("orthogonal: composition", "[group]", float, double) {
  constexpr Index n = 24;
  Random random(43);
  const Orthogonal<TestType> a = haar_orthogonal<TestType>(n, random);
  const Orthogonal<TestType> b = haar_orthogonal<TestType>(n, random);
  const Matrix<double> wide_a = a.matrix().template cast<double>();
  const Matrix<double> wide_b = b.matrix().template cast<double>();
  const Matrix<double> got = (a * b).matrix().template cast<double>();
  // One rounded dot product in S and one in double.
  const double u = static_cast<double>(std::numeric_limits<TestType>::epsilon()) / 2;
  const Matrix<double> allowed = (gamma_n(n, u) + gamma_n(n, 0x1p-53)) * (wide_a.cwiseAbs() * wide_b.cwiseAbs());
  const test::Comparison product = test::compare(got, wide_a * wide_b, allowed);
  INFO(product);
  CHECK(product.within());
  CHECK_FALSE(test::compare(got, wide_b * wide_a, allowed).within());
  CHECK_THROWS_AS(a * haar_orthogonal<TestType>(n + 1, random), ShapeError);
}

// Products are not checked again: what they state must follow their drift. The largest entry of a symmetric matrix is a
// lower bound of its norm.
TEMPLATE_TEST_CASE("orthogonal: a long product states its drift", "[group]", float, double) {
  Random random(44);
  const Orthogonal<TestType> step = haar_orthogonal<TestType>(4, random);
  Orthogonal<TestType> product = step;
  for (int i = 0; i < 20000; ++i) product = product * step;
  const double residual = orthogonality_residual(product.matrix()).worst();
  INFO("residual " << residual << ", stated defect " << product.orthogonality_defect());
  CHECK(residual <= product.orthogonality_defect());
}

TEST_CASE("orthogonal: both sides beyond a tile", "[group]") {
  Random random(45);
  const Orthogonal<double> q = haar_orthogonal<double>(3, random);
  const Index more = Orthogonal<double>::tile + 3;
  const Matrix<double> x = normal_matrix(more, 3, random);
  Matrix<double> along_rows = x;
  q.apply(along_rows.data(), more, 1);
  Matrix<double> along_columns = x.transpose();
  q.apply(along_columns.data(), 1, more);
  // |xQ - fl(xQ)| ≤ γ_3 |x||Q|, and |q| ≤ 1.
  const Matrix<double> allowed =
      2 * gamma_n(3, 0x1p-53) * x.rowwise().template lpNorm<1>() * RowVector<double>::Ones(3);
  CHECK(test::compare(along_rows, x * q.matrix(), allowed).within());
  CHECK(test::compare(along_columns.transpose(), x * q.matrix(), allowed).within());
  CHECK_FALSE(test::compare(along_rows, x * q.matrix().transpose(), allowed).within());

  // Splitting `outer` into multiples of a tile changes no bit.
  Matrix<double> split = x;
  q.apply(split.data(), Orthogonal<double>::tile, 1);
  q.apply(split.data() + Orthogonal<double>::tile * 3, more - Orthogonal<double>::tile, 1);
  CHECK(test::same_bits(split, along_rows));
}

TEMPLATE_TEST_CASE("orthogonal: D11, both residuals are checked", "[group]", float, double) {
  Random random(46);
  Matrix<double> q = haar_orthogonal<double>(8, random).matrix();
  CHECK_NOTHROW(Orthogonal<TestType>(Matrix<TestType>(q.cast<TestType>())));

  // Rows of alternating length: QQᵀ is off by 1e-3 on its diagonal, QᵀQ by less everywhere.
  for (Index i = 0; i < 8; i += 2) q.row(i) *= 1.0005;
  const OrthogonalityResidual r = orthogonality_residual(q);
  CHECK(std::fabs(r.rows - (1.0005 * 1.0005 - 1)) <= 1e-14);  // sums of 8 products of entries below 1, in double
  CHECK(r.columns < r.rows);
  CHECK(r.worst() == r.rows);
  CHECK(orthogonality_residual(q.transpose()).worst() == r.rows);
  const Matrix<TestType> scaled = q.cast<TestType>();
  CHECK_THROWS_AS(Orthogonal<TestType>(scaled), InvariantError);
  CHECK_THROWS_WITH(Orthogonal<TestType>(scaled), has_text("QQᵀ - I| = 0.001"));
  CHECK_THROWS_AS(Orthogonal<TestType>(Matrix<TestType>(scaled.transpose())), InvariantError);
}

TEST_CASE("orthogonal: I12, a scaled rotation is refused, and eps is why", "[group]") {
  Random random(47);
  const Matrix<double> scaled = 1.0001 * haar_orthogonal<double>(8, random).matrix();
  CHECK_THROWS_WITH(Orthogonal<double>(scaled), has_text("eps"));
}

TEMPLATE_TEST_CASE("orthogonal: the tolerance is a limit, not a wish", "[group]", float, double) {
  const double tolerance = orthogonality_tolerance<TestType>(4);
  Matrix<TestType> q = Matrix<TestType>::Identity(4, 4);
  q(1, 2) = static_cast<TestType>(0.9 * tolerance);
  CHECK_NOTHROW(Orthogonal<TestType>(q));
  q(1, 2) = static_cast<TestType>(1.1 * tolerance);
  CHECK_THROWS_AS(Orthogonal<TestType>(q), InvariantError);
}

TEMPLATE_TEST_CASE("orthogonal: what is not finite or not square is refused", "[group]", float, double) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300}) {
    Matrix<double> q = Matrix<double>::Identity(3, 3);
    q(2, 1) = bad;
    CHECK_THROWS_AS(Orthogonal<TestType>(Matrix<TestType>(q.cast<TestType>())), InvariantError);
  }
  CHECK_THROWS_AS(Orthogonal<TestType>(Matrix<TestType>(Matrix<TestType>::Identity(2, 3))), ShapeError);
  CHECK_THROWS_WITH(Orthogonal<TestType>(Matrix<TestType>(Matrix<TestType>::Identity(2, 3))), has_text("2 x 3"));
  CHECK_THROWS_AS(Orthogonal<TestType>(Matrix<TestType>(2 * Matrix<TestType>::Identity(2, 2))), InvariantError);
}

TEST_CASE("orthogonal: any rotation can be written out", "[group]") {
  Random random(48);
  const Hadamard h = Hadamard::random(12, random);
  const Orthogonal<float> q = to_orthogonal<float>(h);
  CHECK(q.matrix() == matrix_of<double>(h).cast<float>());
  CHECK_NOTHROW(Orthogonal<float>(q.matrix()));
}

TEST_CASE("polar: D11, a nearly orthogonal matrix is repaired", "[group]") {
  Random random(52);
  const Matrix<double> exact = haar_orthogonal<double>(8, random).matrix();
  // The polar factor of Q S, S symmetric and near I, is Q itself.
  const Matrix<double> noise = 1e-3 * normal_matrix(8, 8, random);
  const Matrix<double> symmetric = Matrix<double>::Identity(8, 8) + noise + noise.transpose();
  const PolarResult repaired = nearest_orthogonal(exact * symmetric);
  CHECK(repaired.converged);
  CHECK(repaired.steps <= 5);  // quadratic: 1e-2, 1e-4, 1e-8, 1e-16
  CHECK_NOTHROW(Orthogonal<double>(repaired.q.matrix()));
  CHECK(repaired.residual == orthogonality_residual(repaired.q.matrix()).worst());
  // Newton-Schulz is backward stable up to a small multiple of n u per step.
  const test::Comparison closeness = test::compare(repaired.q.matrix(), exact, 4 * 5 * gamma_n(8, 0x1p-53) * 8);
  INFO(closeness);
  CHECK(closeness.within());
  CHECK(repaired.moved == (repaired.q.matrix() - Matrix<double>(exact * symmetric)).cwiseAbs().maxCoeff());
}

TEST_CASE("polar: what is far from orthogonal does not converge, and says so", "[group]") {
  CHECK_FALSE(nearest_orthogonal(test::rows({{2, 0}, {0, 0}})).converged);
  CHECK_FALSE(nearest_orthogonal(test::rows({{std::numeric_limits<double>::quiet_NaN()}})).converged);
  CHECK_THROWS_AS(nearest_orthogonal(test::rows({{1, 0}})), ShapeError);
  CHECK(nearest_orthogonal(Matrix<double>(0, 0)).converged);
  const PolarResult identity = nearest_orthogonal(Matrix<double>::Identity(3, 3));
  CHECK(identity.converged);
  CHECK(identity.steps == 0);
  CHECK(identity.moved == 0);
}

TEST_CASE("haar: the same seed gives the same bits", "[group]") {
  Random a(0), b(0), c(1);
  const Matrix<double> first = haar_orthogonal<double>(16, a).matrix();
  CHECK(test::same_bits(first, haar_orthogonal<double>(16, b).matrix()));
  CHECK_FALSE(test::same_bits(first, haar_orthogonal<double>(16, c).matrix()));
}

TEST_CASE("haar: passes the checked constructor at sizes of models", "[group]") {
  Random random(49);
  CHECK_NOTHROW(Orthogonal<double>(haar_orthogonal<double>(192, random).matrix()));
  CHECK_NOTHROW(Orthogonal<float>(haar_orthogonal<float>(192, random).matrix()));
}

// On O(3) every entry of a Haar matrix is uniform on [-1, 1] (Archimedes). Kolmogorov-Smirnov over 3000 draws
// exceeds 1.95/√3000 with probability 0.001, for each of the nine entries; the trace has mean 0 and variance 1, the
// determinant either sign with probability 1/2. Fixed seed.
TEST_CASE("haar: entries, trace and determinant are distributed as they must be", "[group]") {
  constexpr int count = 3000;
  Random random(50);
  std::vector<std::vector<double>> entries(9);
  double trace_sum = 0;
  double trace_square = 0;
  int positive = 0;
  for (int i = 0; i < count; ++i) {
    const Matrix<double> q = haar_orthogonal<double>(3, random).matrix();
    for (Index k = 0; k < 9; ++k) entries[static_cast<std::size_t>(k)].push_back(q.data()[k]);
    trace_sum += q.trace();
    trace_square += q.trace() * q.trace();
    const double determinant = q(0, 0) * (q(1, 1) * q(2, 2) - q(1, 2) * q(2, 1)) -
                               q(0, 1) * (q(1, 0) * q(2, 2) - q(1, 2) * q(2, 0)) +
                               q(0, 2) * (q(1, 0) * q(2, 1) - q(1, 1) * q(2, 0));
    positive += determinant > 0;
  }
  for (std::vector<double>& values : entries) {
    std::sort(values.begin(), values.end());
    double distance = 0;
    for (int i = 0; i < count; ++i) {
      const double expected = (1 + values[static_cast<std::size_t>(i)]) / 2;
      distance = (std::max)({distance, std::fabs(expected - i / 3000.0), std::fabs(expected - (i + 1) / 3000.0)});
    }
    CAPTURE(distance);
    CHECK(distance < 1.95 / std::sqrt(3000.0));
  }
  // Standard errors: 1/√3000 of the mean; the trace's fourth moment is 3 on O(3), so √(2/3000) of the variance; √3000/2
  // of the count.
  CHECK(std::fabs(trace_sum / count) < 4 / std::sqrt(3000.0));
  CHECK(std::fabs(trace_square / count - 1) < 4 * std::sqrt(2 / 3000.0));
  CHECK(std::abs(positive - count / 2) < 4 * std::sqrt(3000.0) / 2);
}

// Order 1: the sign alone. Order 2: det -1 must come from the sign in D too.
TEST_CASE("haar: both components of O(1) and O(2) occur", "[group]") {
  Random random(51);
  int negative_one = 0;
  int negative_two = 0;
  for (int i = 0; i < 200; ++i) {
    negative_one += haar_orthogonal<double>(1, random).matrix()(0, 0) < 0;
    const Matrix<double> q = haar_orthogonal<double>(2, random).matrix();
    negative_two += q(0, 0) * q(1, 1) - q(0, 1) * q(1, 0) < 0;
  }
  CHECK(std::abs(negative_one - 100) < 4 * 7.1);
  CHECK(std::abs(negative_two - 100) < 4 * 7.1);
}

}  // namespace rmsfold
