// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One planned tensor, ready to be computed tile by tile: what writes a checkpoint and what verifies one run the same tiles.

#include <atomic>
#include <concepts>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <rmsfold/core/parallel.hpp>
#include <rmsfold/model/plan.hpp>

namespace rmsfold::model {

namespace detail {

/// Raw bytes read at once where rows are independent.
inline constexpr std::size_t chunk_bytes = std::size_t{32} << 20;

}  // namespace detail

/// A piece of a recomputed tensor: a dense `rows x cols` block that starts at (row, col).
template <class T>
struct Tile {
  const T* values;  ///< row-major
  Index row;        ///< where it starts in the tensor
  Index col;        ///< where it starts in the tensor
  Index rows;       ///< its size
  Index cols;       ///< its size
};

/// The factors of one tensor, bound to their numbers. A vector is a matrix of one row.
///
/// Tiles have fixed places and sizes, so neither bits nor bounds depend on threads or on how a tensor is read in chunks.
class TensorProgram {
 public:
  /// Rows of a tile when rows are independent; columns when columns are.
  static constexpr Index tile = 256;

  /// @pre the plan was made for this model and outlives the program.
  TensorProgram(const Model& model, const Plan& plan, const TensorPlan& tensor) : name_(tensor.name), dtype_(model.dtype(tensor.name)) {
    const Shape& shape = model.info(tensor.name).shape;
    const bool is_vector = shape.size() == 1;
    rows_ = is_vector ? 1 : static_cast<Index>(shape.at(0));
    cols_ = static_cast<Index>(shape.back());
    for (const Factor& factor : tensor.factors) {
      const bool down = factor.axis == 0 && !is_vector;
      if (factor.kind == Factor::Kind::gain) {
        gain_ = plan.site(factor.of).gain;
      } else if (factor.kind == Factor::Kind::moves) {
        moves_.emplace(plan.basis.stream->as_signed_permutation()->unsigned_part());
        along_row_ = &*moves_;
      } else if (factor.of == residual) {
        (down ? down_ : along_row_) = &*plan.basis.stream;
      } else {
        const BlockDiagonal<Rotation>& heads = plan.basis.heads.at(factor.of);
        const Index repeats = (down ? rows_ : cols_) / heads.dim();
        (down ? heads_down_ : heads_along_row_).emplace(heads.repeated(repeats));
      }
    }
  }
  TensorProgram(const TensorProgram&) = delete;
  TensorProgram& operator=(const TensorProgram&) = delete;

  /// Rows; 1 for a vector.
  [[nodiscard]] Index rows() const noexcept { return rows_; }
  /// Columns.
  [[nodiscard]] Index cols() const noexcept { return cols_; }
  /// Stored type.
  [[nodiscard]] Dtype dtype() const noexcept { return dtype_; }
  /// Bytes of a row.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return static_cast<std::size_t>(cols_) * size_of(dtype_); }

  /// Whether entries are only moved and negated, so that every bit is determined.
  [[nodiscard]] bool is_exact() const { return gain_.size() == 0 && moves_only(); }
  /// Whether the only arithmetic is one product per entry, so that the correctly rounded result is determined.
  [[nodiscard]] bool is_product_only() const { return gain_.size() > 0 && moves_only(); }
  /// Whether the rotations, if any, only move and negate.
  [[nodiscard]] bool moves_only() const {
    const auto exact = [](const Rotation& q) { return q.as_signed_permutation() != nullptr; };
    const auto exact_heads = [&](const std::optional<BlockDiagonal<Rotation>>& heads) {
      return !heads || std::all_of(heads->blocks().begin(), heads->blocks().end(), exact);
    };
    return (!along_row_ || exact(*along_row_)) && (!down_ || exact(*down_)) && exact_heads(heads_along_row_) &&
           exact_heads(heads_down_);
  }

  /// Roundings on the way to one entry.
  [[nodiscard]] double error_terms() const {
    const auto terms = [](const auto& q) { return q ? q->error_terms() : 0.0; };
    return (gain_.size() > 0 ? 1 : 0) + terms(along_row_) + terms(down_) + terms(heads_along_row_) + terms(heads_down_);
  }

  /// Whether rows depend on each other, so that the whole tensor is one chunk.
  [[nodiscard]] bool mixes_rows() const noexcept { return down_ != nullptr || heads_down_.has_value(); }
  /// Rows to read at once: about `bytes`, a multiple of `tile`.
  [[nodiscard]] Index rows_per_chunk(std::size_t bytes) const {
    if (mixes_rows()) return rows_;
    const Index fit = static_cast<Index>(bytes / (std::max)(std::size_t{1}, row_bytes()));
    return (std::max)(tile, fit / tile * tile);
  }

