// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Are two checkpoints the same function? Element by element, and by logits; if not: where, and which step looks wrong.

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <rmsfold/model/compare.hpp>
#include <rmsfold/model/decoder.hpp>
#include <rmsfold/model/diagnose.hpp>
#include <rmsfold/model/estimate.hpp>
#include <rmsfold/model/manifest.hpp>
#include <rmsfold/model/origin.hpp>

namespace rmsfold::model {

/// How to verify.
struct VerifyOptions {
  unsigned threads = 0;          ///< see `thread_count`
  bool use_manifest = true;      ///< take the rotation from B's manifest when it fits A
  bool logits = true;            ///< also run the reference forward
  bool float_tables = true;      ///< rotary tables as stock runtimes make them
  Index tokens = 256;            ///< random tokens for the logits
  std::uint64_t seed = 0;        ///< of the tokens
  Index perturbations = 5;       ///< seeds of the threshold
  std::function<void(const char* stage, std::uint64_t done, std::uint64_t total)> progress;  ///< may be empty
};

/// One thing that makes the models different.
struct Finding {
  std::string where;                 ///< tensor, or file
  std::string site;                  ///< norm whose reader it is, or its role
  std::string diagnosis;             ///< likely step
  std::string evidence;              ///< numbers
  Mistake mistake = Mistake::other;  ///< what the diagnosis says, for programs
};

/// The second witness.
struct LogitComparison {
  bool done = false;              ///< whether it could be run
  std::string why_not;            ///< if not
  Index tokens = 0;               ///< compared
  double distance = 0;            ///< \f$\|L_A-L_B\|_F / \|L_A\|_F\f$
  double largest = 0;             ///< largest difference of a logit
  double perturbation = 0;        ///< median distance when A's transformed weights are perturbed by their own storage rounding
  double threshold = 0;           ///< four times that
  Index same_argmax = 0;          ///< tokens with the same likeliest successor
  /// Whether the distance is what storage rounding explains.
  [[nodiscard]] bool passed() const noexcept { return done && is_finite(distance) && distance <= threshold; }
};

/// What `verify` found.
struct VerifyReport {
  std::string basis;                        ///< where the rotation was taken from, and what it is
  Plan plan;                                ///< what B was compared with
  std::vector<TensorComparison> tensors;    ///< every tensor, in the graph's order
  std::vector<Finding> findings;            ///< empty: equal, element by element
  LogitComparison logits;                   ///< second witness
  std::vector<std::string> notes;           ///< for the user
  bool basis_is_known = true;               ///< whether the elements could be compared

  /// The verdict.
  [[nodiscard]] bool equal() const noexcept { return findings.empty() && (!logits.done || logits.passed()) && (basis_is_known || logits.done); }
};

namespace detail {

class Verification {
 public:
  Verification(const Model& a, const Model& b, const VerifyOptions& options) : a_(a), b_(b), options_(options) {}

  VerifyReport run() {
    if (!same_structure()) {
      report_.basis_is_known = false;
      report_.basis = "not looked for: the models differ in structure";
      return std::move(report_);
    }
    compare_configs();
    find_plan();
    if (report_.basis_is_known) {
      compare_tensors();
    } else {
      compare_products();
    }
    compare_left_alone();
    if (options_.logits) {
      compare_logits();
    } else {
      report_.logits.why_not = "not asked for";
    }
    return std::move(report_);
  }

 private:
  void progress(const char* stage, std::uint64_t done, std::uint64_t total) const {
    if (options_.progress) options_.progress(stage, done, total);
  }

  bool same_structure() {
    const Graph& a = a_.graph();
    const Graph& b = b_.graph();
    if (a.family != b.family) {
      report_.findings.push_back({"config.json", "", "the families differ", fmt::format("{} and {}", a.family->model_type, b.family->model_type)});
      return false;
    }
    for (std::size_t i = 0; i < (std::max)(a.params.size(), b.params.size()); ++i) {
      const bool both = i < a.params.size() && i < b.params.size();
      if (both && a.params[i].name == b.params[i].name && a.params[i].shape == b.params[i].shape) continue;
      const Param& param = i < a.params.size() ? a.params[i] : b.params[i];
      report_.findings.push_back({param.name, "", "the models differ in their tensors or shapes", ""});
      return false;
    }
    for (const Param& param : a.params) {
      if (a_.dtype(param.name) == b_.dtype(param.name)) continue;
      report_.findings.push_back({param.name, "", "stored in another type: compare models of the same types",
                                  fmt::format("{} in A, {} in B", name_of(a_.dtype(param.name)), name_of(b_.dtype(param.name)))});
    }
    return report_.findings.empty();
  }

