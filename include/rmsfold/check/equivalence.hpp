// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The equivalence checker: one norm, its readers and a rotation, along the right paths and the wrong one, each against a derived bound.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <rmsfold/check/metrics.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

/// What `check_equivalence` found. Every path is measured against \f$\mathrm{RMSNorm}_g(x)W^T + b\f$, computed in wider arithmetic.
struct EquivalenceReport {
  Index tokens = 0;   ///< rows of the batch
  Index dim = 0;      ///< width of the residual stream
  Index outputs = 0;  ///< outputs of all readers together

  ErrorMetrics rotate_after_norm;                ///< \f$(\mathrm{RMSNorm}_g(x)Q)(WQ)^T\f$: exact, costs a rotation at run time (identity 3)
  ErrorMetrics naive_merged;                     ///< \f$\mathrm{RMSNorm}_g(xQ)(WQ)^T\f$: WRONG unless \f$Q\Gamma=\Gamma Q\f$ (identity 4)
  ErrorMetrics gain_folded;                      ///< \f$\mathrm{rms}(xQ)(W\Gamma Q)^T\f$: exact (identity 5)
  std::optional<ErrorMetrics> gain_transported;  ///< \f$\mathrm{RMSNorm}_{g|P|}(xP)(WP)^T\f$: exact, signed permutations only (identity 6)
  /// The naive path's error minus its prediction \f$\mathrm{rms}(x)(Q\Gamma-\Gamma Q)(WQ)^T\f$, against the naive path's own rounding bound.
  ErrorMetrics naive_minus_predicted;

  /// The paths that must be exact are within their bounds, and the naive path is wrong by exactly what identity 4 says (nothing, where \f$Q\Gamma=\Gamma Q\f$).
  [[nodiscard]] bool passed() const noexcept {
    return rotate_after_norm.within_bound() && gain_folded.within_bound() && (!gain_transported || gain_transported->within_bound()) &&
           naive_minus_predicted.within_bound();
  }
};

namespace detail {

/// Carries out one path block by block and measures it. C is the type the path computes in, R the wider one of the reference.
///
/// With \f$y = W'z\f$ computed, \f$\hat y=\hat W\hat z\f$ exact, n terms: \f$|y-\hat y| \le \sum|W'-\hat W||z| + \|\hat W_i\|\,\|\delta z\| + \gamma_{n+1}(u_C)(\sum|W'||z|+|b|) + 2n\eta_C\f$,
/// the last for products that underflow; \f$|W'_{ij}-\hat W_{ij}| \le u_S|\hat W_{ij}| + \eta_S + \gamma_{terms}(2^{-53})\|\hat W_i\|\f$, and \f$\|\delta z\|\f$ is bounded
/// normwise by the caller.
template <Storage S>
struct Path {
  using C = Compute<S>;
  Matrix<C> z;                 ///< the path's own normalised vectors, `tokens x n`
  RowVector<double> delta_z;   ///< bound on \f$\|\delta z_t\|_2\f$
  RowVector<double> z_norm1;   ///< \f$\|z_t\|_1\f$

  Path(Matrix<C> normalised, RowVector<double> delta) : z(std::move(normalised)), delta_z(std::move(delta)), z_norm1(z.rows()) {
    for (Index t = 0; t < z.rows(); ++t) z_norm1[t] = z.row(t).template cast<double>().cwiseAbs().sum();
  }

  /// Outputs of a block of readers' rows, and their bounds.
  /// @param exact     \f$\hat W\f$ in double, `rows x n`
  /// @param row_norm  its row norms
  /// @param terms     roundings in composing \f$\hat W\f$; 0 says that it is moved and negated only, so that storing it rounds nothing either
  /// @param extra     per token and output: error that is not this path's rounding
  void run(const Matrix<double>& exact, const RowVector<double>& row_norm, double terms, const RowVector<double>& bias,
           const Matrix<double>& extra, Matrix<C>& y, Matrix<double>& bound) const {
    const Index n = exact.cols();
    const Matrix<S> stored = rounded<S>(exact);
    const Matrix<C> w = stored.unaryExpr([](S value) { return static_cast<C>(to_double(value)); });
    y.noalias() = z * w.transpose();
    y.rowwise() += bias.cast<C>();
    const double u_s = terms > 0 ? unit_roundoff<S>() : 0;
    const double underflow = terms > 0 ? underflow_unit<S>() : 0;
    const double u_c = static_cast<double>(std::numeric_limits<C>::epsilon()) / 2;
    const double products = u_s / (1 - u_s) + gamma_n(static_cast<double>(n + 1), u_c);
    const Matrix<double> magnitude = z.template cast<double>().cwiseAbs() * w.template cast<double>().cwiseAbs().transpose();
    const double composition = gamma_n(terms, 0x1p-53);
    bound = extra + products * magnitude;
    bound.array() += 2 * static_cast<double>(n) * underflow_unit<C>();  // products, here and in the reference
    for (Index i = 0; i < exact.rows(); ++i) {
      const double per_entry = (underflow + composition * row_norm[i]) / (1 - u_s);
      bound.col(i) += (per_entry * z_norm1 + row_norm[i] * delta_z).transpose();
      bound.col(i).array() += gamma_n(static_cast<double>(n + 1), u_c) * std::fabs(bias[i]);
    }
  }
};

}  // namespace detail

