// SPDX-License-Identifier: MIT
// The checker must fail: each usual mistake, by hand, against the very bounds that let the right path through.
#include <rmsfold/check/equivalence.hpp>

#include <rmsfold/group/haar.hpp>
#include <rmsfold/group/hadamard.hpp>

#include <cmath>

#include "support/catch.hpp"
#include "support/compare.hpp"
#include "support/random_layer.hpp"

namespace rmsfold {
namespace {

constexpr Index dim = 64;
constexpr Index outputs = 30;
constexpr Index tokens = 8;

/// A gain-folded path of which the merged weight is given: what `check_equivalence` computes for the right one.
template <Storage S>
struct Folded64 {
  using C = Compute<S>;
  Random random{161};
  RMSNorm<S> norm = test::random_norm<S>(dim, 1e-6, random);
  Linear<S> reader = test::random_linear<S>(outputs, dim, random);
  Hadamard q = Hadamard::random(dim, random);
  Matrix<C> x = normal_matrix(tokens, dim, random).template cast<C>();

  Matrix<double> weight = widened(reader.weight);
  RowVector<double> gain = widened(norm.gain());
  RowVector<double> bias = widened(*reader.bias);
  Matrix<long double> reference;

  Folded64() {
    const Matrix<long double> z = norm.apply(Matrix<long double>(x.template cast<long double>()));
    reference = reader.apply(z);
  }

  [[nodiscard]] Matrix<double> merged(const RowVector<double>& g) const {
    return act(q, Matrix<double>(weight * g.asDiagonal()));
  }

  [[nodiscard]] ErrorMetrics judge(const Matrix<C>& z, const Matrix<double>& merged_weight,
                                   const RowVector<double>& bias_used) const {
    // Rotation in double and rounding to C, seen twice through the norm; the norm; two roundings of its result.
    // ‖rms(x)‖ ≤ √n.
    const double u = static_cast<double>(std::numeric_limits<C>::epsilon()) / 2;
    const double delta = std::sqrt(64.0) * (4 * u + gamma_n(dim + 2 * 8 * q.error_terms() + 10, 0x1p-53));
    const detail::Path<S> path(z, RowVector<double>::Constant(tokens, delta));
    Matrix<C> y;
    Matrix<double> bound;
    const Matrix<double> defect = Matrix<double>::Constant(
        tokens, outputs, 2 * q.orthogonality_defect() * 8 * merged_weight.rowwise().norm().maxCoeff());
    path.run(merged_weight, merged_weight.rowwise().norm().transpose(), q.error_terms() + 1, bias_used, defect, y,
             bound);
    ErrorMetrics metrics;
    for (Index t = 0; t < tokens; ++t) {
      for (Index i = 0; i < outputs; ++i)
        metrics.add(t, i, static_cast<double>(static_cast<long double>(y(t, i)) - reference(t, i)), bound(t, i), 1);
    }
    return metrics;
  }

  [[nodiscard]] Matrix<C> rotated_unit() const {
    return norm.without_gain().apply(Matrix<C>(act(q, Matrix<double>(x.template cast<double>())).template cast<C>()));
  }
};

/// Claims to be a rotation and is not quite.
class Skewed {
 public:
  static constexpr Gauge gauge = Gauge::orthogonal;
  Skewed(Hadamard q, double factor) : q_(std::move(q)), factor_(factor) {}
  [[nodiscard]] Index dim() const noexcept { return q_.dim(); }
  [[nodiscard]] Skewed inverse() const { return {q_.inverse(), 1 / factor_}; }
  template <Real T>
  void apply(T* data, Index outer, Index inner) const {
    q_.apply(data, outer, inner);
    for (Index o = 0; o < outer; ++o) {
      for (Index k = 0; k < inner; ++k) data[o * dim() * inner + k] *= static_cast<T>(factor_);
    }
  }
  [[nodiscard]] double orthogonality_defect() const noexcept { return q_.orthogonality_defect(); }
  [[nodiscard]] double error_terms() const noexcept { return q_.error_terms() + 2; }

