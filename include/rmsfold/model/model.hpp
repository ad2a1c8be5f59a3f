// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A checkpoint understood: every tensor matched with the family's graph, or refused.

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <rmsfold/io/checkpoint.hpp>
#include <rmsfold/model/graph.hpp>
#include <rmsfold/model/quantised.hpp>
#include <rmsfold/tensor/convert.hpp>

namespace rmsfold::model {

/// Which tensor is the output head, when config.json and the stored tensors disagree.
enum class HeadChoice { undecided, stored, tied };

/// What a user may decide when opening a model.
struct OpenOptions {
  HeadChoice head = HeadChoice::undecided;  ///< `--head`
  bool trust_config = false;                ///< `--trust-config`: accept a config that names custom code
  bool ignore_index = false;                ///< `--ignore-index`: take the shards' own headers
  bool drop_mtp = false;                    ///< `--drop-mtp`: leave out blocks that draft further tokens
  std::optional<Dtype> dequantize;          ///< `--dequantize`: what weights that are stored as codes with block scales become
};

/// A checkpoint directory whose every tensor is accounted for.
class Model {
 public:
  /// Opens and matches; reads headers and, where a tie is in doubt, the two tensors it is about.
  /// @throws FormatError, RefusedError, IoError; the message names file, tensor, reason and remedy.
  explicit Model(const std::filesystem::path& directory, const OpenOptions& options = {})
      : checkpoint_(directory, options.ignore_index ? io::Checkpoint::Source::headers : io::Checkpoint::Source::index),
        config_(checkpoint_.config(), (directory / "config.json").string()),
        drop_mtp_(options.drop_mtp),
        dequantize_(options.dequantize),
        quantised_(read_quantised()),
        graph_(build_graph(config_, [this](const std::string& name) { return shape_of(name); }, {options.drop_mtp, options.dequantize.has_value()})) {
    if (config_.has("auto_map") && !options.trust_config) {
      rmsfold::detail::raise<RefusedError>(
          "{}: \"auto_map\" says that the model runs its own code, which may differ from the {} family; --trust-config takes it for that family",
          config_.file(), graph_.family->model_type);
    }
    decide_head(options.head);
    match_tensors();
  }

  /// The files.
  [[nodiscard]] const io::Checkpoint& checkpoint() const noexcept { return checkpoint_; }
  /// config.json.
  [[nodiscard]] const Config& config() const noexcept { return config_; }
  /// The family's graph for this config.
  [[nodiscard]] const Graph& graph() const noexcept { return graph_; }

  /// Weight tensor of the head.
  [[nodiscard]] std::string head_tensor() const { return graph_.naming.head + ".weight"; }
  /// Weight tensor of the embedding.
  [[nodiscard]] std::string embedding_tensor() const { return graph_.embedding + ".weight"; }
  /// Whether there is a head that could be tied to the embedding.
  [[nodiscard]] bool has_head() const noexcept { return graph_.family->tie.has_head; }
  /// Whether a stored tensor is left out of what is made of the model.
  [[nodiscard]] bool is_dropped(const std::string& tensor) const { return dropped_.contains(tensor); }
  /// Whether head and embedding are one.
  [[nodiscard]] bool head_is_tied() const noexcept { return head_is_tied_; }
  /// Whether the head's tensor is in the files (a tied one may be there as a copy).
  [[nodiscard]] bool head_is_stored() const noexcept { return head_is_stored_; }
  /// Whether a stored head is not used: `--head tied` beside a different tensor.
  [[nodiscard]] bool stored_head_is_stale() const noexcept { return stored_head_is_stale_; }

  /// Writes the tie into a copy of config.json: every flag that may say something about it, since versions of a runtime look at different ones.
  void set_tie(io::Json& config, bool tied) const {
    const Family& family = *graph_.family;
    const bool in_section = !family.section.empty();
    for (const std::string& key : family.tie.flags) {
      const std::string flag = key.substr(key.find('.') == std::string::npos ? 0 : key.find('.') + 1);
      config[flag] = tied;
      if (in_section) config[family.section][flag] = tied;
    }
  }

  /// Writes into a copy of config.json that there are no blocks that draft further tokens.
  void set_mtp_dropped(io::Json& config) const {
    for (const std::string& key : mtp_count_keys(*graph_.family)) {
      if (config.contains(key)) config[key] = 0;
    }
  }