/// Runs rotate-after-norm, naive-merged, gain-folded and, for signed permutations, gain-transported on a batch, and says how far each is from
/// \f$\mathrm{RMSNorm}_g(x)W^T+b\f$ and from what rounding explains.
///
/// Weights are merged in double and stored in `S`; paths compute in `Compute<S>`; the reference is computed in double, or `long double` when `S` is `double`.
/// Paths that start in the new basis start from \f$xQ\f$ rounded once to the computing type.
/// @param norm     the norm with its gain.
/// @param readers  its readers; outputs are counted through all of them.
/// @param q        the rotation.
/// @param x        `tokens x n`, inputs of the norm.
/// @throws ShapeError when sizes do not fit or there is nothing to check; RangeError when a merged weight overflows `S`.
/// @par Cost  a few products `tokens x n x outputs`; memory for 512 outputs at a time.
template <Storage S, Isometry G, DenseExpr D>
  requires std::same_as<Wide<S>, double>
[[nodiscard]] EquivalenceReport check_equivalence(const RMSNorm<S>& norm, Readers<S> readers, const G& q, const D& x) {
  using C = Compute<S>;
  using R = std::conditional_t<std::same_as<C, double>, long double, double>;
  constexpr Index rows_at_once = 512;
  const Index n = norm.dim();
  if (x.cols() != n || x.rows() < 1) detail::raise<ShapeError>("checker: a batch {} x {} for a norm of dimension {}", x.rows(), x.cols(), n);
  if (readers.empty()) detail::raise<ShapeError>("checker: the norm has no readers");
  detail::check_side(n, q.dim(), "rows");

  const RowVector<double> g = norm.gain();
  const RowVector<R> g_wide = g.cast<R>();
  const Matrix<C> x_c = x.template cast<C>();
  const Matrix<R> unit = norm.without_gain().apply(x_c.template cast<R>());
  const Matrix<R> reference_z = unit * g_wide.asDiagonal();
  const Matrix<C> x_rotated = act(q, x_c.template cast<R>()).template cast<C>();
  const Matrix<C> z_after = act(q, norm.apply(x_c).template cast<R>()).template cast<C>();
  // identity 4: rms(x)(QΓ - ΓQ)
  const Matrix<R> commutator = act(q, unit) * g_wide.asDiagonal() - act(q, reference_z);

  // Relative errors of the normalised vectors, normwise; each factor (1 + e) is one source.
  const double n_terms = static_cast<double>(n);
  const double u_c = static_cast<double>(std::numeric_limits<C>::epsilon()) / 2;
  const double u_r = static_cast<double>(std::numeric_limits<R>::epsilon()) / 2;
  const double defect = q.orthogonality_defect();
  const double rotation = ExactIsometry<G> ? 0 : (1 + u_c) * (1 + std::sqrt(n_terms) * gamma_n(q.error_terms(), u_r)) - 1;
  const double mean_square = gamma_n(n_terms + 4, 0x1p-53);
  const double then_normalised = (1 + mean_square) * (1 + u_c) * (1 + u_c) * (1 + u_c);
  const double then_rotated = then_normalised * (1 + rotation) - 1;
  const double largest_gain = g.cwiseAbs().maxCoeff();
  const RowVector<double> unit_norm = unit.rowwise().norm().template cast<double>().transpose();
  const RowVector<double> reference_norm = reference_z.rowwise().norm().template cast<double>().transpose();

  // Entries of xQ, of z and of the product with the gain that are subnormal in C are rounded absolutely.
  const double underflow = std::sqrt(n_terms) * underflow_unit<C>();
  RowVector<double> from_rotated(x.rows());  // bound on the error of rms(xQ): the norm at most doubles a relative error rho < 1/2 of xQ, and never exceeds sqrt(n)
  for (Index t = 0; t < x.rows(); ++t) {
    const double x_norm = static_cast<double>(x_c.row(t).template cast<R>().norm());
    const double rho = ExactIsometry<G> || !(x_norm > 0) ? rotation : rotation + underflow / x_norm;
    const double moved = rho < 0.5 ? 2 * rho / (1 - rho) * unit_norm[t] : std::sqrt(n_terms) + unit_norm[t];
    from_rotated[t] = moved + (then_normalised - 1) * (unit_norm[t] + moved) + underflow;
  }
  const RowVector<double> with_gain = (largest_gain * from_rotated).array() + underflow;
  const RowVector<double> after_error = (then_rotated * reference_norm).array() + (largest_gain + 3) * underflow;

  const detail::Path<S> after(z_after, after_error);
  const detail::Path<S> naive(norm.apply(x_rotated), with_gain);
  const detail::Path<S> folded(norm.without_gain().apply(x_rotated), from_rotated);
  std::optional<detail::Path<S>> transported;
  if constexpr (ExactIsometry<G>) transported.emplace(rotate_norm(norm, q).apply(x_rotated), with_gain);

  EquivalenceReport report;
  report.tokens = x.rows();
  report.dim = n;
  if constexpr (ExactIsometry<G>) report.gain_transported.emplace();
  Matrix<C> y;
  Matrix<double> bound;
  for (const Linear<S>& reader : readers) {
    detail::check_side(reader.in(), n, "the input side");
    if (reader.bias && reader.bias->size() != reader.out()) {
      detail::raise<ShapeError>("checker: a reader with {} outputs has {} biases", reader.out(), reader.bias->size());
    }
    for (Index start = 0; start < reader.out(); start += rows_at_once) {
      const Index rows = (std::min)(rows_at_once, reader.out() - start);
      const Matrix<double> w = widened(Matrix<S>(reader.weight.middleRows(start, rows)));
      const Matrix<double> w_gain = w * g.asDiagonal();
      const Matrix<double> w_rotated = act(q, w);
      const RowVector<double> w_norm = w.rowwise().norm().transpose();
      const RowVector<double> w_gain_norm = w_gain.rowwise().norm().transpose();
      const RowVector<double> bias =
          reader.bias ? widened(RowVector<S>(reader.bias->segment(start, rows))) : RowVector<double>(RowVector<double>::Zero(rows));
      const Matrix<R> w_wide = w.template cast<R>();
      Matrix<R> reference = reference_z * w_wide.transpose();
      reference.rowwise() += bias.cast<R>();
      const Matrix<R> predicted = commutator * act(q, w_wide).transpose();
      const RowVector<double> scale =
          (reference.rowwise().norm() / std::sqrt(static_cast<R>(rows))).template cast<double>().transpose();  // over this block of outputs

      // What the reference's own rounding and a Q that is only nearly orthogonal add, the same for every path.
      const Matrix<double> reference_error = gamma_n(2 * n_terms + 8, u_r) * (reference_z.cwiseAbs() * w_wide.cwiseAbs().transpose()).template cast<double>();
      const auto with_defect = [&](const RowVector<double>& z_norm, const RowVector<double>& row_norm) {
        return Matrix<double>(reference_error + 2 * defect * z_norm.transpose() * row_norm);
      };
      const auto measure = [&](ErrorMetrics& metrics, const Matrix<R>& expected) {
        for (Index t = 0; t < y.rows(); ++t) {
          for (Index i = 0; i < rows; ++i) {
            metrics.add(t, report.outputs + i, static_cast<double>(static_cast<R>(y(t, i)) - expected(t, i)), bound(t, i), scale[t]);
          }
        }
      };

      after.run(w_rotated, w_norm, q.error_terms(), bias, with_defect(reference_norm, w_norm), y, bound);
      measure(report.rotate_after_norm, reference);
      folded.run(act(q, w_gain), w_gain_norm, q.error_terms() + 1, bias, with_defect(unit_norm, w_gain_norm), y, bound);
      measure(report.gain_folded, reference);
      if constexpr (ExactIsometry<G>) {
        transported->run(w_rotated, w_norm, 0, bias, with_defect(reference_norm, w_norm), y, bound);
        measure(*report.gain_transported, reference);
      }
      naive.run(w_rotated, w_norm, q.error_terms(), bias, with_defect(largest_gain * unit_norm, w_norm), y, bound);
      measure(report.naive_merged, reference);
      const Matrix<double> predicted_error =
          gamma_n(2 * n_terms + 2 * q.error_terms() * std::sqrt(n_terms) + 8, u_r) * largest_gain * unit_norm.transpose() * w_norm;
      bound += 2 * predicted_error;
      measure(report.naive_minus_predicted, reference + predicted);
      report.outputs += rows;
    }
  }
  return report;
}

}  // namespace rmsfold
