// SPDX-License-Identifier: MIT
/// @file
/// Comparison of matrices in double.
#include "support/compare.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>

#include <rmsfold/core/finite.hpp>
#include <rmsfold/core/tolerance.hpp>

namespace rmsfold::test {

std::ostream& operator<<(std::ostream& out, const Comparison& c) {
  if (!c.comparable) return out << "not comparable: shapes differ, or something is not finite";
  return out << "worst entry " << c.difference << " at (" << c.row << ", " << c.col << "), allowed " << c.allowed;
}

Comparison compare(const Matrix<double>& got, const Matrix<double>& want, const Matrix<double>& allowed) {
  Comparison result;
  if (got.rows() != want.rows() || got.cols() != want.cols()) return result;
  if (got.rows() != allowed.rows() || got.cols() != allowed.cols()) return result;
  for (Index i = 0; i < got.rows(); ++i) {
    for (Index j = 0; j < got.cols(); ++j) {
      const double difference = std::fabs(got(i, j) - want(i, j));
      if (!is_finite(difference) || !is_finite(allowed(i, j))) return result;
      double ratio = 0;
      if (difference > 0)
        ratio = allowed(i, j) > 0 ? difference / allowed(i, j) : std::numeric_limits<double>::infinity();
      if (ratio > result.ratio) result = {false, ratio, i, j, difference, allowed(i, j)};
    }
  }
  result.comparable = true;
  return result;
}

Comparison compare(const Matrix<double>& got, const Matrix<double>& want, double allowed) {
  return compare(got, want, Matrix<double>::Constant(got.rows(), got.cols(), allowed));
}

bool same_bits(const Matrix<double>& a, const Matrix<double>& b) {
  return a.rows() == b.rows() && a.cols() == b.cols() &&
         (a.size() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(double)) == 0);
}

Matrix<double> rows(std::initializer_list<std::initializer_list<double>> values) {
  Matrix<double> result(static_cast<Index>(values.size()),
                        values.size() == 0 ? 0 : static_cast<Index>(values.begin()->size()));
  Index i = 0;
  for (const std::initializer_list<double>& row : values) {
    Index j = 0;
    for (const double value : row) result(i, j++) = value;
    ++i;
  }
  return result;
}

Matrix<double> output_bound(const Matrix<double>& z, const Matrix<double>& stored, const RowVector<double>& bias,
                            double largest_gain, const Roundings& r) {
  const double n = static_cast<double>(z.cols());
  const double u = 0x1p-53;
  const double composition = gamma_n(r.terms, u);
  const double evaluation =
      (gamma_n(4 * n + 2 * std::sqrt(n) * r.path + 20, u) + 2 * r.defect) * std::sqrt(n) * largest_gain;
  Matrix<double> bound(z.rows(), stored.rows());
  for (Index i = 0; i < stored.rows(); ++i) {
    const double row_norm = stored.row(i).norm() / (1 - r.storage);
    const double bias_error = bias.size() == 0 ? 0 : 2 * u * std::fabs(bias[i]);
    for (Index t = 0; t < z.rows(); ++t) {
      double sum = evaluation * row_norm + bias_error;
      for (Index j = 0; j < z.cols(); ++j) {
        sum += (r.storage * std::fabs(stored(i, j)) + r.underflow + composition * row_norm) / (1 - r.storage) *
               std::fabs(z(t, j));
      }
      bound(t, i) = sum;
    }
  }
  return bound;
}

}  // namespace rmsfold::test
