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

/// Largest difference that is explained, \f$u_S(|\hat W| + e) + \eta_S + e\f$ (design: stored weights), with e the error of composing \f$\hat W\f$.
template <Storage S>
[[nodiscard]] double stored_bound(double expected, double composition) {
  return unit_roundoff<S>() * (std::fabs(expected) + composition) + underflow_unit<S>() + composition;
}

/// Collects what is found in each row of a tile; rows in which nothing is off, or less than before, need not be looked at entry by entry.
class ComparisonCollector {
 public:
  explicit ComparisonCollector(TensorComparison& result) : result_(result) {}

  /// Takes in entries that need not be looked at.
  void pass(std::uint64_t entries) {
    const std::lock_guard lock(guard_);
    result_.entries += entries;
  }
  /// What `TensorComparison::worst` is now.
  [[nodiscard]] double worst() {
    const std::lock_guard lock(guard_);
    return result_.worst;
  }

  /// Takes in a row from (row, col) on. @param ratio  measured / bound of an entry; above 1, or NaN, fails.
  template <class Ratio, class Expected, class Found>
  void add(Index row, Index col, Index cols, const Ratio& ratio, const Expected& expected, const Found& found) {
    TensorComparison part;
    for (Index j = 0; j < cols; ++j) {
      const double r = ratio(j);
      const bool fails = !is_finite(r) || r > 1;
      const double severity = is_finite(r) ? r : 1e300;
      if (fails) {
        ++part.failures;
        part.single_column = part.failures == 1 ? col + j : -2;
      }
      if (severity > part.worst) {
        part.worst = severity;
        part.col = col + j;
        part.expected = expected(j);
        part.found = found(j);
      }
    }
    const std::lock_guard lock(guard_);
    result_.entries += static_cast<std::uint64_t>(cols);
    if (part.failures > 0) {
      const bool same = result_.failures == 0 || result_.single_column == part.single_column;
      result_.single_column = same ? part.single_column : -2;
    }
    result_.failures += part.failures;
    // Ties are decided by place, so that the report does not depend on which thread came first.
    const bool earlier = std::pair(row, part.col) < std::pair(result_.row, result_.col);
    if (part.worst > result_.worst || (part.worst == result_.worst && part.worst > 0 && earlier)) {
      result_.worst = part.worst;
      result_.row = row;
      result_.col = part.col;
      result_.expected = part.expected;
      result_.found = part.found;
    }
  }

 private:
  TensorComparison& result_;
  std::mutex guard_;
};

/// Compares a row whose bits are determined.
template <Storage S>
void compare_exactly(ComparisonCollector& collector, const std::byte* wanted, const std::byte* stored, Index row, Index col, Index cols) {
  if (std::memcmp(wanted, stored, static_cast<std::size_t>(cols) * sizeof(S)) == 0) return collector.pass(static_cast<std::uint64_t>(cols));
  const auto entry = [](const std::byte* from, Index j) {
    S value;
    std::memcpy(&value, from + static_cast<std::size_t>(j) * sizeof(S), sizeof(S));
    return value;
  };
  const auto expected = [&](Index j) { return to_double(entry(wanted, j)); };
  const auto found = [&](Index j) { return to_double(entry(stored, j)); };
  const auto ratio = [&](Index j) {
    const S a = entry(wanted, j);
    const S b = entry(stored, j);
    if (std::memcmp(&a, &b, sizeof(S)) == 0) return 0.0;
    const double unit = unit_roundoff<S>() * std::fabs(to_double(a)) + underflow_unit<S>();
    return is_finite(to_double(a)) && is_finite(to_double(b)) ? 1 + std::fabs(to_double(b) - to_double(a)) / unit : 1e300;
  };
  collector.add(row, col, cols, ratio, expected, found);
}

/// Compares a row with what double arithmetic makes it. @param c,more  the errors of composing the entries are `c + more[j]`, see `stored_bound`.
template <Storage S>
void compare_within_bounds(ComparisonCollector& collector, double worst_so_far, const double* expected, std::span<const std::byte> stored, Index row, Index col,
                           double c, std::span<const double> more, WorkBuffer& buffer) {
  const std::span<double> found = buffer.first_of<double>(more.size());
  load_as_double<S>(stored, found);
  const Index cols = static_cast<Index>(more.size());
  const double worst = kernel::dispatch<kernel::WorstRatio>(expected, static_cast<const double*>(found.data()), cols, unit_roundoff<S>(), underflow_unit<S>(), c, more.data());
  if (worst <= 1 && worst < worst_so_far) return collector.pass(static_cast<std::uint64_t>(cols));
  const auto ratio = [&](Index j) {
    const std::size_t k = static_cast<std::size_t>(j);
    return std::fabs(found[k] - expected[j]) / stored_bound<S>(expected[j], c + more[k]);
  };
  collector.add(row, col, cols, ratio, [&](Index j) { return expected[j]; }, [&](Index j) { return found[static_cast<std::size_t>(j)]; });
}

