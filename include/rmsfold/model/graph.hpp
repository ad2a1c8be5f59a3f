// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A family's rows written out for one config: signals, nodes and tensors whose axes are labelled with spaces.

#include <algorithm>
#include <optional>
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
  Index width = 0;    ///< length
};

/// A tensor the model must have.
struct Param {
  std::string name;               ///< in the checkpoint
  Shape shape;                    ///< as the config demands
  std::vector<std::string> axes;  ///< space of each axis; empty: no change of basis acts along it
};

/// One computation.
struct Node {
  Op op = Op::linear;                 ///< what it computes
  std::string module;                 ///< e.g. "model.layers.3.self_attn.q_proj"
  Index layer = -1;                   ///< -1 outside the layers
  std::vector<std::size_t> reads;     ///< signals
  std::size_t writes = 0;             ///< signal
  std::optional<std::size_t> weight;  ///< param
  std::optional<std::size_t> bias;    ///< param
};

/// Numbers of config.json that shapes and the forward pass need.
struct Dimensions {
  Index layers;        ///< number of decoder layers
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

/// A model as data.
struct Graph {
  const Family* family = nullptr;  ///< table it came from
  Dimensions size{};               ///< its dimensions
  std::vector<Signal> signals;     ///< all signals
  std::vector<Node> nodes;         ///< in the order of computation
  std::vector<Param> params;       ///< all tensors
  bool tied = false;               ///< whether config.json ties head and embedding

  /// Whether a node's output is a stream that others add to.
  [[nodiscard]] bool writes_stream(const Node& node) const { return signals[node.writes].name == residual; }
};

namespace detail {

/// `text` with every "{i}" replaced by the layer's number.
[[nodiscard]] inline std::string at_layer(std::string_view text, Index layer) {
  std::string result(text);
  for (std::size_t at = result.find("{i}"); at != std::string::npos; at = result.find("{i}")) {
    result.replace(at, 3, std::to_string(layer));
  }
  return result;
}

[[nodiscard]] inline bool is_layered(std::string_view text) { return text.find("{i}") != std::string_view::npos; }

[[nodiscard]] inline Dimensions read_dimensions(const Config& config) {
  Dimensions size{};
  size.layers = config.positive("num_hidden_layers");
  size.hidden = config.positive("hidden_size");
  size.intermediate = config.positive("intermediate_size");
  size.vocabulary = config.positive("vocab_size");
  size.heads = config.positive("num_attention_heads");
  size.kv_heads = config.positive_or("num_key_value_heads", size.heads);
  if (size.heads % size.kv_heads != 0) {
    rmsfold::detail::raise<FormatError>("{}: {} attention heads cannot share {} key/value heads evenly", config.file(), size.heads, size.kv_heads);
  }
  if (!config.has("head_dim") && size.hidden % size.heads != 0) {
    rmsfold::detail::raise<FormatError>("{}: no \"head_dim\", and hidden_size {} is no multiple of {} heads", config.file(), size.hidden, size.heads);
  }
  size.head_dim = config.positive_or("head_dim", size.hidden / size.heads);
  if (size.head_dim > (Index{1} << 40) / size.heads) {
    rmsfold::detail::raise<FormatError>("{}: {} heads of {} channels each are beyond all bounds", config.file(), size.heads, size.head_dim);
  }
  size.eps = config.number("rms_norm_eps");
  if (!(size.eps >= 0)) rmsfold::detail::raise<FormatError>("{}: \"rms_norm_eps\" = {} is negative", config.file(), size.eps);
  constexpr Index layer_limit = 100000;
  if (size.layers > layer_limit) {
    rmsfold::detail::raise<FormatError>("{}: {} layers; at most {} are accepted", config.file(), size.layers, layer_limit);
  }
  return size;
}

[[nodiscard]] inline Index width_of(Width width, const Dimensions& size) {
  switch (width) {
    case Width::vocabulary: return size.vocabulary;
    case Width::hidden: return size.hidden;
    case Width::query_heads: return size.heads * size.head_dim;
    case Width::kv_heads: return size.kv_heads * size.head_dim;
    case Width::intermediate: return size.intermediate;
    case Width::head: return size.head_dim;
  }
  rmsfold::detail::raise<InvariantError>("not a width: {}", static_cast<int>(width));
}

[[nodiscard]] inline bool has_option(const Family& family, Option option, const Config& config) {
  if (option == Option::always) return true;
  for (const OptionRow& row : family.options) {
    if (row.option != option) continue;
    switch (row.presence.when) {
      case Presence::When::never: return false;
      case Presence::When::always: return true;
      case Presence::When::if_flag: return config.flag_or(std::string(row.presence.flag), row.presence.if_absent);
    }
  }
  return false;
}

/// Writes rows out into a graph.
class Expansion {
 public:
  Expansion(const Family& family, const Config& config) : family_(family), config_(config) {
    graph_.family = &family;
    graph_.size = read_dimensions(config);
    const TieRow& tie = family.skeleton->tie;
    graph_.tied = config.flag_or(std::string(tie.flag), tie.if_absent);
  }