  /// The stored tensor that holds a param's values: itself, but the embedding for a tied head, and the codes for one that is stored under another name.
  [[nodiscard]] std::string source_of(const std::string& param) const {
    if (head_is_tied_ && param == head_tensor()) return embedding_tensor();
    const auto codes = codes_of_.find(param);
    return codes == codes_of_.end() ? param : codes->second;
  }

  /// Position in `graph().params` of a param, or of the one that a stored tensor holds; -1 for a tensor that is left alone.
  [[nodiscard]] Index param_index(const std::string& tensor) const {
    const auto found = param_index_.find(tensor);
    return found == param_index_.end() ? -1 : found->second;
  }

  /// Description of the stored tensor behind a param. @pre it matched
  [[nodiscard]] const io::TensorInfo& info(const std::string& param) const { return *checkpoint_.find(source_of(param))->info; }
  /// Shape of a param. @pre it matched
  [[nodiscard]] const Shape& shape(const std::string& param) const {
    const QuantisedTensor* quantised = quantised_of(param);
    return quantised != nullptr ? quantised->shape() : info(param).shape;
  }
  /// Element type of a param: of the stored tensor behind it, or what it becomes.
  [[nodiscard]] Dtype dtype(const std::string& param) const { return is_quantised(param) ? *dequantize_ : *dtype_from_name(info(param).dtype); }
  /// Whether a param is stored as codes and scales. Then `dtype` is what it becomes, and every `read_…` gives its exact values.
  [[nodiscard]] bool is_quantised(const std::string& param) const { return quantised_of(param) != nullptr; }
  /// Whether any is.
  [[nodiscard]] bool is_dequantised() const noexcept { return !quantised_.empty(); }

  /// The gain of a norm, as its runtime forms it from the stored weight. @throws IoError. @pre the norm has a weight
  [[nodiscard]] RowVector<double> read_gain(const Node& norm) const {
    const std::string& name = graph_.params[*norm.weight].name;
    const RowVector<double> stored = read_vector(name);
    return visit_dtype(dtype(name), [&](auto scalar) {
      using S = decltype(scalar);
      return RowVector<double>(gain_of<S>(rounded<S>(stored), norm.row->gain).template cast<double>());
    });
  }

  /// Values of a vector, or of all entries of a tensor. @throws IoError.
  [[nodiscard]] RowVector<double> read_vector(const std::string& param) const {
    return read_values(param, static_cast<Index>(element_count(shape(param))));
  }

  /// The first values of a tensor, in the order of storage. @throws IoError.
  [[nodiscard]] RowVector<double> read_values(const std::string& param, Index count) const {
    RowVector<double> values(count);
    read_values(param, 0, {values.data(), static_cast<std::size_t>(count)});
    return values;
  }

  /// Values of a tensor from entry `first` on, in the order of storage, exactly. @throws IoError.
  void read_values(const std::string& param, std::uint64_t first, std::span<double> values) const {
    if (const QuantisedTensor* quantised = quantised_of(param)) {
      const std::uint64_t width = quantised->shape().back();
      std::uint64_t at = first;
      for (std::span<double> rest = values; !rest.empty();) {  // row by row
        const std::size_t count = static_cast<std::size_t>((std::min<std::uint64_t>)(rest.size(), width - at % width));
        quantised->read(checkpoint_, at / width, at % width, 1, count, std::as_writable_bytes(rest.first(count)));
        rest = rest.subspan(count);
        at += count;
      }
      return;
    }
    std::vector<std::byte> bytes(values.size() * size_of(dtype(param)));
    checkpoint_.read(source_of(param), first * size_of(dtype(param)), bytes);
    load_as_double(dtype(param), bytes, values);
  }

  /// What is behind a param that is stored as codes; nullptr for any other.
  [[nodiscard]] const QuantisedTensor* quantised_of(const std::string& param) const {
    const auto found = quantised_.find(source_of(param));
    return found == quantised_.end() ? nullptr : found->second.get();
  }

  /// Rows `first` … `first+count-1` of a matrix. @throws IoError.
  [[nodiscard]] Matrix<double> read_rows(const std::string& param, Index first, Index count) const {
    const std::size_t width = static_cast<std::size_t>(shape(param).at(1));
    Matrix<double> values(count, static_cast<Index>(width));
    read_values(param, static_cast<std::uint64_t>(first) * width, {values.data(), static_cast<std::size_t>(values.size())});
    return values;
  }

