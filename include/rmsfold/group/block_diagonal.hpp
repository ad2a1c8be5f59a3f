// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Block-diagonal rotations: one rotation per head.

#include <algorithm>
#include <utility>
#include <vector>

#include <rmsfold/group/isometry.hpp>

namespace rmsfold {

/// \f$\mathrm{diag}(R_0, …, R_{k-1})\f$ with equal block sizes: channel block h is rotated by \f$R_h\f$ alone.
///
/// @invariant at least one block; all of one dimension.
template <Isometry G>
class BlockDiagonal {
 public:
  /// The smallest group of the lattice that holds every value of this type: each block may have a sign of its own, so "up to one global sign" is lost,
  /// \f$\mathrm{diag}(P,-P)\f$, and with it the ones vector.
  static constexpr Gauge gauge = G::gauge == Gauge::permutation_up_to_sign ? Gauge::signed_permutation
                                 : G::gauge == Gauge::fixes_ones           ? Gauge::orthogonal
                                                                           : Gauge{G::gauge};

  /// @throws ShapeError when there is no block or the dimensions differ.
  explicit BlockDiagonal(std::vector<G> blocks) : blocks_(std::move(blocks)) {
    if (blocks_.empty()) detail::raise<ShapeError>("block-diagonal rotation without blocks");
    for (const G& block : blocks_) {
      if (block.dim() != block_dim()) detail::raise<ShapeError>("blocks of dimensions {} and {}", block_dim(), block.dim());
    }
  }

  /// k blocks times their dimension.
  [[nodiscard]] Index dim() const noexcept { return static_cast<Index>(blocks_.size()) * block_dim(); }
  /// Dimension of one block.
  [[nodiscard]] Index block_dim() const noexcept { return blocks_.front().dim(); }
  /// \f$R_0, …, R_{k-1}\f$.
  [[nodiscard]] const std::vector<G>& blocks() const noexcept { return blocks_; }

  /// Block by block.
  [[nodiscard]] BlockDiagonal inverse() const {
    std::vector<G> inverses;
    inverses.reserve(blocks_.size());
    for (const G& block : blocks_) inverses.push_back(block.inverse());
    return BlockDiagonal(std::move(inverses));
  }

  /// Every block `times` times in a row: from kv heads to the query heads that share them, since query head h reads kv head h / times.
  [[nodiscard]] BlockDiagonal repeated(Index times) const {
    std::vector<G> result;
    for (const G& block : blocks_) result.insert(result.end(), static_cast<std::size_t>(times), block);
    return BlockDiagonal(std::move(result));
  }

  /// \f$|P|\f$, block by block.
  [[nodiscard]] BlockDiagonal unsigned_part() const
    requires ExactIsometry<G>
  {
    std::vector<G> result;
    result.reserve(blocks_.size());
    for (const G& block : blocks_) result.push_back(block.unsigned_part());
    return BlockDiagonal(std::move(result));
  }

  /// Multiplies the middle axis of `[outer, dim, inner]`, in place.
  template <class S>
  void apply(S* data, Index outer, Index inner) const {
    for (Index o = 0; o < outer; ++o) {
      for (const G& block : blocks_) {
        block.apply(data, 1, inner);
        data += block_dim() * inner;
      }
    }
  }

  /// The worst block's.
  [[nodiscard]] double orthogonality_defect() const {
    double worst = 0;
    for (const G& block : blocks_) worst = (std::max)(worst, static_cast<double>(block.orthogonality_defect()));
    return worst;
  }
  /// The worst block's.
  [[nodiscard]] double error_terms() const {
    double worst = 0;
    for (const G& block : blocks_) worst = (std::max)(worst, static_cast<double>(block.error_terms()));
    return worst;
  }

 private:
  std::vector<G> blocks_;
};

}  // namespace rmsfold
