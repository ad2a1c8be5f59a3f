// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Per-head rotation of the value / output pair: a gauge that attention weights cannot see.

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
  if (pair.output.in() % kv_width != 0) {
    detail::raise<ShapeError>("output projection reads {} channels, not a multiple of the {} of all kv heads", pair.output.in(), kv_width);
  }
  return {rotate_writer(pair.value, r), rotate_reader(pair.output, r.repeated(pair.output.in() / kv_width))};
}

}  // namespace rmsfold
