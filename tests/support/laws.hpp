// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The laws of a rotation, one suite for all types: a thin template evaluates in T, compiled code compares in double.

#include <limits>
#include <string>
#include <vector>

#include <rmsfold/core/random.hpp>
#include <rmsfold/group/isometry.hpp>
#include <rmsfold/group/signed_permutation.hpp>

namespace rmsfold::test {

/// What a rotation says about itself.
struct Claims {
  Index dim = 0;
  double defect = 0;
  double error_terms = 0;
  Gauge gauge = Gauge::identity;
  bool exact = false;
};

/// One use of `apply` on `[outer, dim, inner]`: the operand, its image, and the image brought back by the inverse.
struct LawRun {
  std::string scalar;
  double unit_roundoff = 0;
  Index outer = 0;
  Index inner = 0;
  std::vector<double> x, y, back;
};

template <class T, Isometry G>
LawRun run_laws(std::string scalar, const G& q, Index outer, Index inner, Random& random) {
  LawRun run{std::move(scalar), static_cast<double>(std::numeric_limits<T>::epsilon()) / 2, outer, inner, {}, {}, {}};
  std::vector<T> data(static_cast<std::size_t>(outer * q.dim() * inner));
  for (T& value : data) value = static_cast<T>(static_cast<float>(random.normal()));  // exact in every T
  run.x.assign(data.begin(), data.end());
  const auto store = [&](std::vector<double>& to) {
    for (const T value : data) to.push_back(static_cast<double>(value));
  };
  q.apply(data.data(), outer, inner);
  store(run.y);
  q.inverse().apply(data.data(), outer, inner);
  store(run.back);
  return run;
}

/// Checks everything the contract promises.
/// @param matrix  Q from another source than `apply`.
void check_laws(const Claims& claims, const Matrix<double>& matrix, const std::vector<LawRun>& runs);

/// `act` and `act_transposed` on rows.
void check_rows(const Claims& claims, const Matrix<double>& matrix, const Matrix<double>& x,
                const Matrix<double>& acted, const Matrix<double>& acted_transposed);

/// The whole suite for one element.
template <Isometry G>
void check_laws(const G& q, const Matrix<double>& matrix, std::uint64_t seed) {
  Random random(seed);
  const Claims claims{q.dim(), q.orthogonality_defect(), q.error_terms(), G::gauge, ExactIsometry<G>};
  std::vector<LawRun> runs;
  for (const auto& [outer, inner] : {std::pair<Index, Index>{3, 1}, {1, 5}, {2, 3}}) {
    runs.push_back(run_laws<float>("float", q, outer, inner, random));
    runs.push_back(run_laws<double>("double", q, outer, inner, random));
    runs.push_back(run_laws<long double>("long double", q, outer, inner, random));
  }
  check_laws(claims, matrix, runs);
  const Matrix<double> x = normal_matrix(4, q.dim(), random);
  check_rows(claims, matrix, x, act(q, x), act_transposed(q, x));
}

/// The smallest group of the lattice that holds Q, entries within `tolerance`.
Gauge smallest_gauge(const Matrix<double>& q, double tolerance);

/// P written out from its indices and signs.
Matrix<double> matrix_from_indices(const SignedPermutation& p);

/// Blocks along the diagonal, zeros elsewhere.
Matrix<double> block_diagonal(const std::vector<Matrix<double>>& blocks);

/// A matrix \f$H/\sqrt n\f$ with the scale taken out again.
struct SignGram {
  double worst_entry = 0;        ///< largest \f$|\,|h_{ij}|-1|\f$
  Index worst_off_diagonal = 0;  ///< largest \f$|(HH^T)_{ij}|\f$, i ≠ j, of the signs, in integers
};

/// Of some rows of a Hadamard matrix divided by \f$\sqrt n\f$, n the row length.
SignGram sign_gram(const Matrix<double>& some_rows);

}  // namespace rmsfold::test
