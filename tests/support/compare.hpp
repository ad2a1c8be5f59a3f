// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Comparison of matrices in double against a derived bound for every entry, compiled once for all tests.

#include <iosfwd>

#include <rmsfold/core/half.hpp>
#include <rmsfold/group/isometry.hpp>

namespace rmsfold::test {

/// Where two matrices differ most, in units of what is allowed there.
struct Comparison {
  bool comparable = false;  ///< same shapes, and every difference and bound finite
  double ratio = 0;         ///< largest |difference| / allowed
  Index row = 0;
  Index col = 0;
  double difference = 0;  ///< at (row, col)
  double allowed = 0;     ///< at (row, col)

  /// The verdict; a difference where none is allowed has an infinite ratio.
  [[nodiscard]] bool within() const { return comparable && ratio <= 1; }
};

/// As "worst entry 3.1e-07 at (4, 17), allowed 2.4e-07".
std::ostream& operator<<(std::ostream& out, const Comparison& comparison);

/// Entry by entry.
Comparison compare(const Matrix<double>& got, const Matrix<double>& want, const Matrix<double>& allowed);
/// With the same bound everywhere.
Comparison compare(const Matrix<double>& got, const Matrix<double>& want, double allowed);

/// Whether all entries have the same bits (so that -0 differs from 0, and a NaN equals itself).
bool same_bits(const Matrix<double>& a, const Matrix<double>& b);

/// A matrix from its rows.
Matrix<double> rows(std::initializer_list<std::initializer_list<double>> values);

/// The roundings between a merged weight as the algebra has it, \f$\hat W\f$, and as it is stored, \f$W'\f$.
struct Roundings {
  double storage = 0;    ///< unit roundoff of the storage type
  double underflow = 0;  ///< half its smallest subnormal
  double terms = 0;      ///< roundings of composing \f$\hat W\f$ in double
  double defect = 0;     ///< \f$\|Q^TQ-I\|\f$
  double path = 0;       ///< roundings per entry of rotating an activation in double
};

/// What merging `q`, and `gains` gains before it, into weights stored as `S` rounds. Moving and negating rounds
/// nothing.
template <Storage S, Isometry G>
Roundings roundings(const G& q, int gains) {
  if (ExactIsometry<G> && gains == 0) return {};
  return {unit_roundoff<S>(), underflow_unit<S>(), q.error_terms() + gains, q.orthogonality_defect(), q.error_terms()};
}

/// Bound on \f$|y'-y|\f$ for \f$y'=zW'^T+b\f$ against the function it must equal, both evaluated in double.
///
/// Stored weight: \f$|W'-\hat W|\le(u|W'|+\eta+\gamma_{terms}(2^{-53})\|W'_i\|)/(1-u)\f$, times |z|. Evaluation, n
/// terms, on both sides, with \f$\|z\|\le\sqrt n\max|g|\f$: two dot products (2n), two norms (2(n+8), the sum of
/// squares counted whole), a rotation of the input seen twice through the norm (\f$2\sqrt n\,path\f$), all times
/// \f$2^{-53}\sqrt n\max|g|\,\|W'_i\|\f$. A Q off orthogonal by `defect` enters the product and the norm: twice.
Matrix<double> output_bound(const Matrix<double>& z, const Matrix<double>& stored, const RowVector<double>& bias,
                            double largest_gain, const Roundings& r);

}  // namespace rmsfold::test