  /// Everything in config.json must be the same but the tie flag and what says nothing about the function.
  void compare_configs() {
    std::vector<std::string> ignored{"transformers_version", "_name_or_path", "torch_dtype", "dtype"};
    if (a_.is_dequantised()) ignored.push_back("quantization_config");
    const Family& family = *a_.graph().family;
    ignored.insert(ignored.end(), family.tie.flags.begin(), family.tie.flags.end());
    if (!family.section.empty()) ignored.push_back(family.section);  // compared by itself
    const std::vector<std::string> mtp_counts = mtp_count_keys(family);
    if (!a_.graph().dropped.empty()) ignored.insert(ignored.end(), mtp_counts.begin(), mtp_counts.end());
    const auto compare = [&](const io::Json& x, const io::Json& y, bool both_ways) {
      for (const auto& [key, value] : x.items()) {
        if (std::find(ignored.begin(), ignored.end(), key) != ignored.end()) continue;
        if (!y.contains(key)) {
          report_.findings.push_back({"config.json", "", fmt::format("\"{}\" is in one of them only", key), value.dump()});
        } else if (both_ways && y.at(key) != value) {
          report_.findings.push_back({"config.json", "", fmt::format("\"{}\" differs; no fold or rotation changes it", key),
                                      fmt::format("{} in A, {} in B", value.dump(), y.at(key).dump())});
        }
      }
    };
    const auto compare_both = [&](const io::Json& x, const io::Json& y) {
      compare(x, y, true);
      compare(y, x, false);
    };
    compare_both(a_.config().json(), b_.config().json());
    if (!family.section.empty()) compare_both(a_.config().json().at(family.section), b_.config().json().at(family.section));
  }

  void find_plan() {
    note_swapped_arguments();
    if (options_.use_manifest && plan_from_manifest()) return;
    if (a_.is_dequantised()) {  // exact values against rounded ones, of sizes that differ by powers of ten: least squares are no judge of that
      rmsfold::detail::raise<RefusedError>("{}: beside a model that is de-quantised, the basis cannot be estimated: {} of what was made of it is needed",
                                           b_.checkpoint().directory().string(), io::Checkpoint::manifest_name);
    }
    const BasisEstimate estimate = estimate_stream(a_, b_);
    Step step;
    Basis basis;
    report_.basis = "estimated from the writers: " + estimate.description;
    if (!estimate.rotation && !estimate.is_identity) {
      report_.basis_is_known = false;
      return;
    }
    basis.stream = estimate.rotation;
    basis_error_ = estimate.uncertainty;
    step.rotation = estimate.rotation ? RotationKind::file : RotationKind::none;
    const bool is_dense = estimate.rotation && !estimate.rotation->as_signed_permutation();
    step.fold = is_dense || some_gain_was_reset();
    report_.plan = plan_of_estimate(step, basis);
    estimate_all_heads(basis);
    if (!basis.heads.empty()) report_.plan = plan_of_estimate(step, std::move(basis));
  }

  /// The plan of a basis that was found in B, whether or not A allows it: if it does not, that is the finding.
  [[nodiscard]] Plan plan_of_estimate(const Step& step, Basis basis) {
    try {
      return make_plan(a_, step, basis);
    } catch (const RefusedError& reason) {
      const bool is_estimated = basis_error_ > 0 && fixes_ones_within(*basis.stream, basis_error_);
      if (!is_estimated && report_.findings.empty()) {
        report_.findings.push_back({"all writers of the stream", "", "the basis was changed in a way that changes the function", reason.what()});
      }
      return Planner(a_, step, std::move(basis), true).run();
    }
  }

