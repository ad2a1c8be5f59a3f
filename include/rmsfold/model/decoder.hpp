// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The reference forward pass: it runs a family's own rows, in double, one layer in memory.

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <rmsfold/core/parallel.hpp>
#include <rmsfold/model/model.hpp>

namespace rmsfold::model {

/// Rotary position embedding, as config.json describes it.
struct Rotary {
  /// How the frequencies are scaled.
  enum class Kind { plain, linear, llama3, yarn, longrope };
  Kind kind = Kind::plain;         ///< scaling
  double theta = 10000;            ///< base of the frequencies
  double factor = 1;               ///< linear, llama3, yarn: longest wavelengths are stretched by it
  double low_frequency = 1;        ///< llama3: `low_freq_factor`; yarn: `beta_slow`
  double high_frequency = 4;       ///< llama3: `high_freq_factor`; yarn: `beta_fast`
  double original_context = 8192;  ///< all but plain and linear: `original_max_position_embeddings`
  bool truncates = true;           ///< yarn: whether the range of scaled channels ends at whole numbers
  std::vector<double> short_factors;  ///< longrope: of each wavelength, in sequences up to the original context and in longer ones
  std::vector<double> long_factors;  ///< longrope: of each wavelength, in sequences up to the original context and in longer ones
  double magnitude = 1;            ///< cosines and sines are multiplied by it
  double query_growth = 0;         ///< beta of `Arithmetic::queries_grow`
  Index dim = 0;                   ///< channels of a head that rotate, an even number; the others pass
};

namespace detail {

/// By what yarn multiplies queries and keys.
[[nodiscard]] inline double yarn_magnitude(const Config& scaling, double factor) {
  if (scaling.has("attention_factor")) return scaling.number("attention_factor");
  const auto magnitude = [&](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1; };
  const double mscale = scaling.number_or("mscale", 0), all = scaling.number_or("mscale_all_dim", 0);
  return mscale != 0 && all != 0 ? magnitude(mscale) / magnitude(all) : magnitude(1);
}

[[nodiscard]] inline std::vector<double> numbers(const Config& config, const std::string& key, std::size_t count) {
  std::vector<double> values;
  if (config.has(key) && config.json().at(key).is_array()) {
    for (const io::Json& value : config.json().at(key)) values.push_back(value.is_number() ? value.get<double>() : std::numeric_limits<double>::quiet_NaN());
  }
  if (values.size() != count || !std::all_of(values.begin(), values.end(), [](double v) { return is_finite(v) && v > 0; })) {
    rmsfold::detail::raise<FormatError>("{}: \"{}\" must be {} positive numbers", config.file(), key, count);
  }
  return values;
}

}  // namespace detail

/// Reads both spellings: `rope_parameters`, or `rope_theta` with `rope_scaling`. @throws RefusedError for a kind the reference forward does not have.
[[nodiscard]] inline Rotary read_rotary(const Config& config, Index head_dim, const Arithmetic& arithmetic = {}) {
  const std::optional<Config> modern = config.section("rope_parameters");
  const std::optional<Config> scaling = modern ? modern : config.section("rope_scaling");
  if (!scaling && arithmetic.rotary_must_be_stated) {
    rmsfold::detail::raise<RefusedError>("{}: without \"rope_parameters\" or \"rope_scaling\" the rotary embedding depends on the version of the runtime",
                                         config.file());
  }
  Rotary rotary;
  rotary.theta = modern && modern->has("rope_theta") ? modern->number("rope_theta") : config.number_or("rope_theta", arithmetic.theta);
  double partial = config.number_or("partial_rotary_factor", arithmetic.rotated_part);
  if (scaling) partial = scaling->number_or("partial_rotary_factor", partial);
  rotary.dim = static_cast<Index>(static_cast<double>(head_dim) * partial);
  if (rotary.dim < 2 || rotary.dim > head_dim || rotary.dim % 2 != 0) {
    rmsfold::detail::raise<RefusedError>("{}: {} of {} channels of a head cannot rotate in pairs", config.file(), rotary.dim, head_dim);
  }
  if (!scaling) return rotary;
  const std::string kind = scaling->text_or("rope_type", scaling->text_or("type", "default"));
  const auto original_context = [&] {
    const std::string key = "original_max_position_embeddings";
    return config.has(key) ? config.number(key) : scaling->has(key) ? scaling->number(key) : config.number("max_position_embeddings");
  };
  if (kind == "linear") {
    rotary.kind = Rotary::Kind::linear;
    rotary.factor = scaling->number("factor");
  } else if (kind == "llama3") {
    rotary.kind = Rotary::Kind::llama3;
    rotary.factor = scaling->number("factor");
    rotary.low_frequency = scaling->number("low_freq_factor");
    rotary.high_frequency = scaling->number("high_freq_factor");
    rotary.original_context = scaling->number("original_max_position_embeddings");
  } else if (kind == "yarn") {
    rotary.kind = Rotary::Kind::yarn;
    rotary.original_context = original_context();
    rotary.factor = scaling->has("factor") ? scaling->number("factor") : config.number("max_position_embeddings") / rotary.original_context;
    rotary.low_frequency = scaling->number_or("beta_slow", 1);
    rotary.high_frequency = scaling->number_or("beta_fast", 32);
    rotary.truncates = scaling->flag_or("truncate", true);
    rotary.magnitude = detail::yarn_magnitude(*scaling, rotary.factor);
  } else if (kind == "longrope") {
    rotary.kind = Rotary::Kind::longrope;
    rotary.original_context = original_context();
    const std::size_t pairs = static_cast<std::size_t>(rotary.dim / 2);
    rotary.short_factors = detail::numbers(*scaling, "short_factor", pairs);
    rotary.long_factors = detail::numbers(*scaling, "long_factor", pairs);
    const double factor = scaling->has("factor") ? scaling->number("factor") : config.number("max_position_embeddings") / rotary.original_context;
    const double grown = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(rotary.original_context));
    rotary.magnitude = scaling->number_or("attention_factor", grown);
  } else if (kind == "dynamic" && arithmetic.alpha_stretches_theta && scaling->has("alpha")) {
    if (rotary.dim > 2) rotary.theta *= std::pow(scaling->number("alpha"), static_cast<double>(rotary.dim) / static_cast<double>(rotary.dim - 2));
  } else if (kind != "default") {
    rmsfold::detail::raise<RefusedError>("{}: the reference forward has no \"{}\" rotary embedding (it has default, linear, llama3, yarn and longrope)",
                                         config.file(), kind);
  }
  if (arithmetic.queries_grow) {
    rotary.query_growth = scaling->number("llama_4_scaling_beta");
    rotary.original_context = scaling->number("original_max_position_embeddings");
  }
  return rotary;
}

