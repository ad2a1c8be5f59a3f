// SPDX-License-Identifier: MIT
#include <rmsfold/group/fixes_ones.hpp>

#include <cmath>
#include <limits>

#include <rmsfold/group/hadamard_fixing_ones.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/laws.hpp"

namespace rmsfold {

using test::has_text;

namespace {

static_assert(Isometry<HadamardFixingOnes> && Isometry<FixesOnes<Orthogonal<float>>> && Isometry<FixesOnes<Hadamard>>);
static_assert(HadamardFixingOnes::gauge == Gauge::fixes_ones &&
              FixesOnes<Orthogonal<double>>::gauge == Gauge::fixes_ones);
static_assert(!ExactIsometry<HadamardFixingOnes> && !ExactIsometry<FixesOnes<Orthogonal<double>>>);
// What fixes the ones and only moves and negates is a permutation up to one sign.
static_assert(ExactIsometry<FixesOnes<SignedPermutation>> &&
              FixesOnes<SignedPermutation>::gauge == Gauge::permutation_up_to_sign);
static_assert(FixesOnes<Permutation>::gauge == Gauge::permutation);
// The check is asked for.
static_assert(!std::is_convertible_v<Orthogonal<double>, FixesOnes<Orthogonal<double>>>);

using Long = Matrix<long double>;

/// \f$H'SH'^T\f$ in long double with \f$H' = DHE\f$, the library's H, whose own tests check it.
Long conjugate(Index n, const std::vector<int>& rows, const SignFlip& signs, const std::vector<int>& columns) {
  Long h = matrix_of<long double>(Hadamard(n));
  for (Index i = 0; i < n; ++i) h.row(i) *= static_cast<long double>(rows[static_cast<std::size_t>(i)]);
  for (Index j = 0; j < n; ++j) h.col(j) *= static_cast<long double>(columns[static_cast<std::size_t>(j)]);
  Long scaled = h;
  for (Index j = 0; j < n; ++j) scaled.col(j) *= static_cast<long double>(signs.sign()[static_cast<std::size_t>(j)]);
  return scaled * h.transpose();
}

/// Signs of the first column of the library's H.
std::vector<int> first_column(Index n) {
  const Long h = matrix_of<long double>(Hadamard(n));
  std::vector<int> signs;
  for (Index i = 0; i < n; ++i) signs.push_back(h(i, 0) < 0 ? -1 : 1);
  return signs;
}

/// \f$HSH^TP\f$, the first column of H made constant.
Matrix<double> written_out(const SignFlip& signs, const Permutation& p) {
  const Index n = signs.dim();
  const Long q = conjugate(n, first_column(n), signs, std::vector<int>(static_cast<std::size_t>(n), 1));
  Matrix<double> result(n, n);
  for (Index j = 0; j < n; ++j) result.col(j) = q.col(p.source()[static_cast<std::size_t>(j)]).cast<double>();
  return result;
}

/// What `HadamardFixingOnes::random` draws.
std::pair<SignFlip, Permutation> parts(Index n, std::uint64_t seed) {
  Random random(seed);
  std::vector<int> signs(static_cast<std::size_t>(n), 1);
  for (std::size_t i = 1; i < signs.size(); ++i) signs[i] = random.sign();
  return {SignFlip(std::move(signs)), Permutation::random(n, random)};
}

HadamardFixingOnes draw(Index n, std::uint64_t seed) {
  Random random(seed);
  return HadamardFixingOnes::random(n, random);
}

/// \f$\|Q\mathbf 1-\sigma\mathbf 1\|_2/\sqrt n\f$ of the matrix.
double moves_ones(const Matrix<double>& q, int sign) {
  RowVector<double> sums = q.rowwise().sum().transpose();
  return (sums.array() - sign).matrix().norm() / std::sqrt(static_cast<double>(q.rows()));
}

/// What `moves_ones` itself rounds, and rounding the entries to double: n terms whose magnitudes sum to √n at most.
double summing(Index n) { return gamma_n(static_cast<double>(n + 4), 0x1p-53) * std::sqrt(static_cast<double>(n)); }

}  // namespace

TEST_CASE("Hadamard fixing ones: laws", "[group]") {
  const Index n = GENERATE(1, 2, 4, 12, 16, 20, 48);
  CAPTURE(n);
  const HadamardFixingOnes q = draw(n, 91);
  const auto [signs, p] = parts(n, 91);
  const Matrix<double> matrix = written_out(signs, p);
  test::check_laws(q, matrix, 92);
  test::check_laws(q.inverse(), matrix.transpose(), 93);
  if (n >= 12) {
    CHECK(test::smallest_gauge(matrix, q.orthogonality_defect()) == HadamardFixingOnes::gauge);
    CHECK_FALSE((matrix - matrix.transpose()).cwiseAbs().maxCoeff() < 0.01);
  }
}

TEST_CASE("Hadamard fixing ones: the sign of the ones is the first of S", "[group]") {
  const Index n = GENERATE(1, 12, 16);
  for (const int sign : {1, -1}) {
    auto [signs, p] = parts(n, 94);
    std::vector<int> changed = signs.sign();
    changed[0] = sign;
    const HadamardFixingOnes q(SignFlip(changed), p);
    const Matrix<double> matrix = written_out(SignFlip(changed), p);
    CHECK(q.sign() == sign);
    CHECK(q.inverse().sign() == sign);
    CHECK(moves_ones(matrix, sign) <= q.ones_defect() + summing(n));
    CHECK(moves_ones(matrix.transpose(), sign) <= q.ones_defect() + summing(n));
    CHECK(moves_ones(matrix, -sign) > 1);
    test::check_laws(q, matrix, 95);
    // The checked wrapper agrees.
    const FixesOnes<HadamardFixingOnes> checked(q);
    CHECK(checked.sign() == sign);
  }
}

TEST_CASE("Hadamard fixing ones: without the permutation it is a symmetric involution, the random one is not",
          "[group]") {
  const Index n = GENERATE(12, 16);
  const auto [signs, p] = parts(n, 96);
  const Matrix<double> x = Matrix<double>::Identity(n, n);
  const HadamardFixingOnes plain(signs, Permutation::identity(n));
  // Twice there: `back` of the law suite, with Q for its inverse.
  const double once = std::sqrt(static_cast<double>(n)) * gamma_n(plain.error_terms(), 0x1p-53);
  const double twice = 2 * once * (1 + once) + plain.orthogonality_defect();
  CHECK(test::compare(act(plain, act(plain, x)), x, twice).within());
  CHECK(test::compare(act(plain, x), act_transposed(plain, x), twice).within());
  const HadamardFixingOnes random = draw(n, 96);
  CHECK_FALSE(test::compare(act(random, act(random, x)), x, twice).within());
  CHECK_FALSE(test::compare(act(random, x), act_transposed(random, x), twice).within());
}

// The usual slip: H normalised on the wrong side. Random rows first, so that the library's own H cannot hide it.
TEST_CASE("Hadamard fixing ones: a constant first row does not fix the ones", "[group]") {
  const Index n = GENERATE(12, 16, 20);
  const auto [signs, p] = parts(n, 97);
  Random random(98);
  const std::vector<int> rows = SignFlip::random(n, random).sign();
  const Long h = matrix_of<long double>(Hadamard(n));
  std::vector<int> columns;
  for (Index j = 0; j < n; ++j) columns.push_back((h(0, j) < 0 ? -1 : 1) * rows[0]);
  const Matrix<double> wrong = conjugate(n, rows, signs, columns).cast<double>();
  CHECK_NOTHROW(Orthogonal<double>(wrong));
  CHECK((std::fabs(moves_ones(wrong, 1)) > 0.1 && std::fabs(moves_ones(wrong, -1)) > 0.1));
  CHECK_THROWS_AS(FixesOnes<Orthogonal<double>>(Orthogonal<double>(wrong)), InvariantError);
}

TEST_CASE("Hadamard fixing ones: refusals", "[group]") {
  CHECK_THROWS_AS(HadamardFixingOnes(SignFlip::identity(4), Permutation::identity(8)), ShapeError);
  CHECK_THROWS_AS(HadamardFixingOnes(SignFlip::identity(6), Permutation::identity(6)), RefusedError);
}

TEMPLATE_TEST_CASE("Haar fixing ones: laws, both signs", "[group]", float, double) {
  const Index n = GENERATE(0, 1, 2, 5, 24);
  CAPTURE(n);
  Random random(99);
  const FixesOnes<Orthogonal<TestType>> q = haar_fixing_ones<TestType>(n, random);
  const Matrix<double> matrix = q.rotation().matrix().template cast<double>();
  test::check_laws(q, matrix, 100);
  CHECK(q.sign() == 1);
  CHECK(q.inverse().sign() == 1);
  if (n == 0) return;
  CHECK(moves_ones(matrix, 1) <= q.ones_defect() + summing(n));
  CHECK(moves_ones(matrix.transpose(), 1) <= q.ones_defect() + summing(n));
  const FixesOnes<Orthogonal<TestType>> negative{Orthogonal<TestType>(Matrix<TestType>(-q.rotation().matrix()))};
  CHECK(negative.sign() == -1);
  test::check_laws(negative, -matrix, 101);
  if (n >= 5) CHECK(test::smallest_gauge(matrix, q.orthogonality_defect()) == Gauge::fixes_ones);
}

// UᵀQU = diag(1, R) with the R of the same seed. Two reflections there, each off by at most 3γ_{n+4} in norm of a
// column; two dense products here, γ_n|U||Q||U|, whose entries are at most √n.
TEST_CASE("Haar fixing ones: Haar on the complement of the ones", "[group]") {
  constexpr Index n = 7;
  Random first(102), second(102);
  const Matrix<double> q = haar_fixing_ones<double>(n, first).rotation().matrix();
  const Matrix<double> r = haar_orthogonal<double>(n - 1, second).matrix();
  RowVector<double> v = RowVector<double>::Constant(n, 1 / std::sqrt(static_cast<double>(n)));
  v[0] += 1;
  const Matrix<double> u = Matrix<double>::Identity(n, n) - v.transpose() * v * (2 / v.squaredNorm());
  const double allowed = (2 * 3 + 2) * std::sqrt(static_cast<double>(n)) * gamma_n(n + 4, 0x1p-53);
  const Matrix<double> inside = u.transpose() * q * u;
  CHECK(test::compare(inside, test::block_diagonal({test::rows({{1}}), r}), allowed).within());
  CHECK_FALSE(test::compare(inside, test::block_diagonal({test::rows({{1}}), r.transpose()}), allowed).within());
}

TEST_CASE("fixes ones: a generic rotation is refused, with the residual and a way out", "[group]") {
  Random random(103);
  const Orthogonal<double> generic = haar_orthogonal<double>(12, random);
  CHECK_THROWS_AS(FixesOnes<Orthogonal<double>>(generic), InvariantError);
  CHECK_THROWS_WITH(FixesOnes<Orthogonal<double>>(generic), has_text("|Q1 ∓ 1|/√n = 1."));
  CHECK_THROWS_WITH(FixesOnes<Orthogonal<double>>(generic), has_text("haar_fixing_ones"));
  CHECK_THROWS_AS(FixesOnes<Hadamard>(Hadamard::random(12, random)), InvariantError);
  const Matrix<double> nan = Matrix<double>::Constant(2, 2, std::numeric_limits<double>::quiet_NaN());
  CHECK_THROWS_AS(FixesOnes<Orthogonal<double>>(Orthogonal<double>(nan, Unchecked{})), InvariantError);
}

// Turning channels 0 and 1 by θ moves the ones vector by θ√2.
TEST_CASE("fixes ones: what is allowed is a limit", "[group]") {
  constexpr Index n = 8;
  const auto turned = [](double angle) {
    Matrix<double> q = Matrix<double>::Identity(n, n);
    q(0, 0) = q(1, 1) = std::cos(angle);
    q(0, 1) = -std::sin(angle);
    q(1, 0) = std::sin(angle);
    return Orthogonal<double>(q);
  };
  const Orthogonal<double> one = turned(0);
  const double allowed = one.orthogonality_defect() + std::sqrt(8.0) * gamma_n(one.error_terms(), 0x1p-53);
  const double angle = allowed * std::sqrt(8.0 / 2);
  REQUIRE(turned(2 * angle).orthogonality_defect() == one.orthogonality_defect());
  CHECK_NOTHROW(FixesOnes<Orthogonal<double>>(turned(angle / 2)));
  CHECK_THROWS_AS(FixesOnes<Orthogonal<double>>(turned(2 * angle)), InvariantError);
}

TEST_CASE("fixes ones: of signed permutations, those with one sign", "[group]") {
  Random random(104);
  const Permutation p = Permutation::random(6, random);
  const SignedPermutation negative(p, SignFlip(std::vector<int>(6, -1)));
  const FixesOnes<SignedPermutation> q(negative);
  CHECK(q.sign() == -1);
  CHECK(q.ones_defect() == 0);
  test::check_laws(q, test::matrix_from_indices(negative), 105);
  CHECK(q.unsigned_part().sign() == 1);
  CHECK(q.unsigned_part().rotation() == negative.unsigned_part());
  CHECK_THROWS_AS(FixesOnes<SignedPermutation>(SignedPermutation(p, SignFlip({1, 1, 1, 1, 1, -1}))), InvariantError);
  CHECK(FixesOnes<Permutation>(p).sign() == 1);
}

}  // namespace rmsfold