  /// A whole matrix. @throws IoError.
  [[nodiscard]] Matrix<double> read_matrix(const std::string& param) const {
    return read_rows(param, 0, static_cast<Index>(shape(param).at(0)));
  }

  /// Oddities that were settled while opening, for the user to read.
  [[nodiscard]] std::vector<std::string> notes() const {
    std::vector<std::string> all = checkpoint_.notes();
    all.insert(all.end(), notes_.begin(), notes_.end());
    return all;
  }

 private:
  void decide_head(HeadChoice choice) {
    if (!has_head()) return;
    head_is_stored_ = checkpoint_.find(head_tensor()) != nullptr;
    head_is_tied_ = choice == HeadChoice::tied || (choice == HeadChoice::undecided && graph_.tied);
    const bool copies_embedding = head_is_tied_ && head_is_stored_ && checkpoint_.find(embedding_tensor()) && equal_bytes(head_tensor(), embedding_tensor());
    const std::string& flag = graph_.family->tie.flags.front();
    if (choice == HeadChoice::stored && !head_is_stored_) {
      rmsfold::detail::raise<FormatError>("{}: --head stored, but there is no tensor {}", checkpoint_.directory().string(), head_tensor());
    }
    if (choice == HeadChoice::undecided && graph_.tied && head_is_stored_ && !copies_embedding) {
      rmsfold::detail::raise<FormatError>(
          "{}: \"{}\" is true, but {} is stored and differs from {}; runtimes disagree on which one counts: say --head stored or --head tied",
          config_.file(), flag, head_tensor(), embedding_tensor());
    }
    if (choice == HeadChoice::undecided && !graph_.tied && !head_is_stored_) {
      rmsfold::detail::raise<FormatError>("{}: \"{}\" is false, but no file holds {}: an incomplete download, or say --head tied", config_.file(), flag,
                                          head_tensor());
    }
    stored_head_is_stale_ = head_is_tied_ && head_is_stored_ && !copies_embedding;
    if (stored_head_is_stale_) notes_.push_back(head_tensor() + " is not used and will be dropped, as --head tied says");
    if (head_is_tied_ != graph_.tied) notes_.push_back("\"" + flag + "\" will be corrected, as --head says");
  }

  [[nodiscard]] bool equal_bytes(const std::string& a, const std::string& b) const {
    const io::TensorInfo& first = *checkpoint_.find(a)->info;
    const io::TensorInfo& second = *checkpoint_.find(b)->info;
    if (first.dtype != second.dtype || first.shape != second.shape) return false;
    constexpr std::uint64_t piece = 1 << 20;
    std::vector<std::byte> left, right;
    for (std::uint64_t at = 0; at < first.bytes(); at += piece) {
      left.resize(static_cast<std::size_t>((std::min)(piece, first.bytes() - at)));
      right.resize(left.size());
      checkpoint_.read(a, at, left);
      checkpoint_.read(b, at, right);
      if (left != right) return false;
    }
    return true;
  }