namespace detail {

/// Which frequencies yarn leaves alone, from 1 (those) to 0 (those that it divides), with T's roundings.
template <Real T>
[[nodiscard]] std::vector<T> yarn_kept(const Rotary& rotary) {
  const double dim = static_cast<double>(rotary.dim);
  const auto channel = [&](double rotations) {
    return dim * std::log(rotary.original_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rotary.theta));
  };
  double low = channel(rotary.high_frequency), high = channel(rotary.low_frequency);
  if (rotary.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = (std::max)(low, 0.0);
  high = (std::min)(high, dim - 1);
  if (low == high) high += 0.001;
  std::vector<T> kept(static_cast<std::size_t>(rotary.dim / 2));
  for (std::size_t p = 0; p < kept.size(); ++p) {
    kept[p] = 1 - std::clamp((static_cast<T>(p) - static_cast<T>(low)) / static_cast<T>(high - low), T{0}, T{1});
  }
  return kept;
}

/// Cosine and sine of every pair's angle, `positions x dim/2`, with T's roundings: stock runtimes make these tables in float.
template <Real T>
[[nodiscard]] std::pair<Matrix<double>, Matrix<double>> rotary_tables(const Rotary& rotary, Index positions) {
  const Index pairs = rotary.dim / 2;
  const std::vector<T> kept = rotary.kind == Rotary::Kind::yarn ? yarn_kept<T>(rotary) : std::vector<T>{};
  const std::vector<double>& stretched = static_cast<double>(positions) > rotary.original_context ? rotary.long_factors : rotary.short_factors;
  std::vector<T> frequency(static_cast<std::size_t>(pairs));
  for (Index p = 0; p < pairs; ++p) {
    const T power = std::pow(static_cast<T>(rotary.theta), static_cast<T>(2 * p) / static_cast<T>(rotary.dim));
    T f = T{1} / power;
    const T factor = static_cast<T>(rotary.factor);
    switch (rotary.kind) {
      case Rotary::Kind::plain: break;
      case Rotary::Kind::linear: f /= factor; break;
      case Rotary::Kind::llama3: {
        const T wavelength = 2 * std::numbers::pi_v<T> / f;
        const T context = static_cast<T>(rotary.original_context);
        const T low = static_cast<T>(rotary.low_frequency);
        const T high = static_cast<T>(rotary.high_frequency);
        if (wavelength > context / low) {
          f /= factor;
        } else if (!(wavelength < context / high)) {
          const T smooth = (context / wavelength - low) / (high - low);
          f = (1 - smooth) * f / factor + smooth * f;
        }
        break;
      }
      case Rotary::Kind::yarn: {
        const T part = kept[static_cast<std::size_t>(p)];
        f = T{1} / (factor * power) * (1 - part) + f * part;
        break;
      }
      case Rotary::Kind::longrope: f = T{1} / (static_cast<T>(stretched[static_cast<std::size_t>(p)]) * power); break;
    }
    frequency[static_cast<std::size_t>(p)] = f;
  }
  const T magnitude = static_cast<T>(rotary.magnitude);
  Matrix<double> cosine(positions, pairs), sine(positions, pairs);
  for (Index t = 0; t < positions; ++t) {
    for (Index p = 0; p < pairs; ++p) {
      const T angle = static_cast<T>(t) * frequency[static_cast<std::size_t>(p)];
      cosine(t, p) = static_cast<double>(std::cos(angle) * magnitude);
      sine(t, p) = static_cast<double>(std::sin(angle) * magnitude);
    }
  }
  return {std::move(cosine), std::move(sine)};
}

/// Activations of an MLP.
enum class Activation { silu, gelu, gelu_tanh, relu, squared_relu, xielu };

/// The activation that a config names. @throws RefusedError for one the reference forward does not have.
[[nodiscard]] inline Activation read_activation(const Config& config, const Arithmetic& arithmetic) {
  const std::string name = config.text_or("hidden_act", arithmetic.activation);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || (name == "gelu" && arithmetic.gelu_is_tanh)) return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  if (name == "relu2") return Activation::squared_relu;
  if (name == "xielu") return Activation::xielu;
  rmsfold::detail::raise<RefusedError>("{}: the reference forward has no activation \"{}\" (it has silu, gelu, gelu_pytorch_tanh, relu, relu2 and xielu)", config.file(),
                                       name);
}

}  // namespace detail

