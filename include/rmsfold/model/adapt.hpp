// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Companions of a model that was folded or rotated: LoRA adapters, and draft heads that read its stream.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rmsfold/io/output_directory.hpp>
#include <rmsfold/model/origin.hpp>
#include <rmsfold/model/tensor_program.hpp>

namespace rmsfold::model {

/// How to write what was adapted.
struct AdaptOptions {
  std::string draft_fc;  ///< empty: a LoRA adapter; else the tensor of a draft head that reads several states of the stream, one beside the other
  bool force = false;    ///< replace an existing directory
  bool fsync = true;     ///< wait for the disk
  std::vector<std::filesystem::path> keep;  ///< directories that are never written, beside the model's and the companion's: the transformed model's
};

/// What was written.
struct AdaptSummary {
  std::size_t adapted = 0;         ///< tensors that were multiplied
  std::size_t copied = 0;          ///< others
  std::vector<std::string> notes;  ///< for the user
};

namespace detail {

/// Multiplies an axis of a matrix by what a plan does to an axis of a weight: \f$\mathrm{diag}(g)\f$, then a basis.
class AxisFactors {
 public:
  /// @param axis  of the weight
  AxisFactors(const Model& model, const Plan& plan, const Node& node, std::size_t axis)
      : plan_(plan), scale_(1 / std::sqrt(static_cast<double>(model.graph().size.hidden))) {
    const Param& param = model.graph().params[*node.weight];
    extent_ = static_cast<Index>(param.shape[axis]);
    for (const Factor& factor : plan.tensors[*node.weight].factors) {
      if (factor.axis != axis) continue;
      factors_.push_back(&factor);
      if (factor.kind == Factor::Kind::rotation && factor.of != residual) heads_.emplace(whole_axis(plan.basis.heads.at(factor.of), param.value_blocks, extent_));
    }
  }

  /// Length of the axis.
  [[nodiscard]] Index extent() const noexcept { return extent_; }
  /// Whether nothing acts on it.
  [[nodiscard]] bool empty() const noexcept { return factors_.empty(); }

  /// \f$A\,\mathrm{diag}(g)\,Q\f$ of a matrix whose rows lie along the axis.
  void along_rows(Matrix<double>& a) const {
    for (const Factor* factor : factors_) {
      if (factor->kind == Factor::Kind::gain) {
        a = a * tiled(factor->of, plan_.site(factor->of).gain, extent_).asDiagonal();
      } else if (factor->kind == Factor::Kind::scale) {
        a *= scale_;
      } else {
        apply(*factor, a.data(), a.rows(), 1);
      }
    }
  }
  /// \f$Q^TB\f$ of a matrix whose columns lie along the axis.
  void down_columns(Matrix<double>& b) const {
    for (const Factor* factor : factors_) apply(*factor, b.data(), 1, b.cols());
  }

 private:
  void apply(const Factor& factor, double* data, Index outer, Index inner) const {
    if (factor.kind != Factor::Kind::rotation) rmsfold::detail::raise<InvariantError>("{} is no rotation", factor.of);
    if (factor.of == residual) {
      const Index copies = extent_ / plan_.basis.stream->dim();
      plan_.basis.stream->apply(data, outer * copies, inner);
    } else {
      heads_->apply(data, outer, inner);
    }
  }

  const Plan& plan_;
  double scale_;  // of `Factor::Kind::scale`
  Index extent_ = 0;
  std::vector<const Factor*> factors_;
  std::optional<BlockDiagonal<Rotation>> heads_;
};

/// Reads, adapts and writes the files of a directory.
class Adaptation {
 public:
  Adaptation(const Model& model, const Plan& plan, const AdaptOptions& options) : model_(model), plan_(plan), options_(options) {
    for (const Node& node : model.graph().nodes) {
      if (node.op == Op::linear) linears_.emplace(node.module, &node);
    }
  }

