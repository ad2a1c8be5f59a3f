// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The plan: for every output tensor, the factors applied to each axis and why; made from the graph and checked against it symbolically.

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rmsfold/model/rotation.hpp>
#include <rmsfold/model/sites.hpp>

namespace rmsfold::model {

/// One factor, multiplied along one axis.
struct Factor {
  /// What it is.
  enum class Kind {
    gain,      ///< \f$\mathrm{diag}(g)\f$ of a norm
    rotation,  ///< the basis of a space
    moves      ///< \f$|P|\f$, the basis without its signs: how a gain is transported
  };
  Kind kind = Kind::rotation;  ///< what it is
  std::size_t axis = 0;        ///< axis of the stored tensor
  std::string of;              ///< norm module, or space
  friend bool operator==(const Factor&, const Factor&) = default;  ///< same factor on the same axis
};

/// What happens to one tensor.
struct TensorPlan {
  /// What happens.
  enum class Action { copy, transform, neutralise };
  std::string name;              ///< in the output
  std::string source;            ///< stored tensor it is made from
  Action action = Action::copy;  ///< copied byte for byte, multiplied by `factors`, or filled with the neutral gain 1
  std::vector<Factor> factors;   ///< along one axis: in this order
  std::string why;               ///< its role, in words
};

/// The whole transformation of a model, as data.
struct Plan {
  Step step;                         ///< as asked for, with defaults resolved
  Basis basis;                       ///< its rotations
  std::vector<Site> sites;           ///< norms of the residual stream, with their gains
  std::vector<TensorPlan> tensors;   ///< one per param of the graph, in its order
  bool head_is_written = false;      ///< whether the output stores the head
  bool output_is_tied = false;       ///< the tie flag of the output
  std::vector<std::string> notes;    ///< for the user

  /// Whether anything but copying is planned.
  [[nodiscard]] bool changes_something() const {
    return std::any_of(tensors.begin(), tensors.end(), [](const TensorPlan& t) { return t.action != TensorPlan::Action::copy; });
  }
  /// The site of a norm module. @pre there is one
  [[nodiscard]] const Site& site(const std::string& norm) const {
    for (const Site& candidate : sites) {
      if (candidate.norm->module == norm) return candidate;
    }
    rmsfold::detail::raise<InvariantError>("the plan has no norm {}", norm);
  }
};

namespace detail {

/// "W·diag(g)·Q", "Qᵀ·W", …
[[nodiscard]] inline std::string formula(const TensorPlan& tensor, std::size_t rank) {
  if (tensor.action == TensorPlan::Action::copy) return "unchanged";
  if (tensor.action == TensorPlan::Action::neutralise) return "1";
  std::string left, right;
  for (const Factor& factor : tensor.factors) {
    const bool is_stream = factor.of == residual;
    const std::string symbol = factor.kind == Factor::Kind::gain ? "diag(g)" : factor.kind == Factor::Kind::moves ? "|Q|" : is_stream ? "Q" : "R";
    if (rank == 2 && factor.axis == 0) {
      left = symbol + "ᵀ·" + left;
    } else {
      right += "·" + symbol;
    }
  }
  return left + (rank == 2 ? "W" : tensor.factors.front().kind == Factor::Kind::moves ? "g" : "b") + right;
}

/// Makes a plan tensor by tensor.
class Planner {
 public:
  Planner(const Model& model, Step step, Basis basis) : model_(model), graph_(model.graph()) {
    plan_.step = std::move(step);
    plan_.basis = std::move(basis);
    plan_.sites = find_sites(model);
    for (std::size_t s = 0; s < plan_.sites.size(); ++s) site_of_signal_.emplace(plan_.sites[s].norm->writes, s);
  }

  [[nodiscard]] Plan run() {
    plan_.notes = plan_.basis.notes;
    decide_folds();
    plan_.tensors.resize(graph_.params.size());
    for (const Node& node : graph_.nodes) {
      if (node.weight) plan_.tensors[*node.weight] = plan_weight(node);
      if (node.bias) plan_.tensors[*node.bias] = plan_bias(node);
    }
    decide_head();
    return std::move(plan_);
  }