/// How to run a forward pass.
struct ForwardOptions {
  bool float_tables = true;  ///< rotary tables in float, as stock runtimes make them; else in double
  unsigned threads = 0;      ///< see `thread_count`
  /// Called with every norm of the residual stream and its input, before the norm.
  std::function<void(const Node& norm, const Matrix<double>& input)> on_norm_input;
  /// May change weights after they are read: param, first row, rows (a vector is one row). Called concurrently for different rows.
  std::function<void(const std::string& param, Index first_row, Matrix<double>& rows)> edit;
};

/// A causal decoder in double, interpreted from the family's rows.
class Decoder {
 public:
  /// @throws RefusedError when the config asks for something the reference forward does not have.
  explicit Decoder(const Model& model)
      : model_(model), rotary_(rotary_of(model)), activation_(detail::read_activation(model.config(), model.graph().family->arithmetic)) {
    const Config& config = model.config();
    if (config.flag_or("use_bidirectional_attention", false)) {
      rmsfold::detail::raise<RefusedError>("{}: the reference forward has causal attention only, but \"use_bidirectional_attention\" is true", config.file());
    }
    const Arithmetic& arithmetic = model.graph().family->arithmetic;
    const auto factor = [&](const std::string& key) { return key.empty() ? 1.0 : config.number_or(key, 1); };
    embedding_factor_ = factor(arithmetic.embedding_factor);
    branch_factor_ = factor(arithmetic.branch_factor);
    logit_divisor_ = factor(arithmetic.logit_divisor);
    score_factor_ = arithmetic.score_factor.empty() ? 1 / std::sqrt(static_cast<double>(model.graph().size.head_dim)) : factor(arithmetic.score_factor);
    if (arithmetic.embedding_times_root) {
      embedding_factor_ *= visit_dtype(model.dtype(model.embedding_tensor()), [&](auto scalar) {
        return static_cast<double>(widen(round_to<decltype(scalar)>(std::sqrt(static_cast<double>(model.graph().size.hidden)))));
      });
    }
    read_rotating_layers();
  }

