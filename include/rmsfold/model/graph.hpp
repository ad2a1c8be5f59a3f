// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A family's rows written out for one checkpoint: signals, nodes and tensors whose axes are labelled with spaces.

#include <algorithm>
#include <functional>
#include <optional>
#include <iterator>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <rmsfold/model/config.hpp>
#include <rmsfold/model/families.hpp>
#include <rmsfold/tensor/shape.hpp>

namespace rmsfold::model {

/// A vector per token.
struct Signal {
  std::string name;   ///< e.g. "query.3"
  std::string space;  ///< space it lives in; empty: opaque
  Index width = 0;    ///< length; 0: no tensor has said it yet
  bool is_stream = false;  ///< whether writers add to it
};

/// A tensor the model must have.
struct Param {
  std::string name;               ///< in the checkpoint
  Shape shape;                    ///< as the config, and the tensors before it, demand; 0: whatever is stored
  std::vector<std::string> axes;  ///< space of each axis; empty: no change of basis acts along it
  /// For a projection to query, key and value at once: which kv head's value each block of `head_dim` outputs is, -1: none. Empty: not such a projection.
  std::vector<Index> value_blocks;
};

/// One computation.
struct Node {
  const Row* row = nullptr;            ///< its row
  Op op = Op::linear;                  ///< what it computes
  std::string module;                  ///< e.g. "model.layers.3.self_attn.q_proj"
  Index layer = -1;                    ///< number of the outermost placeholder; -1 outside the layers
  std::vector<std::size_t> reads;      ///< signals
  std::vector<std::size_t> writes;     ///< signals
  std::optional<std::size_t> weight;   ///< param
  std::optional<std::size_t> bias;     ///< param
  std::size_t out_axis = 0;            ///< of the weight
  std::optional<std::size_t> in_axis;  ///< of the weight
};

/// Numbers of config.json that shapes and the forward pass need; 0 for what the family has not got.
struct Dimensions {
  Index layers;        ///< number of layers
  Index hidden;        ///< width of the residual stream
  Index intermediate;  ///< width of the MLP
  Index vocabulary;    ///< rows of the embedding
  Index heads;         ///< query heads
  Index kv_heads;      ///< key and value heads
  Index head_dim;      ///< channels of one head
  double eps;          ///< of every norm, inside the root
  /// Query heads per kv head.
  [[nodiscard]] Index group() const noexcept { return heads / kv_heads; }
};

/// A space of values that can be rotated per head.
struct ValueSpace {
  std::string name;  ///< e.g. "value.3"
  Index layer;       ///< 3
};

/// A model as data.
struct Graph {
  const Family* family = nullptr;     ///< table it came from
  Dimensions size{};                  ///< its dimensions
  Naming naming;                      ///< how its names begin
  std::string embedding;              ///< module of the embedding
  std::vector<Signal> signals;        ///< all signals
  std::vector<Node> nodes;            ///< in the order of computation
  std::vector<Param> params;          ///< all tensors
  std::vector<std::string> dropped;   ///< tensors that are left out
  std::vector<ValueSpace> values;     ///< spaces of values, layer by layer
  bool tied = false;                  ///< whether config.json ties head and embedding

