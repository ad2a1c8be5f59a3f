// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Decoders with a norm whose gain lies in the residual path: behind a branch, or in the stream itself. It folds into nothing.

#include <vector>

#include <rmsfold/model/family/dense.hpp>

namespace rmsfold::model::family {

/// A branch whose output is normalised before it is added.
struct SandwichRows {
  Rows attention = {};                      ///< writes "attention_out.{i}"
  Rows mlp = {};                            ///< writes "mlp_out.{i}"
  std::string attention_norm = {};  ///< modules in the layer; a pre-norm that is empty is not there
  std::string attention_post_norm = {};  ///< modules in the layer; a pre-norm that is empty is not there
  std::string mlp_norm = {};  ///< modules in the layer; a pre-norm that is empty is not there
  std::string mlp_post_norm = {};  ///< modules in the layer; a pre-norm that is empty is not there
  GainConvention gain = GainConvention::plain;  ///< of all of them
};
/// Its rows; branches without a pre-norm read the stream as it is.
[[nodiscard]] inline Rows sandwich_rows(const SandwichRows& r) {
  const auto pre_norm = [&](const std::string& module, const std::string& writes) {
    return module.empty() ? Rows{} : norm({.module = layer + module, .writes = writes, .gain = r.gain});
  };
  const auto post_norm = [&](const std::string& module, const std::string& reads) {
    return norm({.module = layer + module, .reads = reads, .writes = std::string(residual), .gain = r.gain});
  };
  return embedding("{root}embed_tokens") +
         pre_norm(r.attention_norm, "attention_in.{i}") + r.attention + post_norm(r.attention_post_norm, "attention_out.{i}") +
         pre_norm(r.mlp_norm, "mlp_in.{i}") + r.mlp + post_norm(r.mlp_post_norm, "mlp_out.{i}") +
         head({.module = "{root}norm", .gain = r.gain});
}

/// Gemma 2, and with norms of queries and keys Gemma 3.
[[nodiscard]] inline Rows gemma_sandwich_rows(Rows between) {
  const Presence bias = flag("attention_bias", false);
  return sandwich_rows({.attention = attention({.qkv_bias = bias, .output_bias = bias, .between = std::move(between), .writes = "attention_out.{i}"}),
                        .mlp = gated_mlp({.writes = "mlp_out.{i}"}),
                        .attention_norm = "input_layernorm", .attention_post_norm = "post_attention_layernorm",
                        .mlp_norm = "pre_feedforward_layernorm", .mlp_post_norm = "post_feedforward_layernorm", .gain = GainConvention::one_plus});
}

/// OLMo 2 and 3, EXAONE 4: no pre-norms at all. @param between  norms of queries and keys
[[nodiscard]] inline Rows post_norm_rows(const Presence& bias, Rows between) {
  const std::string stream(residual);
  return sandwich_rows({.attention = attention({.qkv_bias = bias, .output_bias = bias, .between = std::move(between), .reads = stream, .writes = "attention_out.{i}"}),
                        .mlp = gated_mlp({.reads = stream, .writes = "mlp_out.{i}"}),
                        .attention_post_norm = "post_attention_layernorm", .mlp_post_norm = "post_feedforward_layernorm"});
}

/// A norm whose output is read by the branch and is the stream from then on.
[[nodiscard]] inline Rows stream_norm(const std::string& module, const std::string& writes) {
  Rows rows = norm({.module = module, .writes = writes});
  rows.front().writes.emplace_back(residual);
  return rows;
}

/// MiniMax-Text-01: softmax attention in some layers, gated linear attention in the others, experts in all.
[[nodiscard]] inline Rows minimax_rows() {
  const std::string attn = layer + "self_attn.";
  const Presence is_linear = in_file(attn + "qkv_proj.weight");
  const Rows linear_attention =
      linear(attn + "qkv_proj", "attention_in.{i}", "qkv.{i}") + linear(attn + "output_gate", "attention_in.{i}", "output_gate.{i}") +
      operation(Op::opaque, layer + "self_attn", {"qkv.{i}"}, {"mixed.{i}"}) +
      norm({.module = attn + "norm", .reads = "mixed.{i}", .writes = "normed.{i}", .span = Width::stored}) +
      // The sigmoid gate multiplies entry by entry, so a gain passes it.
      linear(attn + "out_proj", "normed.{i}", std::string(residual));
  const auto moe = [](const std::string& prefix, const ExpertRows& experts_rows) { return linear(prefix + "gate", "mlp_in.{i}", "router.{i}") + gated_experts(experts_rows); };
  const std::string old = layer + "block_sparse_moe.";
  const Presence is_old = in_file(old + "gate.weight");
  return embedding("{root}embed_tokens") + stream_norm(layer + "input_layernorm", "attention_in.{i}") +
         when(is_linear, linear_attention) + when(!is_linear, attention({})) +
         stream_norm(layer + "post_attention_layernorm", "mlp_in.{i}") +
         when(is_old, moe(old, {.prefix = old + "experts.", .gate = "w1", .up = "w3", .down = "w2"})) + when(!is_old, moe(layer + "mlp.", {})) + head();
}

/// The families.
[[nodiscard]] inline std::vector<Family> residual_gain_families() {
  const Rows one_plus_head_norms = head_norms(layer + "self_attn.q_norm", layer + "self_attn.k_norm", GainConvention::one_plus);
  return {
      {.model_type = "gemma2", .architectures = {"Gemma2ForCausalLM"}, .rows = gemma_sandwich_rows({}), .tie = {.if_absent = true}},
      {.model_type = "gemma3_text", .architectures = {"Gemma3ForCausalLM"}, .rows = gemma_sandwich_rows(one_plus_head_norms), .tie = {.if_absent = true}},
      {.model_type = "glm4", .architectures = {"Glm4ForCausalLM"},
       .rows = sandwich_rows({.attention = attention({.qkv_bias = flag("attention_bias", true), .writes = "attention_out.{i}"}),
                              .mlp = linear(layer + "mlp.gate_up_proj", "mlp_in.{i}", "gate_up.{i}") +
                                     operation(Op::gated_activation, layer + "mlp", {"gate_up.{i}"}, {"activated.{i}"}) +
                                     linear(layer + "mlp.down_proj", "activated.{i}", "mlp_out.{i}"),
                              .attention_norm = "input_layernorm", .attention_post_norm = "post_self_attn_layernorm",
                              .mlp_norm = "post_attention_layernorm", .mlp_post_norm = "post_mlp_layernorm"})},
      {.model_type = "olmo2", .architectures = {"Olmo2ForCausalLM"}, .rows = post_norm_rows(flag("attention_bias", false), full_width_qk_norms())},
      {.model_type = "olmo3", .architectures = {"Olmo3ForCausalLM"}, .rows = post_norm_rows(flag("attention_bias", false), full_width_qk_norms())},
      {.model_type = "exaone4", .architectures = {"Exaone4ForCausalLM"}, .rows = post_norm_rows(never(), head_norms())},
      {.model_type = "minimax", .architectures = {"MiniMaxForCausalLM"}, .rows = minimax_rows(),
       .leave_alone = {layer + "self_attn.slope_rate", layer + "self_attn.query_decay", layer + "self_attn.key_decay", layer + "self_attn.diagonal_decay"}},
  };
}

}  // namespace rmsfold::model::family
