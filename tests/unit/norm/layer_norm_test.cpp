// SPDX-License-Identifier: MIT
#include <rmsfold/norm/layer_norm.hpp>

#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/norm/gated_rms_norm.hpp>
#include <rmsfold/norm/per_head.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::has_text;
using test::rows;

template class UnitLayerNorm<float>;
template class UnitLayerNorm<BF16>;
template class LayerNorm<double>;
template class LayerNorm<F16>;
template class PerHead<RMSNorm<double>>;
template class PerHead<LayerNorm<double>>;
template class GatedRMSNorm<float>;
template class GatedRMSNorm<BF16>;

namespace {

/// LayerNorm as its definition reads, in long double.
Matrix<double> by_definition(const Matrix<double>& x, const RowVector<double>& gain, const RowVector<double>& bias,
                             double eps) {
  Matrix<double> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    const RowVector<long double> row = x.row(t).cast<long double>();
    const RowVector<long double> centred = row.array() - row.mean();
    const long double root =
        std::sqrt(centred.squaredNorm() / static_cast<long double>(x.cols()) + static_cast<long double>(eps));
    for (Index j = 0; j < x.cols(); ++j) {
      y(t, j) = static_cast<double>(centred[j] / root * static_cast<long double>(gain[j]) +
                                    static_cast<long double>(bias[j]));
    }
  }
  return y;
}

/// What rounding in double may do to a LayerNorm: all errors of the centring are relative to the largest centred entry,
/// which normalised is at most \f$\sqrt n\f$; n + 12 operations (two sums over the row, the root, three products, β).
Matrix<double> in_double(const Matrix<double>& want, const RowVector<double>& gain, const RowVector<double>& bias) {
  const double n = static_cast<double>(gain.size());
  const RowVector<double> largest = std::sqrt(n) * gain.cwiseAbs() + bias.cwiseAbs();
  return (gamma_n(n + 12, 0x1p-53) * largest).replicate(want.rows(), 1);
}

template <Storage S>
LayerNorm<S> random_layer_norm(Index n, double eps, Random& random) {
  const RowVector<double> bias = normal_matrix(1, n, random);
  return {rounded<S>(test::random_gain(n, random)), rounded<S>(bias), eps};
}

Matrix<double> normalised(const Matrix<double>& x, double eps = 0) {
  return UnitLayerNorm<double>(x.cols(), eps).apply(x);
}

/// A rotation that fixes the ones vector, and is not symmetric.
const Matrix<double> about_ones = rows({{2, 2, -1}, {-1, 2, 2}, {2, -1, 2}}) / 3;

}  // namespace

TEMPLATE_TEST_CASE("LayerNorm: equals its definition", "[norm]", double, BF16) {
  Random random(81);
  const double eps = GENERATE(0.0, 1e-5, 0.5);
  const Index n = GENERATE(2, 37);
  CAPTURE(n, eps);
  const LayerNorm<TestType> norm = random_layer_norm<TestType>(n, eps, random);
  const RowVector<double> gain = norm.gain();
  const RowVector<double> bias = widened(*norm.bias());
  Matrix<float> x = normal_matrix(3, n, random).cast<float>();
  x.row(1).array() += 1000;  // far off centre
  const Matrix<double> wide = x.cast<double>();
  const Matrix<double> want = by_definition(wide, gain, bias, eps);
  const Matrix<double> allowed = in_double(want, gain, bias);
  const test::Comparison doubles = test::compare(norm.apply(wide), want, allowed);
  INFO(doubles);
  CHECK(doubles.within());
  // float activations are normalised in double and rounded once
  const test::Comparison floats =
      test::compare(norm.apply(x).template cast<double>(), want, Matrix<double>(allowed + 0x1p-24 * want.cwiseAbs()));
  INFO(floats);
  CHECK(floats.within());

  // The twins: a forgotten gain, a forgotten bias, a forgotten mean.
  const RowVector<double> ones = RowVector<double>::Ones(n);
  CHECK_FALSE(test::compare(norm.apply(wide), by_definition(wide, ones, bias, eps), allowed).within());
  CHECK_FALSE(
      test::compare(norm.apply(wide), by_definition(wide, gain, RowVector<double>::Zero(n), eps), allowed).within());
  CHECK_FALSE(
      test::compare(norm.without_gain().apply(wide), UnitRMSNorm<TestType>(n, eps).apply(wide), allowed).within());

  // Without its gain, with and without the bias.
  CHECK(test::compare(norm.without_gain().apply(wide), by_definition(wide, ones, RowVector<double>::Zero(n), eps),
                      allowed)
            .within());
  CHECK_FALSE(norm.without_gain().bias());
  CHECK(test::compare(UnitLayerNorm<TestType>(n, eps, norm.bias()).apply(wide), by_definition(wide, ones, bias, eps),
                      allowed)
            .within());
}

