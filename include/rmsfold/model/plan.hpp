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
    scale,     ///< \f$hidden^{-1/2}\f$, which a head takes over that was tied and scaled
    inverse_gain,  ///< \f$\mathrm{diag}(g)^{-1}\f$, for the bias of a norm that keeps it
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
  Action action = Action::copy;  ///< copied byte for byte, multiplied by `factors`, or filled with one number
  double fill = 1;               ///< what a neutralised tensor is filled with: what the family stores for a gain of 1, or 0 for a bias
  std::string absorbs;           ///< norm whose bias b it takes in, before the factors: \f$b_W + Wb\f$, with W the weight beside it; empty: none
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
  if (tensor.action == TensorPlan::Action::neutralise) return fmt::format("{}", tensor.fill);
  std::string left, right;
  bool is_gain = false;
  for (const Factor& factor : tensor.factors) {
    const bool is_last = factor.axis + 1 == rank;
    switch (factor.kind) {
      case Factor::Kind::gain: is_last ? right += "·diag(g)" : left = "diag(g)·" + left; break;
      case Factor::Kind::scale: right += "·d^-1/2"; break;
      case Factor::Kind::inverse_gain: right += "·diag(g)⁻¹"; break;
      case Factor::Kind::moves:
        right += "·|Q|";
        is_gain = true;
        break;
      case Factor::Kind::rotation: {
        const std::string symbol = factor.of == residual ? "Q" : "R";
        is_last ? right += "·" + symbol : left = symbol + "ᵀ·" + left;
        break;
      }
    }
  }
  const std::string bias = tensor.absorbs.empty() ? "b" : right.empty() ? "b + W·β" : "(b + W·β)";
  return left + (rank >= 2 ? "W" : is_gain ? "g" : bias) + right;
}

/// Makes a plan tensor by tensor.
class Planner {
 public:
  /// @param forced  make the plan even where it changes the function: for tests that a refusal is no superstition.
  Planner(const Model& model, Step step, Basis basis, bool forced = false) : model_(model), graph_(model.graph()), forced_(forced) {
    plan_.step = std::move(step);
    plan_.basis = std::move(basis);
    plan_.sites = find_sites(model);
    for (std::size_t s = 0; s < plan_.sites.size(); ++s) {
      site_of_norm_.emplace(plan_.sites[s].norm, s);
      if (!graph_.writes_stream(*plan_.sites[s].norm)) site_of_signal_.emplace(plan_.sites[s].norm->writes.front(), s);
    }
  }

