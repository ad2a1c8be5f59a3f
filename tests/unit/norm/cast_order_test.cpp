// SPDX-License-Identifier: MIT
#include <rmsfold/norm/cast_order.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include <rmsfold/io/safetensors.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace rmsfold {

using test::has_text;
using test::rows;

static_assert(std::is_same_v<Promoted<BF16, F16>, float> && std::is_same_v<Promoted<BF16, BF16>, BF16> &&
              std::is_same_v<Promoted<F16, double>, double> && std::is_same_v<Promoted<float, BF16>, float>);
static_assert(
    std::is_same_v<CastOutput<CastOrder::llama, BF16, float>, float>);  // an f32 gain feeds f32 to the linears
static_assert(std::is_same_v<CastOutput<CastOrder::olmo2, BF16, float>, BF16>);
static_assert(std::is_same_v<CastOutput<CastOrder::t5, float, BF16>, BF16> &&
              std::is_same_v<CastOutput<CastOrder::t5, BF16, float>, float> &&
              std::is_same_v<CastOutput<CastOrder::t5, double, float>, double>);
static_assert(!TorchScalar<long double>);

// clang-format off
/// Whether a class with this cast order computes that kind of norm.
template <CastOrder order, class Norm>
concept CastsAs = requires(const Norm& norm, const Matrix<float>& x) { apply_as<order>(norm, x); };
// clang-format on
static_assert(CastsAs<CastOrder::llama, RMSNorm<float>> && !CastsAs<CastOrder::mamba2, RMSNorm<float>>);
static_assert(CastsAs<CastOrder::olmo, UnitLayerNorm<float>> && !CastsAs<CastOrder::olmo, LayerNorm<float>>);
static_assert(CastsAs<CastOrder::cohere, LayerNorm<float>> && !CastsAs<CastOrder::llama, LayerNorm<float>>);