  /// Whether a node's output is a stream that others add to.
  [[nodiscard]] bool writes_stream(const Node& node) const {
    return std::any_of(node.writes.begin(), node.writes.end(), [&](std::size_t signal) { return signals[signal].is_stream; });
  }
  /// A tensor's name, or a pattern, with its first placeholders replaced.
  [[nodiscard]] std::string spelled(std::string text) const {
    for (const auto& [placeholder, name] : {std::pair<std::string_view, const std::string&>{"{root}", naming.root}, {"{head}", naming.head}, {"{outer}", naming.outer}}) {
      for (std::size_t at = text.find(placeholder); at != std::string::npos; at = text.find(placeholder)) text.replace(at, placeholder.size(), name);
    }
    return text;
  }
};

/// Shape of a stored tensor; null when there is none.
using FindShape = std::function<const Shape*(const std::string&)>;

/// What a user may decide about a graph.
struct GraphOptions {
  bool drop_mtp = false;    ///< leave out blocks that draft further tokens
  bool dequantize = false;  ///< accept weights that are stored as codes
};

namespace detail {

/// `text` with every `placeholder` replaced by the number.
[[nodiscard]] inline std::string numbered(std::string_view text, std::string_view placeholder, Index number) {
  std::string result(text);
  for (std::size_t at = result.find(placeholder); at != std::string::npos; at = result.find(placeholder)) {
    result.replace(at, placeholder.size(), std::to_string(number));
  }
  return result;
}

/// `text` with every "{i}" replaced by the layer's number.
[[nodiscard]] inline std::string at_layer(std::string_view text, Index layer) { return numbered(text, "{i}", layer); }

/// Whether a name is one that a pattern stands for: `{i}` for the number of one of `layers` layers, other `{…}` for any number, `*` at the end for anything.
[[nodiscard]] inline bool matches(std::string_view pattern, std::string_view name, Index layers) {
  while (!pattern.empty()) {
    if (pattern == "*") return true;
    if (pattern.front() == '{') {
      const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
      std::size_t digits = 0;
      while (digits < name.size() && is_digit(name[digits])) ++digits;
      if (digits == 0 || digits > 9) return false;
      if (pattern.substr(0, 3) == "{i}" && std::stol(std::string(name.substr(0, digits))) >= layers) return false;
      name.remove_prefix(digits);
      pattern.remove_prefix(pattern.find('}') + 1);
      continue;
    }
    if (name.empty() || name.front() != pattern.front()) return false;
    name.remove_prefix(1);
    pattern.remove_prefix(1);
  }
  return name.empty();
}

/// The value of the first key that is there.
template <class Keys>
[[nodiscard]] std::optional<std::string> first_key(const Config& config, const Keys& keys) {
  for (const std::string_view key : keys) {
    if (config.has(std::string(key))) return std::string(key);
  }
  return std::nullopt;
}

inline constexpr std::string_view hidden_keys[] = {"hidden_size", "n_embd", "d_model"};
inline constexpr std::string_view head_keys[] = {"num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"};
inline constexpr std::string_view head_dim_keys[] = {"head_dim", "d_kv"};
inline constexpr std::string_view kv_head_keys[] = {"num_key_value_heads", "num_kv_heads"};
inline constexpr std::string_view eps_keys[] = {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon"};

template <class Keys>
[[nodiscard]] Index required(const Config& config, const Keys& keys) {
  return config.positive(first_key(config, keys).value_or(std::string(*std::begin(keys))));
}

/// Layers of a model, or experts of a layer, beyond which a config is taken for a mistake.
inline constexpr Index count_limit = 100000;
/// Tensors that may be missing before the rest of the model is not looked for.
inline constexpr std::size_t missing_limit = 1000;

[[nodiscard]] inline Dimensions read_dimensions(const Config& config, const Family& family, const Repeat& layers, bool one_kv_head) {
  Dimensions size{};
  size.layers = required(config, layers.keys);
  size.hidden = required(config, hidden_keys);
  if (family.has_forward) {
    size.intermediate = config.positive("intermediate_size");
    size.vocabulary = config.positive("vocab_size");
  } else {
    size.intermediate = config.has("intermediate_size") && config.json().at("intermediate_size").is_number() ? config.positive("intermediate_size") : 0;
    size.vocabulary = config.positive_or("vocab_size", 0);
  }
  if (family.has_forward || first_key(config, head_keys)) {
    size.heads = required(config, head_keys);
    const auto kv_key = first_key(config, kv_head_keys);
    size.kv_heads = one_kv_head ? 1 : kv_key ? config.positive(*kv_key) : size.heads;
    if (size.heads % size.kv_heads != 0) {
      rmsfold::detail::raise<FormatError>("{}: {} attention heads cannot share {} key/value heads evenly", config.file(), size.heads, size.kv_heads);
    }
    const auto head_dim_key = first_key(config, head_dim_keys);
    if (!head_dim_key && size.hidden % size.heads != 0) {
      rmsfold::detail::raise<FormatError>("{}: no \"head_dim\", and hidden_size {} is no multiple of {} heads", config.file(), size.hidden, size.heads);
    }
    size.head_dim = head_dim_key ? config.positive(*head_dim_key) : size.hidden / size.heads;
    if (size.head_dim > (Index{1} << 40) / size.heads) {
      rmsfold::detail::raise<FormatError>("{}: {} heads of {} channels each are beyond all bounds", config.file(), size.heads, size.head_dim);
    }
  }
  const auto eps_key = first_key(config, eps_keys);
  if (eps_key || !family.eps) {
    size.eps = config.number(eps_key.value_or(std::string(eps_keys[0])));
    if (!(size.eps >= 0)) rmsfold::detail::raise<FormatError>("{}: \"{}\" = {} is negative", config.file(), *eps_key, size.eps);
  } else {
    size.eps = *family.eps;
  }
  if (size.layers > count_limit) {
    rmsfold::detail::raise<FormatError>("{}: {} layers; at most {} are accepted", config.file(), size.layers, count_limit);
  }
  return size;
}

/// Writes rows out into a graph.
class Expansion {
 public:
  Expansion(const Family& family, const Config& whole, const Config& config, const FindShape& find, const GraphOptions& options)
      : family_(family), whole_(whole), config_(config), find_(find), options_(options) {
    graph_.family = &family;
    choose_naming();
    for (const Requirement& requirement : family.requirements) {
      if (!holds(requirement.holds)) {
        rmsfold::detail::raise<RefusedError>("{}: a {} model whose config says otherwise than usual is refused: {}", config.file(), family.model_type, requirement.reason);
      }
    }
    repeats_ = family.repeats;
    for (const Repeat& repeat : {family::layers, family::experts}) {
      if (std::none_of(repeats_.begin(), repeats_.end(), [&](const Repeat& r) { return r.placeholder == repeat.placeholder; })) repeats_.push_back(repeat);
    }
    graph_.size = read_dimensions(config, family, repeat_of(family::layers.placeholder), holds(family.one_kv_head));
    graph_.embedding = graph_.spelled(family.tie.embedding);
    graph_.tied = family.tie.has_head && family.tie.if_absent;
    for (const std::string& key : family.tie.flags) {
      const std::size_t dot = key.find('.');  // behind a section's name: the flag of that section
      const std::string flag = dot == std::string::npos ? key : key.substr(dot + 1);
      const Config& place = dot != std::string::npos || (family.text_type.empty() && config.has(flag)) ? config : whole;
      if (!family.tie.has_head || !place.has(flag)) continue;
      graph_.tied = place.flag_or(flag, family.tie.if_absent);
      break;
    }
  }

  [[nodiscard]] Graph run() {
    std::vector<const Row*> rows;
    for (const Row& row : family_.rows) rows.push_back(&row);
    expand(rows, {});
    return std::move(graph_);
  }

 private:
  using Bindings = std::vector<std::pair<std::string_view, Index>>;

  void choose_naming() {
    graph_.naming = family_.namings.front();
    std::size_t best = 0;
    for (const Naming& naming : family_.namings) {
      Graph spelling;
      spelling.naming = naming;
      const std::size_t found = (has(spelling.spelled(family_.tie.embedding + ".weight")) ? 2u : 0u) + (has(naming.head + ".weight") ? 1u : 0u);
      if (found >= 2 && found > best) {
        best = found;
        graph_.naming = naming;
      }
    }
  }

  [[nodiscard]] bool has(const std::string& tensor) const { return find_ && find_(tensor) != nullptr; }

  [[nodiscard]] std::string spelled(const std::string& text, const Bindings& bindings) const {
    std::string result = graph_.spelled(text);
    for (const auto& [placeholder, number] : bindings) result = numbered(result, placeholder, number);
    return result;
  }

  [[nodiscard]] bool holds(const Presence& presence, const Bindings& bindings = {}) const {
    return std::all_of(presence.conditions.begin(), presence.conditions.end(), [&](const Condition& condition) {
      bool result = false;
      switch (condition.kind) {
        case Condition::Kind::never: break;
        case Condition::Kind::flag: result = config_.flag_or(condition.key, condition.if_absent); break;
        case Condition::Kind::outer_flag: result = whole_.flag_or(condition.key, condition.if_absent); break;
        case Condition::Kind::first:
          result = std::any_of(bindings.begin(), bindings.end(), [&](const auto& binding) { return binding.first == condition.key && binding.second == 0; });
          break;
        case Condition::Kind::set: result = is_set(condition.key); break;
        case Condition::Kind::in_file: result = has(spelled(condition.key, bindings)); break;
      }
      return result != condition.negated;
    });
  }

  [[nodiscard]] bool is_set(const std::string& key) const {
    const std::size_t dot = key.find('.');
    const std::optional<Config> section = dot == std::string::npos ? config_ : config_.section(key.substr(0, dot));
    const std::string name = key.substr(dot == std::string::npos ? 0 : dot + 1);
    if (!section || !section->has(name)) return false;
    const io::Json& value = section->json().at(name);
    return value != false && value != 0;
  }

  [[nodiscard]] const Repeat& repeat_of(std::string_view placeholder) const {
    for (const Repeat& repeat : repeats_) {
      if (repeat.placeholder == placeholder) return repeat;
    }
    rmsfold::detail::raise<InvariantError>("family {}: nothing says what {} counts", family_.model_type, placeholder);
  }

  [[nodiscard]] Index count_of(const Repeat& repeat) const {
    for (const std::string& key : repeat.keys) {
      if (!config_.has(key)) continue;
      const bool is_zero = config_.json().at(key).is_number_integer() && config_.json().at(key) == 0;
      return is_zero ? 0 : config_.positive(key);
    }
    return repeat.if_absent ? *repeat.if_absent : config_.positive(repeat.keys.front());
  }

  /// The first placeholder of a name that no number is bound to.
  [[nodiscard]] static std::string_view open_placeholder(const std::string& name, const Bindings& bindings) {
    for (std::size_t at = name.find('{'); at != std::string::npos; at = name.find('{', at + 1)) {
      const std::string_view placeholder = std::string_view(name).substr(at, name.find('}', at) + 1 - at);
      const bool is_bound = std::any_of(bindings.begin(), bindings.end(), [&](const auto& binding) { return binding.first == placeholder; });
      if (!is_bound && placeholder != "{root}" && placeholder != "{head}" && placeholder != "{outer}") return placeholder;
    }
    return {};
  }

  [[nodiscard]] bool is_decided(const Row& row, const Bindings& bindings) const {
    return std::all_of(row.present.conditions.begin(), row.present.conditions.end(),
                       [&](const Condition& c) {
                         const bool has_numbers = c.kind == Condition::Kind::in_file || c.kind == Condition::Kind::first;
                         return !has_numbers || open_placeholder(c.key, bindings).empty();
                       });
  }

  void expand(std::vector<const Row*> rows, const Bindings& bindings) {
    std::erase_if(rows, [&](const Row* row) { return is_decided(*row, bindings) && !holds(row->present, bindings); });
    for (auto row = rows.begin(); row != rows.end();) {
      const std::string_view placeholder = open_placeholder((*row)->module, bindings);
      if (placeholder.empty()) {
        add(**row, bindings);
        ++row;
        continue;
      }
      const auto last = std::find_if(row, rows.end(), [&](const Row* other) { return other->module.find(placeholder) == std::string::npos; });
      const Repeat& repeat = repeat_of(placeholder);
      const Index first = repeat.after.empty() ? 0 : count_of(repeat_of(repeat.after));
      const Index count = count_of(repeat);
      if (count > count_limit) rmsfold::detail::raise<FormatError>("{}: {} of what \"{}\" counts; at most {} are accepted", config_.file(), count, first_key(config_, repeat.keys).value_or(repeat.keys.front()), count_limit);
      for (Index number = first; number < first + count; ++number) {
        Bindings bound = bindings;
        bound.emplace_back(placeholder, number);
        expand({row, last}, bound);
      }
      row = last;
    }
  }

  [[nodiscard]] Index width_of(Width width) const {
    const Dimensions& size = graph_.size;
    switch (width) {
      case Width::stored: return 0;
      case Width::vocabulary: return size.vocabulary;
      case Width::hidden: return size.hidden;
      case Width::query_heads: return size.heads * size.head_dim;
      case Width::kv_heads: return size.kv_heads * size.head_dim;
      case Width::intermediate: return size.intermediate;
      case Width::head: return size.head_dim;
    }
    rmsfold::detail::raise<InvariantError>("not a width: {}", static_cast<int>(width));
  }

  [[nodiscard]] static std::string at_draft(std::string text) {
    const std::size_t at = text.find("{i}");
    return at == std::string::npos ? text : text.replace(at, 3, "{m}");
  }

  std::size_t signal(const std::string& pattern, const Bindings& bindings) {
    std::string name = spelled(pattern, bindings);
    const auto known = signal_index_.find(name);
    if (known != signal_index_.end()) return known->second;
    Signal made{name, "", 0, false};
    for (const std::vector<SignalRow>* list : {&family_.signals, &family::standard_signals}) {
      // A block that drafts has the signals of a layer, under its own number.
      const auto row = std::find_if(list->begin(), list->end(), [&](const SignalRow& r) { return r.name == pattern || at_draft(r.name) == pattern; });
      if (row == list->end()) continue;
      made.width = width_of(row->width);
      made.space = spelled(row->name == pattern ? row->space : at_draft(row->space), bindings);
      if (name != made.space) break;
      if (row->width == Width::kv_heads) {
        graph_.values.push_back({made.space, bindings.front().second});
      } else {
        made.is_stream = true;
      }
      break;
    }
    graph_.signals.push_back(std::move(made));
    return signal_index_[std::move(name)] = graph_.signals.size() - 1;
  }

  /// @param widths  for each axis, the one signal whose width it is, if any: the file decides about those that nothing else has decided.
  std::size_t param(std::string name, Shape shape, std::vector<std::string> axes, const std::vector<std::optional<std::size_t>>& widths) {
    const Shape* stored = find_ ? find_(name) : nullptr;
    if (find_ && stored == nullptr && ++missing_ > missing_limit) {
      rmsfold::detail::raise<FormatError>("{}: more than {} tensors that a model with this config has are missing, {} among them: an incomplete download, or another config",
                                          config_.file(), missing_limit, name);
    }
    for (std::size_t axis = 0; stored != nullptr && stored->size() == shape.size() && axis < shape.size(); ++axis) {
      if (shape[axis] != 0 || !widths[axis]) continue;
      shape[axis] = (*stored)[axis];
      if (shape[axis] < (std::uint64_t{1} << 40)) graph_.signals[*widths[axis]].width = static_cast<Index>(shape[axis]);
    }
    graph_.params.push_back({std::move(name), std::move(shape), std::move(axes), {}});
    return graph_.params.size() - 1;
  }

  [[nodiscard]] std::uint64_t width_of(const std::vector<std::size_t>& signals) const {
    Index sum = 0;
    for (const std::size_t s : signals) {
      if (graph_.signals[s].width == 0) return 0;
      sum += graph_.signals[s].width;
    }
    return static_cast<std::uint64_t>(sum);
  }
  [[nodiscard]] static std::optional<std::size_t> only(const std::vector<std::size_t>& signals) {
    return signals.size() == 1 ? std::optional(signals.front()) : std::nullopt;
  }
  /// The space of all of them, if it is one.
  [[nodiscard]] std::string space_of(const std::vector<std::size_t>& signals) const {
    const std::string& space = graph_.signals[signals.front()].space;
    const bool same = std::all_of(signals.begin(), signals.end(), [&](std::size_t s) { return graph_.signals[s].space == space; });
    return same ? space : "";
  }

  void add(const Row& row, const Bindings& bindings) {
    const std::string module = spelled(row.module, bindings);
    if (row.mtp && options_.drop_mtp) {
      if (row.op == Op::embedding || row.op == Op::norm || row.op == Op::linear) {
        graph_.dropped.push_back(module + row.weight);
        graph_.dropped.push_back(module + row.bias_name);
      }
      return;
    }
    Node node;
    node.row = &row;
    node.op = row.op;
    node.module = module;
    node.layer = bindings.empty() ? -1 : bindings.front().second;
    for (const std::string& read : row.reads) node.reads.push_back(signal(read, bindings));
    for (const std::string& write : row.writes) node.writes.push_back(signal(write, bindings));
    const bool has_bias = holds(row.bias, bindings);
    switch (row.op) {
      case Op::embedding: add_embedding(node); break;
      case Op::norm: add_norm(node, has_bias); break;
      case Op::linear: add_linear(node, has_bias); break;
      case Op::attention:
      case Op::gated_activation:
      case Op::activation:
      case Op::opaque: break;
    }
    graph_.nodes.push_back(std::move(node));
  }

  /// `[rows, width]`, or any other shape that ends in the width: a class token, a table of positions.
  void add_embedding(Node& node) {
    const std::string name = node.module + node.row->weight;
    const Shape* stored = find_ ? find_(name) : nullptr;
    const std::size_t rank = stored != nullptr && !stored->empty() && stored->size() <= 4 ? stored->size() : 2;
    Shape shape(rank, 0);
    std::vector<std::string> axes(rank);
    std::vector<std::optional<std::size_t>> widths(rank);
    shape.back() = width_of(node.writes);
    axes.back() = space_of(node.writes);
    widths.back() = only(node.writes);
    if (rank == 2) {
      shape.front() = width_of(node.reads);
      widths.front() = only(node.reads);
    }
    node.out_axis = rank - 1;
    node.weight = param(name, std::move(shape), std::move(axes), widths);
  }

  void add_norm(Node& node, bool has_bias) {
    const Signal& in = graph_.signals[node.reads.front()];
    const bool is_whole = node.row->span != Width::head && node.row->span != Width::stored;
    const std::uint64_t length = is_whole ? static_cast<std::uint64_t>(in.width) : static_cast<std::uint64_t>(width_of(node.row->span));
    const std::string space = is_whole ? in.space : "";
    const std::optional<std::size_t> width = is_whole ? std::optional(node.reads.front()) : std::nullopt;
    const Shape* stored = find_ && node.row->span == Width::stored ? find_(node.module + node.row->weight) : nullptr;
    if (stored != nullptr && stored->size() == 2) {  // one gain per head
      node.weight = param(node.module + node.row->weight, {0, 0}, {"", ""}, {std::nullopt, std::nullopt});
    } else if (node.row->has_weight) {
      node.weight = param(node.module + node.row->weight, {length}, {space}, {width});
    }
    if (has_bias) node.bias = param(node.module + node.row->bias_name, {length}, {space}, {width});
    for (const std::size_t written : node.writes) {
      Signal& out = graph_.signals[written];
      if (out.width == 0) out.width = graph_.signals[node.reads.front()].width;
    }
  }

  void add_linear(Node& node, bool has_bias) {
    const Row& row = *node.row;
    const std::uint64_t in = width_of(node.reads);
    const std::uint64_t out = width_of(node.writes);
    const std::string in_space = space_of(node.reads);
    const std::string out_space = row.fused == Fused::no ? space_of(node.writes) : graph_.signals[node.writes.back()].space;
    const auto in_width = only(node.reads), out_width = only(node.writes);
    const std::string name = node.module + row.weight;
    const bool is_stacked = row.layout == Layout::stacked_out_in || row.layout == Layout::stacked_in_out;
    switch (row.layout) {
      case Layout::out_in:
        node.in_axis = 1;
        node.weight = param(name, {out, in}, {out_space, in_space}, {out_width, in_width});
        break;
      case Layout::in_out:
        node.in_axis = 0;
        node.out_axis = 1;
        node.weight = param(name, {in, out}, {in_space, out_space}, {in_width, out_width});
        break;
      case Layout::stacked_out_in:
        node.in_axis = 2;
        node.out_axis = 1;
        node.weight = param(name, {0, out, in}, {"", out_space, in_space}, {std::nullopt, out_width, in_width});
        break;
      case Layout::stacked_in_out:
        node.in_axis = 1;
        node.out_axis = 2;
        node.weight = param(name, {0, in, out}, {"", in_space, out_space}, {std::nullopt, in_width, out_width});
        break;
      case Layout::convolution: {
        const Shape* stored = find_ ? find_(name) : nullptr;
        const std::size_t rank = stored != nullptr && stored->size() >= 2 && stored->size() <= 5 ? stored->size() : 4;
        Shape shape(rank, 0);
        std::vector<std::string> axes(rank);
        std::vector<std::optional<std::size_t>> widths(rank);
        shape.front() = out;
        axes.front() = out_space;
        widths.front() = out_width;
        node.weight = param(name, std::move(shape), std::move(axes), widths);
        break;
      }
    }
    if (has_bias) {
      const std::uint64_t width = width_of(node.writes);
      node.bias = is_stacked ? param(node.module + row.bias_name, {0, width}, {"", out_space}, {std::nullopt, out_width})
                             : param(node.module + row.bias_name, {width}, {out_space}, {out_width});
    }
    if (row.fused == Fused::no) return;
    const Dimensions& size = graph_.size;
    std::vector<Index> blocks;
    if (row.fused == Fused::concatenated) {
      blocks.assign(static_cast<std::size_t>(size.heads + size.kv_heads), -1);
      for (Index head = 0; head < size.kv_heads; ++head) blocks.push_back(head);
    } else {
      for (Index head = 0; head < size.kv_heads; ++head) {
        blocks.insert(blocks.end(), static_cast<std::size_t>(size.group() + 1), -1);
        blocks.push_back(head);
      }
    }
    graph_.params[*node.weight].value_blocks = blocks;
    if (node.bias) graph_.params[*node.bias].value_blocks = std::move(blocks);
  }

  const Family& family_;
  const Config& whole_;
  const Config& config_;
  const FindShape& find_;
  GraphOptions options_;
  Graph graph_;
  std::vector<Repeat> repeats_;
  std::unordered_map<std::string, std::size_t> signal_index_;
  std::size_t missing_ = 0;
};

[[nodiscard]] inline std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

}  // namespace detail

/// Keys of config.json that count a family's blocks that draft further tokens.
[[nodiscard]] inline std::vector<std::string> mtp_count_keys(const Family& family) {
  std::vector<std::string> keys;
  for (const Repeat& repeat : family.repeats) {
    const auto belongs = [&](const Row& row) { return row.mtp && row.module.find(repeat.placeholder) != std::string::npos; };
    const bool counts_others = std::any_of(family.rows.begin(), family.rows.end(), [&](const Row& row) { return !row.mtp && row.module.find(repeat.placeholder) != std::string::npos; });
    if (!counts_others && std::any_of(family.rows.begin(), family.rows.end(), belongs)) keys.insert(keys.end(), repeat.keys.begin(), repeat.keys.end());
  }
  return keys;
}

/// The family that a config names.
/// @throws FormatError without a model_type; RefusedError naming what there is: an unknown model is never treated as a known one.
[[nodiscard]] inline const Family& family_of(const Config& config) {
  if (!config.has("model_type")) rmsfold::detail::raise<FormatError>("{}: key \"model_type\" is missing, so the family is unknown", config.file());
  const std::string type = config.text_or("model_type", "");
  std::vector<std::string> known, classes, texts;
  const bool names_classes = config.has("architectures");
  const io::Json named = names_classes ? config.json().at("architectures") : io::Json();
  for (const Family& family : families()) {
    known.push_back(family.model_type);
    if (family.model_type != type) continue;
    if (!family.text_type.empty()) {
      const std::optional<Config> section = config.section(family.section);
      const std::string text = section ? section->text_or("model_type", "") : "";
      if (!text.empty() && text != family.text_type) {
        texts.push_back(family.text_type);
        continue;
      }
    }
    classes.insert(classes.end(), family.architectures.begin(), family.architectures.end());
    const bool is_described = named.is_array() && named.size() == 1 &&
                              std::any_of(family.architectures.begin(), family.architectures.end(), [&](const std::string& name) { return named[0] == name; });
    if (!names_classes || is_described) return family;
  }
  for (const auto& [name, reason] : refused_families()) {
    if (name == type) rmsfold::detail::raise<RefusedError>("{}: {} models are not handled: {}; nothing was changed", config.file(), type, reason);
  }
  if (classes.empty() && !texts.empty()) {
    rmsfold::detail::raise<RefusedError>("{}: of {} models this version handles those around {} only; nothing was changed", config.file(), type, detail::joined(texts));
  }
  if (classes.empty()) {
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    rmsfold::detail::raise<RefusedError>("{}: model_type \"{}\" is not a family this version knows (it knows {}); nothing was changed", config.file(), type,
                                         detail::joined(known));
  }
  rmsfold::detail::raise<RefusedError>("{}: architectures is {}; of the {} family this version handles {} only, since other heads are other readers",
                                       config.file(), named.dump(), type, detail::joined(classes));
}

/// The graph of a family for a config. @param find  the stored tensors; none: nothing is in any file. @throws as `build_graph`.
[[nodiscard]] inline Graph build_graph(const Family& family, const Config& config, const FindShape& find = {}, const GraphOptions& options = {}) {
  if (family.section.empty()) return detail::Expansion(family, config, config, find, options).run();
  const std::optional<Config> section = config.section(family.section);
  if (!section) rmsfold::detail::raise<FormatError>("{}: key \"{}\" is missing", config.file(), family.section);
  io::Json described = section->json();
  for (const auto& [key, value] : family.defaults) {
    if (!section->has(key)) described[key] = value;
  }
  return detail::Expansion(family, config, Config(std::move(described), section->file()), find, options).run();
}

/// The graph of a config. @throws FormatError when a key is missing or absurd; RefusedError when the family, or something the config asks for, is not handled.
[[nodiscard]] inline Graph build_graph(const Config& config, const FindShape& find = {}, const GraphOptions& options = {}) {
  const Family& family = family_of(config);
  if (const std::optional<Config> quantised = config.section("quantization_config")) {
    const std::string method = quantised->text_or("quant_method", "unknown");
    if (method != "fp8" && method != "mxfp4") {
      rmsfold::detail::raise<RefusedError>("{}: \"quantization_config\" says that the weights are quantised ({}); stored codes cannot be folded or rotated exactly: "
                                           "de-quantise the model first", config.file(), method);
    }
    if (!options.dequantize) {
      rmsfold::detail::raise<RefusedError>("{}: \"quantization_config\" says that the weights are quantised ({}); stored codes cannot be folded or rotated exactly: "
                                           "--dequantize bf16 or f32 does it, in the same step", config.file(), method);
    }
    const bool is_known_block = !quantised->has("weight_block_size") || quantised->json().at("weight_block_size") == io::Json({128, 128});
    if (!is_known_block) {
      rmsfold::detail::raise<RefusedError>("{}: \"weight_block_size\" is {}; this version knows blocks of 128 x 128", config.file(),
                                           quantised->json().at("weight_block_size").dump());
    }
  }
  return build_graph(family, config, find, options);
}

}  // namespace rmsfold::model
