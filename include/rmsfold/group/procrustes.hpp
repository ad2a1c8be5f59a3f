// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The rotation that best takes one matrix to another. A leaf: it compiles a singular value decomposition, so the umbrella does not include it.

#include <limits>
#include <utility>

#include <Eigen/SVD>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/group/polar.hpp>

namespace rmsfold {

/// Outcome of `procrustes`.
struct ProcrustesResult {
  Orthogonal<double> q;         ///< one that minimises \f$\|AQ-B\|_F\f$
  double residual = 0;          ///< \f$\|AQ-B\|_F\f$
  RowVector<double> singular;   ///< singular values of \f$A^TB\f$, descending
  double threshold = 0;         ///< below which one of them may be rounding
  Index rank = 0;               ///< how many exceed the threshold: the dimensions in which the data determine Q
  bool unique = false;          ///< whether that is all of them; otherwise `q` is one of many
  bool converged = false;       ///< whether the decomposition did
};

/// The orthogonal Procrustes problem: \f$\min_{Q\in O(n)}\|AQ-B\|_F\f$, solved by \f$Q = UV^T\f$ from \f$A^TB = U\Sigma V^T\f$.
///
/// Unique when \f$A^TB\f$ is regular. The threshold is the error of that product, \f$\gamma_k\|A\|_F\|B\|_F\f$, and of the decomposition, \f$n\varepsilon\sigma_1\f$.
/// @param a  `k x n`. @param b  `k x n`.
/// @throws ShapeError when the shapes differ; InvariantError when an entry is not finite. @par Cost O(k n^2 + n^3),
///   by Jacobi rotations, which compile in a tenth of the time of divide and conquer: seconds at n = 576.
/// @note Source: Schönemann, A generalized solution of the orthogonal Procrustes problem (1966).
[[nodiscard]] inline ProcrustesResult procrustes(const Matrix<double>& a, const Matrix<double>& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) {
    detail::raise<ShapeError>("procrustes: {} x {} cannot be rotated to {} x {}", a.rows(), a.cols(), b.rows(), b.cols());
  }
  for (const Matrix<double>* m : {&a, &b}) {
    if (const Index bad = first_non_finite(m->data(), m->size()); bad >= 0) {
      detail::raise<InvariantError>("procrustes: entry ({}, {}) of the {} matrix is not finite", bad / m->cols(), bad % m->cols(), m == &a ? "first" : "second");
    }
  }
  const Index n = a.cols();
  const double count = static_cast<double>(n);
  if (n == 0) return {Orthogonal<double>(Matrix<double>(0, 0), Unchecked{}), 0, RowVector<double>(0), 0, 0, true, true};
  const Matrix<double> cross = a.transpose() * b;
  const Eigen::JacobiSVD<Matrix<double>, Eigen::NoQRPreconditioner> svd(cross, Eigen::ComputeFullU | Eigen::ComputeFullV);
  // Thousands of plane rotations leave U and V off orthogonal by about nε; one step takes their product back.
  PolarResult polar = nearest_orthogonal(svd.matrixU() * svd.matrixV().transpose());
  const RowVector<double> singular = svd.singularValues().transpose();
  const double threshold =
      gamma_n(static_cast<double>(a.rows()), 0x1p-53) * a.norm() * b.norm() + count * std::numeric_limits<double>::epsilon() * singular[0];
  const Index rank = (singular.array() > threshold).count();
  const Matrix<double> image = a * polar.q.matrix();
  const double residual = (image - b).norm();
  const bool converged = polar.converged && svd.info() == Eigen::Success;
  return {std::move(polar.q), residual, singular, threshold, rank, rank == n, converged};
}

}  // namespace rmsfold
