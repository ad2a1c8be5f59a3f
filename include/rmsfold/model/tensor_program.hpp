// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// One planned tensor, ready to be computed tile by tile: what writes a checkpoint and what verifies one run the same tiles.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <rmsfold/core/parallel.hpp>
#include <rmsfold/core/work_buffer.hpp>
#include <rmsfold/kernel/elementwise.hpp>
#include <rmsfold/kernel/rms_norm.hpp>
#include <rmsfold/model/plan.hpp>

namespace rmsfold::model {

/// A rectangle of a tensor that can be computed on its own: some rows, or, where rows are mixed, all rows of some columns.
struct Piece {
  Index row = 0;   ///< where it starts in the tensor
  Index col = 0;   ///< where it starts in the tensor
  Index rows = 0;  ///< its size
  Index cols = 0;  ///< its size
};

/// What a worker keeps from piece to piece.
struct Workspace {
  WorkBuffer raw;     ///< a piece as it is stored
  WorkBuffer values;  ///< a tile of it
  WorkBuffer result;  ///< the piece as it will be stored, when that is another type
};

/// Memory that all workers together may fill with pieces and tiles.
inline constexpr std::size_t working_memory = std::size_t{200} << 20;

/// A part of a recomputed piece: a dense `rows x cols` block that starts at (row, col) of the tensor.
template <class T>
struct Tile {
  const T* values;  ///< row-major
  Index row;        ///< where it starts in the tensor
  Index col;        ///< where it starts in the tensor
  Index rows;       ///< its size
  Index cols;       ///< its size
};

namespace detail {

/// A gain of one head, for all of them. @param name  for messages
[[nodiscard]] inline RowVector<double> tiled(const std::string& name, const RowVector<double>& gain, Index length) {
  if (gain.size() == 0 || length % gain.size() != 0) rmsfold::detail::raise<InvariantError>("tensor {}: a gain of length {} for {} channels", name, gain.size(), length);
  return gain.replicate(1, length / gain.size());
}

/// One rotation per head for a whole axis: each repeated for its query heads, or as `blocks` says, with the identity where there are no values.
[[nodiscard]] inline BlockDiagonal<Rotation> whole_axis(const BlockDiagonal<Rotation>& heads, const std::vector<Index>& blocks, Index length) {
  if (blocks.empty()) return heads.repeated(length / heads.dim());
  std::vector<Rotation> all;
  for (const Index head : blocks) {
    all.push_back(head < 0 ? Rotation(SignedPermutation::identity(heads.block_dim())) : heads.blocks()[static_cast<std::size_t>(head)]);
  }
  return BlockDiagonal<Rotation>(std::move(all));
}

}  // namespace detail

/// The factors of one tensor, bound to their numbers.
///
/// A tensor is a stack of slabs of `slab_rows x cols`: factors along the last axis act along rows, those along another one act down each slab. A vector is one row.
/// The tiles of dense rotations have fixed places and sizes, so no bits depend on threads or on how a tensor is cut into pieces.
class TensorProgram {
 public:
  /// Rows, or columns, of a tile of a dense rotation; the most of any.
  static constexpr Index tile = 256;
  /// Stored bytes of a piece of rows.
  static constexpr std::size_t piece_bytes = std::size_t{1} << 20;
  /// Bytes of a tile of rows, in double.
  static constexpr std::size_t tile_bytes = std::size_t{256} << 10;
  /// Bytes of a strip of columns, in double.
  static constexpr std::size_t strip_bytes = std::size_t{2} << 20;