  /// Logits of a sequence, `tokens x vocabulary`.
  /// @throws FormatError for a token outside the vocabulary; RefusedError when a sliding window is shorter than the sequence; IoError.
  /// @par Cost  2 · parameters · tokens operations, plus attention; memory for one layer's activations and `threads` blocks of 256 weight rows.
  [[nodiscard]] Matrix<double> logits(std::span<const Index> tokens, const ForwardOptions& options = {}) const {
    check(tokens);
    const Index count = static_cast<Index>(tokens.size());
    const auto tables = options.float_tables ? detail::rotary_tables<float>(rotary_, count) : detail::rotary_tables<double>(rotary_, count);
    const Graph& graph = model_.graph();
    std::map<std::size_t, Matrix<double>> signals;
    Index layer = -1;
    for (const Node& node : graph.nodes) {
      if (node.layer != layer) {
        layer = node.layer;
        std::erase_if(signals, [&](const auto& entry) { return graph.signals[entry.first].name != residual; });
      }
      Matrix<double> result = evaluate(node, tokens, signals, tables, options);
      if (node.writes.size() > 1) {  // one beside the other
        Index start = 0;
        for (const std::size_t write : node.writes) {
          signals[write] = result.middleCols(start, graph.signals[write].width);
          start += graph.signals[write].width;
        }
        continue;
      }
      Matrix<double>& target = signals[node.writes.front()];
      if (graph.writes_stream(node) && target.size() > 0) {
        target += branch_factor_ * result;
      } else {
        target = std::move(result);
      }
    }
    Matrix<double> result = std::move(signals.at(graph.nodes.back().writes.front()));
    if (logit_divisor_ != 1) result /= logit_divisor_;
    return result;
  }

 private:
  [[nodiscard]] static Rotary rotary_of(const Model& model) {
    if (!model.graph().family->has_forward) {
      rmsfold::detail::raise<RefusedError>("{}: there is no reference forward for the {} family", model.config().file(), model.graph().family->model_type);
    }
    return read_rotary(model.config(), model.graph().size.head_dim, model.graph().family->arithmetic);
  }

  void read_rotating_layers() {
    const Config& config = model_.config();
    const Arithmetic& arithmetic = model_.graph().family->arithmetic;
    rotates_.assign(static_cast<std::size_t>(model_.graph().size.layers), true);
    if (arithmetic.rotary_layers.empty()) return;
    if (config.has(arithmetic.rotary_layers)) {
      const io::Json& list = config.json().at(arithmetic.rotary_layers);
      for (std::size_t i = 0; i < rotates_.size(); ++i) {
        if (!list.is_array() || i >= list.size() || !list[i].is_number_integer()) {
          rmsfold::detail::raise<FormatError>("{}: \"{}\" must be a list of 0 and 1 for every layer", config.file(), arithmetic.rotary_layers);
        }
        rotates_[i] = list[i] != 0;
      }
      return;
    }
    const std::size_t interval = static_cast<std::size_t>(config.number_or(arithmetic.rotary_interval, arithmetic.rotary_interval_if_absent));
    for (std::size_t i = 0; i < rotates_.size(); ++i) rotates_[i] = interval == 0 || (i + 1) % interval != 0;
  }

  using Tables = std::pair<Matrix<double>, Matrix<double>>;

  void check(std::span<const Index> tokens) const {
    for (const Index token : tokens) {
      if (token < 0 || token >= model_.graph().size.vocabulary) {
        rmsfold::detail::raise<FormatError>("token {} is outside the vocabulary of {}", token, model_.graph().size.vocabulary);
      }
    }
    const Config& config = model_.config();
    if (config.has("sliding_window") && config.flag_or("use_sliding_window", true) && config.number("sliding_window") < static_cast<double>(tokens.size())) {
      rmsfold::detail::raise<RefusedError>("{}: the reference forward attends to all tokens, but the sliding window is {} and the sequence {}", config.file(),
                                           config.number("sliding_window"), tokens.size());
    }
  }

