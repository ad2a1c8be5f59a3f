// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The nearest orthogonal matrix, by products only.

#include <utility>

#include <rmsfold/group/orthogonal.hpp>

namespace rmsfold {

/// Outcome of a polar projection.
struct PolarResult {
  Orthogonal<double> q;     ///< the orthogonal factor, when `converged`
  int steps = 0;            ///< iterations taken
  double residual = 0;      ///< `orthogonality_residual` of `q`
  double moved = 0;         ///< largest change of an entry
  bool converged = false;   ///< whether the residual is within `orthogonality_tolerance<double>`
};

/// The orthogonal factor of the polar decomposition: of all orthogonal matrices the one nearest to `m` in the Frobenius norm.
///
/// Newton-Schulz, \f$X \leftarrow \frac12X(3I - X^TX)\f$, which converges quadratically when \f$\|M^TM-I\|_2 < 1\f$; from elsewhere `converged` is false.
/// @param m  square, nearly orthogonal.
/// @throws ShapeError when it is not square. @par Cost two products of n^3 per step, at most 20 steps.
/// @note Source: Higham, Functions of Matrices (2008), section 8.3.
[[nodiscard]] inline PolarResult nearest_orthogonal(const Matrix<double>& m) {
  if (m.rows() != m.cols()) detail::raise<ShapeError>("polar projection: {} x {} is not square", m.rows(), m.cols());
  const double tolerance = orthogonality_tolerance<double>(m.rows());
  Matrix<double> x = m;
  PolarResult result{Orthogonal<double>(m, Unchecked{})};
  for (;; ++result.steps) {
    result.residual = orthogonality_residual(x).worst();
    result.converged = is_finite(result.residual) && result.residual <= tolerance;
    if (result.converged || result.steps == 20 || !is_finite(result.residual)) break;
    const Matrix<double> correction = 3 * Matrix<double>::Identity(m.rows(), m.cols()) - Matrix<double>(x.transpose() * x);
    const Matrix<double> next = 0.5 * (x * correction);
    x = next;
  }
  result.moved = m.size() == 0 ? 0 : (x - m).cwiseAbs().maxCoeff();
  result.q = Orthogonal<double>(std::move(x), Unchecked{});
  return result;
}

}  // namespace rmsfold
