// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Merging a change of basis \f$x' = xQ\f$ of the residual stream into what reads it, writes it, or normalises it.

#include <type_traits>

#include <rmsfold/fold/gain.hpp>
#include <rmsfold/group/isometry.hpp>
#include <rmsfold/group/signed_permutation.hpp>

namespace rmsfold {

namespace detail {

inline void check_side(Index axis, Index dim, const char* side) {
  if (axis != dim) raise<ShapeError>("a rotation of dimension {} cannot act on {} of length {}", dim, side, axis);
}

template <Storage S, Isometry G>
[[nodiscard]] Matrix<S> rotated_rows(const Matrix<S>& m, const G& q) {
  if constexpr (ExactIsometry<G>) {
    Matrix<S> result = m;
    q.apply(result.data(), result.rows(), 1);
    return result;
  } else {
    return rounded<S>(act(q, widened(m)));
  }
}

}  // namespace detail

/// A bias, or any vector of the residual space: \f$b' = bQ\f$. @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, Isometry G>
[[nodiscard]] RowVector<S> rotate_vector(const RowVector<S>& b, const G& q) {
  detail::check_side(b.size(), q.dim(), "a vector");
  return detail::rotated_rows(Matrix<S>(b), q);
}

/// A reader of the stream: \f$W' = WQ\f$; its bias lives in another space and stays. @throws ShapeError; RangeError.
template <Storage S, Isometry G>
[[nodiscard]] Linear<S> rotate_reader(const Linear<S>& reader, const G& q) {
  detail::check_side(reader.in(), q.dim(), "the input side");
  return {detail::rotated_rows(reader.weight, q), reader.bias};
}

/// A writer to the stream: \f$W' = Q^TW,\ b' = bQ\f$. @throws ShapeError; RangeError.
template <Storage S, Isometry G>
[[nodiscard]] Linear<S> rotate_writer(const Linear<S>& writer, const G& q) {
  detail::check_side(writer.out(), q.dim(), "the output side");
  Linear<S> result = writer;
  if constexpr (ExactIsometry<G>) {
    q.apply(result.weight.data(), 1, writer.in());
  } else {
    Matrix<Wide<S>> w = widened(writer.weight);
    q.apply(w.data(), 1, writer.in());
    result.weight = rounded<S>(w);
  }
  if (writer.bias) result.bias = rotate_vector(*writer.bias, q);
  return result;
}

/// Some outputs of a fused layer, or of one whose other outputs bypass the space: the `q.dim()` rows of W, and entries of b, from `first` on.
/// @throws ShapeError when they are not there; RangeError when a result overflows `S`.
template <Storage S, Isometry G>
[[nodiscard]] Linear<S> rotate_writer_rows(const Linear<S>& writer, Index first, const G& q) {
  const Index n = q.dim();
  if (first < 0 || n > writer.out() - first || (writer.bias && writer.bias->size() != writer.out())) {
    detail::raise<ShapeError>("a rotation of dimension {} cannot act on outputs {} … of a layer with {} outputs", n, first, writer.out());
  }
  Linear<S> rows{writer.weight.middleRows(first, n), std::nullopt};
  if (writer.bias) rows.bias = RowVector<S>(writer.bias->segment(first, n));
  rows = rotate_writer(rows, q);
  Linear<S> result = writer;
  result.weight.middleRows(first, n) = rows.weight;
  if (rows.bias) result.bias->segment(first, n) = *rows.bias;
  return result;
}

/// An embedding table `[vocab, n]`, whose rows are vectors of the stream: \f$E' = EQ\f$. @throws ShapeError; RangeError.
template <Storage S, Isometry G>
[[nodiscard]] Matrix<S> rotate_embedding(const Matrix<S>& table, const G& q) {
  detail::check_side(table.cols(), q.dim(), "rows");
  return detail::rotated_rows(table, q);
}

/// A gain-free norm in the new basis: itself, since \f$\mathrm{rms}(xQ) = \mathrm{rms}(x)Q\f$ (identity 1). @throws ShapeError.
template <Storage S, Isometry G>
[[nodiscard]] UnitRMSNorm<S> rotate_norm(const UnitRMSNorm<S>& norm, const G& q) {
  detail::check_side(norm.dim(), q.dim(), "rows");
  return norm;
}

/// A gain-carrying norm in the new basis, which exists for signed permutations only: its gain is transported, \f$g' = g\,|P|\f$, and every weight keeps
/// its bits (identity 6).
///
/// For any other rotation this does not compile: \f$\mathrm{diag}(g)\f$ and Q do not commute. Fold the gain first; the `UnitRMSNorm` that is left
/// accepts every rotation.
/// @throws ShapeError.
template <Storage S, Isometry G>
[[nodiscard]] RMSNorm<S> rotate_norm(const RMSNorm<S>& norm, const G& q) {
  static_assert(ExactIsometry<G>,
                "rmsfold: a gain-carrying RMSNorm does not commute with a dense rotation; fold the gain first: "
                "fold_gain(norm, readers) gives a UnitRMSNorm, which any rotation accepts");
  detail::check_side(norm.dim(), q.dim(), "rows");
  RowVector<S> weight = norm.weight();
  q.unsigned_part().apply(weight.data(), 1, 1);
  return RMSNorm<S>(std::move(weight), norm.eps(), norm.convention());
}

/// The right merge (identity 5): \f$\mathrm{rms}(xQ)(W\Gamma Q)^T = \mathrm{RMSNorm}_g(x)W^T\f$; gain and rotation composed in `Wide<S>` and rounded once.
///
/// @param readers  every reader of the norm.
/// @throws ShapeError; RangeError when a result overflows `S`.
template <Storage S, Isometry G>
[[nodiscard]] Folded<S> fold_and_rotate(const RMSNorm<S>& norm, Readers<S> readers, const G& q) {
  Folded<S> result{rotate_norm(norm.without_gain(), q), {}};
  for (const Linear<S>& reader : readers) {
    Matrix<Wide<S>> w = detail::times_gain(reader, norm.gain());
    q.apply(w.data(), w.rows(), 1);
    result.readers.push_back({rounded<S>(w), reader.bias});
  }
  return result;
}

}  // namespace rmsfold