 private:
  Hadamard q_;
  double factor_;
};

}  // namespace

TEMPLATE_TEST_CASE("checker: every usual mistake is beyond the bound", "[check]", double, float, F16, BF16) {
  const Folded64<TestType> site;
  const auto z = site.rotated_unit();
  const ErrorMetrics right = site.judge(z, site.merged(site.gain), site.bias);
  INFO("measured / bound of the right path: " << right.measured_over_bound());
  CHECK(right.within_bound());

  const Matrix<double> folded = site.weight * site.gain.asDiagonal();
  const Matrix<double> twice = site.weight * site.gain.cwiseAbs2().asDiagonal();
  CHECK_FALSE(site.judge(z, act(site.q, site.weight), site.bias).within_bound());          // gain not folded
  CHECK_FALSE(site.judge(z, act(site.q, twice), site.bias).within_bound());                // folded twice
  CHECK_FALSE(site.judge(z, act_transposed(site.q, folded), site.bias).within_bound());    // rotated by the inverse
  CHECK_FALSE(site.judge(z, act(site.q, act(site.q, folded)), site.bias).within_bound());  // rotated twice
  CHECK_FALSE(site.judge(z, folded, site.bias).within_bound());                            // not rotated
  CHECK_FALSE(site.judge(z, site.merged(site.gain), 2 * site.bias).within_bound());        // bias scaled
  Matrix<double> centred = folded;
  centred.colwise() -= folded.rowwise().mean();
  CHECK_FALSE(site.judge(z, act(site.q, centred), site.bias).within_bound());  // mean removed
  CHECK_FALSE(site.judge(site.norm.without_gain().apply(site.x), site.merged(site.gain), site.bias)
                  .within_bound());  // stream not rotated
}

TEMPLATE_TEST_CASE("checker: M3, one of 64 gains off by 1e-3 shows in the outputs of 32 and 64 bits", "[check]", double,
                   float) {
  const Folded64<TestType> site;
  const auto z = site.rotated_unit();
  for (Index j = 0; j < dim; ++j) {
    RowVector<double> gain = site.gain;
    // The worst case of a 64-term sum in float is larger than what a gain of 0.2 can do in these 240 outputs.
    if (std::same_as<TestType, float> && std::fabs(gain[j]) < 1) continue;
    gain[j] *= 1.001;
    const ErrorMetrics metrics = site.judge(z, site.merged(gain), site.bias);
    if (metrics.within_bound())
      FAIL_CHECK("gain " << j << " passes: measured / bound " << metrics.measured_over_bound());
  }
}

// In 16 bits an output cannot show it: rounding the weights explains more. The stored numbers can, each against its own
// bound.
TEMPLATE_TEST_CASE("checker: M3, one of 64 gains off by 1e-3 shows in the stored weights of every type", "[check]",
                   double, float, F16, BF16) {
  const Folded64<TestType> site;
  const Matrix<double> exact = site.merged(site.gain);
  const RowVector<double> row_norm = exact.rowwise().norm().transpose();
  const double composition = 2 * gamma_n(site.q.error_terms() + 1, 0x1p-53);  // ours and theirs
  const auto judge = [&](const Matrix<double>& merged) {
    const Matrix<double> stored = widened(rounded<TestType>(merged));
    ErrorMetrics metrics;
    for (Index i = 0; i < outputs; ++i) {
      for (Index j = 0; j < dim; ++j) {
        const double bound =
            unit_roundoff<TestType>() * std::fabs(exact(i, j)) + underflow_unit<TestType>() + composition * row_norm[i];
        metrics.add(i, j, stored(i, j) - exact(i, j), bound, row_norm[i]);
      }
    }
    return metrics;
  };
  CHECK(judge(exact).within_bound());
  for (Index j = 0; j < dim; ++j) {
    RowVector<double> gain = site.gain;
    gain[j] *= 1.001;
    if (judge(site.merged(gain)).within_bound()) FAIL_CHECK("gain " << j << " passes");
  }
}

TEST_CASE("checker: a rotation that is none fails every path", "[check]") {
  Random random(162);
  const Hadamard q = Hadamard::random(dim, random);
  const auto check = [&]<Storage S>(S, double factor) {
    const RMSNorm<S> norm = test::random_norm<S>(dim, 1e-6, random);
    const std::vector<Linear<S>> readers{test::random_linear<S>(outputs, dim, random)};
    return check_equivalence(norm, std::span(readers), Skewed(q, factor), normal_matrix(tokens, dim, random));
  };
  CHECK(check(double{}, 1).passed());
  CHECK(check(BF16{}, 1).passed());
  for (const EquivalenceReport& report :
       {check(double{}, 1 + 1e-9), check(float{}, 1.001), check(F16{}, 1.1), check(BF16{}, 2)}) {
    CHECK_FALSE(report.passed());
    CHECK_FALSE(report.gain_folded.within_bound());
    CHECK_FALSE(report.rotate_after_norm.within_bound());
  }
}

// A dense Q from a file or from Haar states its defect too; it must not be so large that it hides a real mistake.
TEMPLATE_TEST_CASE("checker: a dense rotation in float hides no gain off by 1e-3", "[check]", float, double) {
  Random random(163);
  const Orthogonal<TestType> q = haar_orthogonal<TestType>(dim, random);
  const double measured = orthogonality_residual(q.matrix()).worst() * dim;  // ≥ the spectral norm
  INFO("stated defect " << q.orthogonality_defect() << ", measured at most " << measured);
  // Such a gain moves an output by about 1e-3/√n of |z||w|.
  CHECK(2 * q.orthogonality_defect() < 1e-3 / std::sqrt(static_cast<double>(dim)));
}

}  // namespace rmsfold
