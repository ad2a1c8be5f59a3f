// SPDX-License-Identifier: MIT
#include <rmsfold/norm/rms_norm.hpp>

#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/core/tolerance.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {

using test::has_text;
using test::rows;

template class UnitRMSNorm<float>;
template class UnitRMSNorm<double>;
template class RMSNorm<float>;
template class RMSNorm<double>;
template class RMSNorm<F16>;
template class RMSNorm<BF16>;

namespace {

/// The norm of one row as its definition reads, summed in long double.
Matrix<double> by_definition(const Matrix<double>& x, const RowVector<double>& gain, double eps) {
  Matrix<double> y(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    long double sum = 0;
    for (Index j = 0; j < x.cols(); ++j) sum += static_cast<long double>(x(t, j)) * static_cast<long double>(x(t, j));
    const long double root = std::sqrt(sum / static_cast<long double>(x.cols()) + static_cast<long double>(eps));
    for (Index j = 0; j < x.cols(); ++j)
      y(t, j) = static_cast<double>(static_cast<long double>(x(t, j)) / root * static_cast<long double>(gain[j]));
  }
  return y;
}

}  // namespace

TEMPLATE_TEST_CASE("RMSNorm: equals its definition", "[norm]", double, float, F16, BF16) {
  Random random(71);
  const double eps = GENERATE(0.0, 1e-6, 0.5);
  const Index n = GENERATE(1, 2, 37);
  CAPTURE(n, eps);
  const RMSNorm<TestType> norm = test::random_norm<TestType>(n, eps, random);
  const Matrix<float> x = normal_matrix(3, n, random).cast<float>();
  const Matrix<double> wide = x.cast<double>();
  const Matrix<double> want = by_definition(wide, widened(norm.gain()), eps);
  // The sum of squares counted whole, mean, eps, root, reciprocal, two products, all relative; to float one rounding
  // more.
  const double in_double = gamma_n(static_cast<double>(n) + 6, 0x1p-53);
  const test::Comparison doubles = test::compare(norm.apply(wide), want, Matrix<double>(in_double * want.cwiseAbs()));
  INFO(doubles);
  CHECK(doubles.within());
  const double in_float = (1 + in_double) * (1 + 0x1p-24) - 1;
  const test::Comparison floats =
      test::compare(norm.apply(x).template cast<double>(), want, Matrix<double>(in_float * want.cwiseAbs()));
  INFO(floats);
  CHECK(floats.within());

  // The twin: an eps outside the root, or a forgotten gain, is not taken for rounding.
  CHECK_FALSE(test::compare(norm.apply(wide), by_definition(wide, RowVector<double>::Ones(n), eps),
                            Matrix<double>(in_double * want.cwiseAbs()))
                  .within());
}

TEMPLATE_TEST_CASE("RMSNorm: rows in memory, in place or not", "[norm]", double, float, F16, BF16) {
  Random random(73);
  const Index n = 37;
  const RMSNorm<TestType> norm = test::random_norm<TestType>(n, 1e-6, random);
  const UnitRMSNorm<TestType>& unit = norm.without_gain();
  const Matrix<float> x = normal_matrix(3, n, random).cast<float>();
  const std::span<const float> from(x.data(), static_cast<std::size_t>(x.size()));
  Matrix<float> y(3, n), z = x;
  norm.apply(from, std::span(y.data(), from.size()));
  const auto same = [](const Matrix<float>& a, const Matrix<float>& b) {
    return test::same_bits(a.cast<double>(), b.cast<double>());
  };
  CHECK(same(y, norm.apply(x)));
  unit.apply(std::span(z.data(), from.size()), std::span(z.data(), from.size()));
  CHECK(same(z, unit.apply(x)));
  CHECK_FALSE(same(y, z));
  Matrix<double> wide = x.cast<double>();
  norm.apply(std::span(wide.data(), from.size()), std::span(wide.data(), from.size()));
  CHECK(test::same_bits(wide, norm.apply(Matrix<double>(x.cast<double>()))));
  CHECK(same(norm.apply(Eigen::MatrixXf(x)), y));             // down columns in memory
  CHECK(same(norm.apply(x + Matrix<float>::Zero(3, n)), y));  // an expression

  // BF16: in float the sums of four squares, s, and two products, of which the root halves the first; the rest in
  // double, as above, and one rounding.
  std::vector<BF16> halves(from.size()), result(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) halves[i] = round_to<BF16>(static_cast<double>(from[i]));
  Matrix<double> stored(3, n), got(3, n);
  const auto widen_to = [](const std::vector<BF16>& in, Matrix<double>& out) {
    for (std::size_t i = 0; i < in.size(); ++i) out.data()[i] = to_double(in[i]);
  };
  widen_to(halves, stored);
  norm.apply(halves, std::span(result));
  widen_to(result, got);
  const Matrix<double> want = by_definition(stored, widened(norm.gain()), 1e-6);
  const double in_half = (1 + gamma_n(6, 0x1p-24)) * (1 + gamma_n(n + 6, 0x1p-53)) * (1 + unit_roundoff<BF16>()) - 1;
  const Matrix<double> allowed = in_half * want.cwiseAbs();
  CHECK(test::compare(got, want, allowed).within());
  // The twin: normalised and rounded, then times the gain and rounded again.
  unit.apply(halves, std::span(result));
  widen_to(result, got);
  for (Index i = 0; i < got.size(); ++i)
    got.data()[i] =
        to_double(round_to<BF16>(got.data()[i] * to_double(round_to<Compute<TestType>>(norm.gain()[i % n]))));
  CHECK_FALSE(test::compare(got, want, allowed).within());

  CHECK_THROWS_WITH(norm.apply(from, std::span(y.data(), from.size() - 1)), has_text("111 numbers to 110"));
  CHECK_THROWS_AS(norm.apply(from.first(36), std::span(y.data(), 36)), ShapeError);
}