namespace {

constexpr double eps = 1e-5;

/// What torch made of some rows (tests/oracle/make_norm_golden.py says how).
class Golden {
 public:
  template <Storage S>
  [[nodiscard]] Matrix<S> matrix(const std::string& name) const {
    const io::TensorInfo* info = file_.find(name);
    if (info == nullptr || info->dtype != type_of<S>()) throw std::runtime_error(name + " as " + type_of<S>());
    const std::vector<std::byte> bytes = file_.read(*info);
    const Index cols = static_cast<Index>(info->shape.back());
    Matrix<S> result(static_cast<Index>(bytes.size() / sizeof(S)) / cols, cols);
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  /// An input in the type S.
  template <Storage S>
  [[nodiscard]] Matrix<S> input(const std::string& what) const {
    return matrix<S>(what + "/" + short_name<S>());
  }
  template <Storage S>
  [[nodiscard]] RowVector<S> vector(const std::string& what) const {
    return input<S>(what).row(0);
  }
  /// The output of a class, of the type that this library says it has.
  template <CastOrder order, class X, class W>
  [[nodiscard]] Matrix<CastOutput<order, X, W>> output(const std::string& name) const {
    return matrix<CastOutput<order, X, W>>(name + "/" + short_name<X>() + "_" + short_name<W>());
  }
  template <Storage S>
  static std::string short_name() {
    return std::same_as<S, double> ? "f64" : std::same_as<S, float> ? "f32" : std::same_as<S, F16> ? "f16" : "bf16";
  }

 private:
  template <Storage S>
  static std::string type_of() {
    return std::same_as<S, double> ? "F64" : std::same_as<S, float> ? "F32" : std::same_as<S, F16> ? "F16" : "BF16";
  }
  io::SafetensorsFile file_{RMSFOLD_SOURCE_DIR "/tests/data/norms/norms.safetensors"};
};

const Golden& golden() {
  static const Golden file;
  return file;
}

/// How far from torch: in units in the last place of `scale` (an output is a sum whose largest term that is), and how
/// many elements are the same.
struct Distance {
  double ulps = 0;
  double equal = 0;
};

Distance distance(const Matrix<double>& got, const Matrix<double>& want, const Matrix<double>& scale, int digits) {
  REQUIRE(got.rows() == want.rows());
  REQUIRE(got.cols() == want.cols());
  Distance result;
  Index same = 0;
  for (Index i = 0; i < want.size(); ++i) {
    const double difference = std::fabs(got.data()[i] - want.data()[i]);
    const double size = std::fabs(scale.data()[i]);
    if (got.data()[i] == want.data()[i]) {
      ++same;
    } else if (difference <= (std::numeric_limits<double>::max)() && size > 0) {
      result.ulps = (std::max)(result.ulps, std::ldexp(difference, digits - 1 - std::ilogb(size)));
    } else {
      result.ulps = std::numeric_limits<double>::infinity();
    }
  }
  result.equal = static_cast<double>(same) / static_cast<double>(want.size());
  return result;
}

/// Two ulp in float32, equal in all but a thousandth of the elements of a 16-bit type.
///
/// Two, since the exponentials of two C libraries may differ by one, and the products round that on. In double torch's
/// statistics are its own sums in double: each of 64 terms in pairs, six roundings, under the mean and under the root.
template <Storage Out>
void judge(const std::string& name, const Matrix<Out>& got, const Matrix<Out>& want, const Matrix<double>& scale,
           int digits = 24) {
  if constexpr (Half<Out>) digits = Out::fraction_bits + 1;
  const Distance d = distance(widened(got), widened(want), scale, digits);
  fmt::print("{:32} {:5} elements, {:.4f} equal, worst {:.2f} ulp\n", name, want.size(), d.equal, d.ulps);
  INFO(name << ": " << d.equal << " equal, worst " << d.ulps << " ulp");
  if constexpr (Half<Out>) {
    CHECK(d.equal >= 0.999);
  } else {
    CHECK(d.ulps <= (digits == 53 ? 2 + 6 : 2));
  }
}

template <class X, class W>
std::string pair_name(const std::string& name) {
  return name + "/" + Golden::short_name<X>() + "_" + Golden::short_name<W>();
}

template <Storage S>
Matrix<S> first_rows(const std::string& what, Index count) {
  return golden().input<S>(what).topRows(count);
}

template <CastOrder order, class W>
RMSNorm<W> golden_norm() {
  constexpr bool one_plus = order == CastOrder::gemma;
  return {golden().vector<W>(one_plus ? "one_plus_weight" : "weight"), eps,
          one_plus ? GainConvention::one_plus : GainConvention::plain};
}

template <CastOrder order, class X, class W>
void check_rms(const std::string& name) {
  const auto want = golden().output<order, X, W>(name);
  judge(pair_name<X, W>(name), apply_as<order>(golden_norm<order, W>(), first_rows<X>("x", want.rows())), want,
        widened(want));
}

template <CastOrder order, class X, class W>
void check_gated(const std::string& name, Index groups, GateOrder gate_order,
                 GateActivation activation = GateActivation::silu) {
  const GatedRMSNorm<W> norm(64, golden().vector<W>("weight"), eps, groups, gate_order, activation);
  const auto want = golden().output<order, X, W>(name);
  judge(pair_name<X, W>(name),
        apply_as<order>(norm, first_rows<X>("x", want.rows()), first_rows<X>("gate", want.rows())), want,
        widened(want));
}

/// The largest of the terms that a LayerNorm adds up, \f$x r g\f$, \f$-\mu r g\f$, their sum, and \f$\beta\f$: what
/// an ulp of it is one of, since they cancel.
Matrix<double> largest_terms(const Matrix<double>& x, const RowVector<double>& gain, const RowVector<double>& bias) {
  Matrix<double> result(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    const double mean = x.row(t).mean();
    const double r = 1 / std::sqrt((x.row(t).array() - mean).square().mean() + eps);
    for (Index j = 0; j < x.cols(); ++j) {
      const double input = (std::max)({std::fabs(x(t, j)), std::fabs(mean), std::fabs(x(t, j) - mean)});
      result(t, j) = (std::max)(input * r * std::fabs(gain[j]), std::fabs(bias[j]));
    }
  }
  return result;
}

template <CastOrder order, class X, class W>
void check_layer_norm(const std::string& name) {
  constexpr bool one_plus = order == CastOrder::nemotron;
  std::optional<RowVector<W>> bias;
  if (order != CastOrder::cohere) bias = golden().vector<W>("bias");
  const LayerNorm<W> norm(golden().vector<W>(one_plus ? "one_plus_weight" : "weight"), bias, eps,
                          one_plus ? GainConvention::one_plus_in_own_type : GainConvention::plain);
  const auto want = golden().output<order, X, W>(name);
  const Matrix<X> x = first_rows<X>("x", want.rows());
  const RowVector<double> beta = bias ? widened(*bias) : RowVector<double>::Zero(64);
  judge(pair_name<X, W>(name), apply_as<order>(norm, x), want, largest_terms(widened(x), norm.gain(), beta),
        std::same_as<X, double> && order != CastOrder::cohere ? 53 : 24);
}

template <class X>
void check_without_weight() {
  const auto want = golden().output<CastOrder::gemma3n, X, X>("unit");
  judge(pair_name<X, X>("unit"), apply_as<CastOrder::gemma3n>(UnitRMSNorm<X>(64, eps), first_rows<X>("x", want.rows())),
        want, widened(want));
  const auto centred = golden().output<CastOrder::olmo, X, X>("olmo");
  const Matrix<X> x = first_rows<X>("x", want.rows());
  judge(pair_name<X, X>("olmo"), apply_as<CastOrder::olmo>(UnitLayerNorm<X>(64, eps), x), centred,
        largest_terms(widened(x), RowVector<double>::Ones(64), RowVector<double>::Zero(64)));
}

template <class X, class W>
void check_all() {
  check_rms<CastOrder::llama, X, W>("llama");
  check_rms<CastOrder::olmo2, X, W>("olmo2");
  check_rms<CastOrder::gemma, X, W>("gemma");
  check_rms<CastOrder::gemma3n, X, W>("gemma3n");
  check_rms<CastOrder::t5, X, W>("t5");
  check_gated<CastOrder::mamba2, X, W>("mamba2", 2, GateOrder::gate_first);
  check_gated<CastOrder::qwen3_next, X, W>("qwen3_next", 1, GateOrder::norm_first);
  check_gated<CastOrder::falcon_h1, X, W>("falcon_h1_gate_first", 2, GateOrder::gate_first);
  check_gated<CastOrder::falcon_h1, X, W>("falcon_h1_norm_first", 2, GateOrder::norm_first);
  check_gated<CastOrder::minimax, X, W>("minimax", 1, GateOrder::norm_first, GateActivation::sigmoid);
  check_layer_norm<CastOrder::cohere, X, W>("cohere");
  if constexpr (!(std::same_as<X, float> && std::same_as<W, BF16>)) {  // torch refuses
    check_layer_norm<CastOrder::layer_norm, X, W>("layer_norm");
    check_layer_norm<CastOrder::nemotron, X, W>("nemotron");
  }
  if constexpr (std::same_as<X, W>) check_without_weight<X>();
}

}  // namespace

TEST_CASE("cast orders: as the stock classes round", "[norm]") {
  check_all<float, float>();
  check_all<BF16, BF16>();
  check_all<F16, F16>();
  check_all<BF16, float>();
  check_all<float, BF16>();
  check_all<double, double>();
}

namespace {

/// Share of elements that are the same.
template <Storage Out>
double share(const Matrix<Out>& got, const Matrix<Out>& want) {
  return distance(widened(got), widened(want), Matrix<double>::Ones(want.rows(), want.cols()), 8).equal;
}

}  // namespace

TEST_CASE("cast orders: the wrong one is caught", "[norm]") {
  const Matrix<BF16> x = golden().input<BF16>("x");
  const Matrix<BF16> gate = golden().input<BF16>("gate");
  const RowVector<BF16> weight = golden().vector<BF16>("weight");
  const auto want = [](const char* name) { return golden().matrix<BF16>(std::string(name) + "/bf16_bf16"); };
  const RMSNorm<BF16> norm(weight, eps);
  CHECK(share(apply_as<CastOrder::olmo2>(norm, x), want("llama")) < 0.9);
  CHECK(share(apply_as<CastOrder::llama>(norm, x), want("gemma3n")) < 0.9);
  CHECK(share(apply_as<CastOrder::gemma3n>(norm, x), want("t5")) < 0.9);
  const GatedRMSNorm<BF16> two_groups(64, weight, eps, 2, GateOrder::gate_first);
  CHECK(share(apply_as<CastOrder::falcon_h1>(two_groups, x, gate), want("mamba2")) < 0.9);
  CHECK(share(apply_as<CastOrder::mamba2>(two_groups, x, gate), want("falcon_h1_gate_first")) < 0.9);
  const GatedRMSNorm<BF16> behind(64, weight, eps, 1, GateOrder::norm_first);
  CHECK(share(apply_as<CastOrder::falcon_h1>(behind, x, gate), want("qwen3_next")) < 0.9);
  CHECK(share(apply_as<CastOrder::qwen3_next>(behind, x, gate), want("falcon_h1_norm_first")) <
        0.9);  // and other groups
  // t5 rounds to the type of the weight, llama to that of the activations
  const Matrix<float> wide = first_rows<float>("x", 5);
  CHECK(share(Matrix<float>(widened(apply_as<CastOrder::t5>(norm, wide)).cast<float>()),
              golden().matrix<float>("llama/f32_bf16")) < 0.9);
}

TEST_CASE("cast orders: a wrong gain or eps is caught", "[norm]") {
  const Matrix<BF16> x = golden().input<BF16>("x");
  const RowVector<BF16> weight = golden().vector<BF16>("weight");
  const RowVector<BF16> less_one = golden().vector<BF16>("one_plus_weight");
  const auto want = [](const char* name) { return golden().matrix<BF16>(std::string(name) + "/bf16_bf16"); };
  CHECK(share(apply_as<CastOrder::gemma3n>(RMSNorm<BF16>(less_one, eps), x), want("gemma")) < 0.9);
  CHECK_THROWS_WITH(apply_as<CastOrder::gemma>(RMSNorm<BF16>(less_one, eps), x), has_text("is w") && has_text("1 + w"));
  const RMSNorm<BF16> one_plus(less_one, eps, GainConvention::one_plus);
  CHECK_THROWS_AS(apply_as<CastOrder::llama>(one_plus, x), InvariantError);
  // nemotron's 1 + w is rounded to bf16: in float32 it is another gain
  const RowVector<float> unrounded = widened(less_one).array().cast<float>() + 1.0f;
  const LayerNorm<float> as_gemma(
      unrounded, golden().vector<BF16>("bias").unaryExpr([](BF16 b) { return static_cast<float>(to_double(b)); }), eps);
  CHECK(share(apply_as<CastOrder::layer_norm>(as_gemma, x), want("nemotron")) < 0.9);
  CHECK_THROWS_AS(apply_as<CastOrder::nemotron>(as_gemma, x), InvariantError);
  CHECK_THROWS_AS(apply_as<CastOrder::cohere>(as_gemma, x), InvariantError);
  CHECK_THROWS_AS(apply_as<CastOrder::olmo>(UnitLayerNorm<BF16>(64, eps, weight), x), InvariantError);
  // eps outside the root, as sqrt(s) + eps, is an eps of 2 sqrt(s) eps + eps^2 inside it; row 1 has s below 1e-5
  const Matrix<BF16> small = x.middleRows(1, 1);
  const double s = std::sqrt(widened(small).squaredNorm() / 64);
  const RMSNorm<BF16> outside(weight, 2 * s * eps + eps * eps);
  CHECK(share(apply_as<CastOrder::llama>(outside, small), Matrix<BF16>(want("llama").middleRows(1, 1))) < 0.9);
}

TEST_CASE("cast orders: I8, before or after the gain", "[norm]") {
  const Matrix<BF16> x = rounded<BF16>(rows({{1, 0}}));
  const double normalised = 1.00390625;
  const double root_of = 1 / (normalised * normalised) - 0.5 + 1e-7;  // as eps; the last term so that no tie is left
  const auto vector = [](double value) { return rounded<BF16>(RowVector<double>(rows({{value, value}}))); };
  const auto first = [](const Matrix<BF16>& y) { return to_double(y(0, 0)); };
  const RMSNorm<BF16> plain(vector(1.0078125), root_of);
  const RMSNorm<BF16> one_plus(vector(0.0078125), root_of, GainConvention::one_plus);
  CHECK(first(apply_as<CastOrder::llama>(plain, x)) == 1.0078125);
  CHECK(first(apply_as<CastOrder::gemma>(one_plus, x)) == 1.015625);
  CHECK(first(apply_as<CastOrder::olmo2>(plain, x)) == 1.015625);
}

TEST_CASE("cast orders: I1, I2, sums that float32 cannot hold, and zero rows", "[norm]") {
  const RMSNorm<float> norm(RowVector<float>::Ones(2), 0);
  const UnitLayerNorm<float> centred(2, 0);
  for (const float size : {300.0f, 2e19f, 3e38f, 1e-30f, 1e-44f}) {
    INFO("x = [" << size << ", 0]");
    Matrix<float> x(1, 2);
    x << size, 0;
    CHECK(std::fabs(apply_as<CastOrder::llama>(norm, x)(0, 0) - 1.41421356f) <= 0x1p-23f);
    CHECK(std::fabs(apply_as<CastOrder::t5>(norm, x)(0, 0) - 1.41421356f) <= 0x1p-23f);
    CHECK(std::fabs(apply_as<CastOrder::layer_norm>(centred, x)(0, 0) - 1) <= 0x1p-23f);
    CHECK(apply_as<CastOrder::llama>(norm, Matrix<float>(0 * x)).isZero(0));
    CHECK(apply_as<CastOrder::layer_norm>(centred, Matrix<float>(0 * x)).isZero(0));
  }
  const Matrix<F16> halves = rounded<F16>(rows({{300, 0}}));
  CHECK(to_double(apply_as<CastOrder::llama>(UnitRMSNorm<F16>(2, 1e-6), halves)(0, 0)) == 1.4140625);
}

TEST_CASE("cast orders: per head, and rows that do not fit", "[norm]") {
  const Matrix<BF16> x = golden().input<BF16>("x");
  const RMSNorm<BF16> head(RowVector<BF16>(golden().vector<BF16>("weight").head(16)), eps);
  const Matrix<BF16> y = apply_as<CastOrder::llama>(PerHead(head, 4), x);
  CHECK(share(Matrix<BF16>(y.rightCols(16)), apply_as<CastOrder::llama>(head, Matrix<BF16>(x.rightCols(16)))) == 1);
  CHECK(share(y, golden().matrix<BF16>("llama/bf16_bf16")) < 0.9);
  CHECK_THROWS_AS(apply_as<CastOrder::llama>(head, x), ShapeError);
  CHECK_THROWS_AS(apply_as<CastOrder::llama>(PerHead(head, 3), x), ShapeError);
  const GatedRMSNorm<BF16> gated(64, golden().vector<BF16>("weight"), eps, 1, GateOrder::gate_first);
  CHECK_THROWS_AS(apply_as<CastOrder::mamba2>(gated, x, Matrix<BF16>(x.topRows(2))), ShapeError);
  CHECK_THROWS_AS(apply_as<CastOrder::qwen3_next>(gated, x, x), InvariantError);
  CHECK_THROWS_AS(apply_as<CastOrder::minimax>(gated, x, x), InvariantError);
}

}  // namespace rmsfold
