// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Finding out which change of basis separates two checkpoints, when no manifest says it: least squares over all writers of the stream.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <Eigen/Cholesky>

#include <rmsfold/model/plan.hpp>

namespace rmsfold::model {

/// An orthogonal change of basis fitted to pairs of vectors.
struct BasisEstimate {
  std::optional<Rotation> rotation;  ///< nothing: the vectors do not determine it, or no orthogonal matrix fits them
  bool is_identity = false;          ///< nothing changed
  bool is_exact = false;             ///< recognised as a signed permutation or a Hadamard-like matrix, which is then exact
  Index rank = 0;                    ///< directions that the vectors span
  double uncertainty = 0;            ///< error of one entry, eight standard deviations; 0 when it is exact
  double residual = 0;               ///< root mean square of what the fit leaves, per entry
  std::string description;           ///< in words
};

/// Least squares \f$\min_Q\sum_r\|x_rQ - y_r\|^2\f$, snapped to an exact matrix where its uncertainty allows, else projected to the nearest orthogonal one.
///
/// A fit counts only when what it leaves is no more than the rounding of the stored \f$y_r\f$: otherwise something else happened to them.
class BasisFit {
 public:
  /// @param n     dimension of the space
  /// @param unit  unit roundoff of the type that \f$y_r\f$ is stored in
  BasisFit(Index n, double unit) : n_(n), unit_(unit), gram_(Matrix<double>::Zero(n, n)), cross_(Matrix<double>::Zero(n, n)) {}

  /// Takes in pairs of rows, `k x n` each.
  void add(const Matrix<double>& x, const Matrix<double>& y) {
    gram_.noalias() += x.transpose() * x;
    cross_.noalias() += x.transpose() * y;
    difference_ += (x - y).squaredNorm();
    // A sample stays, to measure what the fit leaves without cancellation.
    const Index keep = (std::min)(x.rows(), (std::max)(Index{0}, 4 * n_ - sample_x_.rows()));
    if (keep > 0) {
      const Index old = sample_x_.rows();
      sample_x_.conservativeResize(old + keep, n_);
      sample_y_.conservativeResize(old + keep, n_);
      sample_x_.bottomRows(keep) = x.topRows(keep);
      sample_y_.bottomRows(keep) = y.topRows(keep);
    }
  }

  /// The estimate. @par Cost  a few products of n^3.
  [[nodiscard]] BasisEstimate solve() const {
    BasisEstimate estimate;
    if (difference_ == 0) {
      estimate.is_identity = true;
      estimate.description = "the writers are unchanged";
      return estimate;
    }
    const Eigen::LDLT<Eigen::MatrixXd> factor(gram_);
    const Eigen::VectorXd pivots = factor.vectorD();
    const double smallest = pivots.cwiseAbs().maxCoeff() * static_cast<double>(n_) * std::numeric_limits<double>::epsilon();
    estimate.rank = (pivots.array() > smallest).count();
    if (estimate.rank < n_) {
      estimate.description = fmt::format("the writers span {} of {} directions, so they do not determine the basis", estimate.rank, n_);
      return estimate;
    }
    const Matrix<double> fit = factor.solve(Eigen::MatrixXd(cross_));
    const Matrix<double> left = sample_x_ * fit - sample_y_;
    const double entries = static_cast<double>(sample_x_.rows() * n_);
    estimate.residual = std::sqrt(left.squaredNorm() / entries);
    // Rounding moves an entry by at most unit * |y|; composing y in double adds a few n units of double.
    const double explained = (unit_ + static_cast<double>(n_) * std::numeric_limits<double>::epsilon()) * std::sqrt(sample_y_.squaredNorm() / entries);
    if (!(estimate.residual <= 2 * explained)) {
      estimate.description = "no change of basis maps the writers of one onto those of the other";
      return estimate;
    }
    // Var(Q_ij) = sigma^2 (G^-1)_ii. The solve's own rounding is of the order of the condition number.
    const Eigen::MatrixXd inverse = factor.solve(Eigen::MatrixXd::Identity(n_, n_));
    const double condition = pivots.maxCoeff() / pivots.minCoeff();
    const double deviation = estimate.residual * std::sqrt(inverse.diagonal().maxCoeff()) + condition * std::numeric_limits<double>::epsilon();
    const double entry_error = 8 * deviation;
    snap(fit, entry_error, estimate);
    return estimate;
  }

 private:
  void snap(const Matrix<double>& fit, double entry_error, BasisEstimate& estimate) const {
    const Matrix<double> whole = fit.array().round().matrix();
    if ((fit - whole).cwiseAbs().maxCoeff() <= (std::min)(entry_error, 0.25)) {
      const Orthogonal<double> exact(whole, Unchecked{});
      Rotation simplest = detail::simplest(exact);
      if (const SignedPermutation* p = simplest.as_signed_permutation()) {
        estimate.is_identity = *p == SignedPermutation::identity(n_);
        estimate.is_exact = true;
        estimate.description = estimate.is_identity ? "the writers are unchanged up to rounding" : "a signed permutation";
        if (!estimate.is_identity) estimate.rotation = std::move(simplest);
        return;
      }
    }
    const double root = std::sqrt(static_cast<double>(n_));
    const Matrix<double> signs = (fit.array() > 0).select(Matrix<double>::Constant(n_, n_, 1 / root), Matrix<double>::Constant(n_, n_, -1 / root));
    if ((fit - signs).cwiseAbs().maxCoeff() <= (std::min)(entry_error, 0.5 / root) &&
        orthogonality_residual(signs).worst() <= orthogonality_tolerance<double>(n_)) {
      estimate.is_exact = true;
      estimate.description = "a Hadamard-like rotation (all entries ±1/√n)";
      estimate.rotation = Orthogonal<double>(signs, Unchecked{});
      return;
    }
    PolarResult polar = nearest_orthogonal(fit);
    const double spectral_error = 2 * std::sqrt(static_cast<double>(n_)) * entry_error;
    if (!polar.converged || polar.moved > spectral_error + 4 * entry_error) {
      estimate.description = "the change of basis that fits is not orthogonal";
      return;
    }
    estimate.uncertainty = entry_error;
    estimate.description = fmt::format("a dense rotation, each entry known to about {:.1g}", entry_error);
    estimate.rotation = std::move(polar.q);
  }