TEST_CASE("RMSNorm: a gain that is not finite is not hidden", "[norm]") {
  const float nan = std::bit_cast<float>(0x7fffffffu);  // rounded like a number, this payload would come out as -0
  for (const float bad : {nan, -nan, std::numeric_limits<float>::infinity()}) {
    const RMSNorm<float> norm(RowVector<float>::Constant(20, bad), 1e-6);
    std::vector<BF16> x(20, round_to<BF16>(1.5));
    norm.apply(x, std::span(x));
    for (const BF16 y : x) CHECK_FALSE(is_finite(to_double(y)));
    const Matrix<float> y = norm.apply(Matrix<float>(Matrix<float>::Ones(1, 20)));
    CHECK(first_non_finite(y.data(), 20) == 0);
  }
}

TEST_CASE("RMSNorm: I1, I2, large entries do not overflow the sum of squares", "[norm]") {
  const Matrix<float> fp16_range = rows({{300, 0}}).cast<float>();
  CHECK(std::fabs(UnitRMSNorm<F16>(2, 0).apply(fp16_range)(0, 0) - 1.41421f) < 1e-5f);
  const Matrix<float> beyond_float = rows({{2e19, 0}}).cast<float>();
  CHECK(std::fabs(UnitRMSNorm<float>(2, 0).apply(beyond_float)(0, 0) - 1.41421f) < 1e-5f);
}

// The same fault as I2, one type up.
TEST_CASE("RMSNorm: I2, nor at the ends of double", "[norm]") {
  for (const double size : {1e200, 1e-200}) {
    INFO("x = [" << size << ", 0]");
    CHECK(std::fabs(UnitRMSNorm<double>(2, 0).apply(rows({{size, 0}}))(0, 0) - std::sqrt(2.0)) <= 4 * 0x1p-52);
  }
}

TEST_CASE("RMSNorm: I4, eps is inside the root", "[norm]") {
  CHECK(std::fabs(UnitRMSNorm<double>(1, 1e-2).apply(rows({{0.5}}))(0, 0) / 0.5 - 1.96116) < 1e-5);
}

TEST_CASE("RMSNorm: A8, I5, its own eps and no other", "[norm]") {
  const Matrix<double> x = rows({{1e-4, 2e-4, -1e-4, 0}});
  const Matrix<double> want = rows({{0.09926, 0.19852, -0.09926, 0}});
  CHECK(test::compare(UnitRMSNorm<double>(4, 1e-6).apply(x), want, 1e-5).within());
  CHECK(test::compare(UnitRMSNorm<double>(4, 1e-5).apply(x), rows({{0.03160, 0.06320, -0.03160, 0}}), 1e-5).within());
  CHECK(UnitRMSNorm<double>(4, 1e-6).eps() == 1e-6);
  const auto at = [](double eps) {
    return UnitRMSNorm<double>(1, eps).apply(rows({{0.01}}))(0, 0);
  };  // mean square 1e-4
  CHECK(std::fabs(at(1e-5) / at(1e-6) - 0.9582) < 1e-4);
}

TEST_CASE("RMSNorm: A1, nothing is centred", "[norm]") {
  const Matrix<double> y = UnitRMSNorm<double>(4, 0).apply(rows({{1, 2, 3, 6}}));
  CHECK(test::compare(y, rows({{0.28284, 0.56569, 0.84853, 1.69706}}), 1e-5).within());
}

TEST_CASE("RMSNorm: I10, the input is left alone", "[norm]") {
  Random random(72);
  const Matrix<double> x = normal_matrix(2, 8, random);
  const Matrix<double> before = x;
  const Matrix<double> y = test::random_norm<double>(8, 1e-6, random).apply(x);
  CHECK(test::same_bits(x, before));
  CHECK_FALSE(test::same_bits(x, y));
  Matrix<double> in_place = x;
  in_place = UnitRMSNorm<double>(8, 1e-6).apply(in_place);
  CHECK(test::same_bits(in_place, UnitRMSNorm<double>(8, 1e-6).apply(x)));
}

TEST_CASE("RMSNorm: zero rows give zeros, no rows give none", "[norm]") {
  const double eps = GENERATE(0.0, 1e-6);
  CHECK(UnitRMSNorm<double>(3, eps).apply(rows({{0, 0, 0}})) == rows({{0, 0, 0}}));
  CHECK(UnitRMSNorm<double>(3, eps).apply(Matrix<double>(0, 3)).rows() == 0);
}

TEST_CASE("RMSNorm: an entry that is not finite is not hidden", "[norm]") {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    const Matrix<double> y = UnitRMSNorm<double>(3, 1e-6).apply(rows({{1, bad, 2}}));
    CHECK(first_non_finite(y.data(), 3) >= 0);
  }
}

TEST_CASE("RMSNorm: refuses what it cannot be", "[norm]") {
  CHECK_THROWS_AS(UnitRMSNorm<float>(0, 1e-6), ShapeError);
  CHECK_THROWS_AS(UnitRMSNorm<float>(4, -1e-6), InvariantError);
  CHECK_THROWS_AS(UnitRMSNorm<float>(4, std::numeric_limits<double>::quiet_NaN()), InvariantError);
  CHECK_THROWS_AS(UnitRMSNorm<float>(4, std::numeric_limits<double>::infinity()), InvariantError);
  CHECK_THROWS_AS(RMSNorm<float>(RowVector<float>(), 1e-6), ShapeError);
  CHECK_THROWS_WITH(UnitRMSNorm<float>(4, 1e-6).apply(rows({{1, 2}})), has_text("dimension 4") && has_text("length 2"));
}

}  // namespace rmsfold
