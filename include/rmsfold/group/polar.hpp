// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The nearest orthogonal matrix, by products only.

#include <cmath>
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
/// Newton-Schulz, \f$X \leftarrow \frac12X(3I - X^TX)\f$, from \f$M\f$, or from \f$cM\f$ with \f$c<1\f$, which has the same factor, where a singular value of
/// M might exceed \f$\sqrt2\f$. A singular value far below 1 grows by 3/2 per step, one near 1 converges quadratically; `converged` is false when M is singular,
/// or its condition is beyond about 1000.
/// @param m  square; the nearer to orthogonal, the fewer steps. `moved` says how near it was.
/// @throws ShapeError when it is not square. @par Cost two products of n^3 per step and two to judge it, at most 20 steps.
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
    Matrix<double> gram = x.transpose() * x;
    if (result.steps == 0) {
      // ‖X‖² = ‖XᵀX‖ is at most its largest row sum. Beyond √3 a singular value would change its sign and might converge all the same, to an orthogonal
      // matrix that is not the nearest: 2I to -I. A step takes [0, √2] into [0, 1], so that once is enough.
      const double square = gram.cwiseAbs().rowwise().sum().maxCoeff();
      if (square > 2) {
        x /= std::sqrt(square);
        gram /= square;
      }
    }
    const Matrix<double> next = 0.5 * (x * (3 * Matrix<double>::Identity(m.rows(), m.cols()) - gram));
    x = next;
  }
  result.moved = m.size() == 0 ? 0 : (x - m).cwiseAbs().maxCoeff();
  result.q = Orthogonal<double>(std::move(x), Unchecked{});
  return result;
}

}  // namespace rmsfold
