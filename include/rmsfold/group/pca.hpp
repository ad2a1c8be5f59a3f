// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Principal axes of a covariance. A leaf: it compiles an eigenvalue decomposition, so the umbrella does not include it.

#include <cmath>
#include <utility>

#include <Eigen/Eigenvalues>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/group/polar.hpp>

namespace rmsfold {

/// \f$x^Tx/k\f$ of k rows, in `double`, exactly symmetric. Not centred: an RMSNorm subtracts no mean. @param x  `k x n`. @returns `n x n`.
/// @throws ShapeError when there is no row. @par Cost O(k n^2)
template <DenseExpr D>
[[nodiscard]] Matrix<double> second_moment(const D& x) {
  if (x.rows() == 0) detail::raise<ShapeError>("the second moment of no rows");
  const Matrix<double> wide = x.derived().template cast<double>();
  const Matrix<double> sum = wide.transpose() * wide;
  return (sum + sum.transpose()) * (0.5 / static_cast<double>(x.rows()));
}

/// Outcome of `principal_axes`.
struct PrincipalAxes {
  Orthogonal<double> q;         ///< column j is the axis of variance j; \f$xQ\f$ has uncorrelated coordinates
  RowVector<double> variances;  ///< \f$\Lambda\f$, descending
  double residual = 0;          ///< \f$\|CQ-Q\Lambda\|_F\f$
  bool converged = false;       ///< whether the decomposition did
};

/// The orthogonal Q with \f$C = Q\Lambda Q^T\f$, \f$\lambda_1\ge\lambda_2\ge\dots\f$: PCA, the basis that LaRoSA and SliceGPT rotate to.
///
/// The sign of a column is such that its entry of largest magnitude, the first of them in a tie, is positive. The axes of a repeated variance are one of many
/// choices, and those of close ones are known only to about \f$\varepsilon\|C\|\f$ over their distance.
/// @param covariance  `n x n`, exactly symmetric, as `second_moment` makes it.
/// @throws ShapeError when it is not square; InvariantError when it is not symmetric, or an entry not finite. @par Cost O(n^3), about 9 n^3 flops.
[[nodiscard]] inline PrincipalAxes principal_axes(const Matrix<double>& covariance) {
  const Index n = covariance.rows();
  if (covariance.cols() != n) detail::raise<ShapeError>("principal axes: {} x {} is not square", n, covariance.cols());
  if (const Index bad = first_non_finite(covariance.data(), covariance.size()); bad >= 0) {
    detail::raise<InvariantError>("principal axes: entry ({}, {}) of the covariance is not finite", bad / n, bad % n);
  }
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) {
      if (covariance(i, j) != covariance(j, i)) {
        detail::raise<InvariantError>("principal axes: entries ({}, {}) and ({}, {}) of the covariance differ by {:.3g}; take the mean of it and its transpose", i,
                                      j, j, i, std::abs(covariance(i, j) - covariance(j, i)));
      }
    }
  }
  if (n == 0) return {Orthogonal<double>(covariance, Unchecked{}), RowVector<double>(0), 0, true};
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(n);
  solver.compute(covariance);  // in the constructor, g++ 12 takes its copy for uninitialised memory
  // Eigen's eigenvalues ascend; its many plane rotations leave the vectors off orthogonal by about nε, and one step takes them back.
  const PolarResult polar = nearest_orthogonal(solver.eigenvectors().rowwise().reverse());
  Matrix<double> q = polar.q.matrix();
  const RowVector<double> variances = solver.eigenvalues().reverse().transpose();
  for (Index j = 0; j < n; ++j) {
    Index largest = 0;
    for (Index i = 1; i < n; ++i) {
      if (std::abs(q(i, j)) > std::abs(q(largest, j))) largest = i;
    }
    if (q(largest, j) < 0) q.col(j) = -q.col(j).eval();
  }
  const Matrix<double> image = covariance * q;
  const double residual = (image - q * variances.asDiagonal()).norm();
  return {Orthogonal<double>(std::move(q), Unchecked{}, polar.q.orthogonality_defect()), variances, residual,
          polar.converged && solver.info() == Eigen::Success};
}

}  // namespace rmsfold
