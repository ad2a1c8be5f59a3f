// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The vocabulary a model family is written in: signals that live in spaces, and rows that read and write them.

#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <rmsfold/core/error.hpp>
#include <rmsfold/norm/gain_convention.hpp>

namespace rmsfold::model {

/// What a row computes from the signals it reads.
enum class Op {
  embedding,         ///< vectors that are written as they are stored, one per token, position or image: the last axis is the vector
  norm,              ///< RMSNorm or LayerNorm
  linear,            ///< \f$xW^T + b\f$
  attention,         ///< softmax attention of query, key, value: per head a linear combination of values, so value bases pass through it
  gated_activation,  ///< \f$\mathrm{act}(gate)\odot up\f$: pointwise
  activation,        ///< a pointwise function that is not odd
  opaque,            ///< anything else: no change of basis passes
};

/// Widths that config.json gives. A `stored` one is whatever the files say, the same wherever the signal is read or written.
enum class Width { stored, vocabulary, hidden, query_heads, kv_heads, intermediate, head };

/// A vector per token. In names, `{i}` stands for a layer, see `Repeat`.
struct SignalRow {
  std::string name;            ///< what rows call it
  Width width;                 ///< its length
  std::string space;           ///< the space a change of basis may act on; empty: no change of basis is offered
};

/// The one stream that layers add to, and its space. Any signal that is named like its space is such a stream.
inline constexpr std::string_view residual = "residual";
/// The space of a layer's values, which attention only averages per head.
inline constexpr std::string_view values_space = "value.{i}";

/// One condition on a checkpoint.
struct Condition {
  /// What is looked at.
  enum class Kind {
    never,     ///< does not hold
    flag,      ///< a boolean of config.json, in the section that describes the decoder
    outer_flag,  ///< a boolean of config.json itself
    first,     ///< whether a placeholder's number is 0
    set,       ///< whether config.json has a key, or a key of a section ("section.key"), that is neither 0 nor false
    in_file,   ///< whether a tensor is stored
  };
  Kind kind = Kind::never;      ///< what is looked at
  std::string key = {};         ///< of config.json; or the tensor's name; or the placeholder
  bool if_absent = false;       ///< flag: what an absent key means
  bool negated = false;         ///< whether it must not hold
};

/// When something is there: all conditions hold.
struct Presence {
  std::vector<Condition> conditions;  ///< none: always
  /// Both.
  friend Presence operator&&(Presence a, const Presence& b) {
    a.conditions.insert(a.conditions.end(), b.conditions.begin(), b.conditions.end());
    return a;
  }
  /// The opposite. @throws InvariantError when there is more than one condition, or none
  friend Presence operator!(Presence a) {
    if (a.conditions.size() != 1) rmsfold::detail::raise<InvariantError>("the opposite of {} conditions", a.conditions.size());
    a.conditions.front().negated = !a.conditions.front().negated;
    return a;
  }
};

/// Always there.
[[nodiscard]] inline Presence always() { return {}; }
/// Never there.
[[nodiscard]] inline Presence never() { return {{Condition{}}}; }
/// There when a flag of config.json says so.
[[nodiscard]] inline Presence flag(std::string key, bool if_absent) { return {{Condition{Condition::Kind::flag, std::move(key), if_absent, false}}}; }
/// The same for a wrapper, whose text model is described in a section.
[[nodiscard]] inline Presence outer_flag(std::string key, bool if_absent) { return {{Condition{Condition::Kind::outer_flag, std::move(key), if_absent, false}}}; }
/// There in the first layer only.
[[nodiscard]] inline Presence in_first(std::string placeholder) { return {{Condition{Condition::Kind::first, std::move(placeholder), false, false}}}; }
/// There when config.json has a key, or a key of a section ("section.key"), that is neither 0 nor false.
[[nodiscard]] inline Presence is_set(std::string key) { return {{Condition{Condition::Kind::set, std::move(key), false, false}}}; }
/// There when the files hold a tensor: for what differs from layer to layer, or with the version that wrote the files.
[[nodiscard]] inline Presence in_file(std::string tensor) { return {{Condition{Condition::Kind::in_file, std::move(tensor), false, false}}}; }

/// How a linear's weight is stored.
enum class Layout {
  out_in,         ///< `[out, in]`, torch's Linear
  in_out,         ///< `[in, out]`, GPT-2's Conv1D
  stacked_out_in, ///< `[experts, out, in]`
  stacked_in_out, ///< `[experts, in, out]`
  convolution,    ///< `[out, …]`: reads no space
};

/// How the outputs of a linear that computes query, key and value at once lie beside each other.
enum class Fused {
  no,            ///< one output; or several, one after the other, none of them values
  concatenated,  ///< all queries, all keys, all values
  per_kv_head,   ///< for each kv head: its queries, its key, its value
};

/// What a norm computes.
enum class NormKind { rms, layer };

/// One computation. A row that writes a stream adds to it; every other signal is written over.
struct Row {
  Op op;                           ///< what it computes
  std::string module;              ///< its tensors are `module + weight` and `module + bias_name`
  std::vector<std::string> reads;  ///< signals, in the order of `Op`'s description; a linear with several reads them one beside the other
  std::vector<std::string> writes; ///< signals
  Presence bias = never();         ///< whether there is a bias (of a LayerNorm too)
  Presence present = always();     ///< whether there is such a row
  Layout layout = Layout::out_in;  ///< linear: how the weight is stored
  Fused fused = Fused::no;         ///< linear: query, key and value at once
  Width span = Width::hidden;      ///< norm: length that is normalised, `head` for one norm per head; `stored`: of its weight
  NormKind norm = NormKind::rms;   ///< norm: which
  GainConvention gain = GainConvention::plain;  ///< norm: what its weight says
  bool has_weight = true;          ///< norm: whether it has a weight
  std::string weight = ".weight";  ///< suffix of the weight's tensor
  std::string bias_name = ".bias"; ///< suffix of the bias's tensor
  bool mtp = false;                ///< whether it belongs to a block that drafts further tokens, which `--drop-mtp` leaves out
};

/// Rows in the order of computation.
using Rows = std::vector<Row>;

/// One after the other.
[[nodiscard]] inline Rows operator+(Rows a, Rows b) {
  a.insert(a.end(), std::make_move_iterator(b.begin()), std::make_move_iterator(b.end()));
  return a;
}

/// The same rows, there only when.
[[nodiscard]] inline Rows when(const Presence& presence, Rows rows) {
  for (Row& row : rows) row.present = row.present && presence;
  return rows;
}

/// The same rows under other names: `from` becomes `to` in modules, signals and conditions.
[[nodiscard]] inline Rows renamed(Rows rows, std::string_view from, std::string_view to) {
  const auto replace = [&](std::string& text) {
    for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) text.replace(at, from.size(), to);
  };
  for (Row& row : rows) {
    replace(row.module);
    for (std::string& signal : row.reads) replace(signal);
    for (std::string& signal : row.writes) replace(signal);
    for (Presence* presence : {&row.bias, &row.present}) {
      for (Condition& condition : presence->conditions) replace(condition.key);
    }
  }
  return rows;
}

