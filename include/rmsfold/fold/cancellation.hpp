// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Norm cancellation: a norm whose every reader is normed again only changes the eps of the later norms.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include <rmsfold/core/error.hpp>
#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

/// A reader of the norm that is to be dropped.
struct NormedReader {
  std::string name;           ///< for the message
  bool normed_again = false;  ///< whether its output goes into an RMSNorm, and nowhere else, with no bias added between
};

/// Whether a norm may be dropped (identity 11): only if EVERY reader's output is normed again. QK-norms alone do not do: the values are not normed.
/// @throws RefusedError naming the first reader that is not normed again; ShapeError when there is no reader.
inline void require_cancellable(std::span<const NormedReader> readers) {
  if (readers.empty()) detail::raise<ShapeError>("norm cancellation: the norm has no readers");
  for (const NormedReader& reader : readers) {
    if (!reader.normed_again) {
      detail::raise<RefusedError>(
          "the norm before {} cannot be dropped: its output is not normed again, so it would see rows of another length; keep the norm, or fold only its gain",
          reader.name);
    }
  }
}

/// What dropping the first of two norms costs each row, in exact arithmetic.
///
/// With \f$m = \overline{x^2}\f$, \f$y = xW^T\f$: \f$\mathrm{rms}_{\epsilon_2}(\mathrm{rms}_{\epsilon_1}(x)W^T) = y/\sqrt{\overline{y^2}+\epsilon_2(m+\epsilon_1)}\f$, so dropping it
/// multiplies the row by \f$\sqrt{(\overline{y^2}+\epsilon_2(m+\epsilon_1))/(\overline{y^2}+\epsilon_2)}\f$: exactly 1 when \f$\epsilon_2 = 0\f$, whatever \f$\epsilon_1\f$.
struct CancellationError {
  double predicted = 0;  ///< largest \f$|\mathrm{factor}-1|\f$ over the rows
  double measured = 0;   ///< largest \f$\|\mathrm{without}-\mathrm{with}\|/\|\mathrm{with}\|\f$ over the rows, both computed in double
};

/// Measures it on a batch. Rows that the reader sends to zero cost nothing. @param x `tokens x n`, at least one row.
/// @throws ShapeError; RefusedError when the reader has a bias, which cancels nothing.
template <Storage S>
[[nodiscard]] CancellationError cancellation_error(const UnitRMSNorm<S>& first, const Linear<S>& reader, const UnitRMSNorm<S>& second, const Matrix<double>& x) {
  if (reader.bias) detail::raise<RefusedError>("norm cancellation: the reader has a bias, which the first norm does not scale; keep the norm");
  if (x.rows() < 1) detail::raise<ShapeError>("norm cancellation: no rows to measure");
  const Matrix<double> y = reader.apply(x);
  const Matrix<double> with = second.apply(reader.apply(first.apply(x)));
  const Matrix<double> without = second.apply(y);
  CancellationError result;
  const auto take = [](double& worst, double value) {
    if (is_finite(worst) && !(value <= worst)) worst = value;  // a NaN comes in, and stays
  };
  for (Index t = 0; t < x.rows(); ++t) {
    const double rms_x = detail::safe_norm(x.row(t)) / std::sqrt(static_cast<double>(x.cols()));
    const double rms_y = detail::safe_norm(y.row(t)) / std::sqrt(static_cast<double>(y.cols()));
    if (rms_y == 0) continue;
    const double root = std::sqrt(second.eps());
    const double factor = std::hypot(rms_y, root * std::hypot(rms_x, std::sqrt(first.eps()))) / std::hypot(rms_y, root);
    take(result.predicted, std::fabs(factor - 1));
    take(result.measured, detail::safe_norm(without.row(t) - with.row(t)) / detail::safe_norm(with.row(t)));
  }
  return result;
}

}  // namespace rmsfold