 private:
  [[nodiscard]] bool is_dense() const { return plan_.basis.stream && !plan_.basis.stream->as_signed_permutation(); }

  void decide_folds() {
    folded_.resize(plan_.sites.size(), false);
    std::size_t neutral = 0;
    for (std::size_t s = 0; s < plan_.sites.size(); ++s) {
      const Site& site = plan_.sites[s];
      if (!site.is_foldable() && plan_.step.fold) {
        plan_.notes.push_back(fmt::format("{} keeps its gain: {}", site.norm->module, site.why_not_foldable));
      }
      folded_[s] = plan_.step.fold && site.is_foldable() && !site.is_neutral();
      if (site.is_neutral()) ++neutral;
      if (is_dense() && !folded_[s] && !site.is_constant()) {
        rmsfold::detail::raise<RefusedError>(
            "{}: {} carries a gain (|g| from {:.3g} to {:.3g}) that does not commute with a dense rotation{}; fold it first (leave out --no-fold), or use "
            "--rotation signed-permutation, which is exact",
            model_.checkpoint().directory().string(), site.norm->module, site.magnitudes().first, site.magnitudes().second,
            site.is_foldable() ? "" : " and cannot be folded: " + site.why_not_foldable);
      }
    }
    if (plan_.step.fold && plan_.step.rotation == RotationKind::none && neutral == plan_.sites.size()) {
      plan_.notes.push_back("every gain is already 1: there is nothing to fold");
    }
  }

  /// Appends the factor for an axis that lives in a space whose basis changes.
  void add_rotation(TensorPlan& tensor, std::size_t axis, const std::string& space) const {
    if (space.empty()) return;
    const bool changes = space == residual ? plan_.basis.stream.has_value() : plan_.basis.heads.contains(space);
    if (changes) tensor.factors.push_back({Factor::Kind::rotation, axis, space});
  }

  [[nodiscard]] TensorPlan start(const Param& param) const {
    TensorPlan tensor;
    tensor.name = param.name;
    tensor.source = model_.source_of(param.name);
    return tensor;
  }

  [[nodiscard]] TensorPlan plan_weight(const Node& node) const {
    const Param& param = graph_.params[*node.weight];
    TensorPlan tensor = start(param);
    if (node.op == Op::norm) return plan_gain(node, std::move(tensor));
    std::string roles;
    const auto site = site_of_signal_.find(node.reads.front());
    if (node.op == Op::linear && site != site_of_signal_.end()) {
      const std::string& norm = plan_.sites[site->second].norm->module;
      if (folded_[site->second]) tensor.factors.push_back({Factor::Kind::gain, 1, norm});
      roles = "reads the stream through " + norm;
    } else if (node.op == Op::linear) {
      roles = "reads " + graph_.signals[node.reads.front()].name;
    }
    for (std::size_t axis = param.axes.size(); axis-- > 0;) add_rotation(tensor, axis, param.axes[axis]);
    roles += (roles.empty() ? "" : ", ") + ("writes " + (graph_.writes_stream(node) ? std::string("the stream") : graph_.signals[node.writes].name));
    tensor.why = roles;
    if (!tensor.factors.empty()) tensor.action = TensorPlan::Action::transform;
    return tensor;
  }

  [[nodiscard]] TensorPlan plan_bias(const Node& node) const {
    const Param& param = graph_.params[*node.bias];
    TensorPlan tensor = start(param);
    add_rotation(tensor, 0, param.axes[0]);
    tensor.why = "bias of what writes " + (graph_.writes_stream(node) ? std::string("the stream") : graph_.signals[node.writes].name);
    if (!tensor.factors.empty()) tensor.action = TensorPlan::Action::transform;
    return tensor;
  }

