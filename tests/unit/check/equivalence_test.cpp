// SPDX-License-Identifier: MIT
#include <rmsfold/check/equivalence.hpp>

#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>

#include <limits>
#include <tuple>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::rows;

namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double inf = std::numeric_limits<double>::infinity();

template <Storage S>
struct Site {
  RMSNorm<S> norm;
  std::vector<Linear<S>> readers;
  Matrix<double> x;

  Site(Index dim, std::vector<Index> outputs, Index tokens, double eps, std::uint64_t seed) : norm(RowVector<S>(1), 0) {
    Random random(seed);
    norm = test::random_norm<S>(dim, eps, random);
    for (const Index out : outputs) readers.push_back(test::random_linear<S>(out, dim, random));
    readers.back().bias.reset();
    x = normal_matrix(tokens, dim, random);
  }

  template <Isometry G>
  [[nodiscard]] EquivalenceReport check(const G& q) const {
    return check_equivalence(norm, std::span<const Linear<S>>(readers), q, x);
  }
};

template <class G>
G draw(Index dim, Random& random);
template <>
Hadamard draw<Hadamard>(Index dim, Random& random) {
  return Hadamard::random(dim, random);
}
template <>
Orthogonal<double> draw<Orthogonal<double>>(Index dim, Random& random) {
  return haar_orthogonal<double>(dim, random);
}
template <>
SignedPermutation draw<SignedPermutation>(Index dim, Random& random) {
  return SignedPermutation::random(dim, random);
}

template <Isometry G, Storage S>
struct Case {
  using Rotation = G;
  using Scalar = S;
};

using Cases = std::tuple<Case<Hadamard, double>, Case<Hadamard, float>, Case<Hadamard, F16>, Case<Hadamard, BF16>,
                         Case<Orthogonal<double>, double>, Case<Orthogonal<double>, float>,
                         Case<Orthogonal<double>, F16>, Case<Orthogonal<double>, BF16>, Case<SignedPermutation, double>,
                         Case<SignedPermutation, float>, Case<SignedPermutation, F16>, Case<SignedPermutation, BF16>>;

void require_equal(const ErrorMetrics& path, Index count) {
  INFO("measured / bound " << path.measured_over_bound() << ", worst " << path.max_absolute());
  CHECK(path.within_bound());
  CHECK(path.all_finite());
  CHECK(path.count() == count);
}

}  // namespace

TEMPLATE_LIST_TEST_CASE("checker: the right paths are equal, the naive one is wrong as predicted", "[check]", Cases) {
  using G = typename TestType::Rotation;
  using S = typename TestType::Scalar;
  const double eps = GENERATE(0.0, 1e-5);
  const Site<S> site(24, {7, 40}, 5, eps, 131);
  Random random(132);
  const G q = draw<G>(24, random);
  const EquivalenceReport report = site.check(q);
  CHECK(report.tokens == 5);
  CHECK(report.dim == 24);
  CHECK(report.outputs == 47);
  CHECK(report.passed());
  const Index count = 5 * 47;
  require_equal(report.rotate_after_norm, count);
  require_equal(report.gain_folded, count);
  require_equal(report.naive_minus_predicted, count);
  CHECK(report.gain_transported.has_value() == ExactIsometry<G>);
  if (report.gain_transported) require_equal(*report.gain_transported, count);

  // Gains of 0.2 … 5 of both signs: the naive path is not a little off, and far beyond its bound.
  CHECK_FALSE(report.naive_merged.within_bound());
  CHECK(report.naive_merged.max_relative() > 0.5);
  CHECK(report.naive_merged.measured_over_bound() > 10);
  CHECK(report.naive_merged.all_finite());
  // What is right is not right by an idle bound: rounding uses a visible part of it, where there is any.
  CHECK(report.gain_folded.measured_over_bound() > 1e-4);
}

TEMPLATE_TEST_CASE("checker: I13, a signed permutation rounds only in the path's own arithmetic", "[check]", double,
                   float, F16, BF16) {
  const Site<TestType> site(24, {9}, 3, 0, 133);
  Random random(134);
  const EquivalenceReport report = site.check(SignedPermutation::random(24, random));
  // Weights and gains keep their bits, so what is left is the rounding of 24-term sums in the computing type.
  const double u = static_cast<double>(std::numeric_limits<Compute<TestType>>::epsilon()) / 2;
  CHECK(report.gain_transported->max_relative() < 100 * u);
  CHECK(report.rotate_after_norm.max_relative() < 100 * u);
}

TEMPLATE_TEST_CASE("checker: a constant gain is no gain, the naive path passes", "[check]", double, BF16) {
  Site<TestType> site(24, {9}, 4, 1e-6, 135);
  site.norm = RMSNorm<TestType>(rounded<TestType>(RowVector<double>(RowVector<double>::Constant(24, -1.5))), 1e-6);
  Random random(136);
  const EquivalenceReport report = site.check(Hadamard::random(24, random));
  CHECK(report.passed());
  require_equal(report.naive_merged, 4 * 9);
}

TEMPLATE_TEST_CASE("checker: sizes at the edges", "[check]", double, BF16) {
  // One channel, one token; rows beyond one block of 512 outputs, the last block of 1; zero rows with eps = 0; tiny
  // rows under a large eps.
  CHECK(Site<TestType>(1, {1}, 1, 0, 137).check(SignedPermutation({0}, {-1})).passed());
  Random random(138);
  const Site<TestType> wide(12, {513, 1, 1024}, 2, 1e-6, 139);
  const EquivalenceReport report = wide.check(Hadamard::random(12, random));
  CHECK(report.outputs == 1538);
  CHECK(report.gain_folded.count() == 2 * 1538);
  CHECK(report.passed());
  CHECK_FALSE(report.naive_merged.within_bound());

  for (const double eps : {0.0, 1e-6}) {
    Site<TestType> zero(12, {5}, 3, eps, 140);
    zero.x.row(1).setZero();
    CHECK(zero.check(Hadamard::random(12, random)).passed());
    zero.x *= 1e-10;
    CHECK(zero.check(Hadamard::random(12, random)).passed());
  }
}