  /// Whether a rotation keeps the ones vector up to an error of its entries.
  [[nodiscard]] static bool fixes_ones_within(const Rotation& q, double entry_error) {
    RowVector<double> ones = RowVector<double>::Ones(q.dim());
    q.apply(ones.data(), 1, 1);
    const double sign = ones.sum() < 0 ? -1 : 1;
    return (ones.array() - sign).abs().maxCoeff() <= static_cast<double>(q.dim()) * entry_error;
  }

  bool plan_from_manifest() {
    const auto path = b_.checkpoint().manifest_path();
    if (!path) return false;
    const Manifest manifest = read_manifest(*path);
    if (!is_made_from(manifest, a_)) {
      const auto rounds = [](const io::Json& step) {
        const std::string kind = step.value("rotation", "none");
        return (kind != name_of(RotationKind::permutation) && kind != name_of(RotationKind::signed_permutation)) || step.value("fold", false);
      };
      const auto steps = std::count_if(manifest.steps.begin(), manifest.steps.end(), rounds);
      if (steps > 1) {
        earlier_roundings_ = static_cast<double>(steps - 1);
        report_.notes.push_back(fmt::format("{} lists {} steps that each rounded the weights: that is allowed for", path->string(), steps));
      }
      report_.notes.push_back(path->string() + " describes a step from another model than A, so it is not used");
      return false;
    }
    const Step step = step_from_json(manifest.steps.back(), path->parent_path());
    report_.plan = make_plan(a_, step);
    report_.basis = fmt::format("from {}: rotation {}{}{}{}", io::Checkpoint::manifest_name, name_of(step.rotation),
                                step.rotation == RotationKind::none || step.rotation == RotationKind::file ? "" : fmt::format(", seed {}", step.seed),
                                step.inverse ? ", inverse" : "", step.heads ? ", heads" : "");
    return true;
  }

  void note_swapped_arguments() {
    const auto path = a_.checkpoint().manifest_path();
    if (path && is_made_from(read_manifest(*path), b_) && !is_made_from(read_manifest(*path), a_)) {
      report_.notes.push_back(path->string() + " says that the first model was made from the second: are the arguments swapped?");
    }
  }

  [[nodiscard]] bool some_gain_was_reset() const {
    for (const Site& site : find_sites(a_)) {
      const RowVector<double> gain = b_.read_vector(a_.graph().params[*site.norm->weight].name);
      if (!site.is_neutral() && (gain.array() == (site.norm->row->gain == GainConvention::plain ? 1.0 : 0.0)).all()) return true;
    }
    return false;
  }

  /// Which layers' values were rotated, and by what; everything else of the plan is known.
  void estimate_all_heads(Basis& basis) {
    const Graph& graph = a_.graph();
    std::unordered_set<std::string> value_spaces;
    for (const ValueSpace& space : graph.values) value_spaces.insert(space.name);
    Index rotated = 0;
    for (const Node& node : graph.nodes) {
      if (node.op != Op::linear) continue;
      const Param& param = graph.params[*node.weight];
      const std::string& space = param.axes[node.out_axis];
      if (!value_spaces.contains(space) || param.shape.size() != 2) continue;
      const TensorPlan& planned = report_.plan.tensors[*node.weight];
      const TensorProgram program(a_, report_.plan, planned);
      const Piece whole{0, 0, program.rows(), program.cols()};
      std::vector<std::byte> raw(program.raw_bytes_of(whole));
      program.read(a_, planned.source, whole, raw);
      Matrix<double> expected(program.rows(), program.cols());
      Workspace workspace;
      program.run<double>(raw, whole, workspace, [&](const Tile<double>& t) {
        expected.block(t.row, t.col, t.rows, t.cols) = Eigen::Map<const Matrix<double>>(t.values, t.rows, t.cols);
      });
      const std::vector<BasisEstimate> heads = estimate_heads(values_of(expected, node), values_of(b_.read_matrix(param.name), node), graph.size.head_dim,
                                                                  visit_dtype(b_.dtype(param.name), [](auto s) { return unit_roundoff<decltype(s)>(); }));
      if (std::all_of(heads.begin(), heads.end(), [](const BasisEstimate& e) { return e.is_identity || !e.rotation; })) continue;
      std::vector<Rotation> blocks;
      for (const BasisEstimate& head : heads) {
        blocks.push_back(head.rotation ? *head.rotation : Rotation(SignedPermutation::identity(graph.size.head_dim)));
        basis_error_ = (std::max)(basis_error_, head.uncertainty);
      }
      basis.heads.emplace(space, BlockDiagonal<Rotation>(std::move(blocks)));
      ++rotated;
    }
    if (rotated > 0) report_.basis += fmt::format("; values rotated per head in {} layers", rotated);
  }

