// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Centring: the mean that a LayerNorm subtracts moves into everything that writes the stream, and an RMSNorm is left.

#include <concepts>
#include <optional>

#include <rmsfold/fold/linear.hpp>
#include <rmsfold/norm/layer_norm.hpp>
#include <rmsfold/norm/rms_norm.hpp>

namespace rmsfold {

namespace detail {

template <class Norm>
inline constexpr bool subtracts_mean = false;
template <Storage S>
inline constexpr bool subtracts_mean<LayerNorm<S>> = true;
template <Storage S>
inline constexpr bool subtracts_mean<UnitLayerNorm<S>> = true;

template <class Norm, Storage S>
void check_centring(const Norm& norm, Index width) {
  static_assert(subtracts_mean<Norm>,
                "rmsfold: removing the mean from what writes the stream is an identity before a LayerNorm only; an RMSNorm reads the mean too, "
                "and nothing gives it back");
  if (norm.dim() != width) raise<ShapeError>("a LayerNorm of dimension {} does not read a stream of width {}", norm.dim(), width);
}

/// \f$MC\f$: every row minus its mean.
template <Storage S>
[[nodiscard]] Matrix<S> centred_rows(const Matrix<S>& m) {
  Matrix<Wide<S>> wide = widened(m);
  for (Index i = 0; i < wide.rows(); ++i) {
    const Wide<S> mean = wide.row(i).sum() / Wide<S>(static_cast<double>(wide.cols()));
    wide.row(i).array() -= mean;
  }
  return rounded<S>(wide);
}

}  // namespace detail

/// A vector of the stream, or a writer's bias: \f$b' = bC,\ C = I-\mathbf 1\mathbf 1^T/n\f$. @param norm  any LayerNorm of the stream. @throws ShapeError; RangeError when a difference overflows `S`.
template <class Norm, Storage S>
[[nodiscard]] RowVector<S> centre_vector(const Norm& norm, const RowVector<S>& b) {
  detail::check_centring<Norm, S>(norm, b.size());
  return detail::centred_rows(Matrix<S>(b));
}

/// An embedding or position table `[rows, n]`: every ROW minus its mean, \f$E' = EC\f$. @param norm  any LayerNorm of the stream. @throws ShapeError; RangeError when a difference overflows `S`.
template <class Norm, Storage S>
[[nodiscard]] Matrix<S> centre_embedding(const Norm& norm, const Matrix<S>& table) {
  detail::check_centring<Norm, S>(norm, table.cols());
  return detail::centred_rows(table);
}

/// A linear layer that writes the stream: every COLUMN of `[n, in]` minus its mean, \f$W' = CW\f$, and \f$b' = bC\f$.
///
/// Every writer of the stream must be centred, embeddings and positions among them: then its mean is zero everywhere, `as_rms_norm` replaces every LayerNorm, and the
/// final output is unchanged (identity 7).
/// @param norm  any LayerNorm of the stream: for an RMSNorm this does not compile.
/// @throws ShapeError; RangeError when a difference overflows `S`.
/// @note Source: Ashkboos et al., SliceGPT (2024), section 3.1; Jiang et al., Pre-RMSNorm and Pre-CRMSNorm Transformers (2023).
template <class Norm, Storage S>
[[nodiscard]] Linear<S> centre_writer(const Norm& norm, const Linear<S>& writer) {
  detail::check_centring<Norm, S>(norm, writer.out());
  const Matrix<S> columns = writer.weight.transpose();
  Linear<S> result{detail::centred_rows(columns).transpose(), std::nullopt};
  if (writer.bias) result.bias = centre_vector(norm, *writer.bias);
  return result;
}

/// What a LayerNorm without a bias is on a stream whose every writer was centred: \f$\mathrm{LN}_g(x) = \mathrm{RMSNorm}_g(x)\f$ when \f$\bar x = 0\f$.
/// @throws RefusedError when it has a bias: `fold_gain` moves it into the readers.
template <Storage S>
[[nodiscard]] RMSNorm<S> as_rms_norm(const LayerNorm<S>& norm) {
  if (norm.bias()) detail::raise<RefusedError>("a LayerNorm with a bias is no RMSNorm: move the bias into the readers first, with fold_gain");
  return RMSNorm<S>(norm.weight(), norm.eps(), norm.convention());
}

/// The same for a LayerNorm whose gain is folded. @throws RefusedError when it kept a bias.
template <Storage S>
[[nodiscard]] UnitRMSNorm<S> as_rms_norm(const UnitLayerNorm<S>& norm) {
  if (norm.bias()) detail::raise<RefusedError>("a LayerNorm with a bias is no RMSNorm: move the bias into the readers first, with MissingBias::create");
  return UnitRMSNorm<S>(norm.dim(), norm.eps());
}

}  // namespace rmsfold