  /// @pre the plan was made for this model and outlives the program. @throws IoError.
  TensorProgram(const Model& model, const Plan& plan, const TensorPlan& tensor)
      : name_(tensor.name), dtype_(model.dtype(tensor.name)), is_quantised_(model.is_quantised(tensor.name)), raw_dtype_(is_quantised_ ? Dtype::f64 : dtype_) {
    lay_out(model.shape(tensor.name), tensor.factors);
    if (!tensor.absorbs.empty()) absorb(model, plan.site(tensor.absorbs));
    for (const Factor& factor : tensor.factors) {
      const bool down = factor.axis == down_axis_;
      switch (factor.kind) {
        case Factor::Kind::gain: (down ? gain_down_ : gain_) = detail::tiled(name_, plan.site(factor.of).gain, down ? slab_rows_ : cols_); break;
        case Factor::Kind::scale: {
          const double scale = 1 / std::sqrt(static_cast<double>(model.graph().size.hidden));
          gain_ = gain_.size() > 0 ? RowVector<double>(scale * gain_) : RowVector<double>(RowVector<double>::Constant(cols_, scale));
          break;
        }
        case Factor::Kind::inverse_gain: divisor_ = plan.site(factor.of).gain; break;
        case Factor::Kind::moves:
          moves_.emplace(plan.basis.stream->as_signed_permutation()->unsigned_part());
          along_row_ = &*moves_;
          break;
        case Factor::Kind::rotation:
          if (factor.of == residual) {
            (down ? down_ : along_row_) = &*plan.basis.stream;
          } else {
            const std::vector<Index>& blocks = model.graph().params[static_cast<std::size_t>(model.param_index(tensor.name))].value_blocks;
            (down ? heads_down_ : heads_along_row_).emplace(detail::whole_axis(plan.basis.heads.at(factor.of), blocks, down ? slab_rows_ : cols_));
          }
          break;
      }
    }
  }
  TensorProgram(const TensorProgram&) = delete;
  TensorProgram& operator=(const TensorProgram&) = delete;

  /// Rows of all slabs; 1 for a vector.
  [[nodiscard]] Index rows() const noexcept { return rows_; }
  /// Columns.
  [[nodiscard]] Index cols() const noexcept { return cols_; }
  /// Type of the output.
  [[nodiscard]] Dtype dtype() const noexcept { return dtype_; }
  /// Bytes of a row.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return static_cast<std::size_t>(cols_) * size_of(dtype_); }

  /// Whether entries are only moved and negated, so that every bit is determined.
  [[nodiscard]] bool is_exact() const { return !is_quantised_ && !has_gain() && absorbed_.size() == 0 && moves_only(); }
  /// Whether the only arithmetic is one product, or quotient, per entry, so that the correctly rounded result is determined.
  [[nodiscard]] bool is_product_only() const {
    const int products = (gain_.size() > 0) + (gain_down_.size() > 0) + (divisor_.size() > 0);
    return absorbed_.size() == 0 && moves_only() && (products == 1 || (is_quantised_ && products == 0));
  }
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
    return gain_terms() + terms(along_row_) + terms(down_) + terms(heads_along_row_) + terms(heads_down_);
  }

  /// Whether rows depend on each other: all of them, so that pieces are columns, or those of a head, so that pieces are whole heads.
  [[nodiscard]] bool mixes_rows() const noexcept { return mixes_all_rows() || heads_down_.has_value(); }

