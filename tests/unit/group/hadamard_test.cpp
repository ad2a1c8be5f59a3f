// SPDX-License-Identifier: MIT
#include <rmsfold/group/hadamard.hpp>

#include <cmath>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/laws.hpp"

namespace rmsfold {

using test::has_text;

namespace {

/// H/√n as the Kronecker product of the factors, written out.
Matrix<double> kronecker_product(const std::vector<Index>& factors) {
  Matrix<double> h = Matrix<double>::Ones(1, 1);
  for (const Index f : factors) {
    const Matrix<double> block =
        f == 2 ? test::rows({{1, 1}, {1, -1}}) : Matrix<double>(detail::hadamard_block(f).cast<double>());
    Matrix<double> larger(h.rows() * f, h.cols() * f);
    for (Index i = 0; i < h.rows(); ++i) {
      for (Index j = 0; j < h.cols(); ++j) larger.block(i * f, j * f, f, f) = h(i, j) * block;
    }
    h = larger;
  }
  return h * (1 / std::sqrt(static_cast<double>(h.rows())));
}

/// The two signed permutations of `Hadamard::random`, drawn as documented.
Matrix<double> random_written_out(Index n, std::uint64_t seed) {
  Random random(seed);
  RowVector<double> signs(n);
  for (Index i = 0; i < n; ++i) signs[i] = random.sign();
  const SignedPermutation right = SignedPermutation::random(n, random);
  return act(right, Matrix<double>(signs.asDiagonal() * kronecker_product(*hadamard_factors(n))));
}

Hadamard random_hadamard(Index n, std::uint64_t seed) {
  Random random(seed);
  return Hadamard::random(n, random);
}

}  // namespace

TEST_CASE("Hadamard: laws", "[group]") {
  const Index n = GENERATE(1, 2, 4, 12, 20, 24, 28, 36, 48, 64, 144);
  CAPTURE(n);
  test::check_laws(Hadamard(n), kronecker_product(*hadamard_factors(n)), 31);
  const Hadamard q = random_hadamard(n, 32);
  const Matrix<double> written_out = random_written_out(n, 32);
  CHECK(matrix_of<double>(q) == written_out);
  test::check_laws(q, written_out, 33);
  if (n >= 12) CHECK(test::smallest_gauge(written_out, q.orthogonality_defect()) == Hadamard::gauge);
}

// D1, D4, D5, D7: entries ±1/√n, and HHᵀ = nI exactly, in integers.
TEST_CASE("Hadamard: rows are orthogonal in integers", "[group]") {
  const Index n = GENERATE(1, 2, 8, 256, 12, 20, 28, 36, 24, 40, 48, 56, 72, 80, 144, 560, 576, 896);
  CAPTURE(n);
  for (const Hadamard& q : {Hadamard(n), random_hadamard(n, 34).inverse()}) {
    const Matrix<double> m = matrix_of<double>(q);
    const test::SignGram gram = test::sign_gram(m);
    // Roundings: 1/√n (2), √n and the product here (2).
    CHECK(gram.worst_entry <= 4 * 0x1p-53);
    CHECK(gram.worst_off_diagonal == 0);
  }
}

TEST_CASE("Hadamard: some rows of large orders", "[group]") {
  const Index n = GENERATE(3584, 5376, 25600, 65536);
  CAPTURE(n);
  const Hadamard q = random_hadamard(n, 36);
  CHECK(q.dim() == n);  // D5: never padded
  Matrix<double> some = Matrix<double>::Zero(6, n);
  for (Index i = 0; i < some.rows(); ++i) some(i, i * i * (n / 29) + i) = 1;
  q.apply(some.data(), some.rows(), 1);
  const test::SignGram gram = test::sign_gram(some);
  CHECK(gram.worst_entry <= 4 * 0x1p-53);
  CHECK(gram.worst_off_diagonal == 0);
}

TEST_CASE("Hadamard: the defect it states is one for every order", "[group]") {
  double worst = 0;
  Index worst_order = 0;
  for (Index n = 1; n <= 32768; ++n) {
    if (!hadamard_factors(n)) continue;
    // The one number that decides: QᵀQ = n s² I with s the entry of a plain Hadamard matrix, here with the error of s²
    // itself.
    const double s = 1 / std::sqrt(static_cast<double>(n));
    const double square = s * s;
    const double defect =
        std::fabs(std::fma(static_cast<double>(n), square, -1.0) + static_cast<double>(n) * std::fma(s, s, -square));
    if (defect > worst) {
      worst = defect;
      worst_order = n;
    }
  }
  INFO("defect " << worst << " at order " << worst_order);
  const Hadamard q(worst_order);
  std::vector<double> e(static_cast<std::size_t>(worst_order), 0.0);
  e[0] = 1;
  q.apply(e.data(), 1, 1);
  REQUIRE(std::fabs(e[0]) == 1 / std::sqrt(static_cast<double>(worst_order)));
  CHECK(worst <= q.orthogonality_defect());
}

TEST_CASE("Hadamard: D9, the scale is right to the last bit of double", "[group]") {
  const Matrix<double> q = matrix_of<double>(random_hadamard(28, 37));
  double worst = 0;
  for (Index i = 0; i < 28; ++i) {
    for (Index j = 0; j < 28; ++j) {
      long double sum = i == j ? -1 : 0;
      for (Index k = 0; k < 28; ++k) sum += static_cast<long double>(q(k, i)) * static_cast<long double>(q(k, j));
      worst = (std::max)(worst, static_cast<double>(std::fabs(sum)));
    }
  }
  INFO("max|QᵀQ - I| = " << worst);
  CHECK(worst <= 4e-16);
}

TEST_CASE("Hadamard: D8, the random one is no involution, not symmetric, and spreads a constant", "[group]") {
  const Index n = GENERATE(4, 12, 64, 576);
  CAPTURE(n);
  const Matrix<double> q = matrix_of<double>(random_hadamard(n, 38));
  CHECK(q != q.transpose());
  const Matrix<double> twice = act(random_hadamard(n, 38), q);
  CHECK((twice - Matrix<double>::Identity(n, n)).cwiseAbs().maxCoeff() > 0.5);
}

TEST_CASE("Hadamard: D8, the plain one of order 4 makes an outlier of a constant", "[group]") {
  const Matrix<double> ones = Matrix<double>::Ones(1, 4);
  CHECK(act(Hadamard(4), ones) == test::rows({{2, 0, 0, 0}}));
  const Matrix<double> h = matrix_of<double>(Hadamard(4));
  CHECK(h == h.transpose());
  CHECK(h * h == Matrix<double>::Identity(4, 4));
}

// D12. Written out by the independent implementation of random_test.cpp: L H R / 2 with signs, permutation and signs of
// seed 7.
TEST_CASE("Hadamard: of a seed is the same everywhere", "[group]") {
  CHECK(2 * matrix_of<double>(random_hadamard(4, 7)) ==
        test::rows({{1, 1, -1, -1}, {-1, 1, -1, 1}, {1, -1, -1, 1}, {1, 1, 1, 1}}));
  CHECK(matrix_of<double>(random_hadamard(24, 0)) == matrix_of<double>(random_hadamard(24, 0)));
  CHECK(matrix_of<double>(random_hadamard(24, 0)) != matrix_of<double>(random_hadamard(24, 1)));
}

TEST_CASE("Hadamard: the factorisation with the fewest additions", "[group]") {
  const auto factors = [](Index n) { return hadamard_factors(n).value_or(std::vector<Index>{-1}); };
  CHECK(factors(1).empty());
  CHECK(factors(8) == std::vector<Index>{2, 2, 2});
  CHECK(factors(12) == std::vector<Index>{12});
  CHECK(factors(144) == std::vector<Index>{12, 12});        // not 36·2·2
  CHECK(factors(576) == std::vector<Index>{12, 12, 2, 2});  // not 36·2·2·2·2
  CHECK(factors(72) == std::vector<Index>{36, 2});          // 12 would leave 6
  CHECK(factors(336) == std::vector<Index>{12, 28});
  CHECK(factors(720) == std::vector<Index>{20, 36});  // 12 would leave 60
  CHECK(factors(896) == std::vector<Index>{28, 2, 2, 2, 2, 2});
  CHECK(factors(1728) == std::vector<Index>{12, 12, 12});
}

TEST_CASE("Hadamard: an order without factors is refused, with an order that has", "[group]") {
  for (const Index n : {Index{0}, Index{3}, Index{6}, Index{44}, Index{13696}})
    CHECK_FALSE(hadamard_factors(n).has_value());
  CHECK_THROWS_AS(Hadamard(6), RefusedError);
  CHECK_THROWS_WITH(Hadamard(6), has_text("order 6") && has_text("3 blocks of 2"));
  CHECK_THROWS_WITH(Hadamard(44), has_text("11 blocks of 4"));
  CHECK_THROWS_WITH(Hadamard(13696), has_text("107 blocks of 128"));  // D2
  CHECK_THROWS_AS(Hadamard(0), RefusedError);
  Random random(1);
  CHECK_THROWS_AS(Hadamard::random(6, random), RefusedError);
  CHECK_THROWS_AS(Hadamard(SignedPermutation::identity(4), SignedPermutation::identity(2)), ShapeError);
  CHECK_THROWS_AS(act(Hadamard(4), Matrix<double>::Ones(1, 3)), ShapeError);
  CHECK(largest_hadamard_block(576) == 576);
  CHECK(largest_hadamard_block(960) == 960);
  CHECK(largest_hadamard_block(7) == 1);
}

}  // namespace rmsfold
