// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Norm sites, what their gains are, and the computed verdict: which changes of basis leave the model the same function.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <rmsfold/group/gauge.hpp>
#include <rmsfold/model/model.hpp>

namespace rmsfold::model {

/// One norm with its readers.
struct Site {
  const Node* norm = nullptr;        ///< the norm
  std::string space;                 ///< of what it normalises; empty: of no change of basis
  std::vector<const Node*> readers;  ///< every node that reads its output and nothing that others add to it
  RowVector<double> gain;            ///< g, as the runtime forms it from what is stored
  RowVector<double> bias;            ///< b of a LayerNorm; empty: none
  bool moves_bias = false;           ///< whether folding moves the bias into the readers' biases; else it stays, divided by the gain
  std::string why_not_foldable;      ///< empty: its gain folds into the readers

  /// Whether the gain can move into the readers.
  [[nodiscard]] bool is_foldable() const noexcept { return why_not_foldable.empty(); }
  /// Whether every entry is the same number: such a gain commutes with every rotation.
  [[nodiscard]] bool is_constant() const { return gain.size() == 0 || (gain.array() == gain[0]).all(); }
  /// Whether every entry is 1: there is nothing to fold.
  [[nodiscard]] bool is_neutral() const { return (gain.array() == 1.0).all(); }
  /// Smallest and largest magnitude.
  [[nodiscard]] std::pair<double, double> magnitudes() const { return {gain.cwiseAbs().minCoeff(), gain.cwiseAbs().maxCoeff()}; }
};

namespace detail {

/// Fold rule: every reader of the norm's output is a linear layer that reads nothing else, which can absorb the gain.
[[nodiscard]] inline std::string why_not_foldable(const Graph& graph, const Site& site) {
  if (graph.writes_stream(*site.norm)) return "its output is added to the residual stream";
  if (site.readers.empty()) return "nothing reads it";
  for (const Node* reader : site.readers) {
    if (reader->op != Op::linear || !reader->in_axis) return reader->module + " reads it and is not linear";
    if (reader->reads.size() > 1) return reader->module + " reads it beside something else";
  }
  if (site.moves_bias) return {};
  for (Index i = 0; i < site.bias.size(); ++i) {
    if (site.gain[i] == 0 && site.bias[i] != 0) return fmt::format("channel {} has a gain of 0 and a bias, and not all readers have a bias that could take it", i);
  }
  return {};
}

}  // namespace detail

/// Every norm that lives in a space, and every other whose gain folds, in the order of computation. @throws IoError.
[[nodiscard]] inline std::vector<Site> find_sites(const Model& model) {
  const Graph& graph = model.graph();
  // One pass over the nodes: readers of every signal.
  std::vector<std::vector<const Node*>> readers(graph.signals.size());
  for (const Node& node : graph.nodes) {
    for (const std::size_t read : node.reads) readers[read].push_back(&node);
  }
  std::vector<Site> sites;
  for (const Node& node : graph.nodes) {
    if (node.op != Op::norm || !node.weight) continue;
    Site site;
    site.norm = &node;
    site.space = graph.params[*node.weight].axes[0];
    if (!graph.signals[node.writes.front()].is_stream) site.readers = readers[node.writes.front()];
    site.moves_bias = node.bias && std::all_of(site.readers.begin(), site.readers.end(), [](const Node* reader) { return reader->bias.has_value(); });
    const bool is_inside_a_head = graph.signals[node.reads.front()].space.empty() && !detail::why_not_foldable(graph, site).empty();
    if (is_inside_a_head) continue;
    site.gain = model.read_gain(node);
    if (node.bias) site.bias = model.read_vector(graph.params[*node.bias].name);
    site.why_not_foldable = detail::why_not_foldable(graph, site);
    const bool feeds_tied_head = model.has_head() && model.head_is_tied() && std::any_of(site.readers.begin(), site.readers.end(), [&](const Node* reader) {
      return reader->weight && graph.params[*reader->weight].name == model.head_tensor();
    });
    if (feeds_tied_head && site.is_foldable() && !graph.family->tie.never_untie.empty()) {
      site.why_not_foldable = model.head_tensor() + " is tied to the embedding, and " + graph.family->tie.never_untie;
    }
    sites.push_back(std::move(site));
  }
  return sites;
}

/// What one node allows.
struct Restriction {
  std::string node;     ///< module
  Gauge gauge;          ///< largest group it allows as stored
  Gauge after_folding;  ///< largest group it allows once its gain is folded, if it can be
  std::string why;      ///< in words
};

/// Which changes of basis of a space leave the model the same function: the intersection over its nodes.
struct Verdict {
  Gauge as_stored = Gauge::orthogonal;      ///< with the gains where they are
  Gauge after_folding = Gauge::orthogonal;  ///< once every foldable gain is folded
  std::vector<Restriction> restrictions;    ///< nodes that allow less than any rotation as stored
};

namespace detail {

/// What a norm allows, given whether its gain is there.
[[nodiscard]] inline Gauge gauge_of(NormKind kind, bool has_gain) {
  if (kind == NormKind::rms) return has_gain ? Gauge::signed_permutation : Gauge::orthogonal;
  return has_gain ? Gauge::permutation_up_to_sign : Gauge::fixes_ones;
}

[[nodiscard]] inline std::string why_restricted(const Site& site) {
  if (site.is_constant()) return "is a LayerNorm, which subtracts the mean";
  if (site.is_foldable()) return "carries a gain, which its readers can absorb";
  return "carries a gain that cannot be folded: " + site.why_not_foldable;
}

}  // namespace detail

/// The verdict on a space, computed from the nodes.
[[nodiscard]] inline Verdict judge(const Graph& graph, const std::vector<Site>& sites, std::string_view space = residual) {
  Verdict verdict;
  const auto restrict = [&](const std::string& node, Gauge stored, Gauge folded, std::string why) {
    verdict.as_stored = intersect(verdict.as_stored, stored);
    verdict.after_folding = intersect(verdict.after_folding, folded);
    if (stored != Gauge::orthogonal) verdict.restrictions.push_back({node, stored, folded, std::move(why)});
  };
  for (const Site& site : sites) {
    if (site.space != space) continue;
    const bool has_gain = !site.is_constant();  // a constant one commutes like a norm without a gain
    const NormKind kind = site.norm->row->norm;
    restrict(site.norm->module, detail::gauge_of(kind, has_gain), detail::gauge_of(kind, has_gain && !site.is_foldable()), detail::why_restricted(site));
  }
  const auto lives_here = [&](std::size_t signal) { return graph.signals[signal].space == space; };
  const auto all = [&](const std::vector<std::size_t>& signals) { return std::all_of(signals.begin(), signals.end(), lives_here); };
  const auto any = [&](const std::vector<std::size_t>& signals) { return std::any_of(signals.begin(), signals.end(), lives_here); };
  for (const Node& node : graph.nodes) {
    if (node.op == Op::norm && !node.weight && any(node.reads)) {
      restrict(node.module, detail::gauge_of(node.row->norm, false), detail::gauge_of(node.row->norm, false), "is a LayerNorm, which subtracts the mean");
    }
    const bool is_linear = node.op == Op::norm || node.op == Op::linear || node.op == Op::embedding;  // linear axes and residual adds allow any rotation
    if (is_linear || !(any(node.reads) || any(node.writes))) continue;
    if (node.op == Op::activation && all(node.reads) && all(node.writes)) {
      restrict(node.module, Gauge::permutation, Gauge::permutation, "is a pointwise function that is not odd");
    } else {
      restrict(node.module, Gauge::identity, Gauge::identity, "acts on it in a way that no change of basis passes");
    }
  }
  return verdict;
}

/// Why values cannot be rotated per head, in words; empty: they can.
[[nodiscard]] inline std::string why_no_heads(const Graph& graph) {
  if (graph.values.empty()) return "no attention of this model keeps its values per head";
  std::unordered_set<std::string_view> spaces;
  for (const ValueSpace& space : graph.values) spaces.insert(space.name);
  const auto is_value = [&](std::size_t signal) { return spaces.contains(graph.signals[signal].space); };
  for (const Node& node : graph.nodes) {
    const bool touches = std::any_of(node.reads.begin(), node.reads.end(), is_value) || std::any_of(node.writes.begin(), node.writes.end(), is_value);
    if (touches && node.op != Op::linear && node.op != Op::attention) return node.module + " acts on the values in a way that no change of basis passes";
  }
  return {};
}

}  // namespace rmsfold::model