  [[nodiscard]] Matrix<double> evaluate(const Node& node, std::span<const Index> tokens, const std::map<std::size_t, Matrix<double>>& signals,
                                        const Tables& tables, const ForwardOptions& options) const {
    switch (node.op) {
      case Op::embedding: return embed(node, tokens, options);
      case Op::norm: {
        if (!rotates_at(node)) return normalise(node, signals.at(node.reads[0]), options);
        Matrix<double> turned = signals.at(node.reads[0]);
        rotate_positions(turned, tables);
        return normalise(node, turned, options);
      }
      case Op::linear: return multiply(node, signals.at(node.reads[0]), options);
      case Op::attention:
        return attend(signals.at(node.reads[0]), signals.at(node.reads[1]), signals.at(node.reads[2]), rotates_at(node) ? &tables : nullptr, options);
      case Op::gated_activation: {
        const Matrix<double>& gate = signals.at(node.reads[0]);
        if (node.reads.size() > 1) return activate(node, gate).cwiseProduct(signals.at(node.reads[1]));
        return activate(node, gate.leftCols(gate.cols() / 2)).cwiseProduct(gate.rightCols(gate.cols() / 2));  // gate and up, one beside the other
      }
      case Op::activation: return activate(node, signals.at(node.reads[0]));
      case Op::opaque: break;
    }
    rmsfold::detail::raise<InvariantError>("not an operation: {}", static_cast<int>(node.op));
  }

  /// Whether queries and keys are rotated in this node: in attention, or in the norms of heads.
  [[nodiscard]] bool rotates_at(const Node& node) const {
    const bool in_norms = model_.graph().family->arithmetic.rotates_before_norms;
    const bool is_place = node.op == Op::attention ? !in_norms : in_norms && node.row->span == Width::head;
    return is_place && rotates_[static_cast<std::size_t>(node.layer)];
  }

  /// A number that is stored beside the rows' tensors.
  [[nodiscard]] double stored_number(const std::string& tensor) const {
    const io::TensorPlace* place = model_.checkpoint().find(tensor);
    const std::optional<Dtype> dtype = place == nullptr ? std::nullopt : dtype_from_name(place->info->dtype);
    if (!dtype || place->info->bytes() != size_of(*dtype)) {
      rmsfold::detail::raise<RefusedError>("{}: the reference forward needs the number {}", model_.checkpoint().directory().string(), tensor);
    }
    double value = 0;
    load_as_double(*dtype, model_.checkpoint().read(tensor), {&value, 1});
    return value;
  }

  [[nodiscard]] Matrix<double> activate(const Node& node, const Matrix<double>& x) const {
    const auto a = x.array();
    switch (activation_) {
      case detail::Activation::silu: return (a / (1 + (-a).exp())).matrix();
      case detail::Activation::gelu: return x.unaryExpr([](double v) { return 0.5 * v * (1 + std::erf(v / std::numbers::sqrt2)); });
      case detail::Activation::gelu_tanh: {
        const double c = std::sqrt(2 / std::numbers::pi);
        return x.unaryExpr([c](double v) { return 0.5 * v * (1 + std::tanh(c * (v + 0.044715 * v * v * v))); });
      }
      case detail::Activation::relu: return x.cwiseMax(0.0);
      case detail::Activation::squared_relu: return x.cwiseMax(0.0).cwiseAbs2();
      case detail::Activation::xielu: break;
    }
    const auto softplus = [](double v) { return (std::max)(v, 0.0) + std::log1p(std::exp(-std::abs(v))); };
    const std::string at = node.module + ".act_fn.";
    const double beta = stored_number(at + "beta"), eps = stored_number(at + "eps");
    const double positive = softplus(stored_number(at + "alpha_p")), negative = beta + softplus(stored_number(at + "alpha_n"));
    return x.unaryExpr([=](double v) {
      return v > 0 ? positive * v * v + beta * v : (std::expm1((std::min)(v, eps)) - v) * negative + beta * v;
    });
  }

  [[nodiscard]] const std::string& weight_name(const Node& node) const { return model_.graph().params[*node.weight].name; }

  [[nodiscard]] Matrix<double> vector_of(const std::string& param, const ForwardOptions& options) const {
    Matrix<double> row = model_.read_vector(param);
    if (options.edit) options.edit(param, 0, row);
    return row;
  }