  /// The rows of a projection that are values, head by head.
  [[nodiscard]] Matrix<double> values_of(Matrix<double> weight, const Node& projection) const {
    if (projection.out_axis == 1) weight.transposeInPlace();
    const std::vector<Index>& blocks = a_.graph().params[*projection.weight].value_blocks;
    if (blocks.empty()) return weight;
    const Dimensions& size = a_.graph().size;
    Matrix<double> values(size.kv_heads * size.head_dim, weight.cols());
    for (std::size_t block = 0; block < blocks.size(); ++block) {
      if (blocks[block] >= 0) values.middleRows(blocks[block] * size.head_dim, size.head_dim) = weight.middleRows(static_cast<Index>(block) * size.head_dim, size.head_dim);
    }
    return values;
  }

  [[nodiscard]] std::string role_of(const TensorPlan& planned) const {
    for (const Factor& factor : planned.factors) {
      if (factor.kind == Factor::Kind::gain) return factor.of;
    }
    return planned.why;
  }

  void compare_tensors() {
    std::uint64_t total = 0;
    for (const TensorPlan& planned : report_.plan.tensors) total += element_count(a_.shape(planned.name)) * size_of(a_.dtype(planned.name));
    std::uint64_t done = 0;
    report_.tensors = model::compare_tensors(a_, b_, report_.plan, basis_error_, earlier_roundings_, options_.threads, [&](std::uint64_t bytes) {
      done += bytes;
      progress("elements", done, total);
    });
    for (std::size_t i = 0; i < report_.tensors.size(); ++i) {
      const TensorComparison& result = report_.tensors[i];
      const TensorPlan& planned = report_.plan.tensors[i];
      if (result.passed()) continue;
      Diagnosis diagnosis = diagnose(a_, b_, report_.plan, planned, result, basis_error_);
      report_.findings.push_back({planned.name, role_of(planned), std::move(diagnosis.text),
                                  fmt::format("{} of {} entries; worst at ({}, {}): found {:.9g}, expected {:.9g}", result.failures, result.entries,
                                              result.row, result.col, result.found, result.expected),
                                  diagnosis.mistake});
    }
    for (const Site& site : report_.plan.sites) name_naive_merge(site);
  }

  /// A norm that kept its gain, with readers that did not get it: two findings of one mistake.
  void name_naive_merge(const Site& site) {
    const Graph& graph = a_.graph();
    const auto finding_of = [&](std::size_t param, Mistake mistake) {
      return std::find_if(report_.findings.begin(), report_.findings.end(),
                          [&](const Finding& f) { return f.where == graph.params[param].name && f.mistake == mistake; });
    };
    const bool kept = finding_of(*site.norm->weight, Mistake::norm_not_reset) != report_.findings.end();
    const bool missing = std::all_of(site.readers.begin(), site.readers.end(), [&](const Node* reader) {
      return finding_of(*reader->weight, Mistake::gain_not_folded) != report_.findings.end();
    });
    if (!kept || !missing) return;
    for (const Node* reader : site.readers) report_.findings.erase(finding_of(*reader->weight, Mistake::gain_not_folded));
    Finding& norm = *finding_of(*site.norm->weight, Mistake::norm_not_reset);
    norm.mistake = Mistake::naive_merge;
    norm.diagnosis = report_.plan.basis.stream
                         ? "naive merge: the rotation was merged into the readers while the gain stayed in the norm; diag(g) and Q do not commute, so fold the gain first"
                         : "the gain was not folded: it is still in the norm, and in no reader";
  }