  [[nodiscard]] Graph run() {
    const std::vector<Row>& rows = family_.skeleton->rows;
    const auto layered = [](const Row& row) { return is_layered(row.module); };
    const auto first = std::find_if(rows.begin(), rows.end(), layered);
    const auto last = std::find_if_not(first, rows.end(), layered);
    std::for_each(rows.begin(), first, [&](const Row& row) { add(row, -1); });
    for (Index layer = 0; layer < graph_.size.layers; ++layer) {
      std::for_each(first, last, [&](const Row& row) { add(row, layer); });
    }
    std::for_each(last, rows.end(), [&](const Row& row) { add(row, -1); });
    return std::move(graph_);
  }

 private:
  std::size_t signal(std::string_view pattern, Index layer) {
    std::string name = at_layer(pattern, layer);
    const auto known = signal_index_.find(name);
    if (known != signal_index_.end()) return known->second;
    for (const SignalRow& row : family_.skeleton->signals) {
      if (row.name != pattern) continue;
      graph_.signals.push_back({name, at_layer(row.space, layer), width_of(row.width, graph_.size)});
      return signal_index_[std::move(name)] = graph_.signals.size() - 1;
    }
    rmsfold::detail::raise<InvariantError>("family {}: the skeleton has no signal {}", family_.model_type, pattern);
  }

  std::size_t param(std::string name, Shape shape, std::vector<std::string> axes) {
    graph_.params.push_back({std::move(name), std::move(shape), std::move(axes)});
    return graph_.params.size() - 1;
  }

  void add(const Row& row, Index layer) {
    if (!has_option(family_, row.present, config_)) return;
    Node node;
    node.op = row.op;
    node.module = at_layer(row.module, layer);
    node.layer = layer;
    for (const std::string_view read : row.reads) node.reads.push_back(signal(read, layer));
    node.writes = signal(row.writes, layer);
    const Signal& in = graph_.signals[node.reads.front()];
    const Signal& out = graph_.signals[node.writes];
    const auto extent = [](Index width) { return static_cast<std::uint64_t>(width); };
    switch (row.op) {
      case Op::embedding:
        node.weight = param(node.module + ".weight", {extent(in.width), extent(out.width)}, {"", out.space});
        break;
      case Op::norm:
        node.weight = row.span == Width::head ? param(node.module + ".weight", {extent(graph_.size.head_dim)}, {""})
                                              : param(node.module + ".weight", {extent(in.width)}, {in.space});
        break;
      case Op::linear:
        node.weight = param(node.module + ".weight", {extent(out.width), extent(in.width)}, {out.space, in.space});
        if (has_option(family_, row.bias, config_)) node.bias = param(node.module + ".bias", {extent(out.width)}, {out.space});
        break;
      case Op::attention:
      case Op::gated_activation: break;
    }
    graph_.nodes.push_back(std::move(node));
  }

  const Family& family_;
  const Config& config_;
  Graph graph_;
  std::unordered_map<std::string, std::size_t> signal_index_;
};

}  // namespace detail

/// The graph of a config. @throws FormatError when a key is missing or absurd; RefusedError when the family, or something the config asks for, is not handled.
[[nodiscard]] inline Graph build_graph(const Config& config) {
  if (!config.has("model_type")) {
    rmsfold::detail::raise<FormatError>("{}: key \"model_type\" is missing, so the family is unknown", config.file());
  }
  const Family& family = family_of(config.text_or("model_type", ""), config.file());
  if (config.has("architectures")) {
    const io::Json& classes = config.json().at("architectures");
    const bool is_known = classes.is_array() && classes.size() == 1 && classes[0] == family.architecture;
    if (!is_known) {
      rmsfold::detail::raise<RefusedError>("{}: architectures is {}; of the {} family this version handles {} only, since other heads are other readers",
                                           config.file(), classes.dump(), family.model_type, family.architecture);
    }
  }
  if (config.has("quantization_config")) {
    rmsfold::detail::raise<RefusedError>(
        "{}: \"quantization_config\" says that the weights are quantised; stored codes cannot be folded or rotated exactly: de-quantise the model first",
        config.file());
  }
  return detail::Expansion(family, config).run();
}

}  // namespace rmsfold::model
