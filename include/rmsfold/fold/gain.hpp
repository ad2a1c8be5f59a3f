// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Gain folding: a norm's gain moves into the linear layers that read it.

#include <span>
#include <vector>

#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

/// A gain-free norm and its readers, which together are the function they were made from.
template <Storage S>
struct Folded {
  UnitRMSNorm<S> norm;              ///< what is left of the norm
  std::vector<Linear<S>> readers;  ///< ALL readers of the norm: one left out would read a vector without its gain
};

namespace detail {

/// \f$W\Gamma\f$, not rounded to storage yet.
template <Storage S>
[[nodiscard]] Matrix<Wide<S>> times_gain(const Linear<S>& reader, const RowVector<Wide<S>>& gain) {
  if (reader.in() != gain.size()) {
    raise<ShapeError>("a gain of length {} cannot be folded into a reader of rows of length {}", gain.size(), reader.in());
  }
  Matrix<Wide<S>> w = widened(reader.weight);
  for (Index i = 0; i < w.rows(); ++i) w.row(i).array() *= gain.array();
  return w;
}

}  // namespace detail

/// Gain folding (identity 2): \f$(\mathrm{rms}(x)\odot g)W^T = \mathrm{rms}(x)(W\Gamma)^T\f$ for every reader, \f$\Gamma = \mathrm{diag}(g)\f$. Biases stay.
///
/// @param readers  every reader of the norm.
/// @returns the gain-free norm and \f$W\Gamma\f$, the product correctly rounded: both significands together fit 53 bits for all of f16, bf16 and f32.
/// @throws ShapeError; RangeError when a product overflows `S`.
template <Storage S>
[[nodiscard]] Folded<S> fold_gain(const RMSNorm<S>& norm, Readers<S> readers) {
  Folded<S> result{norm.without_gain(), {}};
  for (const Linear<S>& reader : readers) {
    result.readers.push_back({rounded<S>(detail::times_gain(reader, norm.gain())), reader.bias});
  }
  return result;
}

}  // namespace rmsfold
