// SPDX-License-Identifier: MIT
#include <rmsfold/group/signed_permutation.hpp>

#include <limits>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/laws.hpp"

namespace rmsfold {

using test::has_text;

TEST_CASE("signed permutation: laws", "[group]") {
  const Index n = GENERATE(0, 1, 2, 5, 64);
  Random random(21);
  const SignedPermutation p = SignedPermutation::random(n, random);
  const Matrix<double> matrix = test::matrix_from_indices(p);
  test::check_laws(p, matrix, 22);
  test::check_laws(SignedPermutation::identity(n), Matrix<double>::Identity(n, n), 23);
  CHECK(matrix_of<double>(p) == matrix);
  if (n >= 5) CHECK(test::smallest_gauge(matrix, 0) == SignedPermutation::gauge);
}

TEST_CASE("signed permutation: composition, exactly", "[group]") {
  const Index n = GENERATE(0, 1, 2, 5, 64);
  Random random(24);
  const SignedPermutation a = SignedPermutation::random(n, random);
  const SignedPermutation b = SignedPermutation::random(n, random);
  const SignedPermutation c = SignedPermutation::random(n, random);
  const SignedPermutation one = SignedPermutation::identity(n);
  CHECK(test::matrix_from_indices(a * b) == test::matrix_from_indices(a) * test::matrix_from_indices(b));
  CHECK((a * b) * c == a * (b * c));
  CHECK(a * a.inverse() == one);
  CHECK(a.inverse() * a == one);
  CHECK((a * b).inverse() == b.inverse() * a.inverse());
  const Matrix<double> x = normal_matrix(3, n, random);
  CHECK(act(a * b, x) == act(b, act(a, x)));
  if (n >= 5) {
    CHECK_FALSE(a * b == b * a);  // else the order of the factors is not tested
    CHECK_FALSE(a == a.inverse());
  }
}

TEST_CASE("signed permutation: a permutation, then a sign flip", "[group]") {
  Random random(27);
  const SignedPermutation p = SignedPermutation::random(9, random);
  CHECK(SignedPermutation(p.moves(), p.flips()) == p);
  const Matrix<double> x = normal_matrix(3, 9, random);
  CHECK(act(p.flips(), act(p.moves(), x)) == act(p, x));
  CHECK_FALSE(act(p.moves(), act(p.flips(), x)) == act(p, x));
  CHECK_THROWS_AS(SignedPermutation(Permutation::identity(2), SignFlip::identity(3)), ShapeError);
}

TEST_CASE("signed permutation: the unsigned part moves alike", "[group]") {
  Random random(25);
  const SignedPermutation p = SignedPermutation::random(9, random);
  CHECK(test::matrix_from_indices(p.unsigned_part()) == test::matrix_from_indices(p).cwiseAbs());
  CHECK(SignedPermutation::random_permutation(9, random).sign() == std::vector<int>(9, 1));
}

TEST_CASE("signed permutation: Ps of cases.md", "[group]") {
  const SignedPermutation ps({1, 0}, {-1, 1});
  CHECK(test::matrix_from_indices(ps) == test::rows({{0, 1}, {-1, 0}}));
  CHECK(act(ps, test::rows({{3, 5}})) == test::rows({{-5, 3}}));
}

// The stream of the seed is checked against an independent implementation in random_test.cpp.
TEST_CASE("signed permutation: of a seed is the same everywhere", "[group]") {
  Random zero(0), one(1);
  CHECK(SignedPermutation::random(10, zero) ==
        SignedPermutation({1, 3, 9, 2, 4, 5, 7, 6, 0, 8}, {-1, 1, 1, -1, 1, 1, 1, -1, 1, 1}));
  CHECK(SignedPermutation::random(10, one) ==
        SignedPermutation({1, 6, 8, 2, 9, 7, 0, 5, 4, 3}, {1, 1, -1, 1, -1, -1, -1, -1, 1, -1}));
}

TEMPLATE_TEST_CASE("signed permutation: storage scalars keep every bit", "[group]", F16, BF16) {
  // x' = (-x3, x1, -x0, x2) on NaNs with payloads, zeros of both signs and subnormals; both sides of a [4, 2] array.
  const SignedPermutation p({3, 1, 0, 2}, {-1, 1, -1, 1});
  const auto stored = [](std::initializer_list<unsigned> bits) {
    std::vector<TestType> values;
    for (const unsigned b : bits) values.push_back(TestType{static_cast<std::uint16_t>(b)});
    return values;
  };
  std::vector<TestType> x = stored({0x7fc1, 0xff81, 0x8000, 0x0000, 0x0001, 0x8003, 0x1234, 0x7f80});
  const std::vector<TestType> original = x;
  p.apply(x.data(), 1, 2);
  CHECK(x == stored({0x9234, 0xff80, 0x8000, 0x0000, 0xffc1, 0x7f81, 0x0001, 0x8003}));
  p.inverse().apply(x.data(), 1, 2);
  CHECK(x == original);
  p.apply(x.data(), 2, 1);
  CHECK(x == stored({0x8000, 0xff81, 0xffc1, 0x8000, 0xff80, 0x8003, 0x8001, 0x1234}));
}

TEST_CASE("signed permutation: refuses what is none", "[group]") {
  CHECK_THROWS_AS(SignedPermutation({0, 1}, {1}), ShapeError);
  CHECK_THROWS_AS(SignedPermutation({0, 2}, {1, 1}), InvariantError);
  CHECK_THROWS_WITH(SignedPermutation({0, 2}, {1, 1}), has_text("source[1] = 2"));
  CHECK_THROWS_AS(SignedPermutation({-1, 0}, {1, 1}), InvariantError);
  CHECK_THROWS_WITH(SignedPermutation({1, 0, 1}, {1, 1, 1}), has_text("source[2] = 1"));
  CHECK_THROWS_WITH(SignedPermutation({0, 1}, {1, 0}), has_text("sign[1] = 0"));
  CHECK_THROWS_AS(SignedPermutation::identity(2) * SignedPermutation::identity(3), ShapeError);
  CHECK_THROWS_AS(act(SignedPermutation::identity(3), test::rows({{1, 2}})), ShapeError);
}

}  // namespace rmsfold
