// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Two checkpoints, element by element: every stored weight of B against its recomputation from A.

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
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

namespace detail {

/// Compares a piece. @param before,after  the piece in A and in B, as stored, dense.
inline void compare_piece(ComparisonCollector& collector, const TensorProgram& program, const TensorPlan& planned, const Piece& piece, std::span<const std::byte> before,
                          std::span<const std::byte> after, double basis_error, double earlier_roundings, Workspace& workspace) {
  const bool is_exact = earlier_roundings == 0 && (program.is_exact() || program.is_product_only());
  visit_dtype(program.dtype(), [&](auto scalar) {
    using S = decltype(scalar);
    const auto stored = [&](Index r, Index c) {
      return after.data() + static_cast<std::size_t>((r - piece.row) * piece.cols + (c - piece.col)) * sizeof(S);
    };
    if (planned.action == TensorPlan::Action::neutralise) {
      const std::vector<S> ones(static_cast<std::size_t>(piece.rows * piece.cols), round_to<S>(1));
      compare_exactly(collector, ones.data(), after.data(), piece.cols, piece.row, piece.col, piece.rows, piece.cols);
    } else if (program.is_exact() && earlier_roundings == 0) {
      program.run<S>(before, piece, workspace, [&](const Tile<S>& t) {
        compare_exactly(collector, t.values, stored(t.row, t.col), piece.cols, t.row, t.col, t.rows, t.cols);
      });
    } else if (is_exact) {
      std::vector<S> wanted;
      program.run<double>(before, piece, workspace, [&](const Tile<double>& t) {
        wanted.resize(static_cast<std::size_t>(t.rows * t.cols));
        static_cast<void>(store_rounded<S>(std::span(t.values, wanted.size()), std::as_writable_bytes(std::span(wanted))));
        compare_exactly(collector, wanted.data(), stored(t.row, t.col), piece.cols, t.row, t.col, t.rows, t.cols);
      });
    } else {
      program.run<double>(before, piece, workspace, [&](const Tile<double>& t) {
        const Eigen::Map<const Matrix<double>> expected(t.values, t.rows, t.cols);
        Matrix<double> composition = program.composition_error(t, basis_error);
        if (earlier_roundings > 0) {
          composition.colwise() += earlier_roundings * unit_roundoff<S>() * expected.rowwise().norm();
          composition.rowwise() += RowVector<double>(earlier_roundings * unit_roundoff<S>() * expected.colwise().norm());
        }
        const auto found = [&](Index i, Index j) {
          S value;
          std::memcpy(&value, stored(t.row + i, t.col + j), sizeof(S));
          return to_double(value);
        };
        collector.add(
            t.row, t.col, t.rows, t.cols,
            [&](Index i, Index j) { return std::fabs(found(i, j) - expected(i, j)) / stored_bound<S>(expected(i, j), composition(i, j)); },
            [&](Index i, Index j) { return expected(i, j); }, found);
      });
    }
  });
}

}  // namespace detail

/// Compares every planned tensor of B with its recomputation from A, in the plan's order.
/// @param basis_error        error of an entry of the plan's rotations where they were estimated; 0 when they are known.
/// @param earlier_roundings  how often the weights were rounded to their type on the way from A to B, but for the last time.
/// @param on_bytes           called with the bytes of each piece that is done, one call at a time; may be empty.
/// @throws IoError; RefusedError when A holds a number that a rotation would spread.
/// @par Cost  one read of both, and the transformation; memory for some pieces, whatever the size of the tensors.
[[nodiscard]] inline std::vector<TensorComparison> compare_tensors(const Model& a, const Model& b, const Plan& plan, double basis_error, double earlier_roundings,
                                                                   unsigned threads, const std::function<void(std::uint64_t)>& on_bytes = {}) {
  struct Job {
    std::size_t tensor;
    Piece piece;
  };
  std::vector<TensorComparison> results(plan.tensors.size());
  std::deque<detail::ComparisonCollector> collectors;
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& planned = plan.tensors[i];
    const TensorProgram program(a, plan, planned);
    results[i].name = planned.name;
    results[i].exact =
        planned.action == TensorPlan::Action::neutralise || (earlier_roundings == 0 && (program.is_exact() || program.is_product_only()));
    collectors.emplace_back(results[i]);
    for (const Piece& piece : program.pieces(threads)) jobs.push_back({i, piece});
  }
  struct State {
    Workspace workspace;
    std::vector<std::byte> after;
  };
  std::mutex guard;
  parallel_for(static_cast<Index>(jobs.size()), threads, [] { return State(); }, [&](State& state, Index number) {
    const std::size_t index = jobs[static_cast<std::size_t>(number)].tensor;
    const Piece& piece = jobs[static_cast<std::size_t>(number)].piece;
    const TensorPlan& planned = plan.tensors[index];
    const TensorProgram program(a, plan, planned);
    const std::size_t bytes = program.bytes_of(piece);
    const auto read = [&](std::vector<std::byte>& buffer, const Model& model, const std::string& name) {
      if (buffer.size() < bytes) buffer.resize(bytes);
      const std::span<std::byte> all = std::span(buffer).first(bytes);
      program.for_each_run(piece, [&](std::uint64_t offset, std::size_t at, std::size_t length) { model.checkpoint().read(name, offset, all.subspan(at, length)); });
      return std::span<const std::byte>(all);
    };
    const std::span<const std::byte> before = read(state.workspace.raw, a, planned.source);
    const std::span<const std::byte> after = read(state.after, b, b.source_of(planned.name));
    detail::compare_piece(collectors[index], program, planned, piece, before, after, basis_error, earlier_roundings, state.workspace);
    const std::lock_guard lock(guard);
    if (on_bytes) on_bytes(bytes);
  });
  for (TensorComparison& result : results) {
    if (result.single_column >= 0 && result.expected != 0) result.column_ratio = result.found / result.expected;
  }
  return results;
}

}  // namespace rmsfold::model
