// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Haar-random orthogonal matrices from a seed.

#include <algorithm>
#include <cmath>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/orthogonal.hpp>

namespace rmsfold {

namespace detail {

/// Reflections that are multiplied onto a matrix at once: enough for products at full speed, few enough that what is done twice within a block stays small.
inline constexpr Index reflection_block = 96;

/// Multiplies `q`, in place, from the left by \f$H_1 H_2\cdots H_b = I - V U^{-1} V^T\f$, \f$H_i = I - 2v_iv_i^T/v_i^Tv_i\f$, where row i of `v` is \f$v_i^T\f$ and
/// \f$U\f$ is the upper triangle of \f$V^TV\f$ with half its diagonal. @pre the first b rows and columns of `q` are zero off the diagonal.
/// @note Source: Puglisi, Modification of the Householder method based on the compact WY representation (1992), for \f$U\f$.
template <class V, class Q>
void reflect(const V& v, Q&& q) {
  const Index b = v.rows();
  const Index rest = v.cols() - b;
  Matrix<double> triangle = v * v.transpose();
  triangle.diagonal() /= 2;
  Matrix<double> projection(b, v.cols());
  projection.leftCols(b) = v.leftCols(b) * q.diagonal().head(b).asDiagonal();
  projection.rightCols(rest).noalias() = v.rightCols(rest) * q.bottomRightCorner(rest, rest);
  triangle.template triangularView<Eigen::Upper>().solveInPlace(projection);
  q.noalias() -= v.transpose() * projection;
}

/// The matrix of `haar_orthogonal`. @param at_once  reflections in a block; it decides no more than the last bits.
[[nodiscard]] inline Matrix<double> haar_matrix(Index n, Random& random, Index at_once = reflection_block) {
  Matrix<double> q = Matrix<double>::Zero(n, n);
  if (n > 0) q(n - 1, n - 1) = random.sign();
  Matrix<double> reflections((std::min)(n, at_once), n);
  for (Index end = n - 1; end > 0;) {  // of the rows whose reflections are still to come: those of the last rows are drawn first
    const Index start = (std::max)(Index{0}, end - at_once);
    auto block = reflections.topRightCorner(end - start, n - start);
    block.setZero();
    for (Index row = end - 1; row >= start; --row) {
      auto v = block.row(row - start).tail(n - row);
      for (Index i = 0; i < v.size(); ++i) v[i] = random.normal();
      q(row, row) = v[0] < 0 ? 1 : -1;
      v[0] = -(std::fabs(v[0]) + v.norm());  // with that sign on its right, H(v) maps the first axis to the Gaussian direction
      v *= std::sqrt(2.0) / v.norm();
    }
    reflect(block, q.bottomRightCorner(n - start, n - start));
    end = start;
  }
  return q;
}

}  // namespace detail

/// An orthogonal matrix drawn from the Haar measure on O(n), as a product of random reflections, computed in `double` and rounded once to `S`.
///
/// \f$Q_k = D_k\,H(v_k)\,\mathrm{diag}(1, Q_{k-1})\f$ with \f$v_k\f$ Gaussian of length k; the sign in \f$D_k\f$ makes the first row uniform on the sphere.
/// Moved to the right end, which negates the first entries of the \f$v_k\f$, the signs leave a product of reflections that is multiplied out in blocks.
/// The same seed gives the same bits in one build; across builds entries agree to about \f$4\sqrt n\,\varepsilon\f$, since normals go through libm.
/// @par Cost (4/3)n^3, in matrix products; no decomposition is compiled.
/// @note Source: Stewart, The efficient generation of random orthogonal matrices (1980), section 3.
template <Real S>
[[nodiscard]] Orthogonal<S> haar_orthogonal(Index n, Random& random) {
  // With W = VU⁻¹, whose columns are as long as those of V, the defect of a block is W(VᵀV - (U + Uᵀ))Wᵀ: what rounding left of VᵀV. That is O(√n u) per reflection
  // when roundings are as good as independent, as in updates one by one, and n of these are within n times the tolerance: measured, 1/3 of it at n = 2, 1/300 at 1024.
  return rounded_orthogonal<S>(detail::haar_matrix(n, random), static_cast<double>(n) * orthogonality_tolerance<double>(n));
}

}  // namespace rmsfold