  /// Largest error, in a tile, of two double computations of the same entry.
  ///
  /// Each is off by \f$\gamma_{terms}(2^{-53})\f$ times the norm of the row, or column, that was rotated; a row error that is then rotated down the columns is
  /// bounded by the tile's Frobenius norm.
  /// @param basis_error  error of an entry of a rotation that was estimated; 0 when it is known.
  [[nodiscard]] Matrix<double> composition_error(const Tile<double>& t, double basis_error) const {
    const Eigen::Map<const Matrix<double>> values(t.values, t.rows, t.cols);
    Matrix<double> error = Matrix<double>::Zero(t.rows, t.cols);
    const double gain_terms = gain_.size() > 0 ? 1 : 0;
    if (rotates_rows()) {
      const double terms = gain_terms + (along_row_ ? along_row_->error_terms() : heads_along_row_->error_terms());
      const double unit = 2 * gamma_n(terms, 0x1p-53) + basis_error;
      if (mixes_rows()) {
        error.array() += unit * values.norm();
      } else {
        error.colwise() += unit * values.rowwise().norm();
      }
    }
    if (mixes_rows()) {
      const double terms = gain_terms + (down_ ? down_->error_terms() : heads_down_->error_terms());
      const RowVector<double> norms = values.colwise().norm();
      error.rowwise() += (2 * gamma_n(terms, 0x1p-53) + basis_error) * norms;
    }
    return error;
  }

  /// Computes the tiles of a chunk and gives each to `visit(Tile<T>)`, concurrently.
  ///
  /// @tparam T         `double`, or the stored scalar itself for a program that `is_exact`.
  /// @param raw        `count` stored rows from `first_row` on; all of them when `mixes_rows`.
  /// @returns how many entries of the input are infinite or NaN.
  /// @throws RefusedError when such an entry would be spread by a rotation.
  template <class T, class Visit>
  std::uint64_t run(std::span<const std::byte> raw, Index first_row, Index count, unsigned threads, const Visit& visit) const {
    std::atomic<std::uint64_t> non_finite{0};
    const bool by_columns = mixes_rows();
    const Index width = by_columns ? strip_width() : tile;
    const Index extent = by_columns ? cols_ : count;
    parallel_for((extent + width - 1) / width, threads, [&](Index number) {
      const Index start = number * width;
      const Index length = (std::min)(width, extent - start);
      const Index rows = by_columns ? rows_ : length;
      const Index cols = by_columns ? length : cols_;
      const Index row = by_columns ? 0 : start;
      const Index col = by_columns ? start : 0;
      std::vector<T> values(static_cast<std::size_t>(rows * cols));
      for (Index i = 0; i < rows; ++i) {
        const std::size_t at = static_cast<std::size_t>((row + i) * cols_ + col) * size_of(dtype_);
        load(raw.subspan(at, static_cast<std::size_t>(cols) * size_of(dtype_)), std::span(values).subspan(static_cast<std::size_t>(i * cols), static_cast<std::size_t>(cols)));
      }
      if constexpr (std::same_as<T, double>) non_finite += count_non_finite(values, first_row + row, col, cols);
      apply(values.data(), rows, cols, col);
      visit(Tile<T>{values.data(), first_row + row, col, rows, cols});
    });
    return non_finite;
  }

 private:
  [[nodiscard]] bool rotates_rows() const noexcept { return along_row_ != nullptr || heads_along_row_.has_value(); }

  /// Columns of a strip: all when each row is rotated as a whole, else whole heads.
  [[nodiscard]] Index strip_width() const {
    if (along_row_) return cols_;
    if (!heads_along_row_) return tile;
    const Index head = heads_along_row_->block_dim();
    return (std::max)(Index{1}, tile / head) * head;
  }

  template <class T>
  void load(std::span<const std::byte> bytes, std::span<T> values) const {
    if constexpr (std::same_as<T, double>) {
      load_as_double(dtype_, bytes, values);
    } else {
      std::memcpy(values.data(), bytes.data(), bytes.size());
    }
  }

  [[nodiscard]] std::uint64_t count_non_finite(const std::vector<double>& values, Index row, Index col, Index cols) const {
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (is_finite(values[i])) continue;
      ++count;
      if ((rotates_rows() || mixes_rows()) && !is_exact()) {
        rmsfold::detail::raise<RefusedError>("tensor {}: entry ({}, {}) is {}; a rotation would spread it over a whole row or column", name_,
                                             row + static_cast<Index>(i) / cols, col + static_cast<Index>(i) % cols, values[i]);
      }
    }
    return count;
  }

  template <class T>
  void apply(T* values, Index rows, Index cols, Index col) const {
    if constexpr (std::same_as<T, double>) {
      for (Index i = 0; gain_.size() > 0 && i < rows; ++i) {
        for (Index j = 0; j < cols; ++j) values[i * cols + j] *= gain_[col + j];
      }
    }
    if (along_row_) along_row_->apply(values, rows, 1);
    if (heads_along_row_) {
      const std::vector<Rotation>& blocks = heads_along_row_->blocks();
      const Index head = heads_along_row_->block_dim();
      const auto first = blocks.begin() + col / head;
      BlockDiagonal<Rotation>(std::vector<Rotation>(first, first + cols / head)).apply(values, rows, 1);
    }
    if (down_) down_->apply(values, 1, cols);
    if (heads_down_) heads_down_->apply(values, 1, cols);
  }

  std::string name_;
  Dtype dtype_;
  Index rows_ = 0;
  Index cols_ = 0;
  RowVector<double> gain_;
  std::optional<Rotation> moves_;
  const Rotation* along_row_ = nullptr;
  const Rotation* down_ = nullptr;
  std::optional<BlockDiagonal<Rotation>> heads_along_row_;
  std::optional<BlockDiagonal<Rotation>> heads_down_;
};

}  // namespace rmsfold::model