  AdaptSummary run(const std::filesystem::path& from, const std::filesystem::path& to) {
    if (!std::filesystem::is_directory(from)) {
      rmsfold::detail::raise<FormatError>("{} is no directory: an adapter, or a draft head, is given by its folder", from.string());
    }
    if (options_.draft_fc.empty()) check_adapter_config(from);
    io::OutputOptions how;
    how.force = options_.force;
    how.others = options_.keep;
    how.others.push_back(model_.checkpoint().directory());
    io::OutputDirectory out(to, from, std::move(how));
    std::vector<std::filesystem::path> paths;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(from)) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path& path : paths) {
      const std::string extension = path.extension().string();
      if (extension == ".safetensors") {
        write_file(path, out.path() / path.filename());
      } else if (!std::filesystem::is_regular_file(path) || extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".gguf") {
        summary_.notes.push_back(io::printable(path.filename().string()) + " was not copied: it may hold the old weights");
      } else {
        io::copy_file(path, out.path() / path.filename());
      }
    }
    if (summary_.adapted + summary_.copied == 0) rmsfold::detail::raise<FormatError>("{}: there is no tensor in any .safetensors file", from.string());
    check_pairs(from);
    if (!options_.draft_fc.empty() && !found_draft_) rmsfold::detail::raise<FormatError>("{}: no file holds tensor {}", from.string(), options_.draft_fc);
    summary_.notes.insert(summary_.notes.end(), out.notes().begin(), out.notes().end());
    out.commit(options_.fsync);
    return std::move(summary_);
  }

 private:
  [[noreturn]] static void refuse(const std::string& where, const std::string& why) { rmsfold::detail::raise<RefusedError>("{}: {}", where, why); }

  /// Only what multiplies in as \f$W+sBA\f$ is understood.
  static void check_adapter_config(const std::filesystem::path& directory) {
    const std::filesystem::path path = directory / "adapter_config.json";
    if (!std::filesystem::is_regular_file(path)) {
      rmsfold::detail::raise<FormatError>("{} is no adapter directory of PEFT: it has no adapter_config.json (for a draft head, say --draft-fc)", directory.string());
    }
    const Config config(io::read_json_file(path), path.string());
    if (!config.json().is_object()) rmsfold::detail::raise<FormatError>("{}: not a JSON object", path.string());
    const auto is_set = [&](const char* key) {
      if (!config.has(key)) return false;
      const io::Json& value = config.json().at(key);
      return value.is_boolean() ? value.get<bool>() : !(value.is_structured() && value.empty());
    };
    if (config.text_or("peft_type", "") != "LORA") refuse(path.string(), "peft_type is not LORA");
    if (is_set("use_dora")) refuse(path.string(), "DoRA keeps the norms of weights beside the adapter, and a fold changes these norms: train it on the new model");
    if (config.text_or("bias", "none") != "none" || is_set("lora_bias")) refuse(path.string(), "it trains biases; only bias \"none\" is handled");
    if (is_set("modules_to_save")) refuse(path.string(), "modules_to_save holds whole layers, which are not adapters");
    if (is_set("layer_replication")) refuse(path.string(), "layer_replication repeats layers, so its numbers of layers are not those of the model");
    if (is_set("ensure_weight_tying")) refuse(path.string(), "ensure_weight_tying adapts embedding and head by one pair, and a fold makes two different weights of them");
    if (is_set("target_parameters")) refuse(path.string(), "target_parameters adapts what is no linear layer, as stacks of experts");
    if (is_set("trainable_token_indices")) refuse(path.string(), "trainable_token_indices holds rows of the embedding, which are not adapters");
    for (const char* key : {"use_qalora", "use_bdlora", "arrow_config", "monteclora_config"}) {
      if (is_set(key)) refuse(path.string(), std::string(key) + " makes it something else than a plain pair W + s·B·A");
    }
    check_initialisation(config);
  }

  /// Some ways to initialise a pair take it out of W, again each time that it is loaded; what they take out of the new W is not what they took out of the old one.
  static void check_initialisation(const Config& config) {
    if (!config.has("init_lora_weights") || config.json().at("init_lora_weights").is_boolean()) return;
    const std::string how = config.text_or("init_lora_weights", "");
    for (const char* harmless : {"gaussian", "eva", "orthogonal"}) {
      if (how == harmless) return;
    }
    refuse(config.file(), "init_lora_weights is \"" + io::printable(how) + "\", which may change the weights under the adapter as it is loaded: "
                          "save it from PEFT as a plain pair (path_initial_model_for_weight_conversion), or merge it into the model first");
  }