  /// Without a basis: what every reader makes of embedding rows is the same in any basis. With each factor stored to relative error u,
  /// \f$|xW^T - x'W'^T| \le (2u+u^2)\|x\|\|W_i\|\f$, and the gain of A costs one rounding more.
  void compare_products() {
    const Graph& graph = a_.graph();
    const std::string embedding = a_.embedding_tensor();
    const Index rows = (std::min<Index>)(graph.size.vocabulary, 256);
    const Matrix<double> x = a_.read_rows(embedding, 0, rows);
    const Matrix<double> y = b_.read_rows(embedding, 0, rows);
    for (const Site& site : find_sites(a_)) {
      if (site.space != residual) continue;
      const RowVector<double> gain = b_.read_gain(*site.norm);
      for (const Node* reader : site.readers) {
        if (reader->op != Op::linear || reader->row->layout != Layout::out_in || reader->reads.size() > 1) continue;
        const std::string& name = graph.params[*reader->weight].name;
        const Matrix<double> w = a_.read_matrix(name) * site.gain.asDiagonal();
        const Matrix<double> v = b_.read_matrix(name) * gain.asDiagonal();
        const double u = visit_dtype(a_.dtype(name), [](auto s) { return unit_roundoff<decltype(s)>(); });
        const double unit = 3 * u + gamma_n(static_cast<double>(4 * graph.size.hidden), 0x1p-53);
        const Matrix<double> bound = unit * x.rowwise().norm() * w.rowwise().norm().transpose();
        const Matrix<double> error = (x * w.transpose() - y * v.transpose()).cwiseAbs();
        if (!((error.array() <= bound.array()).all())) {
          report_.findings.push_back({name, site.norm->module, "what it reads from the embedding differs, in any basis", fmt::format("by up to {:.3g}", error.maxCoeff())});
        }
      }
    }
    report_.notes.push_back("the basis could not be determined; products of embedding and readers, which no basis changes, were compared instead of elements");
  }

  void compare_left_alone() {
    for (const std::string& name : a_.checkpoint().tensor_names()) {
      if (a_.param_index(name) >= 0 || a_.is_dropped(name)) continue;
      const bool same = b_.checkpoint().find(name) != nullptr && a_.checkpoint().read(name) == b_.checkpoint().read(name);
      if (!same) report_.findings.push_back({name, "left alone", "it should have been copied byte for byte", ""});
    }
  }

  void compare_logits() {
    LogitComparison& logits = report_.logits;
    try {
      const Decoder a(a_), b(b_);
      std::vector<Index> tokens(static_cast<std::size_t>(options_.tokens));
      Random random(options_.seed, 0x746f6b656e73);  // a stream of its own
      for (Index& token : tokens) token = static_cast<Index>(random.below(static_cast<std::uint64_t>(a_.graph().size.vocabulary)));
      const std::uint64_t passes = 2 + static_cast<std::uint64_t>(options_.perturbations);
      ForwardOptions forward;
      forward.threads = options_.threads;
      forward.float_tables = options_.float_tables;
      progress("logits", 0, passes);
      const Matrix<double> reference = a.logits(tokens, forward);
      progress("logits", 1, passes);
      const auto distance_to = [&](const Matrix<double>& other) { return (reference - other).norm() / reference.norm(); };
      {
        const Matrix<double> other = b.logits(tokens, forward);
        progress("logits", 2, passes);
        logits.distance = distance_to(other);
        logits.largest = (reference - other).cwiseAbs().maxCoeff();
        for (Index t = 0; t < reference.rows(); ++t) {
          Index best = 0, other_best = 0;
          reference.row(t).maxCoeff(&best);
          other.row(t).maxCoeff(&other_best);
          if (best == other_best) ++logits.same_argmax;
        }
      }
      std::vector<double> distances;
      measure_perturbations();
      for (Index seed = 0; seed < options_.perturbations; ++seed) {
        forward.edit = [&](const std::string& param, Index row, Matrix<double>& rows) { perturb(param, row, rows, static_cast<std::uint64_t>(seed)); };
        distances.push_back(distance_to(a.logits(tokens, forward)));
        progress("logits", 3 + static_cast<std::uint64_t>(seed), passes);
      }
      std::sort(distances.begin(), distances.end());
      logits.perturbation = distances.empty() ? 0 : distances[distances.size() / 2];
      logits.threshold = 4 * logits.perturbation;
      logits.tokens = options_.tokens;
      logits.done = true;
    } catch (const RefusedError& reason) {
      logits.why_not = reason.what();
    }
    if (logits.done && !logits.passed() && report_.findings.empty()) {
      report_.findings.push_back({"logits", "", "the logits differ by more than storage rounding explains",
                                  fmt::format("distance {:.3g}, allowed {:.3g}", logits.distance, logits.threshold)});
    }
  }