  /// The tensor, cut into pieces of which each of `threads` workers can hold `held` in its share of `working_memory`; but a row, or a strip of columns that is
  /// computed at once, is not cut.
  [[nodiscard]] std::vector<Piece> pieces(unsigned threads, unsigned held) const {
    const std::size_t element = size_of(raw_dtype_);
    std::vector<Piece> result;
    if (mixes_all_rows()) {
      std::size_t share = (std::max)(working_memory / (std::size_t{thread_count(threads)} * held), std::size_t{2} << 20);
      if (is_dense()) share = (std::min)(share, std::size_t{16} << 20);  // products take so long that no worker should be left with the last of them
      const Index fit = static_cast<Index>(share / (static_cast<std::size_t>((std::max)(Index{1}, slab_rows_)) * element));
      const Index step = strip_width();
      const Index width = (std::max)(step, fit / step * step);
      for (Index row = 0; row < rows_; row += slab_rows_) {
        for (Index col = 0; col < cols_; col += width) result.push_back({row, col, slab_rows_, (std::min)(width, cols_ - col)});
      }
    } else {
      const Index fit = static_cast<Index>(piece_bytes / (std::max)(std::size_t{1}, row_bytes()));
      const Index step = tile_rows();
      const Index height = (std::max)(step, fit / step * step);
      for (Index row = 0; row < rows_; row += height) result.push_back({row, 0, (std::min)(height, rows_ - row), cols_});
    }
    return result;
  }
  /// Whether the input is stored as codes, so that its raw form is that of its exact values, F64.
  [[nodiscard]] bool is_quantised() const noexcept { return is_quantised_; }
  /// Bytes of a piece in its raw form.
  [[nodiscard]] std::size_t raw_bytes_of(const Piece& piece) const noexcept {
    return static_cast<std::size_t>(piece.rows) * static_cast<std::size_t>(piece.cols) * size_of(raw_dtype_);
  }
  /// A piece of the input in its raw form: as it is stored, or its exact values. @param tensor  that of this program. @param out  `raw_bytes_of(piece)`
  void read(const Model& model, const std::string& tensor, const Piece& piece, std::span<std::byte> out) const {
    if (!is_quantised_) {
      for_each_run(piece, [&](std::uint64_t offset, std::size_t at, std::size_t length) { model.checkpoint().read(tensor, offset, out.subspan(at, length)); });
      return;
    }
    model.quantised_of(tensor)->read(model.checkpoint(), static_cast<std::uint64_t>(piece.row), static_cast<std::uint64_t>(piece.col),
                                     static_cast<std::uint64_t>(piece.rows), static_cast<std::uint64_t>(piece.cols), out);
  }
  /// Bytes of a piece of the output.
  [[nodiscard]] std::size_t bytes_of(const Piece& piece) const noexcept {
    return static_cast<std::size_t>(piece.rows) * static_cast<std::size_t>(piece.cols) * size_of(dtype_);
  }
  /// Where the first byte of a piece is in the tensor.
  [[nodiscard]] std::uint64_t offset_of(const Piece& piece) const noexcept {
    return (static_cast<std::uint64_t>(piece.row) * static_cast<std::uint64_t>(cols_) + static_cast<std::uint64_t>(piece.col)) * size_of(dtype_);
  }
  /// Whether the bytes of a piece lie together in the tensor.
  [[nodiscard]] bool is_contiguous(const Piece& piece) const noexcept { return piece.cols == cols_; }
  /// Calls `use(offset in the tensor, bytes in the piece, count)` for every run of bytes that a piece and the tensor share.
  template <class Use>
  void for_each_run(const Piece& piece, const Use& use) const {
    const std::size_t element = size_of(dtype_);
    const Index runs = is_contiguous(piece) ? 1 : piece.rows;
    const std::size_t length = bytes_of(piece) / static_cast<std::size_t>((std::max)(Index{1}, runs));
    for (Index i = 0; i < runs; ++i) {
      const std::uint64_t offset = (static_cast<std::uint64_t>(piece.row + i) * static_cast<std::uint64_t>(cols_) + static_cast<std::uint64_t>(piece.col)) * element;
      use(offset, static_cast<std::size_t>(i) * length, length);
    }
  }

  /// Largest error, in a tile, of two double computations of entry (i, j): `rows[i] + cols[j]`.
  struct CompositionError {
    RowVector<double> rows;  ///< one for each row
    RowVector<double> cols;  ///< one for each column
  };

  /// Each computation is off by \f$\gamma_{terms}(2^{-53})\f$ times the norm of the row, or column, that was rotated; a row error that is then rotated down the
  /// columns is bounded by the tile's Frobenius norm.
  /// @param basis_error      error of an entry of a rotation that was estimated; 0 when it is known.
  /// @param other_roundings  sum of the relative errors of other roundings of the tensor, of which rotations may have made errors of the size of a row or column.
  [[nodiscard]] CompositionError composition_error(const Tile<double>& t, double basis_error, double other_roundings) const {
    const Eigen::Map<const Matrix<double>> values(t.values, t.rows, t.cols);
    CompositionError error{RowVector<double>::Zero(t.rows), RowVector<double>::Zero(t.cols)};
    if (rotates_rows() || other_roundings > 0) {
      RowVector<double> norms(t.rows);
      for (Index i = 0; i < t.rows; ++i) norms[i] = std::sqrt(kernel::dispatch<kernel::SumOfSquares<double>>(t.values + i * t.cols, t.cols));
      error.rows = other_roundings * norms;
      if (rotates_rows()) {
        const double terms = gain_terms() + (along_row_ ? along_row_->error_terms() : heads_along_row_->error_terms());
        const double unit = 2 * gamma_n(terms, 0x1p-53) + basis_error;
        if (mixes_rows()) {
          error.rows.array() += unit * norms.norm();
        } else {
          error.rows += unit * norms;
        }
      }
    }
    if (mixes_rows() || other_roundings > 0) {
      RowVector<double> squares = RowVector<double>::Zero(t.cols);
      for (Index i = 0; i < t.rows; ++i) squares += values.row(i).cwiseAbs2();
      double unit = other_roundings;
      if (mixes_rows()) unit += 2 * gamma_n(gain_terms() + (down_ ? down_->error_terms() : heads_down_->error_terms()), 0x1p-53) + basis_error;
      error.cols = unit * squares.cwiseSqrt();
    }
    if (absorbed_.size() > 0) {  // a vector, of which a rotation spreads the errors of all entries
      error.cols.array() += 2 * (rotates_rows() ? absorbed_error_.norm() : 0);
      if (!rotates_rows()) error.cols += 2 * absorbed_error_.segment(t.col, t.cols);
    }
    return error;
  }

