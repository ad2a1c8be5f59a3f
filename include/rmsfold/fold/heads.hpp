// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The value / output pair of an attention layer: its per-head rotation, a gauge that attention weights cannot see, and its bias.

#include <utility>

#include <rmsfold/fold/rotate.hpp>
#include <rmsfold/group/block_diagonal.hpp>

namespace rmsfold {

/// A value projection and the output projection that reads what attention makes of it.
template <Storage S>
struct ValueOutput {
  Linear<S> value;   ///< `[n_kv * head_dim, hidden]`
  Linear<S> output;  ///< `[hidden, n_heads * head_dim]`
};

/// \f$W_v' = R^TW_v,\ b_v' = b_vR,\ W_o' = W_o\,R_{kv(h)}\f$ (identity 9), R one rotation per kv head; query head h reads kv head h / (n_heads / n_kv).
///
/// Exact for MHA, GQA and MQA, any attention weights and any head_dim; not through a gate between attention and output projection.
/// @param r  one block of head_dim per kv head.
/// @throws ShapeError when the sizes do not fit; RangeError when a result overflows `S`.
template <Storage S, Isometry G>
[[nodiscard]] ValueOutput<S> rotate_heads(const ValueOutput<S>& pair, const BlockDiagonal<G>& r) {
  const Index kv_width = r.dim();
  if (pair.value.out() != kv_width) {
    detail::raise<ShapeError>("value projection of width {} but {} kv heads of {}", pair.value.out(), r.blocks().size(), r.block_dim());
  }
  if (kv_width < 1 || pair.output.in() % kv_width != 0) {
    detail::raise<ShapeError>("output projection reads {} channels, not a multiple of the {} of all kv heads", pair.output.in(), kv_width);
  }
  return {rotate_writer(pair.value, r), rotate_reader(pair.output, r.repeated(pair.output.in() / kv_width))};
}

/// What attention makes of a constant value.
enum class AttentionRows {
  sum_to_one,     ///< a softmax over the keys
  sum_below_one,  ///< a softmax with a sink logit or a zero pad (gpt-oss)
  gated,          ///< whatever they sum to, a gate behind attention does not let a constant value pass unchanged
};

/// \f$b_o' = b_o + \bar b_vW_o^T,\ b_v' = 0\f$, \f$\bar b_v\f$ the value bias of the kv head that each query head reads: exact where the attention weights of a query
/// sum to one, since a constant value then passes attention unchanged.
///
/// @param head_dim  channels of one head.
/// @returns the pair with an output bias and without a value bias; as it was when there is none.
/// @throws RefusedError when a constant value does not pass unchanged; ShapeError when the sizes do not fit; RangeError when the bias overflows `S`.
template <Storage S>
[[nodiscard]] ValueOutput<S> fold_value_bias(const ValueOutput<S>& pair, Index head_dim, AttentionRows rows) {
  if (!pair.value.bias) return pair;
  if (rows != AttentionRows::sum_to_one) {
    detail::raise<RefusedError>("a value bias cannot move behind attention whose rows do not sum to one (sink logits, zero pads, output gates): leave it");
  }
  const Index kv_width = pair.value.out();
  const Index width = pair.output.in();
  detail::check_bias(pair.output);
  if (pair.value.bias->size() != kv_width || head_dim < 1 || kv_width < 1 || kv_width % head_dim != 0 || width % kv_width != 0) {
    detail::raise<ShapeError>("value width {} (bias {}), output width {}, heads of {}: these do not fit", kv_width, pair.value.bias->size(), width, head_dim);
  }
  const RowVector<Wide<S>> bias = widened(*pair.value.bias);
  RowVector<Wide<S>> repeated(width);
  const Index group = width / kv_width;  // query heads per kv head
  for (Index head = 0; head < width / head_dim; ++head) {
    repeated.segment(head * head_dim, head_dim) = bias.segment(head / group * head_dim, head_dim);
  }
  RowVector<Wide<S>> moved = repeated * widened(pair.output.weight).transpose();
  if (pair.output.bias) moved += widened(*pair.output.bias);
  ValueOutput<S> result = pair;
  result.value.bias.reset();
  result.output.bias = rounded<S>(moved);
  return result;
}

}  // namespace rmsfold
