// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Two checkpoints, element by element: every stored weight of B against its recomputation from A.

#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/core/tolerance.hpp>
#include <rmsfold/model/tensor_program.hpp>

namespace rmsfold::model {

/// How one tensor of B compares with what A and the plan make it.
struct TensorComparison {
  std::string name;             ///< param
  bool exact = false;           ///< whether every bit is determined (moves, gain folds, copies), so that nothing but equality passes
  std::uint64_t entries = 0;    ///< compared
  std::uint64_t failures = 0;   ///< entries beyond the bound
  double worst = 0;             ///< largest measured / bound (for exact tensors: in units of the last place)
  Index row = 0;                ///< of the worst entry
  Index col = 0;                ///< of the worst entry
  double expected = 0;          ///< there
  double found = 0;             ///< there
  Index single_column = -1;     ///< when all failures lie in one column of a matrix: which
  double column_ratio = 0;      ///< found / expected at the worst entry of that column

  /// Whether the tensor is what it should be.
  [[nodiscard]] bool passed() const noexcept { return failures == 0; }
};

namespace detail {

/// Largest difference that is explained, \f$u_S|\hat W| + \eta_S + e\f$ (design: stored weights), with e the error of composing \f$\hat W\f$.
template <Storage S>
[[nodiscard]] double stored_bound(double expected, double composition) {
  return unit_roundoff<S>() * (std::fabs(expected) + composition) + underflow_unit<S>() + composition;
}

/// Collects entry by entry, tile by tile.
class ComparisonCollector {
 public:
  explicit ComparisonCollector(TensorComparison& result) : result_(result) {}

  /// Takes in a tile's findings. @param ratio  measured / bound; above 1, or NaN, fails.
  template <class Ratio, class Expected, class Found>
  void add(Index row, Index col, Index rows, Index cols, const Ratio& ratio, const Expected& expected, const Found& found) {
    TensorComparison part;
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < cols; ++j) {
        const double r = ratio(i, j);
        const bool fails = !is_finite(r) || r > 1;
        const double severity = is_finite(r) ? r : 1e300;
        if (fails) {
          ++part.failures;
          part.single_column = part.failures == 1 || part.single_column == col + j ? col + j : -2;
        }
        if (severity > part.worst) {
          part.worst = severity;
          part.row = row + i;
          part.col = col + j;
          part.expected = expected(i, j);
          part.found = found(i, j);
        }
      }
    }
    const std::lock_guard lock(guard_);
    result_.entries += static_cast<std::uint64_t>(rows * cols);
    if (part.failures > 0) {
      const bool same = result_.failures == 0 || result_.single_column == part.single_column;
      result_.single_column = same ? part.single_column : -2;
    }
    result_.failures += part.failures;
    // Ties are decided by place, so that the report does not depend on which thread came first.
    const bool earlier = std::pair(part.row, part.col) < std::pair(result_.row, result_.col);
    if (part.worst > result_.worst || (part.worst == result_.worst && part.worst > 0 && earlier)) {
      result_.worst = part.worst;
      result_.row = part.row;
      result_.col = part.col;
      result_.expected = part.expected;
      result_.found = part.found;
    }
  }

 private:
  TensorComparison& result_;
  std::mutex guard_;
};

/// Compares a tensor whose bits are determined. `wanted` yields stored scalars.
template <Storage S>
void compare_exactly(ComparisonCollector& collector, const S* wanted, const std::byte* stored, Index stride, Index row, Index col, Index rows, Index cols) {
  const auto found = [&](Index i, Index j) {
    S value;
    std::memcpy(&value, stored + static_cast<std::size_t>(i * stride + j) * sizeof(S), sizeof(S));
    return value;
  };
  const auto expected = [&](Index i, Index j) { return wanted[i * cols + j]; };
  collector.add(
      row, col, rows, cols,
      [&](Index i, Index j) {
        const S a = expected(i, j);
        const S b = found(i, j);
        if (std::memcmp(&a, &b, sizeof(S)) == 0) return 0.0;
        const double x = to_double(a);
        const double unit = unit_roundoff<S>() * std::fabs(x) + underflow_unit<S>();
        return is_finite(x) && is_finite(to_double(b)) ? 1 + std::fabs(to_double(b) - x) / unit : 1e300;
      },
      [&](Index i, Index j) { return to_double(expected(i, j)); }, [&](Index i, Index j) { return to_double(found(i, j)); });
}

}  // namespace detail