  [[nodiscard]] TensorPlan plan_gain(const Node& node, TensorPlan tensor) const {
    const auto site = site_of_signal_.find(node.writes);
    if (site == site_of_signal_.end()) {
      tensor.why = "norm inside a head, which does not see the stream";
    } else if (folded_[site->second]) {
      tensor.action = TensorPlan::Action::neutralise;
      const std::size_t readers = plan_.sites[site->second].readers.size();
      tensor.why = fmt::format("its gain moved into {} reader{}", readers, readers == 1 ? "" : "s");
    } else if (plan_.basis.stream && !is_dense()) {
      tensor.action = TensorPlan::Action::transform;
      tensor.factors.push_back({Factor::Kind::moves, 0, std::string(residual)});
      tensor.why = "gain, transported by the permutation";
    } else {
      tensor.why = plan_.basis.stream ? "constant gain, which commutes with every rotation" : "gain, not folded";
    }
    return tensor;
  }

  void decide_head() {
    const std::size_t head = static_cast<std::size_t>(model_.param_index(model_.head_tensor()));
    const std::size_t embedding = static_cast<std::size_t>(model_.param_index(model_.embedding_tensor()));
    const bool stays_tied = model_.head_is_tied() && plan_.tensors[head].factors == plan_.tensors[embedding].factors;
    plan_.output_is_tied = stays_tied;
    plan_.head_is_written = !stays_tied || (model_.head_is_stored() && !model_.stored_head_is_stale());
    if (model_.head_is_tied() && !stays_tied) {
      plan_.notes.push_back(fmt::format("{} was tied to {}; the two now differ, so the head is stored and the tie flag set false", model_.head_tensor(),
                                        model_.embedding_tensor()));
    }
  }

  const Model& model_;
  const Graph& graph_;
  Plan plan_;
  std::unordered_map<std::size_t, std::size_t> site_of_signal_;
  std::vector<bool> folded_;
};

/// Walks the graph with the words that a plan's factors spell along every edge.
class PlanChecker {
 public:
  PlanChecker(const Model& model, const Plan& plan) : model_(model), graph_(model.graph()), plan_(plan), words_(graph_.signals.size()) {}

  void run() {
    for (std::size_t i = 0; i < graph_.params.size(); ++i) {
      const TensorPlan& tensor = plan_.tensors.at(i);
      if (tensor.name != graph_.params[i].name) fail(graph_.params[i].name, "is not planned");
      if (tensor.source != model_.source_of(tensor.name)) fail(tensor.name, "is made from another tensor");
      if ((tensor.action == TensorPlan::Action::transform) == tensor.factors.empty()) fail(tensor.name, "has factors that its action does not apply, or none");
      if (tensor.action == TensorPlan::Action::neutralise && graph_.params[i].axes != std::vector<std::string>{std::string(residual)}) {
        fail(tensor.name, "is neutralised, but no gain of the stream");
      }
    }
    for (const Node& node : graph_.nodes) visit(node);
    for (const Site& site : plan_.sites) {
      const bool is_neutralised = plan_.tensors[*site.norm->weight].action == TensorPlan::Action::neutralise;
      if (is_neutralised && site.readers.empty()) fail(site.norm->module, "is neutralised, but nothing absorbs its gain");
    }
    const Signal& last = graph_.signals[graph_.nodes.back().writes];
    if (!words_[graph_.nodes.back().writes]->empty()) fail(last.name, "ends in another basis");
    const std::size_t head = static_cast<std::size_t>(model_.param_index(model_.head_tensor()));
    const std::size_t embedding = static_cast<std::size_t>(model_.param_index(model_.embedding_tensor()));
    if (!plan_.output_is_tied && !plan_.head_is_written) fail(model_.head_tensor(), "is neither written nor tied");
    if (plan_.output_is_tied && plan_.tensors[head].factors != plan_.tensors[embedding].factors) fail(model_.head_tensor(), "is tied to a different tensor");
  }

 private:
  /// z' = z·f₁·f₂·…: the names of the factors that separate a signal from its original.
  using Word = std::vector<std::string>;

  [[noreturn]] static void fail(const std::string& where, const std::string& what) {
    rmsfold::detail::raise<InvariantError>("the plan is not an identity: {} {}", where, what);
  }

  [[nodiscard]] Word word_along(std::size_t param, std::size_t axis) const {
    Word word;
    for (const Factor& factor : plan_.tensors[param].factors) {
      if (factor.axis != axis) continue;
      if (factor.kind == Factor::Kind::moves) fail(plan_.tensors[param].name, "is moved without signs");
      word.push_back((factor.kind == Factor::Kind::gain ? "diag(g) of " : "basis of ") + factor.of);
    }
    return word;
  }

