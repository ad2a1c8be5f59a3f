// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Norm sites, what their gains are, and the computed verdict: which changes of basis leave the model the same function.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/group/gauge.hpp>
#include <rmsfold/model/model.hpp>

namespace rmsfold::model {

/// One norm with its readers.
struct Site {
  const Node* norm = nullptr;        ///< the norm
  std::vector<const Node*> readers;  ///< every node that reads its output
  RowVector<double> gain;            ///< g
  std::string why_not_foldable;      ///< empty: its gain folds into the readers

  /// Whether the gain can move into the readers.
  [[nodiscard]] bool is_foldable() const noexcept { return why_not_foldable.empty(); }
  /// Whether every entry is the same number: such a gain commutes with every rotation.
  [[nodiscard]] bool is_constant() const { return (gain.array() == gain[0]).all(); }
  /// Whether every entry is 1: there is nothing to fold.
  [[nodiscard]] bool is_neutral() const { return (gain.array() == 1.0).all(); }
  /// Smallest and largest magnitude.
  [[nodiscard]] std::pair<double, double> magnitudes() const { return {gain.cwiseAbs().minCoeff(), gain.cwiseAbs().maxCoeff()}; }
};

/// Every norm that reads the given space, in the order of computation. @throws IoError.
[[nodiscard]] inline std::vector<Site> find_sites(const Model& model, std::string_view space = residual) {
  const Graph& graph = model.graph();
  // One pass over the nodes: readers of every signal.
  std::vector<std::vector<const Node*>> readers(graph.signals.size());
  for (const Node& node : graph.nodes) {
    for (const std::size_t read : node.reads) readers[read].push_back(&node);
  }
  std::vector<Site> sites;
  for (const Node& node : graph.nodes) {
    if (node.op != Op::norm || graph.params[*node.weight].axes[0] != space) continue;
    Site site;
    site.norm = &node;
    site.readers = readers[node.writes];
    site.gain = model.read_vector(graph.params[*node.weight].name);
    // Fold rule: every reader of the norm's output is a linear layer, which can absorb the gain.
    if (site.readers.empty()) site.why_not_foldable = "nothing reads it";
    if (graph.writes_stream(node)) site.why_not_foldable = "its output is added to the residual stream";
    for (const Node* reader : site.readers) {
      if (reader->op != Op::linear) site.why_not_foldable = reader->module + " reads it and is not linear";
    }
    sites.push_back(std::move(site));
  }
  return sites;
}

/// What one node allows.
struct Restriction {
  std::string node;  ///< module
  Gauge gauge;       ///< largest group it allows
  std::string why;   ///< in words
};

/// Which changes of basis of a space leave the model the same function: the intersection over its nodes.
struct Verdict {
  Gauge as_stored = Gauge::orthogonal;      ///< with the gains where they are
  Gauge after_folding = Gauge::orthogonal;  ///< once every foldable gain is folded
  std::vector<Restriction> restrictions;    ///< nodes that allow less than any rotation as stored
};

/// The verdict on the residual stream, computed from the nodes.
[[nodiscard]] inline Verdict judge(const Graph& graph, const std::vector<Site>& sites) {
  Verdict verdict;
  const auto restrict = [&](const std::string& node, Gauge stored, Gauge folded, std::string why) {
    verdict.as_stored = intersect(verdict.as_stored, stored);
    verdict.after_folding = intersect(verdict.after_folding, folded);
    if (stored != Gauge::orthogonal) verdict.restrictions.push_back({node, stored, std::move(why)});
  };
  for (const Site& site : sites) {
    if (site.is_constant()) continue;  // commutes like a norm without a gain
    const Gauge folded = site.is_foldable() ? Gauge::orthogonal : Gauge::signed_permutation;
    restrict(site.norm->module, Gauge::signed_permutation, folded,
             site.is_foldable() ? "carries a gain, which its readers can absorb" : "carries a gain that cannot be folded: " + site.why_not_foldable);
  }
  const auto lives_in_stream = [&](std::size_t signal) { return graph.signals[signal].space == residual; };
  for (const Node& node : graph.nodes) {
    if (node.op != Op::attention && node.op != Op::gated_activation) continue;  // linear axes and residual adds allow any rotation
    if (lives_in_stream(node.writes) || std::any_of(node.reads.begin(), node.reads.end(), lives_in_stream)) {
      restrict(node.module, Gauge::identity, Gauge::identity, "acts on the residual stream in a way that no change of basis passes");
    }
  }
  return verdict;
}

}  // namespace rmsfold::model