  [[nodiscard]] Matrix<double> embed(const Node& node, std::span<const Index> tokens, const ForwardOptions& options) const {
    Matrix<double> x(static_cast<Index>(tokens.size()), model_.graph().size.hidden);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      Matrix<double> row = model_.read_rows(weight_name(node), tokens[t], 1);
      if (options.edit) options.edit(weight_name(node), tokens[t], row);
      x.row(static_cast<Index>(t)) = embedding_factor_ * row;
    }
    return x;
  }

  [[nodiscard]] Matrix<double> normalise(const Node& node, const Matrix<double>& x, const ForwardOptions& options) const {
    Matrix<double> gain = vector_of(weight_name(node), options);
    if (node.row->gain != GainConvention::plain) {  // g = 1 + w, in float unless w is wider
      const bool is_wide = model_.dtype(weight_name(node)) == Dtype::f64;
      gain = gain.unaryExpr([is_wide](double w) { return is_wide ? 1 + w : static_cast<double>(static_cast<float>(1 + w)); });
    }
    if (options.on_norm_input && model_.graph().params[*node.weight].axes[0] == residual) options.on_norm_input(node, x);
    const Index width = gain.cols();
    Matrix<double> y(x.rows(), x.cols());
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index start = 0; start < x.cols(); start += width) {  // once, or once per head
        const auto part = x.row(t).segment(start, width);
        const double square = part.squaredNorm() / static_cast<double>(width) + model_.graph().size.eps;
        y.row(t).segment(start, width) = (part / std::sqrt(square)).cwiseProduct(gain.row(0));
      }
    }
    return y;
  }

  [[nodiscard]] Matrix<double> multiply(const Node& node, const Matrix<double>& x, const ForwardOptions& options) const {
    constexpr Index rows_at_once = 256;
    const Index out = static_cast<Index>(model_.graph().params[*node.weight].shape[0]);
    Matrix<double> y(x.rows(), out);
    parallel_for((out + rows_at_once - 1) / rows_at_once, options.threads, [&](Index block) {
      const Index start = block * rows_at_once;
      const Index rows = (std::min)(rows_at_once, out - start);
      Matrix<double> w = model_.read_rows(weight_name(node), start, rows);
      if (options.edit) options.edit(weight_name(node), start, w);
      y.middleCols(start, rows).noalias() = x * w.transpose();
    });
    if (node.bias) y.rowwise() += RowVector<double>(vector_of(model_.graph().params[*node.bias].name, options));
    return y;
  }

  /// Rotates the pairs (j, j + dim/2) of every head, or (2j, 2j + 1).
  void rotate_positions(Matrix<double>& x, const Tables& tables) const {
    const Index head_dim = model_.graph().size.head_dim;
    const Index half = rotary_.dim / 2;
    const bool neighbours = model_.graph().family->arithmetic.rotates_neighbours;
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index head = 0; head < x.cols(); head += head_dim) {
        for (Index j = 0; j < half; ++j) {
          double& first = x(t, head + (neighbours ? 2 * j : j));
          double& second = x(t, head + (neighbours ? 2 * j + 1 : j + half));
          const double a = first;
          const double b = second;
          const double c = tables.first(t, j);
          const double s = tables.second(t, j);
          first = a * c - b * s;
          second = b * c + a * s;
        }
      }
    }
  }

  [[nodiscard]] Matrix<double> attend(Matrix<double> query, Matrix<double> key, const Matrix<double>& value, const Tables* tables,
                                      const ForwardOptions& options) const {
    const Dimensions& size = model_.graph().size;
    if (tables != nullptr) {
      rotate_positions(query, *tables);
      rotate_positions(key, *tables);
    }
    if (rotary_.query_growth != 0) {
      for (Index t = 0; t < query.rows(); ++t) {
        query.row(t) *= 1 + rotary_.query_growth * std::log1p(std::floor(static_cast<double>(t) / rotary_.original_context));
      }
    }
    const double scale = score_factor_;
    Matrix<double> attended(query.rows(), query.cols());
    parallel_for(size.heads, options.threads, [&](Index head) {
      const Index from = head / size.group() * size.head_dim;
      Matrix<double> scores = query.middleCols(head * size.head_dim, size.head_dim) * key.middleCols(from, size.head_dim).transpose();
      for (Index t = 0; t < scores.rows(); ++t) {
        auto visible = scores.row(t).head(t + 1);
        visible = ((visible.array() - visible.maxCoeff()) * scale).exp().matrix();
        visible /= visible.sum();
        scores.row(t).tail(scores.cols() - t - 1).setZero();
      }
      attended.middleCols(head * size.head_dim, size.head_dim).noalias() = scores * value.middleCols(from, size.head_dim);
    });
    return attended;
  }

  const Model& model_;
  Rotary rotary_;
  detail::Activation activation_;
  double embedding_factor_ = 1, branch_factor_ = 1, score_factor_ = 1, logit_divisor_ = 1;
  std::vector<bool> rotates_;  ///< for each layer, whether it does
};

}  // namespace rmsfold::model
