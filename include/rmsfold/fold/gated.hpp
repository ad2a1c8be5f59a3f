// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Folding the gain of a gated inner norm into the projection behind it.

#include <utility>

#include <rmsfold/fold/gain.hpp>
#include <rmsfold/norm/gated_rms_norm.hpp>

namespace rmsfold {

/// A gated norm whose gain is 1, and its reader.
template <Storage S>
struct FoldedGated {
  GatedRMSNorm<S> norm;  ///< weight 1, of the length it had
  Linear<S> reader;      ///< \f$W\Gamma\f$
};

/// \f$W' = W\Gamma\f$ for the projection that reads a gated norm: the gain is elementwise, as the gate is, so the two commute whichever comes first. A gain that all
/// groups share is repeated for each of them.
/// @throws ShapeError; RangeError when a product overflows `S`.
template <Storage S>
[[nodiscard]] FoldedGated<S> fold_gain(const GatedRMSNorm<S>& norm, const Linear<S>& reader) {
  const RowVector<S> ones = RowVector<S>::Constant(norm.weight().size(), neutral_weight<S>(GainConvention::plain));
  return {GatedRMSNorm<S>(norm.dim(), ones, norm.eps(), norm.groups(), norm.order(), norm.activation()),
          {rounded<S>(detail::times_gain(reader, norm.gain())), reader.bias}};
}

}  // namespace rmsfold