/// What a placeholder in names counts. Neighbouring rows with one are expanded together, first all of number 0, then all of number 1, …
struct Repeat {
  std::string placeholder;         ///< `{i}`, `{e}`, …
  std::vector<std::string> keys;   ///< keys of config.json, the first that is there counts
  std::optional<int> if_absent = std::nullopt;  ///< the count without any of them; nothing: an error
  std::string after = {};          ///< a placeholder whose count is the first number here; empty: 0
};

/// How the names of a family may begin: `{root}`, `{head}` and `{outer}` in names stand for these. The files decide.
struct Naming {
  std::string root;        ///< of the decoder
  std::string head;        ///< module of the output head
  std::string outer = {};  ///< of what is beside the language model
};

/// Where the embedding is that the head may be tied to.
struct TieRow {
  std::string embedding = "{root}embed_tokens";    ///< module
  std::vector<std::string> flags = {"tie_word_embeddings"};  ///< keys of config.json; the first that is there counts, all are corrected
  bool if_absent = false;                          ///< what absent keys mean
  bool has_head = true;                            ///< whether the model has a head at all
  bool scaled = false;                             ///< whether logits of a tied head, and of no other, are multiplied by hidden^-1/2
  std::string never_untie = {};                    ///< why a tied head cannot be given a weight of its own; empty: it can
};

