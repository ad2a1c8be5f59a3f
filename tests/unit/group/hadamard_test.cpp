// SPDX-License-Identifier: MIT
#include <rmsfold/group/hadamard.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

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
    const Matrix<double> block = hadamard_block(f).cast<double>();
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
  const Index n = GENERATE(1, 2, 4, 12, 20, 24, 28, 36, 44, 48, 52, 64, 92, 144);
  CAPTURE(n);
  test::check_laws(Hadamard(n), kronecker_product(*hadamard_factors(n)), 31);
  const Hadamard q = random_hadamard(n, 32);
  const Matrix<double> written_out = random_written_out(n, 32);
  CHECK(matrix_of<double>(q) == written_out);
  test::check_laws(q, written_out, 33);
  if (n >= 12) CHECK(test::smallest_gauge(written_out, q.orthogonality_defect()) == Hadamard::gauge);
}

// D1, D4, D5, D7: entries ±1/√n, and HHᵀ = nI exactly, in integers. The matrices of signs are tested beside their
// constructions.
TEST_CASE("Hadamard: rows are orthogonal in integers", "[group]") {
  const Index n = GENERATE(1, 2, 8, 12, 20, 28, 36, 24, 60, 80, 92, 144, 172, 256);
  CAPTURE(n);
  for (const Hadamard& q : {Hadamard(n), random_hadamard(n, 34).inverse()}) {
    const Matrix<double> m = matrix_of<double>(q);
    const test::SignGram gram = test::sign_gram(m);
    // Roundings: 1/√n (2), √n and the product here (2).
    CHECK(gram.worst_entry <= 4 * 0x1p-53);
    CHECK(gram.worst_off_diagonal == 0);
  }
}

TEST_CASE("Hadamard: D1, some rows of large orders", "[group]") {
  const Index n = GENERATE(1536, 2304, 2560, 3072, 3584, 4864, 5120, 5376, 9728, 10944, 11008, 14336, 17408, 18944,
                           25600, 29568, 65536);
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

// Before there were other blocks than 12, 20, 28 and 36: a rotation from a seed keeps every bit.
TEST_CASE("Hadamard: D12, rotations from a seed are those of earlier versions", "[group]") {
  const auto checksum = [](const Matrix<double>& m) {  // sign bits have to reach the low ones
    std::uint64_t hash = 0xcbf29ce484222325;
    for (Index i = 0; i < m.size(); ++i)
      hash = std::rotl(hash ^ std::bit_cast<std::uint64_t>(m.data()[i]), 23) * 0x100000001b3;
    return hash;
  };
  const std::vector<std::pair<Index, std::uint64_t>> pinned{
      {12, 0x3665b6ace7ff0e96}, {20, 0xa635332b8bb50ed8}, {24, 0xbbbb0c3773f8f998},  {28, 0x6c6fe4a390c93858},
      {36, 0x8552634b0aaad131}, {40, 0xc7fb0aeaa9fefd8c}, {144, 0xdedbeee797872f54}, {240, 0x7eda1d98057bcf08}};
  for (const auto& [n, hash] : pinned) {
    CAPTURE(n);
    CHECK(checksum(matrix_of<double>(random_hadamard(n, 5))) == hash);
    CHECK(checksum(matrix_of<double>(random_hadamard(n, 6))) != hash);
  }
}

TEST_CASE("Hadamard: an order without factors is refused, with an order that has", "[group]") {
  CHECK_THROWS_AS(Hadamard(6), RefusedError);
  CHECK_THROWS_WITH(Hadamard(6), has_text("order 6") && has_text("3 blocks of 2"));
  CHECK_THROWS_WITH(Hadamard(156), has_text("order 156") && has_text("3 blocks of 52"));
  CHECK_THROWS_WITH(Hadamard(13696), has_text("107 blocks of 128"));  // D2
  CHECK_THROWS_AS(Hadamard(0), RefusedError);
  Random random(1);
  CHECK_THROWS_AS(Hadamard::random(6, random), RefusedError);
  CHECK_THROWS_AS(Hadamard(SignedPermutation::identity(4), SignedPermutation::identity(2)), ShapeError);
  CHECK_THROWS_AS(act(Hadamard(4), Matrix<double>::Ones(1, 3)), ShapeError);
}

}  // namespace rmsfold