  /// A pair is two matrices of one rank.
  void check_pairs(const std::filesystem::path& from) const {
    for (const auto& [module, ranks] : ranks_) {
      const std::string where = from.string() + ": " + io::printable(module);
      if (!ranks.a || !ranks.b) rmsfold::detail::raise<FormatError>("{} has no {}", where, ranks.a ? "lora_B" : "lora_A");
      if (*ranks.a != *ranks.b) rmsfold::detail::raise<ShapeError>("{}: lora_A has rank {}, but lora_B has {}", where, *ranks.a, *ranks.b);
    }
  }

  void write_file(const std::filesystem::path& from, const std::filesystem::path& to) {
    const io::SafetensorsFile file(from);
    std::optional<io::Metadata> metadata;
    if (file.has_metadata()) metadata = file.metadata();
    io::SafetensorsWriter writer(to, file.tensors(), metadata, io::data_order(file.tensors()));
    for (std::size_t i = 0; i < file.tensors().size(); ++i) {
      const io::TensorInfo& info = file.tensors()[i];
      std::vector<std::byte> bytes = file.read(info);
      if (adapt(info, from.string(), bytes)) {
        ++summary_.adapted;
      } else {
        ++summary_.copied;
      }
      writer.write(i, 0, bytes);
    }
    writer.finish(options_.fsync);
  }

  /// Whether the tensor changed.
  bool adapt(const io::TensorInfo& info, const std::string& file, std::vector<std::byte>& bytes) {
    if (!options_.draft_fc.empty()) return info.name == options_.draft_fc && adapt_draft(info, file, bytes);
    constexpr std::string_view prefix = "base_model.model.";
    const std::string where = file + ": tensor " + io::printable(info.name);
    for (const auto& [side, is_a] : {std::pair<std::string_view, bool>{".lora_A.", true}, {".lora_B.", false}}) {
      const std::size_t at = info.name.find(side);
      if (info.name.rfind(prefix, 0) != 0 || at == std::string::npos || !info.name.ends_with(".weight")) continue;
      const std::string module = info.name.substr(prefix.size(), at - prefix.size());
      const auto linear = linears_.find(module);
      if (linear == linears_.end()) refuse(where, module + " is no linear layer of a " + model_.graph().family->model_type + " model with this config");
      return adapt_side(info, where, *linear->second, is_a, bytes);
    }
    refuse(where, "it is no lora_A or lora_B weight of PEFT (an embedding, a magnitude, a bias?)");
  }

  bool adapt_side(const io::TensorInfo& info, const std::string& where, const Node& node, bool is_a, std::vector<std::byte>& bytes) {
    const Row& row = *node.row;
    if (!node.in_axis || (row.layout != Layout::out_in && row.layout != Layout::in_out)) refuse(where, "a stack of experts has no LoRA pair of this form");
    if (node.bias && !plan_.tensors[*node.bias].absorbs.empty()) {
      refuse(where, "the bias of " + plan_.tensors[*node.bias].absorbs + " moved into this layer's bias, W·β, to which the adapter would have to add B·A·β: merge the adapter into the model first");
    }
    const AxisFactors factors(model_, plan_, node, is_a ? *node.in_axis : node.out_axis);
    Matrix<double> values = matrix_of_tensor(info, where, bytes);
    if ((is_a ? values.cols() : values.rows()) != factors.extent()) {
      rmsfold::detail::raise<ShapeError>("{} has shape {}; {} {} {} channels", where, to_string(info.shape), node.module, is_a ? "reads" : "writes", factors.extent());
    }
    Ranks& ranks = ranks_[node.module];
    if ((is_a ? ranks.a : ranks.b).has_value()) rmsfold::detail::raise<FormatError>("{}: a second lora_{} of {}", where, is_a ? 'A' : 'B', node.module);
    (is_a ? ranks.a : ranks.b) = is_a ? values.rows() : values.cols();
    if (factors.empty()) return false;
    if (is_a) {
      factors.along_rows(values);
    } else {
      factors.down_columns(values);
    }
    store(info, where, values, bytes);
    return true;
  }

