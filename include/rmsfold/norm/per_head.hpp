// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Norms of the heads of a row, each for itself: the QK-norms of most families. Those of full width (olmo2, olmoe) are plain norms of that width.

#include <utility>
#include <vector>

#include <rmsfold/core/error.hpp>
#include <rmsfold/tensor/matrix.hpp>

namespace rmsfold {

/// A row of `heads * n` entries as `heads` rows of n, each normalised by itself.
///
/// Such a norm sits in head space: it sees no rotation of the residual stream, and its gain stays where it is.
/// @tparam Norm  a norm of length n: `RMSNorm`, `LayerNorm` or their gain-free forms.
template <class Norm>
class PerHead {
 public:
  /// One norm, its gain shared by all heads (qwen3, phi, persimmon). @throws ShapeError when there is no head.
  PerHead(Norm norm, Index heads) : norms_{std::move(norm)}, heads_(heads) { check(); }

  /// A norm for each head (cohere, stablelm). @throws ShapeError when there is none or they differ in length.
  explicit PerHead(std::vector<Norm> norms) : norms_(std::move(norms)), heads_(static_cast<Index>(norms_.size())) { check(); }

  /// Number of heads.
  [[nodiscard]] Index heads() const noexcept { return heads_; }
  /// Length of the rows it normalises: of all heads.
  [[nodiscard]] Index dim() const noexcept { return heads_ * norms_.front().dim(); }
  /// The norm of a head. @pre 0 <= head < heads().
  [[nodiscard]] const Norm& norm(Index head) const noexcept { return norms_[norms_.size() == 1 ? 0 : static_cast<std::size_t>(head)]; }

  /// Each head of each row through its norm. @param x `tokens x heads * n`. @returns `tokens x heads * n`. @throws ShapeError.
  template <DenseExpr D>
  [[nodiscard]] Matrix<typename D::Scalar> apply(const D& x) const {
    if (x.cols() != dim()) detail::raise<ShapeError>("{} heads of {} on rows of length {}", heads_, norms_.front().dim(), x.cols());
    Matrix<typename D::Scalar> y(x.rows(), x.cols());
    for (Index head = 0, n = norms_.front().dim(); head < heads_; ++head) {
      y.middleCols(head * n, n) = norm(head).apply(x.middleCols(head * n, n));
    }
    return y;
  }

 private:
  void check() const {
    if (heads_ < 1) detail::raise<ShapeError>("PerHead: {} heads", heads_);
    for (const Norm& norm : norms_) {
      if (norm.dim() != norms_.front().dim()) {
        detail::raise<ShapeError>("PerHead: heads of {} and of {} channels", norms_.front().dim(), norm.dim());
      }
    }
  }

  std::vector<Norm> norms_;
  Index heads_;
};

}  // namespace rmsfold
