// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Top-k sparsification of activations, which no fold preserves: two exact merges of one model select different coordinates.

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numeric>
#include <vector>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/fold/rotate.hpp>

namespace rmsfold {

namespace detail {

/// Positions of the k entries of largest magnitude; of equal ones the first.
template <Real T>
[[nodiscard]] std::vector<Index> largest_entries(const Matrix<T>& x, Index row, Index k) {
  using std::abs;
  std::vector<Index> order(static_cast<std::size_t>(x.cols()));
  std::iota(order.begin(), order.end(), Index{0});
  std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return abs(x(row, a)) > abs(x(row, b)); });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

template <Real T>
void check_top_k_input(const Matrix<T>& x, Index k) {
  if (k < 0 || k > x.cols()) raise<RangeError>("top-k: {} of {} coordinates", k, x.cols());
  const Index bad = first_non_finite(x.data(), x.size());
  if (bad >= 0) raise<InvariantError>("top-k: entry ({}, {}) is infinite or NaN, which has no place in an order", bad / x.cols(), bad % x.cols());
}

}  // namespace detail

/// Every row with all but its k entries of largest magnitude set to zero; of equal ones the first are kept.
/// @param k  0 … n. @throws RangeError when it is not; InvariantError when an entry is infinite or NaN.
template <Real T>
[[nodiscard]] Matrix<T> top_k(const Matrix<T>& x, Index k) {
  detail::check_top_k_input(x, k);
  Matrix<T> result = Matrix<T>::Zero(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    for (const Index j : detail::largest_entries(x, t, k)) result(t, j) = x(t, j);
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
/// @throws ShapeError; RangeError when k is out of range or a merged weight overflows `S`; InvariantError when an activation is infinite or NaN.
/// @note Source: Liu et al., LaRoSA (2025), where Q comes from the principal axes of the activations.
template <Storage S, Isometry G>
  requires std::same_as<Wide<S>, double>
[[nodiscard]] TopKReport check_top_k(const RMSNorm<S>& norm, Readers<S> readers, const G& q, const Matrix<double>& x, Index k) {
  if (readers.empty() || x.rows() < 1) detail::raise<ShapeError>("top-k checker: {} readers, {} tokens", readers.size(), x.rows());
  if (k < 1) detail::raise<RangeError>("top-k checker: k = {}", k);
  const Folded<S> folded = fold_and_rotate(norm, readers, q);
  const Matrix<double> after = act(q, norm.apply(x));
  const Matrix<double> unit = folded.norm.apply(act(q, x));
  const Matrix<double> after_kept = top_k(after, k);
  const Matrix<double> unit_kept = top_k(unit, k);

  TopKReport report{x.rows(), x.cols(), k};
  Index differing = 0;
  for (Index t = 0; t < x.rows(); ++t) {
    std::vector<bool> selected(static_cast<std::size_t>(x.cols()), false);
    for (const Index j : detail::largest_entries(unit, t, k)) selected[static_cast<std::size_t>(j)] = true;
    Index here = 0;
    for (const Index j : detail::largest_entries(after, t, k)) here += !selected[static_cast<std::size_t>(j)];
    differing += here;
    report.most_differing = (std::max)(report.most_differing, here);
  }
  report.mean_differing = static_cast<double>(differing) / static_cast<double>(x.rows());

  double dense_norm = 0, dense_off = 0, sparse_off = 0, after_off = 0, folded_off = 0;  // over all readers
  const auto add = [](double& total, const Matrix<double>& more) { total = std::hypot(total, detail::safe_norm(more)); };
  for (std::size_t r = 0; r < readers.size(); ++r) {
    const Matrix<double> dense = readers[r].apply(norm.apply(x));
    const Linear<S> rotated = rotate_reader(readers[r], q);
    const Matrix<double> after_sparse = rotated.apply(after_kept);
    const Matrix<double> folded_sparse = folded.readers[r].apply(unit_kept);
    add(dense_norm, dense);
    add(dense_off, rotated.apply(after) - folded.readers[r].apply(unit));
    add(sparse_off, after_sparse - folded_sparse);
    add(after_off, after_sparse - dense);
    add(folded_off, folded_sparse - dense);
  }
  const auto relative = [&](double off) { return dense_norm == 0 ? off : off / dense_norm; };
  report.dense_difference = relative(dense_off);
  report.sparse_difference = relative(sparse_off);
  report.after_norm_error = relative(after_off);
  report.folded_error = relative(folded_off);
  return report;
}

}  // namespace rmsfold