  bool adapt_draft(const io::TensorInfo& info, const std::string& file, std::vector<std::byte>& bytes) {
    const std::string where = file + ": tensor " + io::printable(info.name);
    found_draft_ = true;
    Matrix<double> values = matrix_of_tensor(info, where, bytes);
    const Index n = model_.graph().size.hidden;
    if (values.cols() == 0 || values.cols() % n != 0) {
      rmsfold::detail::raise<ShapeError>("{} has shape {}; its rows must read one or more states of width {}", where, to_string(info.shape), n);
    }
    if (!plan_.basis.stream) {
      summary_.notes.push_back(io::printable(info.name) + " stays as it is: the step moved gains only, and the states that it reads carry none");
      return false;
    }
    plan_.basis.stream->apply(values.data(), values.rows() * (values.cols() / n), 1);
    store(info, where, values, bytes);
    return true;
  }

  [[nodiscard]] static Matrix<double> matrix_of_tensor(const io::TensorInfo& info, const std::string& where, const std::vector<std::byte>& bytes) {
    const std::optional<Dtype> dtype = dtype_from_name(info.dtype);
    if (!dtype || info.shape.size() != 2) rmsfold::detail::raise<RefusedError>("{} is {} {}; a matrix in F64, F32, F16 or BF16 is needed", where, info.dtype, to_string(info.shape));
    Matrix<double> values(static_cast<Index>(info.shape[0]), static_cast<Index>(info.shape[1]));
    load_as_double(*dtype, bytes, {values.data(), static_cast<std::size_t>(values.size())});
    if (!std::all_of(values.data(), values.data() + values.size(), [](double value) { return is_finite(value); })) refuse(where, "it holds an infinity or NaN, which would spread");
    return values;
  }

  static void store(const io::TensorInfo& info, const std::string& where, const Matrix<double>& values, std::vector<std::byte>& bytes) {
    const Dtype dtype = *dtype_from_name(info.dtype);
    if (store_rounded(dtype, {values.data(), static_cast<std::size_t>(values.size())}, bytes) >= 0) {
      rmsfold::detail::raise<RangeError>("{}: an entry becomes larger than {} can hold", where, info.dtype);
    }
  }

  const Model& model_;
  const Plan& plan_;
  const AdaptOptions& options_;
  /// Ranks of the two matrices of a pair, as far as they were found.
  struct Ranks {
    std::optional<Index> a, b;
  };

  std::map<std::string, const Node*> linears_;
  std::map<std::string, Ranks> ranks_;
  AdaptSummary summary_;
  bool found_draft_ = false;
};

}  // namespace detail

/// Writes to `out` what belongs to the transformed model, from what belonged to the original: for a LoRA pair of a layer with weight W, whose plan is
/// \f$W' = Q_o^TW\,\mathrm{diag}(g)\,Q_i\f$: \f$A' = A\,\mathrm{diag}(g)\,Q_i\f$ and \f$B' = Q_o^TB\f$, so that \f$W'+sB'A'\f$ is \f$W+sBA\f$ transformed. For a draft head
/// that reads k states of the residual stream: \f$F' = F\,\mathrm{blkdiag}(Q,\dots,Q)\f$; these states carry no gain. Composed in double, rounded once.
/// @param plan  the step that made the transformed model from `model`
/// @throws RefusedError for DoRA, trained biases, whole modules, embeddings, experts in stacks, unknown modules, what is no plain \f$W+sBA\f$, and an `out` that is,
///   contains or lies inside what is read; ShapeError; RangeError; FormatError; IoError.
inline AdaptSummary adapt(const Model& model, const Plan& plan, const std::filesystem::path& companion, const std::filesystem::path& out, const AdaptOptions& options = {}) {
  return detail::Adaptation(model, plan, options).run(companion, out);
}

/// The plan of the step that made a directory from a model, from the directory's manifest. @throws RefusedError when there is none, or it says otherwise.
[[nodiscard]] inline Plan plan_that_made(const std::filesystem::path& transformed, const Model& model) {
  const std::filesystem::path path = transformed / io::Checkpoint::manifest_name;
  if (!std::filesystem::is_regular_file(path)) {
    rmsfold::detail::raise<RefusedError>("{} has no {}, which says what was done to the model: give what fold or rotate wrote", transformed.string(),
                                         io::Checkpoint::manifest_name);
  }
  const Manifest manifest = read_manifest(path);
  if (!is_made_from(manifest, model)) {
    rmsfold::detail::raise<RefusedError>("{} describes a step from another model than {}: give the one that it was made from", path.string(), model.checkpoint().directory().string());
  }
  return make_plan(model, step_from_json(manifest.steps.back(), transformed));
}

}  // namespace rmsfold::model
