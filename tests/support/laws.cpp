// SPDX-License-Identifier: MIT
/// @file
/// The laws of a rotation: comparisons.
#include "support/laws.hpp"

#include <bit>
#include <cmath>

#include <rmsfold/core/tolerance.hpp>

#include "support/catch.hpp"
#include "support/compare.hpp"

namespace rmsfold::test {

namespace {

constexpr double long_roundoff = static_cast<double>(std::numeric_limits<long double>::epsilon()) / 2;

/// \f$\max_j\|(Q^TQ-I)e_j\|_2\f$, a lower bound of \f$\|Q^TQ-I\|_2\f$, and the Frobenius norm, an upper one; summed in
/// long double.
std::pair<double, double> defect_bounds(const Matrix<double>& q) {
  double lower = 0;
  double square = 0;
  for (Index i = 0; i < q.cols(); ++i) {
    double column = 0;
    for (Index j = 0; j < q.cols(); ++j) {
      long double sum = i == j ? -1 : 0;
      for (Index k = 0; k < q.rows(); ++k) sum += static_cast<long double>(q(k, i)) * static_cast<long double>(q(k, j));
      column += static_cast<double>(sum * sum);
    }
    lower = (std::max)(lower, std::sqrt(column));
    square += column;
  }
  return {lower, std::sqrt(square)};
}

}  // namespace

void check_laws(const Claims& claims, const Matrix<double>& matrix, const std::vector<LawRun>& runs) {
  const Index n = claims.dim;
  REQUIRE(matrix.rows() == n);
  REQUIRE(matrix.cols() == n);
  INFO("dimension " << n << ", states error terms " << claims.error_terms << ", defect " << claims.defect);

  // The defect it states is one; what the sums in long double round is allowed on top.
  const auto [columns_lower, columns_upper] = defect_bounds(matrix);
  const auto [rows_lower, rows_upper] = defect_bounds(matrix.transpose());
  const double summing =
      claims.exact ? 0 : gamma_n(static_cast<double>(n), long_roundoff) * std::sqrt(static_cast<double>(n));
  INFO("defect of QᵀQ " << columns_lower << " … " << columns_upper << ", of QQᵀ " << rows_lower << " … " << rows_upper
                        << ", summing " << summing);
  CHECK(columns_lower <= claims.defect + summing);
  CHECK(rows_lower <= claims.defect + summing);
  const double defect = (std::max)(columns_upper, rows_upper);

  // The gauge it states holds it.
  CHECK(contains(claims.gauge, smallest_gauge(matrix, claims.defect)));

  for (const LawRun& run : runs) {
    INFO(run.scalar << " [" << run.outer << ", " << n << ", " << run.inner << "]");
    Matrix<double> want_y(run.outer * n, run.inner), allowed_y(run.outer * n, run.inner),
        allowed_back(run.outer * n, run.inner);
    const double gamma = gamma_n(claims.error_terms, run.unit_roundoff);
    // The matrix, the image wanted and the image got are each rounded to double once.
    const double reference = claims.exact ? 0 : gamma_n(static_cast<double>(n), long_roundoff) + 3 * 0x1p-53;
    const auto at = [&](Index o, Index i, Index k) { return static_cast<std::size_t>((o * n + i) * run.inner + k); };
    for (Index o = 0; o < run.outer; ++o) {
      for (Index k = 0; k < run.inner; ++k) {
        double x_square = 0;
        double y_square = 0;
        for (Index i = 0; i < n; ++i) {
          x_square += run.x[at(o, i, k)] * run.x[at(o, i, k)];
          y_square += run.y[at(o, i, k)] * run.y[at(o, i, k)];
        }
        const double x_norm = std::sqrt(x_square);
        const double normwise = std::sqrt(static_cast<double>(n)) * (gamma + reference);
        for (Index j = 0; j < n; ++j) {
          long double sum = 0;
          for (Index i = 0; i < n; ++i)
            sum += static_cast<long double>(run.x[at(o, i, k)]) * static_cast<long double>(matrix(i, j));
          want_y(o * n + j, k) = static_cast<double>(sum);
          allowed_y(o * n + j, k) = (gamma + reference) * x_norm;
          // There with a normwise error, carried back by a rotation, and a second componentwise one; Q Qᵀ is off the
          // identity by the defect.
          allowed_back(o * n + j, k) = ((normwise + gamma) * (1 + defect + normwise) + reference + defect) * x_norm;
        }
        // Both norms are summed in double here.
        const double squares =
            claims.exact ? gamma_n(static_cast<double>(n), 0x1p-53) : gamma_n(static_cast<double>(n + 2), 0x1p-53);
        CHECK(std::fabs(std::sqrt(y_square) - x_norm) <= (defect + normwise + squares) * x_norm);
      }
    }
    const auto as_matrix = [&](const std::vector<double>& values) {
      return Matrix<double>(Eigen::Map<const Matrix<double>>(values.data(), run.outer * n, run.inner));
    };
    const Comparison image = compare(as_matrix(run.y), want_y, allowed_y);
    INFO("apply: " << image);
    CHECK(image.within());
    const Comparison back = compare(as_matrix(run.back), as_matrix(run.x), allowed_back);
    INFO("inverse: " << back);
    CHECK(back.within());
    if (claims.exact) CHECK(run.back == run.x);
  }
}

void check_rows(const Claims& claims, const Matrix<double>& matrix, const Matrix<double>& x,
                const Matrix<double>& acted, const Matrix<double>& acted_transposed) {
  const double n = static_cast<double>(claims.dim);
  const double gamma = claims.exact ? 0 : gamma_n(claims.error_terms + n, 0x1p-53);  // ours and theirs
  const Matrix<double> allowed = gamma * x.rowwise().norm() * RowVector<double>::Ones(claims.dim);
  const Comparison forwards = compare(acted, x * matrix, allowed);
  INFO("act: " << forwards);
  CHECK(forwards.within());
  const Comparison backwards = compare(acted_transposed, x * matrix.transpose(), allowed);
  INFO("act_transposed: " << backwards);
  CHECK(backwards.within());
}

Gauge smallest_gauge(const Matrix<double>& q, double tolerance) {
  bool fixes_ones = true;
  bool monomial = true;
  int positive = 0;
  int negative = 0;
  for (Index i = 0; i < q.rows(); ++i) {
    const double sum = q.row(i).sum();
    const double first = q.row(0).sum() < 0 ? -1 : 1;
    // A row of a matrix this far from orthogonal may sum to 1 give or take √n times as much.
    if (std::fabs(sum - first) > 2 * std::sqrt(static_cast<double>(q.rows())) * (tolerance + 0x1p-52))
      fixes_ones = false;
    for (Index j = 0; j < q.cols(); ++j) {
      positive += q(i, j) == 1;
      negative += q(i, j) == -1;
      if (q(i, j) != 0 && std::fabs(q(i, j)) != 1) monomial = false;
    }
  }
  if (!monomial) return fixes_ones ? Gauge::fixes_ones : Gauge::orthogonal;
  if (positive > 0 && negative > 0) return Gauge::signed_permutation;
  if (negative > 0) return Gauge::permutation_up_to_sign;
  return q.diagonal().sum() == static_cast<double>(q.rows()) ? Gauge::identity : Gauge::permutation;
}

Matrix<double> matrix_from_indices(const SignedPermutation& p) {
  Matrix<double> result = Matrix<double>::Zero(p.dim(), p.dim());
  for (Index j = 0; j < p.dim(); ++j) {
    const auto column = static_cast<std::size_t>(j);
    result(p.source()[column], j) = p.sign()[column];
  }
  return result;
}

Matrix<double> block_diagonal(const std::vector<Matrix<double>>& blocks) {
  Index n = 0;
  for (const Matrix<double>& block : blocks) n += block.rows();
  Matrix<double> result = Matrix<double>::Zero(n, n);
  Index at = 0;
  for (const Matrix<double>& block : blocks) {
    result.block(at, at, block.rows(), block.cols()) = block;
    at += block.rows();
  }
  return result;
}

SignGram sign_gram(const Matrix<double>& some_rows) {
  SignGram result;
  const Index n = some_rows.cols();
  const double root = std::sqrt(static_cast<double>(n));
  const std::size_t words = (static_cast<std::size_t>(n) + 63) / 64;
  std::vector<std::vector<std::uint64_t>> negative(static_cast<std::size_t>(some_rows.rows()),
                                                   std::vector<std::uint64_t>(words, 0));
  for (Index i = 0; i < some_rows.rows(); ++i) {
    for (Index j = 0; j < n; ++j) {
      const double entry = some_rows(i, j) * root;
      result.worst_entry = (std::max)(result.worst_entry, std::fabs(std::fabs(entry) - 1));
      const auto column = static_cast<std::size_t>(j);
      if (entry < 0) negative[static_cast<std::size_t>(i)][column / 64] |= std::uint64_t{1} << (column % 64);
    }
  }
  for (std::size_t i = 0; i < negative.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      Index different = 0;
      for (std::size_t w = 0; w < words; ++w) different += std::popcount(negative[i][w] ^ negative[j][w]);
      result.worst_off_diagonal = (std::max)(result.worst_off_diagonal, std::abs(n - 2 * different));
    }
  }
  return result;
}

}  // namespace rmsfold::test