TEST_CASE("LayerNorm: the gain is what the convention makes of the weight", "[norm]") {
  const RowVector<BF16> weight = rounded<BF16>(RowVector<double>(rows({{0.5, 0.00390625}})));
  const auto gain = [&](GainConvention convention) {
    return LayerNorm<BF16>(weight, std::nullopt, 0, convention).gain();
  };
  CHECK(gain(GainConvention::plain) == rows({{0.5, 0.00390625}}));
  CHECK(gain(GainConvention::one_plus) == rows({{1.5, 1.00390625}}));
  CHECK(gain(GainConvention::one_plus_in_own_type) == rows({{1.5, 1}}));  // a tie, to even
}

TEST_CASE("LayerNorm: identity 7, it is the RMSNorm of the centred row", "[norm]") {
  Random random(82);
  const Index n = 24;
  const Matrix<double> x = normal_matrix(4, n, random);
  const Matrix<double> centring =
      Matrix<double>::Identity(n, n) - Matrix<double>::Constant(n, n, 1.0 / static_cast<double>(n));
  for (const double eps : {0.0, 1e-5, 0.5}) {
    // x C: n products of entries at most max|x|, normalised by the smallest root; the rest as for one norm
    const Matrix<double> want = UnitRMSNorm<double>(n, eps).apply(x * centring);
    const double smallest = std::sqrt((x * centring).rowwise().squaredNorm().minCoeff() / static_cast<double>(n) + eps);
    const double terms = static_cast<double>(n);
    const double allowed = gamma_n(2 * terms, 0x1p-53) * 2 * x.cwiseAbs().maxCoeff() / smallest +
                           gamma_n(terms + 12, 0x1p-53) * std::sqrt(terms);
    const test::Comparison c = test::compare(normalised(x, eps), want, allowed);
    INFO(c);
    CHECK(c.within());
    CHECK_FALSE(test::compare(normalised(x, eps), UnitRMSNorm<double>(n, eps).apply(x), allowed).within());
  }
}

TEST_CASE("LayerNorm: identity 8, it commutes with what fixes the ones vector", "[norm]") {
  Random random(83);
  const Matrix<double> x = normal_matrix(5, 3, random);
  const double eps = GENERATE(0.0, 0.5);
  // Rotating before the norm rounds sums of 3 products of entries of x, which the root divides, on rows whose deviation
  // moves by as much; rotating behind it sums 3 products of entries of at most sqrt(3). 15 operations for each norm.
  const Matrix<double> centred = x.colwise() - x.rowwise().mean();
  const double root = std::sqrt(centred.rowwise().squaredNorm().minCoeff() / 3 + eps);
  const double allowed =
      gamma_n(8, 0x1p-53) * 4 * x.cwiseAbs().maxCoeff() / root + gamma_n(2 * 15 + 6, 0x1p-53) * std::sqrt(3.0);
  for (const double sign : {1.0, -1.0}) {
    const Matrix<double> q = sign * about_ones;
    const test::Comparison c = test::compare(normalised(x * q, eps), normalised(x, eps) * q, allowed);
    INFO(c);
    CHECK(c.within());
  }
  // The twins: a sign flip and a rotation of two channels move the ones vector; nor is Q its transpose.
  for (const Matrix<double>& q :
       {rows({{1, 0, 0}, {0, -1, 0}, {0, 0, 1}}), rows({{0.6, 0.8, 0}, {-0.8, 0.6, 0}, {0, 0, 1}})}) {
    CHECK_FALSE(test::compare(normalised(x * q, eps), normalised(x, eps) * q, allowed).within());
  }
  CHECK_FALSE(
      test::compare(normalised(x * about_ones, eps), normalised(x, eps) * about_ones.transpose(), allowed).within());
}

TEST_CASE("LayerNorm: A1, A2, what it does to a row", "[norm]") {
  CHECK(test::compare(normalised(rows({{1, 2, 3, 6}})), rows({{-1.06904, -0.53452, 0, 1.60357}}), 1e-5).within());
}