  /// Computes a piece tile by tile and gives each tile to `visit(Tile<T>)`.
  ///
  /// @tparam T    `double`, or the stored scalar itself for a program that `is_exact`.
  /// @param raw   the piece as it is stored, dense. It is overwritten where T is the stored scalar, and `visit` may overwrite what belongs to its tile.
  /// @returns how many entries of the input are infinite or NaN.
  /// @throws RefusedError when such an entry would be spread by a rotation.
  template <class T, class Visit>
  std::uint64_t run(std::span<std::byte> raw, const Piece& piece, Workspace& workspace, const Visit& visit) const {
    const std::uint64_t non_finite = std::same_as<T, double> ? count_non_finite(raw, piece) : 0;
    if constexpr (!std::same_as<T, double>) {  // entries are only moved: in place, unless the file puts them at odd addresses
      if (reinterpret_cast<std::uintptr_t>(raw.data()) % alignof(T) == 0) {
        T* const values = reinterpret_cast<T*>(raw.data());
        apply(values, piece);
        visit(Tile<T>{values, piece.row, piece.col, piece.rows, piece.cols});
        return non_finite;
      }
    }
    const bool by_columns = mixes_all_rows();
    const Index step = by_columns ? strip_width() : tile_rows();
    const Index extent = by_columns ? piece.cols : piece.rows;
    for (Index start = 0; start < extent; start += step) {
      const Index length = (std::min)(step, extent - start);
      const Index rows = by_columns ? piece.rows : length;
      const Index cols = by_columns ? length : piece.cols;
      const Index row = by_columns ? 0 : start;
      const Index col = by_columns ? start : 0;
      const std::span<T> values = workspace.values.first_of<T>(static_cast<std::size_t>(rows * cols));
      load(raw.subspan(static_cast<std::size_t>(row * piece.cols + col) * size_of(raw_dtype_)), piece.cols, cols, values);
      apply(values.data(), {piece.row + row, piece.col + col, rows, cols});
      visit(Tile<T>{values.data(), piece.row + row, piece.col + col, rows, cols});
    }
    return non_finite;
  }

  /// Whether nothing but a gain acts: `scale` does it.
  [[nodiscard]] bool scales_only() const noexcept { return !is_quantised_ && gain_.size() > 0 && gain_down_.size() == 0 && divisor_.size() == 0 && !rotates_rows() && !mixes_rows(); }

  /// Multiplies a piece by the gain, each product rounded once. @pre `scales_only()`.
  /// @param out        as large as the piece; it may be the piece itself.
  /// @param non_finite  entries of the input that are infinite or NaN are added to it.
  /// @returns whether every finite product fits the stored type.
  [[nodiscard]] bool scale(std::span<const std::byte> raw, const Piece& piece, std::span<std::byte> out, std::uint64_t& non_finite) const {
    non_finite += count_non_finite(raw, piece);
    const std::span<const double> factors(gain_.data() + piece.col, static_cast<std::size_t>(piece.cols));
    const std::size_t length = factors.size() * size_of(dtype_);
    bool fits = true;
    for (Index i = 0; i < piece.rows; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * length;
      fits = scale_rounded(dtype_, raw.subspan(at, length), factors, out.subspan(at, length)) < 0 && fits;
    }
    return fits;
  }

 private:
  [[nodiscard]] bool mixes_all_rows() const noexcept { return down_ != nullptr; }
  [[nodiscard]] bool has_gain() const noexcept { return gain_.size() > 0 || gain_down_.size() > 0 || divisor_.size() > 0; }
  /// Roundings of an entry before it is rotated.
  [[nodiscard]] double gain_terms() const noexcept { return (gain_.size() > 0 ? 1 : 0) + (gain_down_.size() > 0 ? 1 : 0) + (divisor_.size() > 0 ? 1 : 0); }