// The bounds must hold where numbers are subnormal in the computing type: products of weights and activations, the
// activations themselves.
TEMPLATE_TEST_CASE("checker: underflow is not taken for a mistake", "[check]", double, float, BF16) {
  Random random(141);
  const double smallest = to_double(std::numeric_limits<Compute<TestType>>::denorm_min());
  SECTION("weights near the smallest subnormal") {
    Site<TestType> site(24, {9}, 3, 1e-6, 142);
    Random weights(143);
    site.readers = {{rounded<TestType>(Matrix<double>(100 * smallest * normal_matrix(9, 24, weights))), std::nullopt}};
    CHECK(site.check(SignedPermutation::random(24, random)).passed());
    CHECK(site.check(Hadamard::random(24, random)).passed());
  }
  SECTION("activations near the smallest subnormal, eps = 0") {
    Site<TestType> site(24, {9}, 3, 0, 144);
    site.x *= 1000 * smallest;
    CHECK(site.check(SignedPermutation::random(24, random)).passed());
    CHECK(site.check(Hadamard::random(24, random)).passed());
  }
  SECTION("activations near the smallest subnormal, eps > 0") {
    Site<TestType> site(24, {9}, 3, 1e-6, 145);
    site.x *= 1000 * smallest;
    CHECK(site.check(Hadamard::random(24, random)).passed());
  }
}

TEMPLATE_TEST_CASE("checker: what is not finite fails, wherever it is", "[check]", double, float, F16, BF16) {
  Random random(151);
  const Hadamard q = Hadamard::random(12, random);
  const Site<TestType> good(12, {6, 6}, 3, 1e-6, 152);
  REQUIRE(good.check(q).passed());
  for (const double bad : {nan, inf, -inf}) {
    CAPTURE(bad);
    const auto fails = [&](const Site<TestType>& site) {
      const EquivalenceReport report = site.check(q);
      CHECK_FALSE(report.passed());
      CHECK_FALSE(report.rotate_after_norm.within_bound());
      CHECK_FALSE(report.gain_folded.within_bound());
      CHECK_FALSE(report.naive_merged.within_bound());
      CHECK_FALSE(report.rotate_after_norm.all_finite());
      return report;
    };
    Site<TestType> in_x = good;
    in_x.x(1, 5) = bad;
    CHECK(fails(in_x).gain_folded.worst_token() == 1);
    Site<TestType> in_weight = good;
    in_weight.readers[1].weight(2, 3) = round_to<TestType>(bad);
    CHECK(fails(in_weight).gain_folded.worst_output() == 8);
    Site<TestType> in_bias = good;
    in_bias.readers[0].bias->coeffRef(4) = round_to<TestType>(bad);
    CHECK(fails(in_bias).gain_folded.worst_output() == 4);
    Site<TestType> in_gain = good;
    RowVector<TestType> gain = good.norm.weight();
    gain[11] = round_to<TestType>(bad);
    in_gain.norm = RMSNorm<TestType>(gain, 1e-6);
    fails(in_gain);
  }
}

TEST_CASE("checker: nothing to check is refused, and nothing checked is not passed", "[check]") {
  const Site<float> site(12, {4}, 2, 0, 153);
  const Hadamard q(12);
  const std::span<const Linear<float>> readers(site.readers);
  CHECK_THROWS_AS(check_equivalence(site.norm, readers.first(0), q, site.x), ShapeError);
  CHECK_THROWS_AS(check_equivalence(site.norm, readers, q, Matrix<double>(0, 12)), ShapeError);
  CHECK_THROWS_AS(check_equivalence(site.norm, readers, q, Matrix<double>(2, 11)), ShapeError);
  CHECK_THROWS_AS(check_equivalence(site.norm, readers, Hadamard(4), site.x), ShapeError);
  std::vector<Linear<float>> narrow = site.readers;
  narrow[0].weight = Matrix<float>::Zero(4, 11);
  CHECK_THROWS_AS(check_equivalence(site.norm, std::span<const Linear<float>>(narrow), q, site.x), ShapeError);
  narrow[0].weight = Matrix<float>(0, 12);
  CHECK_FALSE(check_equivalence(site.norm, std::span<const Linear<float>>(narrow), q, site.x).passed());
  CHECK_FALSE(EquivalenceReport{}.passed());
}

TEST_CASE("checker: a bias of the wrong length is refused", "[check]") {
  Site<float> site(12, {4}, 2, 0, 154);
  for (const Index length : {3, 5}) {
    site.readers[0].bias = RowVector<float>::Ones(length);
    CHECK_THROWS_AS(site.check(Hadamard(12)), ShapeError);
  }
}

TEST_CASE("checker: E3, an overflow of a merged weight is an error", "[check]") {
  Site<F16> site(12, {4}, 2, 0, 155);
  site.readers[0].weight(0, 0) = round_to<F16>(60000);
  site.norm = RMSNorm<F16>(rounded<F16>(RowVector<double>(RowVector<double>::Constant(12, 100))), 0);
  CHECK_THROWS_AS(site.check(Hadamard(12)), RangeError);
}

}  // namespace rmsfold