/// Something a config must say for the rows to be right.
struct Requirement {
  Presence holds;      ///< what must hold
  std::string reason;  ///< why it is refused else
};

/// What a runtime computes that the rows do not say. Only the reference forward pass needs it: it changes nothing about folds and bases.
struct Arithmetic {
  std::string activation = "silu";          ///< of the MLP, where "hidden_act" of config.json is absent
  bool gelu_is_tanh = false;                ///< whether "gelu" in config.json means the tanh approximation
  double theta = 10000;                     ///< base of the rotary frequencies, where config.json is silent
  double rotated_part = 1;                  ///< part of each head that rotates, where config.json is silent
  bool rotary_must_be_stated = false;       ///< whether the class has a scaling of its own for a config without one
  bool alpha_stretches_theta = false;       ///< whether "dynamic" rotary scaling with an "alpha" is a fixed factor of theta
  bool rotates_neighbours = false;          ///< whether channels 2j and 2j+1 of a head rotate together, and not j and j + half
  bool rotates_before_norms = false;        ///< whether norms of queries and keys come after the rotation
  std::string rotary_layers = {};           ///< key of a list with 0 for every layer that does not rotate; empty: all do
  std::string rotary_interval = {};         ///< key of the distance of such layers, where there is no list
  double rotary_interval_if_absent = 0;     ///< its value where the key is absent
  bool queries_grow = false;                ///< whether queries are multiplied by \f$1 + \beta\log(1 + \lfloor t/c\rfloor)\f$, beta and c from the rotary parameters
  std::string embedding_factor = {};        ///< key of what embeddings are multiplied by; empty: 1
  bool embedding_times_root = false;        ///< whether they are multiplied by \f$\sqrt{hidden}\f$ in the type of the embedding
  std::string branch_factor = {};           ///< key of what is multiplied to what layers add to the stream; empty: 1
  std::string score_factor = {};            ///< key of what scores are multiplied by, 1 if it is absent; empty: \f$head\_dim^{-1/2}\f$
  std::string logit_divisor = {};           ///< key of what logits are divided by; empty: 1
};

/// Which classes of runtime a table was read off, and what is special about it.
struct Family {
  std::string model_type;                   ///< `model_type` in config.json
  std::vector<std::string> architectures;   ///< classes in `architectures` that the rows describe
  Rows rows;                                ///< the computation
  TieRow tie = {};                          ///< the head's tie
  std::vector<Naming> namings = {{"model.", "lm_head"}};  ///< how names may begin; the first is today's
  std::vector<SignalRow> signals = {};      ///< signals beside `standard_signals`
  std::vector<Repeat> repeats = {};         ///< placeholders beside `{i}`
  std::vector<Requirement> requirements = {};    ///< what is refused
  std::vector<std::string> leave_alone = {};     ///< tensors that are copied whatever happens; a `*` at the end stands for anything
  std::vector<std::string> drafts = {};     ///< tensors of blocks that draft further tokens and are in no row: refused, or left out
  std::optional<double> eps = std::nullopt;      ///< where config.json does not say it
  Presence one_kv_head = never();           ///< when all query heads share one key and value head, whatever the count in config.json
  std::string section = {};                 ///< section of config.json that describes the decoder; empty: the whole
  std::vector<std::pair<std::string, long>> defaults = {};  ///< what absent keys of that section mean: its class's defaults
  std::string text_type = {};               ///< `model_type` in that section; empty: whatever it is
  bool has_forward = false;                 ///< whether the reference forward pass computes what the stock class does
  Arithmetic arithmetic = {};               ///< what it computes beside the rows
};

}  // namespace rmsfold::model