/// Compares one tensor of B with its recomputation.
/// @param basis_error        error of an entry of the plan's rotations where they were estimated; 0 when they are known.
/// @param earlier_roundings  how often the weights were rounded to their type on the way from A to B, but for the last time.
/// @throws IoError; RefusedError when A holds a number that a rotation would spread.
/// @par Cost  one read of both, and the tensor's transformation.
[[nodiscard]] inline TensorComparison compare_tensor(const Model& a, const Model& b, const Plan& plan, const TensorPlan& planned, double basis_error,
                                                     double earlier_roundings, unsigned threads, const std::function<void(std::uint64_t)>& on_bytes = {}) {
  TensorComparison result;
  result.name = planned.name;
  detail::ComparisonCollector collector(result);
  const TensorProgram program(a, plan, planned);
  const bool is_neutral = planned.action == TensorPlan::Action::neutralise;
  const bool moves_only = program.is_exact() && earlier_roundings == 0;
  result.exact = is_neutral || (earlier_roundings == 0 && (program.is_exact() || program.is_product_only()));
  const Index at_once = program.rows_per_chunk(detail::chunk_bytes);
  std::vector<std::byte> before, after;
  for (Index row = 0; row < program.rows(); row += at_once) {
    const Index count = (std::min)(at_once, program.rows() - row);
    const std::uint64_t offset = static_cast<std::uint64_t>(row) * program.row_bytes();
    before.resize(static_cast<std::size_t>(count) * program.row_bytes());
    after.resize(before.size());
    a.checkpoint().read(planned.source, offset, before);
    b.checkpoint().read(b.source_of(planned.name), offset, after);
    visit_dtype(program.dtype(), [&](auto scalar) {
      using S = decltype(scalar);
      const auto stored = [&](Index r, Index c) { return after.data() + static_cast<std::size_t>((r - row) * program.cols() + c) * sizeof(S); };
      if (is_neutral) {
        const std::vector<S> ones(static_cast<std::size_t>(count * program.cols()), round_to<S>(1));
        detail::compare_exactly(collector, ones.data(), after.data(), program.cols(), row, 0, count, program.cols());
      } else if (moves_only) {
        program.run<S>(before, row, count, threads, [&](const Tile<S>& t) {
          detail::compare_exactly(collector, t.values, stored(t.row, t.col), program.cols(), t.row, t.col, t.rows, t.cols);
        });
      } else if (result.exact) {
        program.run<double>(before, row, count, threads, [&](const Tile<double>& t) {
          std::vector<S> wanted(static_cast<std::size_t>(t.rows * t.cols));
          for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = round_to<S>(t.values[i]);
          detail::compare_exactly(collector, wanted.data(), stored(t.row, t.col), program.cols(), t.row, t.col, t.rows, t.cols);
        });
      } else {
        program.run<double>(before, row, count, threads, [&](const Tile<double>& t) {
          const Eigen::Map<const Matrix<double>> expected(t.values, t.rows, t.cols);
          Matrix<double> composition = program.composition_error(t, basis_error);
          composition.colwise() += earlier_roundings * unit_roundoff<S>() * expected.rowwise().norm();
          composition.rowwise() += RowVector<double>(earlier_roundings * unit_roundoff<S>() * expected.colwise().norm());
          const auto found = [&](Index i, Index j) {
            S value;
            std::memcpy(&value, stored(t.row + i, t.col + j), sizeof(S));
            return to_double(value);
          };
          collector.add(
              t.row, t.col, t.rows, t.cols,
              [&](Index i, Index j) { return std::fabs(found(i, j) - expected(i, j)) / detail::stored_bound<S>(expected(i, j), composition(i, j)); },
              [&](Index i, Index j) { return expected(i, j); }, found);
        });
      }
    });
    if (on_bytes) on_bytes(before.size());
  }
  if (result.single_column >= 0 && result.expected != 0) result.column_ratio = result.found / result.expected;
  return result;
}

}  // namespace rmsfold::model
