// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The latent of multi-head latent attention: a space of its own between two projections, with a norm in it.

#include <utility>

#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

/// `down` → norm of its first channels → `up`; the remaining channels of `down` (the decoupled rotary key) bypass the norm.
///
/// The query latent has no bypass; the key/value latent of DeepSeek has `qk_rope_head_dim` of them.
/// @tparam Norm  `RMSNorm<S>`, or `UnitRMSNorm<S>` once its gain is folded.
/// @note Source: DeepSeek-AI, DeepSeek-V2 (2024), section 2.1.
template <Storage S, class Norm>
struct Latent {
  Linear<S> down;  ///< `[rank + bypass, hidden]`
  Norm norm;       ///< of dimension `rank`
  Linear<S> up;    ///< `[heads * (...), rank]`

  /// What `up` makes of a batch. @param x `tokens x hidden`. @returns `tokens x up.out()`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    check_rank();
    const Matrix<typename D::Scalar> latent = down.apply(x);
    return up.apply(norm.apply(Matrix<typename D::Scalar>(latent.leftCols(norm.dim()))));
  }
  /// The channels that bypass the norm. @param x `tokens x hidden`. @returns `tokens x bypass`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> bypass(const D& x) const {
    check_rank();
    return down.apply(x).rightCols(down.out() - norm.dim());
  }

 private:
  void check_rank() const {
    if (down.out() < norm.dim()) detail::raise<ShapeError>("a latent of rank {} behind a projection to {} channels", norm.dim(), down.out());
  }
};

/// Moves the latent's gain into `up` (identity 2); `down` is untouched. @throws ShapeError; RangeError when a product overflows `S`.
template <Storage S>
[[nodiscard]] Latent<S, UnitRMSNorm<S>> fold_gain(const Latent<S, RMSNorm<S>>& latent) {
  Folded<S> folded = fold_gain(latent.norm, {&latent.up, 1});
  return {latent.down, folded.norm, std::move(folded.readers.front())};
}

/// Rotates the latent: the first `rank` rows of `down` write it, `up` reads it. After the fold any rotation will do: its basis is a gauge of its own.
/// @param q  of dimension `rank`; a gain that is still there admits signed permutations only.
/// @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, class Norm, Isometry G>
[[nodiscard]] Latent<S, Norm> rotate_latent(const Latent<S, Norm>& latent, const G& q) {
  detail::check_side(latent.norm.dim(), q.dim(), "a latent");
  return {rotate_writer_rows(latent.down, 0, q), rotate_norm(latent.norm, q), rotate_reader(latent.up, q)};
}

}  // namespace rmsfold
