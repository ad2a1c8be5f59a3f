// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Haar-random orthogonal matrices from a seed.

#include <cmath>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/orthogonal.hpp>

namespace rmsfold {

/// An orthogonal matrix drawn from the Haar measure on O(n), as a product of random reflections, computed in `double` and rounded once to `S`.
///
/// \f$Q_k = D_k\,H(v_k)\,\mathrm{diag}(1, Q_{k-1})\f$ with \f$v_k\f$ Gaussian of length k; the sign in \f$D_k\f$ makes the first row uniform on the sphere.
/// The same seed gives the same bits in one build; across builds entries agree to about \f$4\sqrt n\,\varepsilon\f$, since normals go through libm.
/// @par Cost (4/3)n^3, by rank-one updates; no decomposition is compiled.
/// @note Source: Stewart, The efficient generation of random orthogonal matrices (1980), section 3.
template <Real S>
[[nodiscard]] Orthogonal<S> haar_orthogonal(Index n, Random& random) {
  Matrix<double> q = Matrix<double>::Identity(n, n);
  if (n > 0) q(n - 1, n - 1) = random.sign();
  for (Index k = 2; k <= n; ++k) {
    RowVector<double> v(k);
    for (Index i = 0; i < k; ++i) v[i] = random.normal();
    const double norm = v.norm();
    const double sign = v[0] < 0 ? -1.0 : 1.0;
    v[0] += sign * norm;  // H(v) maps the Gaussian vector to -sign * norm * e1
    const double beta = 2 / v.squaredNorm();
    auto block = q.bottomRightCorner(k, k);
    const RowVector<double> projection = v * block;
    block.noalias() -= (beta * v.transpose()) * projection;
    block.row(0) *= -sign;
  }
  // n reflections in double, each a rank-one update of backward error O(√n u): within n times the tolerance, which is measured to be generous.
  return rounded_orthogonal<S>(q, static_cast<double>(n) * orthogonality_tolerance<double>(n));
}

}  // namespace rmsfold
