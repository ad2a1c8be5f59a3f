// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Top-k sparsification of activations, which no fold preserves: two exact merges of one model select different coordinates.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

/// Every row with all but its k entries of largest magnitude set to zero; of equal ones the first are kept.
/// @param k  0 … n. @throws RangeError.
template <Real T>
[[nodiscard]] Matrix<T> top_k(const Matrix<T>& x, Index k) {
  if (k < 0 || k > x.cols()) detail::raise<RangeError>("top-k: {} of {} coordinates", k, x.cols());
  using std::abs;
  Matrix<T> result = Matrix<T>::Zero(x.rows(), x.cols());
  std::vector<Index> order(static_cast<std::size_t>(x.cols()));
  for (Index t = 0; t < x.rows(); ++t) {
    std::iota(order.begin(), order.end(), Index{0});
    std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return abs(x(t, a)) > abs(x(t, b)); });
    for (Index i = 0; i < k; ++i) result(t, order[static_cast<std::size_t>(i)]) = x(t, order[static_cast<std::size_t>(i)]);
  }
  return result;
}

/// What `check_top_k` found. Differences and errors are Frobenius norms over the batch, relative to the dense outputs.
struct TopKReport {
  Index tokens = 0;             ///< rows of the batch
  Index dim = 0;                ///< width of the residual stream
  Index kept = 0;               ///< k
  double mean_differing = 0;    ///< selected coordinates of a token that the other path did not select, of k; mean over the batch
  Index most_differing = 0;     ///< the same, largest of a token
  double dense_difference = 0;  ///< outputs of the two paths without selection: rounding
  double sparse_difference = 0;  ///< outputs of the two paths with selection
  double after_norm_error = 0;  ///< sparse rotate-after-norm against the dense output
  double folded_error = 0;      ///< sparse gain-folded against the dense output
};

/// Runs \f$\mathrm{topk}(\mathrm{RMSNorm}_g(x)\,Q)(WQ)^T\f$, which selects after the gain, and \f$\mathrm{topk}(\mathrm{rms}(xQ))(W\Gamma Q)^T\f$, which selects where the gain has
/// moved into the readers (identity 13): equal without selection, different functions with it.
/// @param readers  readers of the norm, at least one. @param x `tokens x n`, at least one row. @param k  coordinates kept per token, 1 … n.
/// @throws ShapeError; RangeError when k is out of range or a merged weight overflows `S`.
/// @note Source: Liu et al., LaRoSA (2025), where Q comes from the principal axes of the activations.
template <Storage S, Isometry G>
[[nodiscard]] TopKReport check_top_k(const RMSNorm<S>& norm, Readers<S> readers, const G& q, const Matrix<Wide<S>>& x, Index k) {
  using T = Wide<S>;
  if (readers.empty() || x.rows() < 1) detail::raise<ShapeError>("top-k checker: {} readers, {} tokens", readers.size(), x.rows());
  if (k < 1) detail::raise<RangeError>("top-k checker: k = {}", k);
  const Folded<S> folded = fold_and_rotate(norm, readers, q);
  const Matrix<T> after = act(q, norm.apply(x));
  const Matrix<T> unit = folded.norm.apply(act(q, x));
  const Matrix<T> after_kept = top_k(after, k);
  const Matrix<T> unit_kept = top_k(unit, k);

  TopKReport report{x.rows(), x.cols(), k};
  Index differing = 0;
  for (Index t = 0; t < x.rows(); ++t) {
    Index here = 0;
    for (Index j = 0; j < x.cols(); ++j) here += after_kept(t, j) != T(0) && unit_kept(t, j) == T(0);
    differing += here;
    report.most_differing = (std::max)(report.most_differing, here);
  }
  report.mean_differing = static_cast<double>(differing) / static_cast<double>(x.rows());

  T dense_square{0}, dense_off{0}, sparse_off{0}, after_off{0}, folded_off{0};
  for (std::size_t r = 0; r < readers.size(); ++r) {
    const Matrix<T> dense = readers[r].apply(norm.apply(x));
    const Linear<S> rotated = rotate_reader(readers[r], q);
    const Matrix<T> after_sparse = rotated.apply(after_kept);
    const Matrix<T> folded_sparse = folded.readers[r].apply(unit_kept);
    dense_square += dense.squaredNorm();
    dense_off += (rotated.apply(after) - folded.readers[r].apply(unit)).squaredNorm();
    sparse_off += (after_sparse - folded_sparse).squaredNorm();
    after_off += (after_sparse - dense).squaredNorm();
    folded_off += (folded_sparse - dense).squaredNorm();
  }
  const auto relative = [&](const T& square) { return dense_square > T(0) ? std::sqrt(static_cast<double>(T(square / dense_square))) : 0.0; };
  report.dense_difference = relative(dense_off);
  report.sparse_difference = relative(sparse_off);
  report.after_norm_error = relative(after_off);
  report.folded_error = relative(folded_off);
  return report;
}

}  // namespace rmsfold