/// Compares a piece. @param before,after  the piece in A, which may be overwritten, and in B, as stored, dense. @param wanted  memory for what B should be.
inline void compare_piece(ComparisonCollector& collector, const TensorProgram& program, const TensorPlan& planned, const Piece& piece, std::span<std::byte> before,
                          std::span<const std::byte> after, double basis_error, double earlier_roundings, Workspace& workspace, WorkBuffer& wanted) {
  const bool is_exact = earlier_roundings == 0 && (program.is_exact() || program.is_product_only());
  visit_dtype(program.dtype(), [&](auto scalar) {
    using S = decltype(scalar);
    const auto stored = [&](Index r, Index c) {
      return after.data() + static_cast<std::size_t>((r - piece.row) * piece.cols + (c - piece.col)) * sizeof(S);
    };
    const auto compare_rows = [&](const std::byte* values, Index row, Index col, Index rows, Index cols) {
      for (Index i = 0; i < rows; ++i) {
        compare_exactly<S>(collector, values + static_cast<std::size_t>(i * cols) * sizeof(S), stored(row + i, col), row + i, col, cols);
      }
    };
    if (planned.action == TensorPlan::Action::neutralise) {
      const std::span<S> filled = wanted.first_of<S>(static_cast<std::size_t>(piece.rows * piece.cols));
      std::fill(filled.begin(), filled.end(), round_to<S>(planned.fill));
      compare_rows(std::as_bytes(filled).data(), piece.row, piece.col, piece.rows, piece.cols);
    } else if (is_exact && program.scales_only()) {
      std::uint64_t non_finite = 0;  // B must have the same
      const std::span<std::byte> scaled = wanted.first(before.size());
      static_cast<void>(program.scale(before, piece, scaled, non_finite));
      compare_rows(scaled.data(), piece.row, piece.col, piece.rows, piece.cols);
    } else if (is_exact && program.is_exact()) {
      program.run<S>(before, piece, workspace, [&](const Tile<S>& t) {
        compare_rows(reinterpret_cast<const std::byte*>(t.values), t.row, t.col, t.rows, t.cols);
      });
    } else if (is_exact) {
      program.run<double>(before, piece, workspace, [&](const Tile<double>& t) {
        const std::size_t size = static_cast<std::size_t>(t.rows * t.cols);
        const std::span<std::byte> rounded = wanted.first(size * sizeof(S));
        static_cast<void>(store_rounded<S>(std::span(t.values, size), rounded));
        compare_rows(rounded.data(), t.row, t.col, t.rows, t.cols);
      });
    } else {
      program.run<double>(before, piece, workspace, [&](const Tile<double>& t) {
        const TensorProgram::CompositionError error = program.composition_error(t, basis_error, earlier_roundings * unit_roundoff<S>());
        const std::span<const double> more(error.cols.data(), static_cast<std::size_t>(t.cols));
        const double worst = collector.worst();
        for (Index i = 0; i < t.rows; ++i) {
          const std::span<const std::byte> found(stored(t.row + i, t.col), more.size() * sizeof(S));
          compare_within_bounds<S>(collector, worst, t.values + i * t.cols, found, t.row + i, t.col, error.rows[i], more, wanted);
        }
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
/// @par Cost  one read of both, and the transformation; memory as `transform`.
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
    for (const Piece& piece : program.pieces(threads, 2)) jobs.push_back({i, piece});
  }
  struct State {
    Workspace workspace;
    WorkBuffer after;
    WorkBuffer wanted;
  };
  std::mutex guard;
  parallel_for(static_cast<Index>(jobs.size()), threads, [] { return State(); }, [&](State& state, Index number) {
    const std::size_t index = jobs[static_cast<std::size_t>(number)].tensor;
    const Piece& piece = jobs[static_cast<std::size_t>(number)].piece;
    const TensorPlan& planned = plan.tensors[index];
    const TensorProgram program(a, plan, planned);
    const std::size_t bytes = program.bytes_of(piece);
    const std::span<std::byte> before = state.workspace.raw.at(a.checkpoint().place_of(planned.source) + program.offset_of(piece), program.raw_bytes_of(piece));
    program.read(a, planned.source, piece, before);
    const std::string found = b.source_of(planned.name);
    const std::span<std::byte> after = state.after.at(b.checkpoint().place_of(found) + program.offset_of(piece), bytes);
    program.for_each_run(piece, [&](std::uint64_t offset, std::size_t at, std::size_t length) { b.checkpoint().read(found, offset, after.subspan(at, length)); });
    detail::compare_piece(collectors[index], program, planned, piece, before, after, basis_error, earlier_roundings, state.workspace, state.wanted);
    const std::lock_guard lock(guard);
    if (on_bytes) on_bytes(bytes);
  });
  for (TensorComparison& result : results) {
    if (result.single_column >= 0 && result.expected != 0) result.column_ratio = result.found / result.expected;
  }
  return results;
}

}  // namespace rmsfold::model