  void match_tensors() {
    for (std::size_t i = 0; i < graph_.params.size(); ++i) param_index_.emplace(graph_.params[i].name, static_cast<Index>(i));
    dropped_.insert(graph_.dropped.begin(), graph_.dropped.end());
    const bool drops_drafts = !graph_.dropped.empty() || drop_mtp_;
    std::vector<std::string> left_alone;
    for (const std::string& pattern : graph_.family->leave_alone) left_alone.push_back(graph_.spelled(pattern));
    const auto is_draft = [&](const std::string& name) {
      return std::any_of(graph_.family->drafts.begin(), graph_.family->drafts.end(),
                         [&](const std::string& pattern) { return detail::matches(graph_.spelled(pattern), name, graph_.size.layers); });
    };
    for (const Param& param : graph_.params) {
      if (const QuantisedTensor* quantised = quantised_of(param.name)) {
        param_index_.emplace(quantised->codes(), param_index_.at(param.name));
        dropped_.insert(quantised->scales());
      }
    }
    for (const std::string& name : checkpoint_.tensor_names()) {
      if (param_index_.contains(name) || dropped_.contains(name)) continue;
      const auto pattern = std::find_if(left_alone.begin(), left_alone.end(), [&](const std::string& p) { return detail::matches(p, name, graph_.size.layers); });
      if (pattern != left_alone.end()) {
        if (drops_drafts && pattern->find("{m}") != std::string::npos) dropped_.insert(name);
        continue;
      }
      if (is_draft(name)) {
        if (!drops_drafts) {
          rmsfold::detail::raise<RefusedError>("{}: tensor {} belongs to a block that drafts further tokens, which this version cannot carry along; --drop-mtp leaves such "
                                               "blocks out", file_of(name), io::printable(name));
        }
        dropped_.insert(name);
        continue;
      }
      rmsfold::detail::raise<RefusedError>(
          "{}: tensor {} is not one a {} model with this config has; it might read or write the residual stream, so nothing was changed "
          "(a bias that config.json does not announce, another head, an adapter?)",
          file_of(name), io::printable(name), graph_.family->model_type);
    }
    for (Param& param : graph_.params) {
      const io::TensorPlace* place = checkpoint_.find(source_of(param.name));
      if (place == nullptr) {
        rmsfold::detail::raise<FormatError>("{}: tensor {} is missing: a {} model with this config.json has it (shape {})", checkpoint_.directory().string(),
                                            param.name, graph_.family->model_type, to_string(param.shape));
      }
      const Shape& stored = shape(param.name);
      if (!fits(stored, param.shape)) {
        rmsfold::detail::raise<FormatError>("{}: tensor {} has shape {}, but config.json demands {}", file_of(param.name), param.name,
                                            to_string(stored), to_string(param.shape));
      }
      param.shape = stored;
      if (!dtype_from_name(place->info->dtype) && !is_quantised(param.name)) {
        rmsfold::detail::raise<RefusedError>("{}: tensor {} is stored as {}; only F64, F32, F16 and BF16 can be computed with, and with --dequantize F8_E4M3 or "
                                             "MXFP4 beside block scales: de-quantise the model first",
                                             file_of(param.name), param.name, place->info->dtype);
      }
    }
  }

  using QuantisedTensors = std::unordered_map<std::string, std::unique_ptr<QuantisedTensor>>;

  /// With `--dequantize`: what is stored as codes, by the names of the codes. Also finds which params are stored under another name.
  [[nodiscard]] QuantisedTensors read_quantised() {
    QuantisedTensors all;
    if (!dequantize_) return all;
    for (std::unique_ptr<QuantisedTensor>& tensor : find_quantised(checkpoint_)) {
      if (checkpoint_.find(tensor->name()) == nullptr) codes_of_.emplace(tensor->name(), tensor->codes());
      all.emplace(tensor->codes(), std::move(tensor));
    }
    if (all.empty()) {
      rmsfold::detail::raise<RefusedError>("{}: --dequantize, but no weight is stored as F8_E4M3 or MXFP4 with block scales: leave it out",
                                           checkpoint_.directory().string());
    }
    return all;
  }

  /// Whether a stored shape is the demanded one, where that demands anything.
  [[nodiscard]] static bool fits(const Shape& stored, const Shape& demanded) {
    return std::equal(stored.begin(), stored.end(), demanded.begin(), demanded.end(), [](std::uint64_t is, std::uint64_t must) { return must == 0 || is == must; });
  }

  [[nodiscard]] const Shape* shape_of(const std::string& tensor) const {
    const auto codes = codes_of_.find(tensor);
    if (codes != codes_of_.end()) return &quantised_.at(codes->second)->shape();
    const io::TensorPlace* place = checkpoint_.find(tensor);
    return place == nullptr ? nullptr : &place->info->shape;
  }

  [[nodiscard]] std::string file_of(const std::string& tensor) const { return checkpoint_.file_of(source_of(tensor)); }

  io::Checkpoint checkpoint_;
  Config config_;
  bool drop_mtp_ = false;
  std::optional<Dtype> dequantize_;
  std::unordered_map<std::string, std::string> codes_of_;  // of params that are stored under another name
  QuantisedTensors quantised_;
  Graph graph_;
  bool head_is_tied_ = false;
  bool head_is_stored_ = false;
  bool stored_head_is_stale_ = false;
  std::unordered_map<std::string, Index> param_index_;
  std::unordered_set<std::string> dropped_;
  std::vector<std::string> notes_;
};

}  // namespace rmsfold::model
