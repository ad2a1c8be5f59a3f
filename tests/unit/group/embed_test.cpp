// SPDX-License-Identifier: MIT
#include <rmsfold/group/embed.hpp>

#include <limits>

#include <rmsfold/group/block_diagonal.hpp>
#include <rmsfold/group/fixes_ones.hpp>
#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/kronecker.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/laws.hpp"

// Sign flips, permutations, and the conversions between the exact types.
namespace rmsfold {

using test::has_text;

namespace {

static_assert(ExactIsometry<SignFlip> && ExactIsometry<Permutation> && !ExactIsometry<Orthogonal<double>>);
static_assert(SignFlip::gauge == Gauge::signed_permutation && Permutation::gauge == Gauge::permutation);
static_assert(std::equality_comparable<SignFlip> && std::equality_comparable<Permutation> &&
              !std::equality_comparable_with<SignFlip, Permutation>);
static_assert(std::is_nothrow_move_constructible_v<SignFlip> && std::is_nothrow_move_constructible_v<Permutation>);

template <class From, class To>
concept Converted = std::is_convertible_v<From, To>;
// Every conversion is asked for by name.
static_assert(!Converted<SignFlip, SignedPermutation> && !Converted<Permutation, SignedPermutation> &&
              !Converted<SignedPermutation, Permutation> && !Converted<std::vector<int>, SignFlip> &&
              !Converted<std::vector<Index>, Permutation> && !Converted<Permutation, Orthogonal<double>>);

template <class G>
concept Embedded = requires(const G& q) {
  to_signed_permutation(q);
};
static_assert(Embedded<SignFlip> && Embedded<Permutation> && Embedded<BlockDiagonal<SignedPermutation>> &&
              Embedded<FixesOnes<SignedPermutation>>);
static_assert(!Embedded<Orthogonal<double>> && !Embedded<FixesOnes<Orthogonal<double>>> && !Embedded<Matrix<double>>);

Matrix<double> written_out(const SignFlip& d) {
  Matrix<double> result = Matrix<double>::Zero(d.dim(), d.dim());
  for (Index j = 0; j < d.dim(); ++j) result(j, j) = d.sign()[static_cast<std::size_t>(j)];
  return result;
}

Matrix<double> written_out(const Permutation& p) {
  Matrix<double> result = Matrix<double>::Zero(p.dim(), p.dim());
  for (Index j = 0; j < p.dim(); ++j) result(p.source()[static_cast<std::size_t>(j)], j) = 1;
  return result;
}

Matrix<double> written_out(const SignedPermutation& p) { return test::matrix_from_indices(p); }

/// Whether the type behaves as the matrix says, for all that is exact.
template <class G>
void check_exact_type(Index n, std::uint64_t seed) {
  CAPTURE(n, seed);
  Random random(seed);
  const G a = G::random(n, random);
  const G b = G::random(n, random);
  const G one = G::identity(n);
  test::check_laws(a, written_out(a), seed + 1);
  CHECK(matrix_of<double>(a) == written_out(a));
  CHECK(written_out(one) == Matrix<double>::Identity(n, n));
  CHECK(written_out(a * b) == written_out(a) * written_out(b));
  CHECK(written_out(a.inverse()) == written_out(a).transpose());
  CHECK(written_out(a.unsigned_part()) == written_out(a).cwiseAbs());
  CHECK(a * a.inverse() == one);
  CHECK((a * b).inverse() == b.inverse() * a.inverse());
  if (n == 64) {
    CHECK_FALSE(a == b);
    CHECK(test::smallest_gauge(written_out(a), 0) == G::gauge);
  }
  CHECK_THROWS_AS(a * G::identity(n + 1), ShapeError);

  const SignedPermutation up = to_signed_permutation(a);
  CHECK(written_out(up) == written_out(a));
  const Orthogonal<float> dense = to_orthogonal<float>(a);
  CHECK(dense.matrix().cast<double>() == written_out(a));
  CHECK(dense.orthogonality_defect() == 0);
  CHECK(as_signed_permutation(dense) == up);
}

}  // namespace

TEST_CASE("sign flip, permutation: laws, products and the way up", "[group]") {
  const Index n = GENERATE(0, 1, 2, 5, 64);
  check_exact_type<SignFlip>(n, 80);
  check_exact_type<Permutation>(n, 82);
  check_exact_type<SignedPermutation>(n, 84);
}

TEST_CASE("permutation: the order of a product matters, a sign flip's does not", "[group]") {
  Random random(86);
  const Permutation a = Permutation::random(9, random);
  const Permutation b = Permutation::random(9, random);
  CHECK_FALSE(a * b == b * a);
  CHECK_FALSE(a == a.inverse());
  const SignFlip c = SignFlip::random(9, random);
  const SignFlip d = SignFlip::random(9, random);
  CHECK(c * d == d * c);
  const Matrix<double> x = normal_matrix(2, 9, random);
  CHECK(act(a * b, x) == act(b, act(a, x)));
  CHECK_FALSE(act(a * b, x) == act(a, act(b, x)));
}

TEST_CASE("sign flip, permutation: of a seed are those of a signed permutation", "[group]") {
  Random first(87), second(87);
  const Permutation moves = Permutation::random(10, first);
  const SignFlip flips = SignFlip::random(10, first);
  CHECK(SignedPermutation::random(10, second) == SignedPermutation(moves, flips));
}

TEMPLATE_TEST_CASE("sign flip, permutation: storage scalars keep every bit", "[group]", F16, BF16) {
  const auto stored = [](std::initializer_list<unsigned> bits) {
    std::vector<TestType> values;
    for (const unsigned b : bits) values.push_back(TestType{static_cast<std::uint16_t>(b)});
    return values;
  };
  // A NaN with a payload, zeros of both signs, a subnormal.
  std::vector<TestType> x = stored({0x7fc1, 0x8000, 0x0000, 0x0001});
  SignFlip({-1, -1, 1, -1}).apply(x.data(), 1, 1);
  CHECK(x == stored({0xffc1, 0x0000, 0x0000, 0x8001}));
  Permutation({1, 0}).apply(x.data(), 1, 2);
  CHECK(x == stored({0x0000, 0x8001, 0xffc1, 0x0000}));
  Permutation({1, 0}).apply(x.data(), 2, 1);
  CHECK(x == stored({0x8001, 0x0000, 0x0000, 0xffc1}));
}

TEST_CASE("sign flip, permutation: refuse what is none", "[group]") {
  CHECK_THROWS_AS(SignFlip({1, 0}), InvariantError);
  CHECK_THROWS_WITH(SignFlip({1, 2}), has_text("sign[1] = 2"));
  CHECK_THROWS_AS(Permutation({1, 2}), InvariantError);
  CHECK_THROWS_AS(Permutation({-1, 0}), InvariantError);
  CHECK_THROWS_WITH(Permutation({1, 1}), has_text("source[1] = 1"));
  CHECK_THROWS_AS(act(SignFlip::identity(3), test::rows({{1, 2}})), ShapeError);
}

TEST_CASE("embed: what is built of exact types comes up as the matrix it is", "[group]") {
  Random random(88);
  const Permutation p = Permutation::random(3, random);
  const SignFlip d = SignFlip({-1, 1, 1, -1});
  const Kronecker<Permutation, SignFlip> product(p, d);
  CHECK(written_out(to_signed_permutation(product)) == matrix_of<double>(product));
  const BlockDiagonal<SignedPermutation> blocks(
      {SignedPermutation::random(4, random), SignedPermutation::random(4, random)});
  CHECK(written_out(to_signed_permutation(blocks)) == matrix_of<double>(blocks));
  CHECK(to_signed_permutation(FixesOnes<Permutation>(p)) == to_signed_permutation(p));
}

TEST_CASE("embed: products of a permutation and a sign flip, in both orders", "[group]") {
  const Permutation p({2, 0, 1});
  const SignFlip d({-1, 1, 1});
  CHECK(written_out(p * d) == written_out(p) * written_out(d));
  CHECK(written_out(d * p) == written_out(d) * written_out(p));
  CHECK_FALSE(p * d == d * p);
  CHECK_THROWS_AS(p * SignFlip::identity(2), ShapeError);
  CHECK_THROWS_AS(SignFlip::identity(2) * p, ShapeError);
}

TEST_CASE("embed: the way down exists for those that are one", "[group]") {
  Random random(89);
  const Permutation p = Permutation::random(9, random);
  const SignFlip d({1, 1, -1, 1, 1, 1, 1, -1, 1});
  CHECK(as_permutation(to_signed_permutation(p)) == p);
  CHECK(as_sign_flip(to_signed_permutation(d)) == d);
  CHECK_FALSE(as_permutation(p * d).has_value());
  CHECK_FALSE(as_permutation(to_signed_permutation(d)).has_value());
  CHECK_FALSE(as_sign_flip(p * d).has_value());
  CHECK_FALSE(as_sign_flip(to_signed_permutation(p)).has_value());
  const SignedPermutation one = SignedPermutation::identity(9);
  CHECK((as_permutation(one).has_value() && as_sign_flip(one).has_value()));
}

TEST_CASE("embed: a matrix is a signed permutation exactly, or not", "[group]") {
  const Matrix<double> m = test::rows({{0, -1, 0}, {-0.0, 0, 1}, {1, 0, 0}});
  CHECK(as_signed_permutation(m) == SignedPermutation({2, 0, 1}, {1, -1, 1}));
  CHECK(as_signed_permutation(Matrix<float>(m.cast<float>())) == as_signed_permutation(m));
  CHECK(as_signed_permutation(m.transpose()) == as_signed_permutation(m)->inverse());  // sides are not mixed up
  CHECK(as_signed_permutation(Matrix<double>(0, 0)) == SignedPermutation::identity(0));

  CHECK_FALSE(as_signed_permutation(test::rows({{1, 0}})).has_value());
  CHECK_FALSE(as_signed_permutation(Matrix<double>(Matrix<double>::Zero(2, 2))).has_value());
  CHECK_FALSE(as_signed_permutation(test::rows({{1, 0}, {1, 0}})).has_value());
  CHECK_FALSE(as_signed_permutation(test::rows({{1, 1}, {0, 0}})).has_value());
  for (const double bad : {1 + 0x1p-52, 1 - 0x1p-53, 0x1p-1074, std::numeric_limits<double>::quiet_NaN()}) {
    CAPTURE(bad);
    Matrix<double> off = m;
    off(0, 1) = bad;
    CHECK_FALSE(as_signed_permutation(off).has_value());
    off = m;
    off(0, 0) = bad;
    CHECK_FALSE(as_signed_permutation(off).has_value());
  }
  Random random(90);
  CHECK_FALSE(as_signed_permutation(haar_orthogonal<double>(3, random)).has_value());
}

}  // namespace rmsfold
