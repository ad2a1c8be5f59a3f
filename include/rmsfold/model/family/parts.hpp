// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Groups of rows that many families share, with the names that most of them use.

#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/recipe.hpp>

namespace rmsfold::model::family {

/// Signals that any family may use. A signal that is declared nowhere has the width that the files give it, and no space.
inline const std::vector<SignalRow> standard_signals{
    {"tokens", Width::vocabulary, ""},
    {std::string(residual), Width::hidden, std::string(residual)},
    {"attention_in.{i}", Width::hidden, std::string(residual)},
    {"query.{i}", Width::query_heads, ""},
    {"key.{i}", Width::kv_heads, ""},
    {"value.{i}", Width::kv_heads, std::string(values_space)},
    {"attended.{i}", Width::query_heads, std::string(values_space)},
    {"attention_out.{i}", Width::hidden, std::string(residual)},
    {"mlp_in.{i}", Width::hidden, std::string(residual)},
    {"gate.{i}", Width::intermediate, ""},
    {"up.{i}", Width::intermediate, ""},
    {"activated.{i}", Width::intermediate, ""},
    {"mlp_out.{i}", Width::hidden, std::string(residual)},
    {"final", Width::hidden, std::string(residual)},
    {"logits", Width::vocabulary, ""},
};

/// One list after the other.
template <class T>
[[nodiscard]] std::vector<T> both(std::vector<T> a, const std::vector<T>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Layers, under all the names that config.json has for their number.
inline const Repeat layers{"{i}", {"num_hidden_layers", "n_layer", "n_layers", "num_layers"}};
/// Experts of a layer.
inline const Repeat experts{"{e}", {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}};

/// Where layers' modules begin.
inline const std::string layer = "{root}layers.{i}.";

/// One norm.
struct NormRow {
  std::string module;                             ///< see `Row`
  std::string reads = std::string(residual);      ///< signal
  std::string writes = "attention_in.{i}";        ///< signal
  NormKind norm = NormKind::rms;                  ///< see `Row`
  GainConvention gain = GainConvention::plain;    ///< see `Row`
  Presence bias = never();                        ///< see `Row`
  bool has_weight = true;                         ///< see `Row`
  Width span = Width::hidden;                     ///< see `Row`
};
/// Its row.
[[nodiscard]] inline Rows norm(NormRow n) {
  Row row{Op::norm, std::move(n.module), {std::move(n.reads)}, {std::move(n.writes)}, std::move(n.bias)};
  row.norm = n.norm;
  row.gain = n.gain;
  row.has_weight = n.has_weight;
  row.span = n.span;
  return {std::move(row)};
}

/// One linear layer.
[[nodiscard]] inline Rows linear(std::string module, std::string reads, std::string writes, Presence bias = never(), Layout layout = Layout::out_in) {
  Row row{Op::linear, std::move(module), {std::move(reads)}, {std::move(writes)}, std::move(bias)};
  row.layout = layout;
  return {std::move(row)};
}

/// A stored tensor of experts that is not called `.weight`.
[[nodiscard]] inline Rows stack(std::string tensor, std::string reads, std::string writes, Layout layout, Presence bias = never(), std::string bias_suffix = "_bias") {
  Rows rows = linear(std::move(tensor), std::move(reads), std::move(writes), std::move(bias), layout);
  rows.front().weight = "";
  rows.front().bias_name = std::move(bias_suffix);
  return rows;
}

/// Vectors that are added to a stream as they are stored.
[[nodiscard]] inline Rows embedding(std::string module, std::string reads = "tokens", std::string writes = std::string(residual), std::string weight = ".weight") {
  Row row{Op::embedding, std::move(module), {std::move(reads)}, {std::move(writes)}};
  row.weight = std::move(weight);
  return {std::move(row)};
}

/// A node without tensors.
[[nodiscard]] inline Rows operation(Op op, std::string module, std::vector<std::string> reads, std::vector<std::string> writes) {
  return {Row{op, std::move(module), std::move(reads), std::move(writes)}};
}

/// Attention of heads, in separate projections.
struct AttentionRows {
  std::string prefix = layer + "self_attn.";    ///< of all its modules
  std::string q = "q_proj";  ///< module
  std::string k = "k_proj";  ///< module
  std::string v = "v_proj";  ///< module
  std::string o = "o_proj";  ///< module
  Presence qkv_bias = never();                  ///< of q, k and v
  Presence output_bias = never();               ///< of o
  Rows between = {};                            ///< rows between projections and attention, e.g. norms of queries and keys
  std::string reads = "attention_in.{i}";       ///< signal
  std::string writes = std::string(residual);   ///< signal
};
/// Its rows.
[[nodiscard]] inline Rows attention(const AttentionRows& a) {
  return linear(a.prefix + a.q, a.reads, "query.{i}", a.qkv_bias) + linear(a.prefix + a.k, a.reads, "key.{i}", a.qkv_bias) +
         linear(a.prefix + a.v, a.reads, "value.{i}", a.qkv_bias) + a.between +
         operation(Op::attention, a.prefix.substr(0, a.prefix.size() - 1), {"query.{i}", "key.{i}", "value.{i}"}, {"attended.{i}"}) +
         linear(a.prefix + a.o, "attended.{i}", a.writes, a.output_bias);
}

/// Attention whose query, key and value are one projection.
struct FusedAttentionRows {
  std::string prefix = layer + "self_attn.";        ///< of all its modules
  std::string qkv = "qkv_proj";  ///< module
  std::string o = "o_proj";  ///< module
  Fused fused = Fused::concatenated;                ///< see `Row`
  Layout layout = Layout::out_in;                   ///< of both
  Presence qkv_bias = never();                      ///< of the first
  Presence output_bias = never();                   ///< of the second
  Rows between = {};                                ///< as in `AttentionRows`
  std::string reads = "attention_in.{i}";           ///< signal
  std::string writes = std::string(residual);       ///< signal
};
/// Its rows.
[[nodiscard]] inline Rows fused_attention(const FusedAttentionRows& a) {
  Row qkv{Op::linear, a.prefix + a.qkv, {a.reads}, {"query.{i}", "key.{i}", "value.{i}"}, a.qkv_bias};
  qkv.layout = a.layout;
  qkv.fused = a.fused;
  return Rows{std::move(qkv)} + a.between +
         operation(Op::attention, a.prefix.substr(0, a.prefix.size() - 1), {"query.{i}", "key.{i}", "value.{i}"}, {"attended.{i}"}) +
         linear(a.prefix + a.o, "attended.{i}", a.writes, a.output_bias, a.layout);
}

/// One norm per head of queries and of keys.
[[nodiscard]] inline Rows head_norms(const std::string& q = layer + "self_attn.q_norm", const std::string& k = layer + "self_attn.k_norm",
                                     GainConvention gain = GainConvention::plain) {
  return norm({.module = q, .reads = "query.{i}", .writes = "query.{i}", .gain = gain, .span = Width::head}) +
         norm({.module = k, .reads = "key.{i}", .writes = "key.{i}", .gain = gain, .span = Width::head});
}

/// One norm over all heads together, of queries and of keys.
[[nodiscard]] inline Rows full_width_qk_norms(const std::string& q = layer + "self_attn.q_norm", const std::string& k = layer + "self_attn.k_norm") {
  return norm({.module = q, .reads = "query.{i}", .writes = "query.{i}", .span = Width::query_heads}) +
         norm({.module = k, .reads = "key.{i}", .writes = "key.{i}", .span = Width::kv_heads});
}

/// Values that are clamped entry by entry, when a key of config.json says so: no basis of a head passes that.
[[nodiscard]] inline Rows clamped_values(const std::string& module, const std::string& key) {
  return when(is_set(key), operation(Op::activation, module, {"value.{i}"}, {"value.{i}"}));
}

/// A gated MLP. `at` is put before the names of its inner signals, for a layer that has several.
struct GatedMlpRows {
  std::string prefix = layer + "mlp.";          ///< of all its modules
  std::string gate = "gate_proj";  ///< module
  std::string up = "up_proj";  ///< module
  std::string down = "down_proj";  ///< module
  Presence bias = never();                      ///< of all three
  std::string reads = "mlp_in.{i}";             ///< signal
  std::string writes = std::string(residual);   ///< signal
  std::string at = {};                          ///< see above
};
/// Its rows.
[[nodiscard]] inline Rows gated_mlp(const GatedMlpRows& m) {
  return linear(m.prefix + m.gate, m.reads, m.at + "gate.{i}", m.bias) + linear(m.prefix + m.up, m.reads, m.at + "up.{i}", m.bias) +
         operation(Op::gated_activation, m.prefix.substr(0, m.prefix.size() - 1), {m.at + "gate.{i}", m.at + "up.{i}"}, {m.at + "activated.{i}"}) +
         linear(m.prefix + m.down, m.at + "activated.{i}", m.writes, m.bias);
}

/// Experts with gated MLPs, stored one by one, or all of a layer in one tensor as transformers 5 has them in memory.
struct ExpertRows {
  std::string prefix = layer + "mlp.experts.";  ///< of all experts
  std::string gate = "gate_proj";               ///< module of an expert
  std::string up = "up_proj";                   ///< module of an expert
  std::string down = "down_proj";               ///< module of an expert
};
/// Their rows. Where there is no tensor for all of them, each is demanded: a missing one is an incomplete model, not one without experts.
[[nodiscard]] inline Rows gated_experts(const ExpertRows& x = {}) {
  const Presence is_stacked = in_file(x.prefix + "gate_up_proj");
  const std::string module = x.prefix.substr(0, x.prefix.size() - 1);
  return when(!is_stacked, gated_mlp({.prefix = x.prefix + "{e}.", .gate = x.gate, .up = x.up, .down = x.down, .at = "expert.{e}."})) +
         when(is_stacked, stack(x.prefix + "gate_up_proj", "mlp_in.{i}", "experts_gate_up.{i}", Layout::stacked_out_in) +
                              operation(Op::gated_activation, module, {"experts_gate_up.{i}"}, {"experts.{i}"}) +
                              stack(x.prefix + "down_proj", "experts.{i}", std::string(residual), Layout::stacked_out_in));
}

/// An MLP without a gate.
struct MlpRows {
  std::string prefix = layer + "mlp.";          ///< of all its modules
  std::string up = "up_proj";  ///< module
  std::string down = "down_proj";  ///< module
  Presence bias = never();                      ///< of both
  Layout layout = Layout::out_in;               ///< of both
  std::string reads = "mlp_in.{i}";             ///< signal
  std::string writes = std::string(residual);   ///< signal
};
/// Its rows.
[[nodiscard]] inline Rows mlp(const MlpRows& m) {
  return linear(m.prefix + m.up, m.reads, "up.{i}", m.bias, m.layout) +
         operation(Op::activation, m.prefix.substr(0, m.prefix.size() - 1), {"up.{i}"}, {"activated.{i}"}) +
         linear(m.prefix + m.down, "activated.{i}", m.writes, m.bias, m.layout);
}

/// The last norm and the head.
[[nodiscard]] inline Rows head(NormRow final_norm = {.module = "{root}norm", .writes = "final"}, Presence head_bias = never()) {
  final_norm.writes = "final";
  return norm(std::move(final_norm)) + linear("{head}", "final", "logits", std::move(head_bias));
}

}  // namespace rmsfold::model::family
