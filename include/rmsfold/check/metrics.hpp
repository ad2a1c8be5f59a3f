// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Error metrics of one computed path against a reference, entry by entry, with a bound for each entry.

#include <cmath>

#include <rmsfold/core/finite.hpp>

namespace rmsfold {

/// How far a path's outputs are from the reference, and how that compares with what rounding explains.
///
/// `within_bound()` is the verdict: every entry finite and \f$|e_{ti}| \le bound_{ti}\f$. It is decided on exponent bits, so that a NaN fails under `-ffast-math` too.
class ErrorMetrics {
 public:
  /// Takes in one output.
  /// @param error  computed minus reference.
  /// @param bound  largest error that rounding explains; > 0 unless the entry must be exact.
  /// @param scale  root mean square of the same token's reference outputs around it, which relative errors are stated against.
  void add(Index token, Index output, double error, double bound, double scale) noexcept {
    ++count_;
    if (!is_finite(error) || !is_finite(bound)) {
      if (finite_) {
        worst_token_ = token;
        worst_output_ = output;
      }
      finite_ = false;
      return;
    }
    const double magnitude = std::fabs(error);
    sum_of_squares_ += magnitude * magnitude;
    if (magnitude > max_absolute_) max_absolute_ = magnitude;
    if (scale > 0 && magnitude > max_relative_ * scale) max_relative_ = magnitude / scale;
    const double ratio = magnitude > 0 ? (bound > 0 ? magnitude / bound : largest_ratio) : 0;
    if (ratio > worst_ratio_) {
      worst_ratio_ = ratio;
      if (finite_) {
        worst_token_ = token;
        worst_output_ = output;
        bound_at_worst_ = bound;
      }
    }
  }

  /// Largest \f$|e|\f$, in the units of the outputs.
  [[nodiscard]] double max_absolute() const noexcept { return max_absolute_; }
  /// Largest \f$|e_{ti}|\f$ over the root mean square of token t's reference outputs (the checker: in the same block of up to 512).
  [[nodiscard]] double max_relative() const noexcept { return max_relative_; }
  /// \f$\sqrt{\overline{e^2}}\f$.
  [[nodiscard]] double rms() const noexcept { return count_ > 0 ? std::sqrt(sum_of_squares_ / static_cast<double>(count_)) : 0; }
  /// Largest \f$|e| / bound\f$; above 1 something other than rounding happened.
  [[nodiscard]] double measured_over_bound() const noexcept { return worst_ratio_; }
  /// The bound of the entry with the largest ratio.
  [[nodiscard]] double bound_at_worst() const noexcept { return bound_at_worst_; }
  /// Row of the batch of the worst entry (the first entry that is not finite, if there is one).
  [[nodiscard]] Index worst_token() const noexcept { return worst_token_; }
  /// Output channel of the worst entry, counted through all readers.
  [[nodiscard]] Index worst_output() const noexcept { return worst_output_; }
  /// Whether every error and bound was finite.
  [[nodiscard]] bool all_finite() const noexcept { return finite_; }
  /// Number of outputs compared.
  [[nodiscard]] Index count() const noexcept { return count_; }
  /// The verdict. Nothing compared is nothing proved: false.
  [[nodiscard]] bool within_bound() const noexcept { return finite_ && count_ > 0 && worst_ratio_ <= 1; }

 private:
  static constexpr double largest_ratio = 1e300;  // an error where none is allowed

  Index count_ = 0;
  double sum_of_squares_ = 0;
  double max_absolute_ = 0;
  double max_relative_ = 0;
  double worst_ratio_ = 0;
  double bound_at_worst_ = 0;
  Index worst_token_ = 0;
  Index worst_output_ = 0;
  bool finite_ = true;
};

}  // namespace rmsfold
