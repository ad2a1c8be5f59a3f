// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Low-rank adapters follow the weight that they are added to.

#include <span>
#include <vector>

#include <rmsfold/fold/gain.hpp>
#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

/// A low-rank addition to a weight: \f$W + s\,BA\f$. Only one factor touches the stream, so only that one moves, and the rank and the scale stay.
///
/// An adapter with a magnitude for each row (DoRA) is not of this form: a fold changes the row norms that it divides by. Merge it into W first.
/// @tparam S  storage scalar of the factors.
/// @note Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models (2021), equation 3.
template <Storage S>
struct LoraPair {
  Matrix<S> a;       ///< A, `r x in`
  Matrix<S> b;       ///< B, `out x r`
  double scale = 1;  ///< s, in most files \f$\alpha/r\f$

  /// \f$s\,BA\f$, `out x in`, not rounded to storage. @throws ShapeError when the ranks differ.
  [[nodiscard]] Matrix<Wide<S>> delta() const {
    if (a.rows() != b.cols()) detail::raise<ShapeError>("an adapter's A has rank {} but its B has rank {}", a.rows(), b.cols());
    const Matrix<Wide<S>> product = widened(b) * widened(a);
    return static_cast<Wide<S>>(scale) * product;
  }
};

/// An adapter of a reader: \f$A' = AQ\f$, since \f$(W + sBA)Q = WQ + sB(AQ)\f$. @throws ShapeError; RangeError.
template <Storage S, Isometry G>
[[nodiscard]] LoraPair<S> rotate_reader(const LoraPair<S>& pair, const G& q) {
  return {rotate_reader(Linear<S>{pair.a, std::nullopt}, q).weight, pair.b, pair.scale};
}

/// An adapter of a writer: \f$B' = Q^TB\f$, since \f$Q^T(W + sBA) = Q^TW + s(Q^TB)A\f$. An embedding's too, which adds \f$s(BA)^T\f$ to the table.
/// @throws ShapeError; RangeError.
template <Storage S, Isometry G>
[[nodiscard]] LoraPair<S> rotate_writer(const LoraPair<S>& pair, const G& q) {
  return {pair.a, rotate_writer(Linear<S>{pair.b, std::nullopt}, q).weight, pair.scale};
}

/// An adapter of a reader whose norm's gain is folded: \f$A' = A\Gamma\f$, rounded once. @throws ShapeError; RangeError.
template <Storage S>
[[nodiscard]] LoraPair<S> fold_gain(const RMSNorm<S>& norm, const LoraPair<S>& pair) {
  const std::vector<Linear<S>> a{{pair.a, std::nullopt}};
  return {fold_gain(norm, std::span(a)).readers[0].weight, pair.b, pair.scale};
}

/// An adapter of a reader whose norm's gain is folded, in the new basis: \f$A' = A\Gamma Q\f$, since \f$(W + sBA)\Gamma Q = W\Gamma Q + sB(A\Gamma Q)\f$;
/// gain and rotation composed in `Wide<S>` and rounded once.
/// @throws ShapeError; RangeError.
template <Storage S, Isometry G>
[[nodiscard]] LoraPair<S> fold_and_rotate(const RMSNorm<S>& norm, const LoraPair<S>& pair, const G& q) {
  const std::vector<Linear<S>> a{{pair.a, std::nullopt}};
  return {fold_and_rotate(norm, std::span(a), q).readers[0].weight, pair.b, pair.scale};
}

}  // namespace rmsfold