  Index n_;
  double unit_;
  Matrix<double> gram_, cross_;
  Matrix<double> sample_x_, sample_y_;
  double difference_ = 0;
};

namespace detail {

/// The vectors that lie along an axis of a tensor, as rows: a sample of them when there are many.
[[nodiscard]] inline Matrix<double> axis_vectors(const Model& model, const std::string& param, std::size_t axis) {
  const Shape& shape = model.shape(param);
  const Index extent = static_cast<Index>(shape[axis]);
  const Index most = 16 * extent;
  Index outer = 1, inner = 1;
  for (std::size_t a = 0; a < shape.size(); ++a) (a < axis ? outer : inner) *= a == axis ? 1 : static_cast<Index>(shape[a]);
  outer = (std::min)(outer, (std::max)(Index{1}, most / (std::max)(Index{1}, inner)));
  const RowVector<double> values = model.read_values(param, outer * extent * inner);
  Matrix<double> vectors(outer * inner, extent);
  for (Index o = 0; o < outer; ++o) {
    for (Index k = 0; k < extent; ++k) {
      for (Index i = 0; i < inner; ++i) vectors(o * inner + i, k) = values[(o * extent + k) * inner + i];
    }
  }
  return vectors;
}

}  // namespace detail

/// The change of basis of the residual stream between A and B.
///
/// Fitted to every writer whose input side cannot have changed: embedding, MLP outputs and biases; attention outputs are left out, since heads may have been
/// rotated on their input side. When one writer is wrong, all together fit no basis: then the embedding alone, and then the others alone, are tried.
[[nodiscard]] inline BasisEstimate estimate_stream(const Model& a, const Model& b) {
  const Graph& graph = a.graph();
  const std::vector<Site> sites = find_sites(a);
  const double unit = visit_dtype(b.dtype(b.embedding_tensor()), [](auto s) { return unit_roundoff<decltype(s)>(); });
  BasisFit all(graph.size.hidden, unit), embeddings(graph.size.hidden, unit), others(graph.size.hidden, unit);
  for (const Node& node : graph.nodes) {
    if (!node.weight || node.op == Op::norm) continue;
    const Param& weight = graph.params[*node.weight];
    if (weight.axes[node.out_axis] != residual) continue;
    BasisFit& part = node.op == Op::embedding ? embeddings : others;
    const auto add = [&](const Matrix<double>& x, const Matrix<double>& y) {
      all.add(x, y);
      part.add(x, y);
    };
    const bool input_may_change = node.op == Op::linear && node.in_axis && !weight.axes[*node.in_axis].empty();
    const bool is_folded = node.op == Op::linear && std::any_of(sites.begin(), sites.end(), [&](const Site& site) {
      return std::find(site.readers.begin(), site.readers.end(), &node) != site.readers.end();
    });
    if (!input_may_change && !is_folded) add(detail::axis_vectors(a, weight.name, node.out_axis), detail::axis_vectors(b, weight.name, node.out_axis));
    if (node.bias) {
      const std::string& bias = graph.params[*node.bias].name;
      const std::size_t axis = graph.params[*node.bias].axes.size() - 1;
      add(detail::axis_vectors(a, bias, axis), detail::axis_vectors(b, bias, axis));
    }
  }
  const auto found = [](const BasisEstimate& estimate) { return estimate.rotation || estimate.is_identity; };
  BasisEstimate estimate = all.solve();
  for (const auto& [part, what] : {std::pair{&embeddings, "the embedding"}, std::pair{&others, "MLP outputs and biases"}}) {
    if (found(estimate)) break;
    BasisEstimate partial = part->solve();
    if (!found(partial)) continue;
    partial.description += std::string(", by ") + what + " alone: the other writers do not fit it";
    estimate = std::move(partial);
  }
  return estimate;
}

/// The rotations of one layer's values, from the value projections' rows; nothing when they are unchanged.
/// @param expected  the value projection of B without rotated heads, in double.
/// @param found     the one it has.
/// @param unit      unit roundoff of its type.
/// @returns one estimate per kv head.
[[nodiscard]] inline std::vector<BasisEstimate> estimate_heads(const Matrix<double>& expected, const Matrix<double>& found, Index head_dim, double unit) {
  std::vector<BasisEstimate> heads;
  for (Index start = 0; start < expected.rows(); start += head_dim) {
    BasisFit fit(head_dim, unit);
    fit.add(expected.middleRows(start, head_dim).transpose(), found.middleRows(start, head_dim).transpose());
    heads.push_back(fit.solve());
  }
  return heads;
}

}  // namespace rmsfold::model