  const Word& word_of(std::size_t signal) const {
    if (!words_[signal]) fail(graph_.signals[signal].name, "is read before it is written");
    return *words_[signal];
  }

  void write(const Node& node, Word word) {
    std::optional<Word>& known = words_[node.writes];
    if (graph_.writes_stream(node) && known && *known != word) fail(node.module, "writes the stream in another basis than the writers before it");
    known = std::move(word);
  }

  void visit(const Node& node) {
    const std::size_t in = node.reads.front();
    switch (node.op) {
      case Op::embedding:
        if (!word_along(*node.weight, 0).empty()) fail(node.module, "is changed along the vocabulary");
        write(node, word_along(*node.weight, 1));
        return;
      case Op::linear: {
        // z' = z·Γ⁻¹·Q needs W' = W·Γ·Q: inverse and transpose turn 1/g into g and leave Q.
        if (word_along(*node.weight, 1) != word_of(in)) fail(node.module, "does not undo what was done to " + graph_.signals[in].name);
        const Word out = word_along(*node.weight, 0);
        if (node.bias && word_along(*node.bias, 0) != out) fail(node.module, "has a bias in another basis than its weight");
        write(node, out);
        return;
      }
      case Op::norm: visit_norm(node, word_of(in)); return;
      case Op::attention:
        if (!word_of(node.reads[0]).empty() || !word_of(node.reads[1]).empty()) fail(node.module, "has its queries or keys in another basis");
        write(node, word_of(node.reads[2]));
        return;
      case Op::gated_activation:
        for (const std::size_t read : node.reads) {
          if (!word_of(read).empty()) fail(node.module, "is pointwise and reads another basis");
        }
        write(node, {});
        return;
    }
  }

  void visit_norm(const Node& node, Word word) {
    const TensorPlan& tensor = plan_.tensors[*node.weight];
    const bool is_site = graph_.params[*node.weight].axes[0] == residual;
    if (!is_site && (!word.empty() || tensor.action != TensorPlan::Action::copy)) fail(node.module, "is not in the stream and must stay");
    if (tensor.action == TensorPlan::Action::neutralise) {
      word.insert(word.begin(), "diag(g) of " + node.module);
    } else if (is_site && !word.empty()) {
      const bool is_permuted = plan_.basis.stream && plan_.basis.stream->as_signed_permutation();
      const bool is_transported = tensor.factors == std::vector<Factor>{{Factor::Kind::moves, 0, std::string(residual)}};
      if (!(is_permuted && is_transported) && !plan_.site(node.module).is_constant()) fail(node.module, "keeps a gain that does not commute with the new basis");
    } else if (tensor.action != TensorPlan::Action::copy) {
      fail(node.module, "is changed although the stream is not");
    }
    write(node, std::move(word));
  }

  const Model& model_;
  const Graph& graph_;
  const Plan& plan_;
  std::vector<std::optional<Word>> words_;
};

}  // namespace detail

/// Checks a plan symbolically: along every edge the inserted factors multiply to the identity, every neutralised norm has absorbers, each scaled once.
/// @throws InvariantError naming the node where they do not.
inline void check_plan(const Model& model, const Plan& plan) { detail::PlanChecker(model, plan).run(); }

/// The plan of a step with rotations that are given, checked. Reads the norms' gains and nothing else.
/// @throws RefusedError when the algebra forbids the step; the message names the norm and the alternative.
[[nodiscard]] inline Plan make_plan(const Model& model, Step step, Basis basis) {
  Plan plan = detail::Planner(model, std::move(step), std::move(basis)).run();
  check_plan(model, plan);
  return plan;
}

/// The plan of a step. @throws as above, and as `make_basis`.
[[nodiscard]] inline Plan make_plan(const Model& model, const Step& step) {
  if (step.rotation == RotationKind::none && step.heads) {
    rmsfold::detail::raise<RefusedError>("--heads rotates values by the kind of the stream's rotation: give --rotation as well");
  }
  return make_plan(model, step, make_basis(step, model.graph().size));
}

}  // namespace rmsfold::model