TEST_CASE("LayerNorm: I1, I2, neither the sums nor the squares overflow or underflow", "[norm]") {
  const Matrix<float> fp16_range = rows({{300, 0}}).cast<float>();
  CHECK(UnitLayerNorm<F16>(2, 0).apply(fp16_range) == rows({{1, -1}}).cast<float>());
  const Matrix<float> beyond_float = rows({{2e19, 0}, {3e38, -3e38}}).cast<float>();
  CHECK(UnitLayerNorm<float>(2, 0).apply(beyond_float) == rows({{1, -1}, {1, -1}}).cast<float>());
  for (const double size : {1e200, 1.7e308, 1e-200, 5e-324}) {
    INFO("x = [" << size << ", 0, " << size << ", 0]");
    CHECK(test::compare(normalised(rows({{size, 0, size, 0}})), rows({{1, -1, 1, -1}}), 0x1p-51).within());
    CHECK(normalised(rows({{size, size, size, size}})).isZero(0));
  }
  CHECK(test::compare(normalised(rows({{1.7e308, -1.7e308}}), 1e-5), rows({{1, -1}}), 0x1p-51).within());
}

TEST_CASE("LayerNorm: I4, I5, I11, its own eps, inside the root, as a double", "[norm]") {
  const auto at = [](double deviation, double eps) {
    return normalised(rows({{deviation, -deviation}}), eps)(0, 0) / deviation;
  };
  CHECK(std::fabs(at(0.5, 1e-2) - 1.96116) < 1e-5);  // outside: 1 / (0.5 + 0.01) = 1.96078
  CHECK(std::fabs(at(0.01, 1e-5) / at(0.01, 1e-6) - 0.9582) < 1e-4);
  CHECK(UnitLayerNorm<F16>(2, 1e-8).eps() == 1e-8);  // 0 in fp16, and then 1 and not 0.70711
  CHECK(std::fabs(UnitLayerNorm<F16>(2, 1e-8).apply(rows({{1e-4, -1e-4}}))(0, 0) - 0.70711) < 1e-5);
}

TEST_CASE("LayerNorm: I12, with an eps the scale of the stream shows", "[norm]") {
  const Matrix<double> x = rows({{0.01, -0.01}});
  const Matrix<double> scaled = 1.0001 * x;
  CHECK(test::compare(normalised(scaled), normalised(x), 0x1p-51).within());
  // c / sqrt((c^2 v + eps) / (v + eps)) with v = eps = 1e-4: relative (c - 1) / 2
  CHECK(std::fabs(normalised(scaled, 1e-4)(0, 0) / normalised(x, 1e-4)(0, 0) - 1 - 0.5e-4) < 1e-8);
}

TEST_CASE("LayerNorm: I10, the input is left alone", "[norm]") {
  Random random(84);
  const Matrix<double> x = normal_matrix(2, 8, random);
  const Matrix<double> before = x;
  const LayerNorm<double> norm = random_layer_norm<double>(8, 1e-6, random);
  const Matrix<double> y = norm.apply(x);
  CHECK(test::same_bits(x, before));
  CHECK_FALSE(test::same_bits(x, y));
  Matrix<double> in_place = x;
  in_place = norm.apply(in_place);
  CHECK(test::same_bits(in_place, y));
}

TEST_CASE("LayerNorm: constant rows give the bias, no rows give none", "[norm]") {
  const double eps = GENERATE(0.0, 1e-5);
  const RowVector<double> bias = rows({{1, -2, 3}});
  for (const double value : {0.0, 0.1, -1e300}) {
    const Matrix<double> x = Matrix<double>::Constant(1, 3, value);
    CHECK(normalised(x, eps) == rows({{0, 0, 0}}));
    CHECK(UnitLayerNorm<double>(3, eps, bias).apply(x) == bias);
    CHECK(LayerNorm<double>(bias, bias, eps).apply(x) == bias);
  }
  CHECK(normalised(Matrix<double>::Constant(1, 1000, 0.1), eps).isZero(0));  // where the sum does round
  CHECK(normalised(rows({{7}}), eps) == rows({{0}}));
  CHECK(normalised(Matrix<double>(0, 3), eps).rows() == 0);
}

TEST_CASE("LayerNorm: in long double", "[norm]") {
  Matrix<long double> x(1, 3);
  x << 1, 2, 6;
  const Matrix<long double> y = UnitLayerNorm<long double>(3, 0).apply(x);
  const long double unit = std::sqrt(3.0L / 14.0L);
  const long double ulp = std::numeric_limits<long double>::epsilon();
  CHECK(std::fabs(y(0, 0) + 2 * unit) <= 4 * ulp);
  CHECK(std::fabs(y(0, 1) + unit) <= 4 * ulp);
  CHECK(std::fabs(y(0, 2) - 3 * unit) <= 4 * ulp);
}