  [[nodiscard]] Plan run() {
    plan_.notes = plan_.basis.notes;
    decide_folds();
    if (!forced_) check_rotation();
    if (!forced_) check_heads();
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
      Site& site = plan_.sites[s];
      if (plan_.step.keep_final_norm && graph_.signals[site.norm->writes.front()].name == "final") {
        site.why_not_foldable = "--keep-final-norm preserves what it writes";
      }
      if (!site.is_foldable() && plan_.step.fold) {
        plan_.notes.push_back(fmt::format("{} keeps its gain: {}", site.norm->module, site.why_not_foldable));
      }
      folded_[s] = plan_.step.fold && site.is_foldable() && !site.is_neutral();
      if (site.is_neutral()) ++neutral;
    }
    if (plan_.step.fold && plan_.step.rotation == RotationKind::none && neutral == plan_.sites.size()) {
      plan_.notes.push_back("every gain is already 1: there is nothing to fold");
    }
  }

  /// Refuses a rotation that some node of the stream does not let pass.
  void check_rotation() const {
    if (!plan_.basis.stream) return;
    const std::string directory = model_.checkpoint().directory().string();
    if (plan_.step.keep_final_norm) {
      rmsfold::detail::raise<RefusedError>("{}: --keep-final-norm leaves the last hidden state what it is, and a change of basis of the residual stream would turn it: only "
                                           "fold can be done with it", directory);
    }
    const Gauge wanted = gauge_of(*plan_.basis.stream);
    for (std::size_t s = 0; s < plan_.sites.size(); ++s) {
      const Site& site = plan_.sites[s];
      if (site.space != residual || site.is_constant() || folded_[s] || contains(gauge_of(site.norm->row->norm, true), wanted)) continue;
      const std::string_view what = is_dense() ? "a dense rotation" : "signs";
      rmsfold::detail::raise<RefusedError>("{}: {} carries a gain (|g| from {:.3g} to {:.3g}) that does not commute with {}{}; {}{}", directory, site.norm->module,
                                           site.magnitudes().first, site.magnitudes().second, what,
                                           site.is_foldable() ? "" : " and cannot be folded: " + site.why_not_foldable,
                                           site.is_foldable() && contains(gauge_of(site.norm->row->norm, false), wanted) ? "fold it first (leave out --no-fold), or " : "", alternative());
    }
    const Verdict verdict = judge(graph_, plan_.sites);
    for (const Restriction& restriction : verdict.restrictions) {
      if (contains(restriction.after_folding, wanted)) continue;
      const bool subtracts_mean = contains(Gauge::fixes_ones, restriction.after_folding) && restriction.after_folding != Gauge::identity && is_layer_norm(restriction.node);
      rmsfold::detail::raise<RefusedError>("{}: {} {}, so of changes of basis it allows {} and no other; {}", directory, restriction.node,
                                           subtracts_mean ? "is a LayerNorm, which subtracts the mean" : restriction.why,
                                           rmsfold::name_of(restriction.after_folding), alternative());
    }
  }

  [[nodiscard]] bool is_layer_norm(const std::string& module) const {
    return std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [&](const Node& node) { return node.module == module && node.op == Op::norm && node.row->norm == NormKind::layer; });
  }

  /// What can be done instead.
  [[nodiscard]] std::string alternative() const {
    const Verdict verdict = judge(graph_, plan_.sites);
    const std::string moved = contains(verdict.as_stored, Gauge::signed_permutation) ? "use --rotation signed-permutation, which is exact"
                              : contains(verdict.as_stored, Gauge::permutation)     ? "use --rotation permutation, which is exact"
                                                                                    : "no change of basis leaves this model the same function";
    if (std::any_of(graph_.nodes.begin(), graph_.nodes.end(), [](const Node& node) { return node.row->mtp; })) {
      return moved + ", or --drop-mtp, which leaves out the blocks that draft further tokens";
    }
    if (contains(verdict.after_folding, Gauge::fixes_ones) && !contains(verdict.after_folding, Gauge::orthogonal)) {
      return moved + ", or --rotation hadamard or orthogonal, which take a rotation that fixes the ones vector by themselves";
    }
    return moved;
  }

  void check_heads() const {
    if (plan_.basis.heads.empty() && !plan_.step.heads) return;
    const std::string why = why_no_heads(graph_);
    if (!why.empty()) rmsfold::detail::raise<RefusedError>("{}: --heads: {}; leave it out", model_.checkpoint().directory().string(), why);
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

  static void finish(TensorPlan& tensor) {
    if (tensor.action == TensorPlan::Action::copy && (!tensor.factors.empty() || !tensor.absorbs.empty())) tensor.action = TensorPlan::Action::transform;
  }

  /// The folded site that a linear reads, if any.
  [[nodiscard]] const Site* folded_site_of(const Node& node) const {
    if (node.op != Op::linear || node.reads.size() != 1) return nullptr;
    const auto site = site_of_signal_.find(node.reads.front());
    return site != site_of_signal_.end() && folded_[site->second] ? &plan_.sites[site->second] : nullptr;
  }

  [[nodiscard]] std::string what_it_writes(const Node& node) const {
    return graph_.writes_stream(node) ? "the stream" : graph_.signals[node.writes.front()].name;
  }

  [[nodiscard]] TensorPlan plan_weight(const Node& node) const {
    const Param& param = graph_.params[*node.weight];
    TensorPlan tensor = start(param);
    if (node.op == Op::norm) return plan_gain(node, std::move(tensor));
    if (const Site* site = folded_site_of(node)) tensor.factors.push_back({Factor::Kind::gain, *node.in_axis, site->norm->module});
    if (node.op == Op::linear) {
      const auto site = site_of_signal_.find(node.reads.front());
      tensor.why = site == site_of_signal_.end() ? "reads " + graph_.signals[node.reads.front()].name + ", "
                                                 : "reads " + std::string(plan_.sites[site->second].space == residual ? "the stream through " : "") +
                                                       plan_.sites[site->second].norm->module + ", ";
    }
    tensor.why += "writes " + what_it_writes(node);
    for (std::size_t axis = param.axes.size(); axis-- > 0;) add_rotation(tensor, axis, param.axes[axis]);
    finish(tensor);
    return tensor;
  }

  [[nodiscard]] TensorPlan plan_bias(const Node& node) const {
    const Param& param = graph_.params[*node.bias];
    TensorPlan tensor = start(param);
    if (node.op == Op::norm) return plan_norm_bias(node, std::move(tensor));
    if (const Site* site = folded_site_of(node); site != nullptr && site->moves_bias) tensor.absorbs = site->norm->module;
    for (std::size_t axis = param.axes.size(); axis-- > 0;) add_rotation(tensor, axis, param.axes[axis]);
    tensor.why = "bias of what writes " + what_it_writes(node);
    finish(tensor);
    return tensor;
  }

  [[nodiscard]] bool moves_space(const Site& site) const { return site.space == residual && plan_.basis.stream.has_value(); }

  [[nodiscard]] TensorPlan plan_gain(const Node& node, TensorPlan tensor) const {
    const auto site = site_of_norm_.find(&node);
    if (site == site_of_norm_.end()) {
      tensor.why = "norm inside a head, which does not see the stream";
      return tensor;
    }
    const Site& here = plan_.sites[site->second];
    if (folded_[site->second]) {
      tensor.action = TensorPlan::Action::neutralise;
      tensor.fill = node.row->gain == GainConvention::plain ? 1 : 0;
      tensor.why = fmt::format("its gain moved into {} reader{}", here.readers.size(), here.readers.size() == 1 ? "" : "s");
    } else if (moves_space(here) && !is_dense()) {
      tensor.action = TensorPlan::Action::transform;
      tensor.factors.push_back({Factor::Kind::moves, 0, std::string(residual)});
      tensor.why = "gain, transported by the permutation";
    } else {
      tensor.why = plan_.basis.stream ? "constant gain, which commutes with every rotation" : "gain, not folded";
    }
    return tensor;
  }

  [[nodiscard]] TensorPlan plan_norm_bias(const Node& node, TensorPlan tensor) const {
    const auto site = site_of_norm_.find(&node);
    tensor.why = "bias of a norm";
    if (site == site_of_norm_.end()) return tensor;
    const Site& here = plan_.sites[site->second];
    if (folded_[site->second] && here.moves_bias) {
      tensor.action = TensorPlan::Action::neutralise;
      tensor.fill = 0;
      tensor.why = fmt::format("moved into the bias{} of {} reader{}", here.readers.size() == 1 ? "" : "es", here.readers.size(), here.readers.size() == 1 ? "" : "s");
      return tensor;
    }
    if (folded_[site->second]) {
      tensor.factors.push_back({Factor::Kind::inverse_gain, 0, node.module});
      tensor.why += ", divided by the gain that was folded, since not all readers have a bias";
    }
    add_rotation(tensor, 0, here.space);
    finish(tensor);
    return tensor;
  }

  void decide_head() {
    if (!model_.has_head()) return;
    const std::size_t head = static_cast<std::size_t>(model_.param_index(model_.head_tensor()));
    const std::size_t embedding = static_cast<std::size_t>(model_.param_index(model_.embedding_tensor()));
    const bool stays_tied = model_.head_is_tied() && plan_.tensors[head].factors == plan_.tensors[embedding].factors;
    plan_.output_is_tied = stays_tied;
    if (model_.head_is_tied() && !stays_tied && graph_.family->tie.scaled) {
      plan_.tensors[head].factors.push_back({Factor::Kind::scale, graph_.params[head].axes.size() - 1, {}});
      finish(plan_.tensors[head]);
    }
    plan_.head_is_written = !stays_tied || (model_.head_is_stored() && !model_.stored_head_is_stale());
    if (model_.head_is_tied() && !stays_tied) {
      plan_.notes.push_back(fmt::format("{} was tied to {}; the two now differ, so the head is stored and the tie flag set false", model_.head_tensor(),
                                        model_.embedding_tensor()));
    }
  }

  const Model& model_;
  const Graph& graph_;
  bool forced_ = false;
  Plan plan_;
  std::unordered_map<std::size_t, std::size_t> site_of_signal_;  // that one norm writes, and nothing adds to
  std::unordered_map<const Node*, std::size_t> site_of_norm_;
  std::vector<bool> folded_;
};

