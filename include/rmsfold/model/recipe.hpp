// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The vocabulary a model family is written in: signals that live in spaces, and rows that read and write them.

#include <string_view>
#include <vector>

namespace rmsfold::model {

/// What a row computes from the signals it reads.
enum class Op {
  embedding,         ///< one row of `[vocabulary, width]` per token
  norm,              ///< RMSNorm with a gain
  linear,            ///< \f$xW^T + b\f$
  attention,         ///< causal softmax attention of query, key, value: per head a convex combination of values, so value bases pass through it
  gated_activation,  ///< \f$\mathrm{act}(gate)\odot up\f$: pointwise, so nothing passes through it
};

/// Widths, as functions of config.json.
enum class Width { vocabulary, hidden, query_heads, kv_heads, intermediate, head };

/// A vector per token. `{i}` in a name stands for the layer.
struct SignalRow {
  std::string_view name;   ///< what rows call it
  Width width;             ///< its length
  std::string_view space;  ///< the space a change of basis may act on; empty: no change of basis is offered
};

/// Things that some families have and others do not; `Family::options` says which.
enum class Option { always, never, qkv_bias, output_bias, mlp_bias, qk_norm };

/// One computation. A row that writes the residual stream adds to it; every other signal is written over.
struct Row {
  Op op;                                ///< what it computes
  std::string_view module;              ///< tensors are `module.weight` and `module.bias`
  std::vector<std::string_view> reads;  ///< signals, in the order of `Op`'s description
  std::string_view writes;              ///< signal
  Option bias = Option::never;          ///< whether there is a bias
  Option present = Option::always;      ///< whether there is such a row
  Width span = Width::hidden;           ///< norms: length that is normalised, `head` for one norm per head
};

/// The one stream that layers add to.
inline constexpr std::string_view residual = "residual";
/// The space of a layer's values, which attention only averages per head.
inline constexpr std::string_view values_space = "value.{i}";

/// When a family has an option.
struct Presence {
  /// How it is decided.
  enum class When {
    never,    ///< the family has not got it
    always,   ///< it always has
    if_flag,  ///< config.json says
  };
  When when = When::never;     ///< how it is decided
  std::string_view flag = {};  ///< key of config.json
  bool if_absent = false;      ///< what an absent key means
};

/// What one family says of an option.
struct OptionRow {
  Option option;      ///< which
  Presence presence;  ///< when
};

/// Two tensors that are one when a flag says so.
struct TieRow {
  std::string_view head;       ///< module whose weight is not stored when tied
  std::string_view embedding;  ///< module whose weight it is
  std::string_view flag;       ///< key of config.json
  bool if_absent;              ///< what an absent key means
};

/// A computation graph in rows: those without `{i}` before, the layers' once per layer, those without `{i}` after.
struct Skeleton {
  std::vector<SignalRow> signals;             ///< every signal that rows name
  std::vector<Row> rows;                      ///< in the order of computation
  TieRow tie;                                 ///< the head's tie
  std::vector<std::string_view> leave_alone;  ///< tensors that are copied whatever happens; `{i}` for a layer
};

/// One model family: a skeleton and what it makes of the options.
struct Family {
  std::string_view model_type;     ///< `model_type` in config.json
  std::string_view architecture;   ///< the class in `architectures` that the rows describe
  const Skeleton* skeleton;        ///< the rows
  std::vector<OptionRow> options;  ///< options not listed are absent
};

}  // namespace rmsfold::model