  /// Moves every transformed weight by up to half a unit in its last place, which is what storing it did (zeros are stored exactly); or by what composing it in
  /// double does on average, which is more than storage rounding when the weights are stored in double.
  void perturb(const std::string& param, Index first_row, Matrix<double>& rows, std::uint64_t seed) const {
    const Index index = a_.param_index(param);
    if (index < 0 || perturbation_.empty() || perturbation_[static_cast<std::size_t>(index)] == 0) return;
    const double unit = perturbation_[static_cast<std::size_t>(index)];
    for (Index i = 0; i < rows.rows(); ++i) {
      Random random(seed, 1 + static_cast<std::uint64_t>(index) * 0x100000000u + static_cast<std::uint64_t>(first_row + i));
      for (Index j = 0; j < rows.cols(); ++j) {
        const double move = 2 * random.uniform() - 1;
        if (rows(i, j) == 0) continue;
        int exponent = 0;
        std::frexp(rows(i, j), &exponent);
        rows(i, j) += std::ldexp(unit * move, exponent);
      }
    }
  }

  void measure_perturbations() {
    if (!report_.basis_is_known) {  // nothing is planned: whatever lives in a space that can be rotated was stored anew
      for (const Param& param : a_.graph().params) {
        const bool is_fixed = std::all_of(param.axes.begin(), param.axes.end(), [](const std::string& space) { return space.empty(); });
        const double unit = visit_dtype(a_.dtype(param.name), [](auto s) { return unit_roundoff<decltype(s)>(); });
        perturbation_.push_back(is_fixed ? 0 : (std::max)(unit / 2, 0x1p-53 * (1 + std::sqrt(static_cast<double>(a_.graph().size.hidden)))));
      }
      return;
    }
    for (const TensorPlan& planned : report_.plan.tensors) {
      double unit = 0;
      if (planned.action == TensorPlan::Action::transform) {
        const TensorProgram program(a_, report_.plan, planned);
        if (!program.is_exact()) unit = visit_dtype(program.dtype(), [](auto s) { return unit_roundoff<decltype(s)>(); }) / 2;
        unit = (std::max)(unit, 0x1p-53 * (1 + std::sqrt(program.error_terms())));
      }
      perturbation_.push_back(unit);
    }
  }

  const Model& a_;
  const Model& b_;
  const VerifyOptions& options_;
  VerifyReport report_;
  double basis_error_ = 0;
  double earlier_roundings_ = 0;  // storage roundings on the way from A to B, but the last
  std::vector<double> perturbation_;  // of each param, relative to the power of two above it; 0: not transformed
};

}  // namespace detail

/// Compares two checkpoints: B must be A, folded and in another basis, and nothing else.
///
/// The rotation is taken from B's manifest when that describes a step from A, else estimated. Stored weights are judged element by element; logits are the
/// second witness, with a threshold measured on A itself.
/// @throws FormatError, IoError, RefusedError when a model cannot be read or understood. A difference is a finding, not an exception.
/// @par Cost  one read of both, the transformation's arithmetic, and `2 + perturbations` forward passes.
[[nodiscard]] inline VerifyReport verify(const Model& a, const Model& b, const VerifyOptions& options = {}) {
  return detail::Verification(a, b, options).run();
}

}  // namespace rmsfold::model