/// Walks the graph with the words that a plan's factors spell along every edge.
class PlanChecker {
 public:
  PlanChecker(const Model& model, const Plan& plan) : model_(model), graph_(model.graph()), plan_(plan), words_(graph_.signals.size()) {
    for (const Site& site : plan.sites) sites_.emplace(site.norm, &site);
  }

  void run() {
    for (std::size_t i = 0; i < graph_.params.size(); ++i) {
      const TensorPlan& tensor = plan_.tensors.at(i);
      if (tensor.name != graph_.params[i].name) fail(graph_.params[i].name, "is not planned");
      if (tensor.source != model_.source_of(tensor.name)) fail(tensor.name, "is made from another tensor");
      if ((tensor.action == TensorPlan::Action::transform) == (tensor.factors.empty() && tensor.absorbs.empty())) fail(tensor.name, "has factors that its action does not apply, or none");
    }
    for (const Node& node : graph_.nodes) visit(node);
    for (const Site& site : plan_.sites) {
      const bool is_neutralised = plan_.tensors[*site.norm->weight].action == TensorPlan::Action::neutralise;
      if (is_neutralised && site.readers.empty()) fail(site.norm->module, "is neutralised, but nothing absorbs its gain");
    }
    for (const std::size_t written : graph_.nodes.back().writes) {
      if (!words_[written]->empty()) fail(graph_.signals[written].name, "ends in another basis");
    }
    if (!model_.has_head()) return;
    const std::size_t head = static_cast<std::size_t>(model_.param_index(model_.head_tensor()));
    const std::size_t embedding = static_cast<std::size_t>(model_.param_index(model_.embedding_tensor()));
    const auto is_scale = [](const Factor& factor) { return factor.kind == Factor::Kind::scale; };
    const bool takes_scale = graph_.family->tie.scaled && model_.head_is_tied() && !plan_.output_is_tied;
    for (std::size_t i = 0; i < graph_.params.size(); ++i) {
      const auto& factors = plan_.tensors[i].factors;
      if (std::count_if(factors.begin(), factors.end(), is_scale) != (i == head && takes_scale ? 1 : 0)) fail(plan_.tensors[i].name, "is scaled, or is not");
    }
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
      if (factor.axis != axis || factor.kind == Factor::Kind::scale) continue;
      if (factor.kind == Factor::Kind::moves) fail(plan_.tensors[param].name, "is moved without signs");
      if (factor.kind == Factor::Kind::inverse_gain) fail(plan_.tensors[param].name, "is divided by a gain");
      word.push_back((factor.kind == Factor::Kind::gain ? "diag(g) of " : "basis of ") + factor.of);
    }
    return word;
  }

  const Word& word_of(std::size_t signal) const {
    if (!words_[signal]) fail(graph_.signals[signal].name, "is read before it is written");
    return *words_[signal];
  }

  void write(const Node& node, const Word& word) {
    for (const std::size_t written : node.writes) write(node, written, word);
  }
  void write(const Node& node, std::size_t signal, const Word& word) {
    std::optional<Word>& known = words_[signal];
    if (graph_.signals[signal].is_stream && known && *known != word) fail(node.module, "writes the stream in another basis than the writers before it");
    known = word;
  }

  void visit(const Node& node) {
    switch (node.op) {
      case Op::embedding:
        for (std::size_t axis = 0; axis < node.out_axis; ++axis) {
          if (!word_along(*node.weight, axis).empty()) fail(node.module, "is changed along another axis than its vectors");
        }
        write(node, word_along(*node.weight, node.out_axis));
        return;
      case Op::linear: visit_linear(node); return;
      case Op::norm: visit_norm(node, word_of(node.reads.front())); return;
      case Op::attention:
        if (!word_of(node.reads[0]).empty() || !word_of(node.reads[1]).empty()) fail(node.module, "has its queries or keys in another basis");
        write(node, word_of(node.reads[2]));
        return;
      case Op::activation:
        if (const SignedPermutation* p = plan_.basis.stream ? plan_.basis.stream->as_signed_permutation() : nullptr; p != nullptr && gauge_of(*plan_.basis.stream) == Gauge::permutation &&
            word_of(node.reads.front()) == Word{"basis of " + std::string(residual)} && graph_.signals[node.writes.front()].space == residual) {
          write(node, word_of(node.reads.front()));  // what is pointwise commutes with a permutation
          return;
        }
        [[fallthrough]];
      case Op::gated_activation:
      case Op::opaque:
        for (const std::size_t read : node.reads) {
          if (!word_of(read).empty()) fail(node.module, "lets no basis pass and reads another one");
        }
        write(node, {});
        return;
    }
  }

  void visit_linear(const Node& node) {
    // z' = z·Γ⁻¹·Q needs W' = W·Γ·Q: inverse and transpose turn 1/g into g and leave Q.
    if (node.in_axis) {
      for (const std::size_t in : node.reads) {
        if (word_along(*node.weight, *node.in_axis) != word_of(in)) fail(node.module, "does not undo what was done to " + graph_.signals[in].name);
      }
    }
    const Word out = word_along(*node.weight, node.out_axis);
    if (node.bias && word_along(*node.bias, graph_.params[*node.bias].axes.size() - 1) != out) fail(node.module, "has a bias in another basis than its weight");
    for (const std::size_t written : node.writes) {
      const bool is_a_part = node.writes.size() > 1 && graph_.signals[written].space.empty();  // queries and keys beside values
      write(node, written, is_a_part ? Word{} : out);
    }
    if (node.writes.size() > 1 && !out.empty() && node.row->fused == Fused::no) fail(node.module, "writes several signals in another basis");
  }

  void visit_norm(const Node& node, Word word) {
    if (!node.weight) return write(node, word);
    const TensorPlan& tensor = plan_.tensors[*node.weight];
    const auto found = sites_.find(&node);
    if (found == sites_.end()) {
      if (!word.empty() || tensor.action != TensorPlan::Action::copy) fail(node.module, "is not in the stream and must stay");
      return write(node, word);
    }
    const Site* const site = found->second;
    const Word basis = word;
    if (tensor.action == TensorPlan::Action::neutralise) {
      if (tensor.fill != (node.row->gain == GainConvention::plain ? 1 : 0)) fail(node.module, "is filled with something else than the neutral gain");
      word.insert(word.begin(), "diag(g) of " + node.module);
    } else if (!word.empty()) {
      const bool is_permuted = plan_.basis.stream && plan_.basis.stream->as_signed_permutation();
      const bool is_transported = tensor.factors == std::vector<Factor>{{Factor::Kind::moves, 0, std::string(residual)}};
      if (!(is_permuted && is_transported) && !site->is_constant()) fail(node.module, "keeps a gain that does not commute with the new basis");
    } else if (tensor.action != TensorPlan::Action::copy) {
      fail(node.module, "is changed although the stream is not");
    }
    if (node.bias) visit_norm_bias(node, *site, tensor.action == TensorPlan::Action::neutralise, basis);
    write(node, word);
  }

  void visit_norm_bias(const Node& node, const Site& site, bool is_folded, const Word& basis) const {
    const TensorPlan& bias = plan_.tensors[*node.bias];
    const bool is_moved = is_folded && bias.action == TensorPlan::Action::neutralise;
    if (bias.action == TensorPlan::Action::neutralise && (!is_folded || bias.fill != 0)) fail(node.module, "loses its bias");
    for (const Node* reader : site.readers) {
      const bool absorbs = reader->bias && plan_.tensors[*reader->bias].absorbs == node.module;
      if (absorbs != is_moved) fail(reader->module, is_moved ? "does not take in the bias of " + node.module : "takes in a bias that stays in " + node.module);
    }
    if (is_moved) return;
    std::size_t turns = 0, divisions = 0;
    for (const Factor& factor : bias.factors) {
      turns += factor.kind == Factor::Kind::rotation ? 1u : 0u;
      divisions += factor.kind == Factor::Kind::inverse_gain ? 1u : 0u;
    }
    if (divisions != (is_folded ? 1u : 0u)) fail(node.module, "keeps a bias that is not divided by the folded gain, once");
    if (turns != basis.size()) fail(node.module, "keeps a bias in another basis than what it normalises");
  }

  const Model& model_;
  const Graph& graph_;
  const Plan& plan_;
  std::vector<std::optional<Word>> words_;
  std::unordered_map<const Node*, const Site*> sites_;
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
  return make_plan(model, step, make_basis(step, model.graph()));
}

}  // namespace rmsfold::model
