// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The reference forward pass: it runs a family's own rows, in double, one layer in memory.

#include <cmath>
#include <functional>
#include <map>
#include <numbers>
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
  enum class Kind { plain, linear, llama3 };
  Kind kind = Kind::plain;         ///< scaling
  double theta = 10000;            ///< base of the frequencies
  double factor = 1;               ///< linear, llama3: longest wavelengths are stretched by it
  double low_frequency = 1;        ///< llama3: `low_freq_factor`
  double high_frequency = 4;       ///< llama3: `high_freq_factor`
  double original_context = 8192;  ///< llama3: `original_max_position_embeddings`
  Index dim = 0;                   ///< channels of a head that rotate, an even number; the others pass
};

/// Reads both spellings: `rope_parameters`, or `rope_theta` with `rope_scaling`. @throws RefusedError for a kind the reference forward does not have.
[[nodiscard]] inline Rotary read_rotary(const Config& config, Index head_dim) {
  const std::optional<Config> modern = config.section("rope_parameters");
  const std::optional<Config> scaling = modern ? modern : config.section("rope_scaling");
  Rotary rotary;
  rotary.theta = modern && modern->has("rope_theta") ? modern->number("rope_theta") : config.number_or("rope_theta", 10000);
  double partial = config.number_or("partial_rotary_factor", 1);
  if (scaling) {
    partial = scaling->number_or("partial_rotary_factor", partial);
    const std::string kind = scaling->text_or("rope_type", scaling->text_or("type", "default"));
    if (kind == "linear") {
      rotary.kind = Rotary::Kind::linear;
      rotary.factor = scaling->number("factor");
    } else if (kind == "llama3") {
      rotary.kind = Rotary::Kind::llama3;
      rotary.factor = scaling->number("factor");
      rotary.low_frequency = scaling->number("low_freq_factor");
      rotary.high_frequency = scaling->number("high_freq_factor");
      rotary.original_context = scaling->number("original_max_position_embeddings");
    } else if (kind != "default") {
      rmsfold::detail::raise<RefusedError>("{}: the reference forward has no \"{}\" rotary embedding (it has default, linear and llama3)", config.file(), kind);
    }
  }
  rotary.dim = static_cast<Index>(static_cast<double>(head_dim) * partial);
  if (rotary.dim < 2 || rotary.dim > head_dim || rotary.dim % 2 != 0) {
    rmsfold::detail::raise<RefusedError>("{}: {} of {} channels of a head cannot rotate in pairs", config.file(), rotary.dim, head_dim);
  }
  return rotary;
}

namespace detail {

/// Cosine and sine of every pair's angle, `positions x dim/2`, with T's roundings: stock runtimes make these tables in float.
template <Real T>
[[nodiscard]] std::pair<Matrix<double>, Matrix<double>> rotary_tables(const Rotary& rotary, Index positions) {
  const Index pairs = rotary.dim / 2;
  std::vector<T> frequency(static_cast<std::size_t>(pairs));
  for (Index p = 0; p < pairs; ++p) {
    T f = T{1} / std::pow(static_cast<T>(rotary.theta), static_cast<T>(2 * p) / static_cast<T>(rotary.dim));
    const T factor = static_cast<T>(rotary.factor);
    if (rotary.kind == Rotary::Kind::linear) f /= factor;
    if (rotary.kind == Rotary::Kind::llama3) {
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
    }
    frequency[static_cast<std::size_t>(p)] = f;
  }
  Matrix<double> cosine(positions, pairs), sine(positions, pairs);
  for (Index t = 0; t < positions; ++t) {
    for (Index p = 0; p < pairs; ++p) {
      const T angle = static_cast<T>(t) * frequency[static_cast<std::size_t>(p)];
      cosine(t, p) = static_cast<double>(std::cos(angle));
      sine(t, p) = static_cast<double>(std::sin(angle));
    }
  }
  return {std::move(cosine), std::move(sine)};
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
  explicit Decoder(const Model& model) : model_(model), rotary_(rotary_of(model)) {
    const std::string activation = model.config().text_or("hidden_act", "silu");
    if (activation != "silu") {
      rmsfold::detail::raise<RefusedError>("{}: the reference forward has no activation \"{}\" (it has silu)", model.config().file(), activation);
    }
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
      Matrix<double>& target = signals[node.writes.front()];
      if (graph.writes_stream(node) && target.size() > 0) {
        target += result;
      } else {
        target = std::move(result);
      }
    }
    return std::move(signals.at(graph.nodes.back().writes.front()));
  }

 private:
  [[nodiscard]] static Rotary rotary_of(const Model& model) {
    if (!model.graph().family->has_forward) {
      rmsfold::detail::raise<RefusedError>("{}: there is no reference forward for the {} family", model.config().file(), model.graph().family->model_type);
    }
    return read_rotary(model.config(), model.graph().size.head_dim);
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
      case Op::norm: return normalise(node, signals.at(node.reads[0]), options);
      case Op::linear: return multiply(node, signals.at(node.reads[0]), options);
      case Op::attention: return attend(signals.at(node.reads[0]), signals.at(node.reads[1]), signals.at(node.reads[2]), tables, options);
      case Op::gated_activation: {
        const Matrix<double>& gate = signals.at(node.reads[0]);
        return (gate.array() / (1 + (-gate.array()).exp()) * signals.at(node.reads[1]).array()).matrix();
      }
      case Op::activation:
      case Op::opaque: break;
    }
    rmsfold::detail::raise<InvariantError>("not an operation: {}", static_cast<int>(node.op));
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
      x.row(static_cast<Index>(t)) = row;
    }
    return x;
  }

  [[nodiscard]] Matrix<double> normalise(const Node& node, const Matrix<double>& x, const ForwardOptions& options) const {
    const Matrix<double> gain = vector_of(weight_name(node), options);
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

  /// Rotates the pairs (j, j + dim/2) of every head.
  void rotate_positions(Matrix<double>& x, const Tables& tables) const {
    const Index head_dim = model_.graph().size.head_dim;
    const Index half = rotary_.dim / 2;
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index head = 0; head < x.cols(); head += head_dim) {
        for (Index j = 0; j < half; ++j) {
          const double a = x(t, head + j);
          const double b = x(t, head + j + half);
          const double c = tables.first(t, j);
          const double s = tables.second(t, j);
          x(t, head + j) = a * c - b * s;
          x(t, head + j + half) = b * c + a * s;
        }
      }
    }
  }

  [[nodiscard]] Matrix<double> attend(Matrix<double> query, Matrix<double> key, const Matrix<double>& value, const Tables& tables,
                                      const ForwardOptions& options) const {
    const Dimensions& size = model_.graph().size;
    rotate_positions(query, tables);
    rotate_positions(key, tables);
    const double scale = 1 / std::sqrt(static_cast<double>(size.head_dim));
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
};

}  // namespace rmsfold::model