TEST_CASE("LayerNorm: an entry that is not finite is not hidden", "[norm]") {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Matrix<double> y = normalised(rows({{1, bad, 2}}), 1e-6);
    CHECK(first_non_finite(y.data(), 3) >= 0);
  }
}

TEST_CASE("LayerNorm: refuses what it cannot be", "[norm]") {
  const RowVector<float> three = RowVector<float>::Ones(3);
  CHECK_THROWS_AS(UnitLayerNorm<float>(0, 1e-6), ShapeError);
  CHECK_THROWS_AS(UnitLayerNorm<float>(4, -1e-6), InvariantError);
  CHECK_THROWS_AS(LayerNorm<float>(three, std::nullopt, std::numeric_limits<double>::infinity()), InvariantError);
  CHECK_THROWS_WITH(UnitLayerNorm<float>(4, 1e-6, three), has_text("dimension 4") && has_text("length 3"));
  CHECK_THROWS_AS(LayerNorm<float>(RowVector<float>::Ones(4), three, 1e-6), ShapeError);
  CHECK_THROWS_WITH(LayerNorm<float>(three, std::nullopt, 0).apply(rows({{1, 2}})),
                    has_text("dimension 3") && has_text("length 2"));
}

TEST_CASE("per-head norms: every head for itself", "[norm]") {
  Random random(85);
  const RMSNorm<double> norm = test::random_norm<double>(4, 1e-2, random);
  const PerHead heads(norm, 3);
  const Matrix<double> x = normal_matrix(2, 12, random);
  const Matrix<double> y = heads.apply(x);
  for (Index head = 0; head < 3; ++head) {
    CHECK(test::same_bits(y.middleCols(4 * head, 4), norm.apply(x.middleCols(4 * head, 4))));
  }
  CHECK(heads.dim() == 12);
  CHECK(heads.heads() == 3);
  // The twin: one norm over all of them, its gain repeated, is another function.
  const RMSNorm<double> full(RowVector<double>(norm.weight().replicate(1, 3)), 1e-2);
  CHECK_FALSE(test::compare(y, full.apply(x), 1e-3).within());
}

TEST_CASE("per-head norms: one of its own for every head", "[norm]") {
  Random random(86);
  std::vector<LayerNorm<double>> norms;
  for (int head = 0; head < 3; ++head) norms.push_back(random_layer_norm<double>(4, 1e-5, random));
  const PerHead<LayerNorm<double>> heads(norms);
  const Matrix<double> x = normal_matrix(2, 12, random);
  CHECK(test::same_bits(heads.apply(x).middleCols(8, 4), norms[2].apply(x.middleCols(8, 4))));
  CHECK_FALSE(test::same_bits(heads.apply(x), PerHead(norms[0], 3).apply(x)));
  norms.push_back(random_layer_norm<double>(5, 1e-5, random));
  CHECK_THROWS_AS(PerHead<LayerNorm<double>>(norms), ShapeError);
  CHECK_THROWS_AS(PerHead<LayerNorm<double>>(std::vector<LayerNorm<double>>()), ShapeError);
  CHECK_THROWS_AS(PerHead(norms[0], 0), ShapeError);
  CHECK_THROWS_AS(heads.apply(x.leftCols(8)), ShapeError);
}

TEST_CASE("norms: I7, two eps in one model, each at its own site", "[norm]") {
  const Matrix<double> x = rows({{1e-3, 1e-3, 1e-3, 1e-3}});  // mean square 1e-6
  const double block = UnitRMSNorm<float>(4, 1e-6).apply(x)(0, 0);
  const double head = PerHead(UnitRMSNorm<float>(2, 1e-5), 2).apply(x)(0, 0);
  CHECK(std::fabs(block - 1 / std::sqrt(2.0)) < 1e-12);
  CHECK(std::fabs(head - 1 / std::sqrt(11.0)) < 1e-12);
}