  /// Finds the axis, beside the last, that factors act along, and what lies before and behind it.
  void lay_out(const Shape& shape, const std::vector<Factor>& factors) {
    const std::size_t last = shape.empty() ? 0 : shape.size() - 1;
    bool acts_along_row = false;
    for (const Factor& factor : factors) {
      if (factor.axis != last) down_axis_ = factor.axis;
      acts_along_row = acts_along_row || factor.axis == last;
    }
    const auto product = [&](std::size_t from, std::size_t to) {
      Index count = 1;
      for (std::size_t axis = from; axis < to; ++axis) count *= static_cast<Index>(shape[axis]);
      return count;
    };
    if (shape.size() < 2) {
      slab_rows_ = rows_ = 1;
      cols_ = product(0, shape.size());
    } else if (down_axis_ == none) {
      cols_ = static_cast<Index>(shape[last]);
      slab_rows_ = rows_ = product(0, last);
    } else {
      if (acts_along_row && down_axis_ + 1 != last) rmsfold::detail::raise<InvariantError>("tensor {}: factors along axes {} and {}", name_, down_axis_, last);
      slab_rows_ = static_cast<Index>(shape[down_axis_]);
      rows_ = product(0, down_axis_ + 1);
      cols_ = product(down_axis_ + 1, shape.size());
    }
  }

  /// \f$W\beta\f$ of the weight beside this bias, and how far it may be off.
  void absorb(const Model& model, const Site& site) {
    const auto reader = std::find_if(site.readers.begin(), site.readers.end(), [&](const Node* node) { return node->bias && model.graph().params[*node->bias].name == name_; });
    if (reader == site.readers.end()) rmsfold::detail::raise<InvariantError>("{} is no bias of what reads {}", name_, site.norm->module);
    const std::string& weight = model.graph().params[*(*reader)->weight].name;
    Matrix<double> w = model.read_matrix(weight);
    if ((*reader)->in_axis == std::size_t{0}) w.transposeInPlace();
    absorbed_ = RowVector<double>((w * site.bias.transpose()).transpose());
    absorbed_error_ = gamma_n(static_cast<double>(w.cols()), 0x1p-53) * RowVector<double>((w.cwiseAbs() * site.bias.cwiseAbs().transpose()).transpose());
  }

  [[nodiscard]] bool rotates_rows() const noexcept { return along_row_ != nullptr || heads_along_row_.has_value(); }

  /// Rows, or columns, that a dense rotation multiplies at once: its bits depend on where they are cut.
  [[nodiscard]] bool is_dense() const {
    const auto dense = [](const Rotation& q) { return q.as_dense() != nullptr; };
    const auto dense_heads = [&](const std::optional<BlockDiagonal<Rotation>>& heads) {
      return heads && std::any_of(heads->blocks().begin(), heads->blocks().end(), dense);
    };
    return (along_row_ && dense(*along_row_)) || (down_ && dense(*down_)) || dense_heads(heads_along_row_) || dense_heads(heads_down_);
  }

  /// Rows of a tile: a fixed number for a dense rotation, else what fits a core's cache; whole heads where they are mixed.
  [[nodiscard]] Index tile_rows() const {
    const Index fit = static_cast<Index>(tile_bytes / ((std::max)(std::size_t{1}, static_cast<std::size_t>(cols_)) * sizeof(double)));
    const Index rows = is_dense() ? tile : std::clamp(fit, Index{1}, tile);
    if (!heads_down_) return rows;
    const Index head = heads_down_->block_dim();
    return (rows + head - 1) / head * head;
  }

  /// Columns of a strip: all when each row is rotated as a whole, else whole heads, a fixed number for a dense rotation, else what fits a cache.
  [[nodiscard]] Index strip_width() const {
    if (along_row_) return cols_;
    const Index fit = static_cast<Index>(strip_bytes / ((std::max)(std::size_t{1}, static_cast<std::size_t>(rows_)) * sizeof(double)));
    const Index width = is_dense() ? tile : std::clamp(fit / 8 * 8, Index{8}, tile);
    if (!heads_along_row_) return width;
    const Index head = heads_along_row_->block_dim();
    return (std::max)(Index{1}, width / head) * head;
  }

