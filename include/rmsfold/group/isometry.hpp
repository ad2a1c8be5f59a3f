// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What a rotation is: the contract every rotation type keeps, and what follows from it.

#include <concepts>

#include <rmsfold/core/concepts.hpp>
#include <rmsfold/core/error.hpp>
#include <rmsfold/group/gauge.hpp>

namespace rmsfold {

/// An orthogonal change of basis \f$x' = xQ\f$ of rows of length `dim()`.
///
/// `apply(data, outer, inner)` multiplies the middle axis of a dense `[outer, dim, inner]` array by Q, in place:
/// \f$y_{ojk} = \sum_i x_{oik}\,Q_{ij}\f$. A batch of rows is `(rows, 1)`; the output axis of a weight `[out, in]` is `(1, in)`, which is \f$Q^TW\f$.
///
/// Laws the compiler cannot check (the law suite of the tests does): `inverse()` undoes `apply`; the Euclidean norm is preserved to within
/// `orthogonality_defect()`, an upper bound on \f$\|Q^TQ-I\|_2\f$ and \f$\|QQ^T-I\|_2\f$; every output of `apply` carried out with unit roundoff u
/// is within \f$\gamma_{\mathrm{error\_terms}}(u)\,\|x\|_2\f$ of the exact product; `gauge` is the smallest group of the lattice that holds all values of the type.
// clang-format off
template <class G>
concept Isometry = std::copyable<G> && requires(const G& q, float* x, double* y, long double* z, Index count) {
  { q.dim() } -> std::same_as<Index>;
  { q.inverse() } -> std::same_as<G>;
  { q.orthogonality_defect() } -> std::convertible_to<double>;
  { q.error_terms() } -> std::convertible_to<double>;
  { G::gauge } -> std::convertible_to<Gauge>;
  q.apply(x, count, count);
  q.apply(y, count, count);
  q.apply(z, count, count);
};
// clang-format on

/// An isometry that only moves and negates: it rounds nothing, and a gain can be transported by it.
template <class G>
concept ExactIsometry = Isometry<G> && contains(Gauge::signed_permutation, G::gauge) && requires(const G& q) {
  { q.unsigned_part() } -> std::same_as<G>;
};

/// \f$xQ\f$ for rows x. @param x `k x n`. @returns `k x n`. @throws ShapeError when the rows are not `q.dim()` long.
template <Isometry G, DenseExpr D>
[[nodiscard]] Matrix<typename D::Scalar> act(const G& q, const D& x) {
  if (x.cols() != q.dim()) {
    detail::raise<ShapeError>("a rotation of dimension {} cannot act on rows of length {}", q.dim(), x.cols());
  }
  Matrix<typename D::Scalar> y = x;
  q.apply(y.data(), y.rows(), 1);
  return y;
}

/// \f$xQ^T\f$ for rows x: undoes `act`. @throws ShapeError when the rows are not `q.dim()` long.
template <Isometry G, DenseExpr D>
[[nodiscard]] Matrix<typename D::Scalar> act_transposed(const G& q, const D& x) {
  return act(q.inverse(), x);
}

/// Q written out, `n x n`. @par Cost n rows of `apply`; for tests and small n.
template <Real S, Isometry G>
[[nodiscard]] Matrix<S> matrix_of(const G& q) {
  return act(q, Matrix<S>::Identity(q.dim(), q.dim()));
}

}  // namespace rmsfold