TEST_CASE("gated norms: equal their definition", "[norm]") {
  Random random(87);
  const GateOrder order = GENERATE(GateOrder::gate_first, GateOrder::norm_first);
  const GateActivation activation = GENERATE(GateActivation::silu, GateActivation::sigmoid);
  const Index groups = GENERATE(1, 3);
  const double eps = 1e-2;
  const Index n = 12;
  const RowVector<float> weight = rounded<float>(test::random_gain(n, random));
  const GatedRMSNorm<float> norm(n, weight, eps, groups, order, activation);
  const Matrix<double> x = normal_matrix(3, n, random);
  const Matrix<double> z = 2 * normal_matrix(3, n, random);
  Matrix<double> a(3, n);
  for (Index i = 0; i < a.size(); ++i) {
    const double sigmoid = 1 / (1 + std::exp(-z.data()[i]));
    a.data()[i] = activation == GateActivation::silu ? z.data()[i] * sigmoid : sigmoid;
  }
  const auto define = [&](GateOrder which) {
    const Matrix<double> in = which == GateOrder::gate_first ? Matrix<double>(x.cwiseProduct(a)) : x;
    Matrix<double> y = PerHead(UnitRMSNorm<float>(n / groups, eps), groups).apply(in) * widened(weight).asDiagonal();
    if (which == GateOrder::norm_first) y = y.cwiseProduct(a);
    return y;
  };
  const Matrix<double> want = define(order);
  // the gate in 4 operations on each side, one of them an exponential within an ulp; the norm in n + 6, and three
  // products
  const Matrix<double> allowed = gamma_n(2 * static_cast<double>(n) + 40, 0x1p-53) * want.cwiseAbs();
  const test::Comparison c = test::compare(norm.apply(x, z), want, allowed);
  INFO(c);
  CHECK(c.within());
  CHECK_FALSE(test::compare(norm.apply(x, z),
                            define(order == GateOrder::gate_first ? GateOrder::norm_first : GateOrder::gate_first),
                            allowed)
                  .within());

  // Floats: in double, rounded once.
  const Matrix<float> xf = x.cast<float>();
  const Matrix<float> zf = z.cast<float>();
  CHECK(norm.apply(xf, zf) ==
        norm.apply(Matrix<double>(xf.cast<double>()), Matrix<double>(zf.cast<double>())).cast<float>());

  // The gain commutes with the gate, whichever comes first: it can be given to the reader behind.
  const GatedRMSNorm<float> folded(n, RowVector<float>::Ones(n), eps, groups, order, activation);
  CHECK(test::compare(folded.apply(x, z) * norm.gain().asDiagonal(), want, allowed).within());
}

TEST_CASE("gated norms: a weight of one group is every group's", "[norm]") {
  Random random(88);
  const RowVector<BF16> weight = rounded<BF16>(test::random_gain(4, random));
  const GatedRMSNorm<BF16> norm(8, weight, 1e-6, 2, GateOrder::norm_first);
  const GatedRMSNorm<BF16> full(8, RowVector<BF16>(weight.replicate(1, 2)), 1e-6, 2, GateOrder::norm_first);
  const Matrix<double> x = normal_matrix(2, 8, random);
  const Matrix<double> z = normal_matrix(2, 8, random);
  CHECK(test::same_bits(norm.apply(x, z), full.apply(x, z)));
  CHECK(norm.gain() == full.gain());
  CHECK(norm.gain().size() == 8);
  CHECK(norm.apply(Matrix<double>::Zero(1, 8), z.topRows(1)).isZero(0));
}

TEST_CASE("gated norms: refuse what they cannot be", "[norm]") {
  const RowVector<float> four = RowVector<float>::Ones(4);
  CHECK_THROWS_AS(GatedRMSNorm<float>(0, four, 0, 1, GateOrder::gate_first), ShapeError);
  CHECK_THROWS_AS(GatedRMSNorm<float>(4, four, 0, 0, GateOrder::gate_first), ShapeError);
  CHECK_THROWS_AS(GatedRMSNorm<float>(4, four, 0, 3, GateOrder::gate_first), ShapeError);
  CHECK_THROWS_WITH(GatedRMSNorm<float>(12, four, 0, 2, GateOrder::gate_first),
                    has_text("4 weights") && has_text("12") && has_text("6"));
  CHECK_THROWS_AS(GatedRMSNorm<float>(4, four, -1, 1, GateOrder::gate_first), InvariantError);
  const GatedRMSNorm<float> norm(4, four, 0, 1, GateOrder::gate_first);
  CHECK_THROWS_AS(norm.apply(rows({{1, 2, 3}}), rows({{1, 2, 3}})), ShapeError);
  CHECK_THROWS_AS(norm.apply(rows({{1, 2, 3, 4}}), rows({{1, 2, 3}})), ShapeError);
}

}  // namespace rmsfold
