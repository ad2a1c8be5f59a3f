// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where every bound comes from: rounding-error constants with their derivation.

#include <cmath>
#include <limits>

#include <rmsfold/core/concepts.hpp>

namespace rmsfold {

/// \f$\gamma_n(u) = nu/(1-nu)\f$: the relative error of a sum or product of n rounded operations.
/// @note Source: Higham, Accuracy and Stability of Numerical Algorithms, Lemma 3.1. Infinite once \f$nu \ge 1\f$: nothing can be promised.
[[nodiscard]] inline double gamma_n(double n, double u) noexcept {
  const double nu = n * u;
  return nu < 1 ? nu / (1 - nu) : std::numeric_limits<double>::infinity();
}

/// Largest accepted \f$\max_{ij}|(Q^TQ-I)_{ij}|\f$ of an n x n matrix stored in `S`: \f$4\sqrt n\,\varepsilon_S\f$.
///
/// Rounding an orthogonal matrix to `S` moves an entry of \f$Q^TQ\f$ by at most \f$\varepsilon_S\f$ whatever n (Cauchy-Schwarz on two unit columns); the errors
/// of n-term sums carried out in `S` wander like \f$\sqrt n\f$. A worst-case \f$n\varepsilon\f$ would accept 2.4e-4 at n = 512 in float, which is no check.
template <Real S>
[[nodiscard]] double orthogonality_tolerance(Index n) noexcept {
  return 4 * std::sqrt(static_cast<double>(n)) * static_cast<double>(std::numeric_limits<S>::epsilon());
}

}  // namespace rmsfold