  /// Rows of `cols` elements, `stride` elements apart.
  template <class T>
  void load(std::span<const std::byte> bytes, Index stride, Index cols, std::span<T> values) const {
    if constexpr (std::same_as<T, double>) {
      load_as_double(raw_dtype_, bytes, stride, cols, values);
    } else {
      const std::size_t length = static_cast<std::size_t>(cols);
      for (std::size_t at = 0, from = 0; at < values.size(); at += length, from += static_cast<std::size_t>(stride) * sizeof(T)) {
        std::memcpy(&values[at], &bytes[from], length * sizeof(T));
      }
    }
  }

  /// How many entries of a piece are infinite or NaN. @throws RefusedError when such an entry would be spread by a rotation.
  [[nodiscard]] std::uint64_t count_non_finite(std::span<const std::byte> raw, const Piece& piece) const {
    const auto all_finite = [&](auto scalar) {
      return kernel::dispatch<kernel::AllFinite<decltype(scalar)>>(raw.data(), static_cast<Index>(piece.rows * piece.cols));
    };
    if (visit_dtype(raw_dtype_, all_finite)) return 0;
    std::uint64_t count = 0;
    for (Index i = 0; i < piece.rows * piece.cols; ++i) {
      double value = 0;
      load_as_double(raw_dtype_, raw.subspan(static_cast<std::size_t>(i) * size_of(raw_dtype_), size_of(raw_dtype_)), std::span(&value, 1));
      if (is_finite(value)) continue;
      ++count;
      if (!moves_only()) {
        rmsfold::detail::raise<RefusedError>("tensor {}: entry ({}, {}) is {}; a rotation would spread it over a whole row or column", name_,
                                             piece.row + i / piece.cols, piece.col + i % piece.cols, value);
      }
    }
    return count;
  }

  /// The heads that these rows, or columns, of the tensor are made of.
  [[nodiscard]] static BlockDiagonal<Rotation> heads_of(const BlockDiagonal<Rotation>& heads, Index start, Index count) {
    const auto first = heads.blocks().begin() + start / heads.block_dim();
    return BlockDiagonal<Rotation>(std::vector<Rotation>(first, first + count / heads.block_dim()));
  }

  /// @param part  where the values are in the tensor.
  template <class T>
  void apply(T* values, const Piece& part) const {
    if constexpr (std::same_as<T, double>) {
      for (Index i = 0; gain_.size() > 0 && i < part.rows; ++i) kernel::dispatch<kernel::Multiply>(values + i * part.cols, gain_.data() + part.col, part.cols);
      Eigen::Map<Matrix<double>> entries(values, part.rows, part.cols);
      for (Index i = 0; gain_down_.size() > 0 && i < part.rows; ++i) entries.row(i) *= gain_down_[(part.row + i) % slab_rows_];
      if (absorbed_.size() > 0) entries.row(0) += absorbed_.segment(part.col, part.cols);
      if (divisor_.size() > 0) {
        for (Index j = 0; j < part.cols; ++j) entries(0, j) = entries(0, j) == 0 ? 0 : entries(0, j) / divisor_[part.col + j];  // 0 behind a gain of 0
      }
    }
    if (along_row_) along_row_->apply(values, part.rows * (part.cols / along_row_->dim()), 1);  // several vectors of the space may lie in a row
    if (heads_along_row_) heads_of(*heads_along_row_, part.col, part.cols).apply(values, part.rows, 1);
    if (down_) down_->apply(values, 1, part.cols);
    if (heads_down_) heads_of(*heads_down_, part.row, part.rows).apply(values, 1, part.cols);
  }

  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  std::string name_;
  Dtype dtype_;
  bool is_quantised_ = false;
  Dtype raw_dtype_;
  Index rows_ = 0;
  Index slab_rows_ = 0;
  Index cols_ = 0;
  std::size_t down_axis_ = none;   // that factors act along, beside the last
  RowVector<double> gain_;         // of columns
  RowVector<double> gain_down_;    // of rows of a slab
  RowVector<double> divisor_;      // of the columns of a vector
  RowVector<double> absorbed_;     // added to a vector before it is rotated
  RowVector<double> absorbed_error_;
  std::optional<Rotation> moves_;
  const Rotation* along_row_ = nullptr;
  const Rotation* down_ = nullptr;
  std::optional<BlockDiagonal<Rotation>> heads_along_row_;
  std::optional<BlockDiagonal<Rotation>> heads_down_;
};

}  // namespace rmsfold::model
