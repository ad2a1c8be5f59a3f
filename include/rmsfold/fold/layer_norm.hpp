// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Folding and rotating LayerNorm: its gain and its bias move into the readers, and what is left commutes with rotations that fix the ones vector.

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <rmsfold/fold/rotate.hpp>
#include <rmsfold/norm/layer_norm.hpp>

namespace rmsfold {

/// Where a norm's bias goes when a reader has no bias of its own.
enum class MissingBias {
  create,  ///< the reader gets one: for runtimes whose configuration allows it
  keep,    ///< the norm keeps \f$\beta/g\f$, before the gain that its readers took
};

/// A gain-free LayerNorm and its readers, which together are the function they were made from.
template <Storage S>
struct FoldedLayerNorm {
  UnitLayerNorm<S> norm;           ///< without a bias where the readers could take it
  std::vector<Linear<S>> readers;  ///< ALL readers of the norm
};

namespace detail {

/// Whether β can move into the readers' biases.
template <Storage S>
[[nodiscard]] bool takes_bias(std::span<const Linear<S>> readers, MissingBias missing) {
  return missing == MissingBias::create || std::all_of(readers.begin(), readers.end(), [](const Linear<S>& r) { return r.bias.has_value(); });
}

/// \f$b + \beta W^T\f$, W not yet scaled.
template <Storage S>
[[nodiscard]] RowVector<Wide<S>> shifted_bias(const Linear<S>& reader, const RowVector<S>& beta) {
  check_bias(reader);
  RowVector<Wide<S>> bias = widened(beta) * widened(reader.weight).transpose();
  if (reader.bias) bias += widened(*reader.bias);
  return bias;
}

/// \f$\beta/g\f$, not rounded yet.
template <Storage S>
[[nodiscard]] RowVector<Wide<S>> bias_over_gain(const RowVector<S>& beta, const RowVector<Wide<S>>& gain) {
  RowVector<Wide<S>> result = widened(beta);
  for (Index j = 0; j < result.size(); ++j) {
    if (gain[j] != Wide<S>(0)) {
      result[j] /= gain[j];
    } else if (result[j] != Wide<S>(0)) {
      raise<RefusedError>("LayerNorm: channel {} has gain 0 and a bias, which no reader can take over without a bias of its own; use MissingBias::create", j);
    }
  }
  return result;
}

/// Fold, and whatever `rotate_rows` does to rows of the residual space, composed before the one rounding.
template <Storage S, class RotateRows>
[[nodiscard]] FoldedLayerNorm<S> fold_layer_norm(const LayerNorm<S>& norm, std::span<const Linear<S>> readers, MissingBias missing, RotateRows rotate_rows) {
  if (readers.empty()) raise<ShapeError>("LayerNorm: no readers to take its gain and bias");
  const RowVector<Wide<S>> gain = norm.gain();
  const bool moves = norm.bias() && takes_bias<S>(readers, missing);
  std::optional<RowVector<S>> kept;
  if (norm.bias() && !moves) {
    Matrix<Wide<S>> shift = bias_over_gain<S>(*norm.bias(), gain);
    rotate_rows(shift);
    kept = rounded<S>(RowVector<Wide<S>>(shift));
  }
  FoldedLayerNorm<S> result{UnitLayerNorm<S>(norm.dim(), norm.eps(), std::move(kept)), {}};
  for (const Linear<S>& reader : readers) {
    Matrix<Wide<S>> w = times_gain(reader, gain);
    rotate_rows(w);
    std::optional<RowVector<S>> bias = reader.bias;
    if (moves) bias = rounded<S>(shifted_bias(reader, *norm.bias()));
    result.readers.push_back({rounded<S>(w), std::move(bias)});
  }
  return result;
}

}  // namespace detail

/// Gain and bias folding: \f$(\mathrm{LN}_1(x)\odot g+\beta)W^T + b = \mathrm{LN}_1(x)(W\Gamma)^T + (b+\beta W^T)\f$ for every reader.
///
/// When a reader has no bias and none may be created, the norm keeps \f$\beta/g\f$ instead: \f$(\mathrm{LN}_1(x)+\beta/g)(W\Gamma)^T\f$.
/// @param readers  every reader of the norm.
/// @throws ShapeError; RangeError when a result overflows `S`; RefusedError when the norm must keep a bias on a channel whose gain is 0.
template <Storage S>
[[nodiscard]] FoldedLayerNorm<S> fold_gain(const LayerNorm<S>& norm, Readers<S> readers, MissingBias missing) {
  return detail::fold_layer_norm<S>(norm, readers, missing, [](Matrix<Wide<S>>&) {});
}

/// A gain-free LayerNorm in the new basis (identity 8): itself, its bias, if it kept one, rotated.
///
/// Only rotations whose type says that they fix the ones vector: the mean of \f$xQ\f$ is that of x for no others.
/// @throws ShapeError; RangeError when the bias overflows `S`.
template <Storage S, Isometry G>
[[nodiscard]] UnitLayerNorm<S> rotate_norm(const UnitLayerNorm<S>& norm, const G& q) {
  static_assert(contains(Gauge::fixes_ones, G::gauge),
                "rmsfold: a LayerNorm subtracts the mean, so only rotations that fix the ones vector commute with it: "
                "Permutation, HadamardFixingOnes, haar_fixing_ones, or FixesOnes(q), which checks yours");
  detail::check_side(norm.dim(), q.dim(), "rows");
  if (!norm.bias()) return norm;
  return UnitLayerNorm<S>(norm.dim(), norm.eps(), rotate_vector(*norm.bias(), q));
}

/// A LayerNorm with its gain in the new basis, which exists for permutations and one global sign only: \f$g' = g\,|P|,\ \beta' = \beta P\f$.
/// @throws ShapeError.
template <Storage S, Isometry G>
[[nodiscard]] LayerNorm<S> rotate_norm(const LayerNorm<S>& norm, const G& q) {
  static_assert(contains(Gauge::permutation_up_to_sign, G::gauge) && ExactIsometry<G>,
                "rmsfold: a LayerNorm with a gain admits permutations and one global sign only; fold the gain first: "
                "fold_gain(norm, readers, MissingBias) gives a UnitLayerNorm, which any rotation that fixes the ones vector passes");
  detail::check_side(norm.dim(), q.dim(), "rows");
  RowVector<S> weight = norm.weight();
  q.unsigned_part().apply(weight.data(), 1, 1);
  std::optional<RowVector<S>> bias = norm.bias();
  if (bias) q.apply(bias->data(), 1, 1);
  return LayerNorm<S>(std::move(weight), std::move(bias), norm.eps(), norm.convention());
}

/// Fold and rotation composed in `Wide<S>` and rounded once: \f$\mathrm{LN}_1(xQ)(W\Gamma Q)^T + b + \beta W^T\f$.
/// @throws as `fold_gain` does.
template <Storage S, Isometry G>
[[nodiscard]] FoldedLayerNorm<S> fold_and_rotate(const LayerNorm<S>& norm, Readers<S> readers, const G& q, MissingBias missing) {
  static_assert(contains(Gauge::fixes_ones, G::gauge),
                "rmsfold: a LayerNorm subtracts the mean, so only rotations that fix the ones vector commute with it: "
                "Permutation, HadamardFixingOnes, haar_fixing_ones, or FixesOnes(q), which checks yours");
  detail::check_side(norm.dim(), q.dim(), "rows");
  return detail::fold_layer_norm<S>(norm, readers, missing, [&](Matrix<Wide<S>>& rows) { q.apply(rows.data(), rows.rows(), 1); });
}

}  // namespace rmsfold
