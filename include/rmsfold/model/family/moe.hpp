// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Pre-norm RMSNorm decoders with mixtures of experts. The second norm is read by router, experts, shared experts and their gate.

#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/family/dense.hpp>

namespace rmsfold::model::family {

/// Experts and what chooses among them.
struct MoeRows {
  std::string prefix = layer + "mlp.";                        ///< of all its modules
  std::string router = "gate";                                ///< module
  std::string gate = "gate_proj";  ///< modules of an expert
  std::string up = "up_proj";  ///< modules of an expert
  std::string down = "down_proj";  ///< modules of an expert
  std::string shared = {};                                    ///< module of the shared expert; empty: none
  Presence shared_present = always();                         ///< whether there is one
  Presence shared_bias = never();                             ///< of the shared expert's projections
  std::string shared_gate = {};                               ///< module that weighs it; empty: none
};
/// Its rows.
[[nodiscard]] inline Rows moe(const MoeRows& m) {
  Rows rows = linear(m.prefix + m.router, "mlp_in.{i}", "router.{i}") + gated_experts({.prefix = m.prefix + "experts.", .gate = m.gate, .up = m.up, .down = m.down});
  if (!m.shared.empty()) {
    rows = std::move(rows) + when(m.shared_present, gated_mlp({.prefix = m.prefix + m.shared + ".", .bias = m.shared_bias, .at = "shared_expert_"}));
  }
  if (!m.shared_gate.empty()) rows = std::move(rows) + linear(m.prefix + m.shared_gate, "mlp_in.{i}", "shared_gate.{i}");
  return rows;
}
/// Experts in the layers that have a router, else a gated MLP.
[[nodiscard]] inline Rows moe_or_mlp(const MoeRows& m, const Presence& mlp_bias = never()) {
  const Presence has_router = in_file(m.prefix + m.router + ".weight");
  return when(has_router, moe(m)) + when(!has_router, gated_mlp({.prefix = m.prefix, .bias = mlp_bias}));
}

/// Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries and keys with values pass through a narrow space with a norm of its own,
/// whose gain folds into what reads it.
[[nodiscard]] inline Rows latent_attention() {
  const std::string attn = layer + "self_attn.";
  const Presence bias = flag("attention_bias", false);
  const Presence is_narrow = in_file(attn + "q_a_proj.weight");
  return when(is_narrow, linear(attn + "q_a_proj", "attention_in.{i}", "query_latent.{i}", bias) +
                             norm({.module = attn + "q_a_layernorm", .reads = "query_latent.{i}", .writes = "query_normed.{i}", .span = Width::stored}) +
                             linear(attn + "q_b_proj", "query_normed.{i}", "latent_query.{i}")) +
         when(!is_narrow, linear(attn + "q_proj", "attention_in.{i}", "latent_query.{i}")) +
         linear(attn + "kv_a_proj_with_mqa", "attention_in.{i}", "kv_latent_and_rope.{i}", bias) +
         operation(Op::opaque, attn + "kv_split", {"kv_latent_and_rope.{i}"}, {"kv_latent.{i}", "key_rope.{i}"}) +
         norm({.module = attn + "kv_a_layernorm", .reads = "kv_latent.{i}", .writes = "kv_normed.{i}", .span = Width::stored}) +
         linear(attn + "kv_b_proj", "kv_normed.{i}", "latent_kv.{i}") +
         operation(Op::opaque, layer + "self_attn", {"latent_query.{i}", "latent_kv.{i}", "key_rope.{i}"}, {"latent_out.{i}"}) +
         linear(attn + "o_proj", "latent_out.{i}", std::string(residual), bias);
}

/// The rows of a layer, between two norms with llama's names.
[[nodiscard]] inline Rows pre_norm_layer(Rows attention_rows, Rows mlp_rows) {
  return norm({.module = layer + "input_layernorm", .writes = "attention_in.{i}"}) + std::move(attention_rows) +
         norm({.module = layer + "post_attention_layernorm", .writes = "mlp_in.{i}"}) + std::move(mlp_rows);
}

/// Layers behind the last one that draft further tokens (DeepSeek-V3, arXiv:2412.19437, section 2.2): each reads the embedding of the next token and what the LAST
/// NORM writes, which is why that norm's gain cannot be folded beside them.
/// @param decoder_layer  rows of an ordinary layer
[[nodiscard]] inline Rows draft_layers(Rows decoder_layer) {
  const std::string block = "{root}layers.{m}.";
  const Presence has_embedding = in_file(block + "embed_tokens.weight");
  Row joined{Op::linear, block + "eh_proj", {"draft_embedding.{m}", "draft_state.{m}"}, {std::string(residual)}};
  Rows rows = when(has_embedding, embedding(block + "embed_tokens", "tokens", "draft_token.{m}") +
                                      norm({.module = block + "enorm", .reads = "draft_token.{m}", .writes = "draft_embedding.{m}"})) +
              when(!has_embedding, norm({.module = block + "enorm", .writes = "draft_embedding.{m}"})) +
              norm({.module = block + "hnorm", .reads = "final", .writes = "draft_state.{m}"}) + Rows{std::move(joined)} +
              renamed(std::move(decoder_layer), "{i}", "{m}") + norm({.module = block + "shared_head.norm", .writes = "draft_final.{m}"}) +
              when(in_file(block + "shared_head.head.weight"), linear(block + "shared_head.head", "draft_final.{m}", "draft_logits.{m}"));
  for (Row& row : rows) row.mtp = true;
  return when(in_file(block + "eh_proj.weight"), std::move(rows));
}
/// Their signals.
inline const std::vector<SignalRow> draft_signals{{"draft_token.{m}", Width::hidden, std::string(residual)},
                                                  {"draft_embedding.{m}", Width::hidden, std::string(residual)},
                                                  {"draft_state.{m}", Width::hidden, std::string(residual)},
                                                  {"draft_final.{m}", Width::hidden, std::string(residual)}};
/// Their number.
inline const Repeat drafts{"{m}", {"num_nextn_predict_layers"}, 0, "{i}"};

/// A decoder of such layers.
[[nodiscard]] inline Rows decoder_rows(Rows decoder_layer) { return embedding("{root}embed_tokens") + std::move(decoder_layer) + head(); }

/// GraniteMoE: all experts of a layer in one tensor, under the old or the new names.
[[nodiscard]] inline Rows granite_experts() {
  const std::string moe = layer + "block_sparse_moe.";
  const Presence is_old = in_file(moe + "router.layer.weight");
  return when(is_old, linear(moe + "router.layer", "mlp_in.{i}", "router.{i}") + linear(moe + "input_linear", "mlp_in.{i}", "experts_gate_up.{i}", never(), Layout::stacked_out_in) +
                          operation(Op::gated_activation, moe + "experts", {"experts_gate_up.{i}"}, {"experts.{i}"}) +
                          linear(moe + "output_linear", "experts.{i}", std::string(residual), never(), Layout::stacked_out_in)) +
         when(!is_old, linear(moe + "router", "mlp_in.{i}", "router.{i}") + gated_experts({.prefix = moe + "experts."}));
}

/// Llama 4: experts in one tensor that is stored transposed, in the layers that have any.
[[nodiscard]] inline Rows llama4_rows() {
  const Presence bias = flag("attention_bias", false);
  const std::string ff = layer + "feed_forward.";
  const std::string stream(residual);
  const Presence has_router = in_file(ff + "router.weight");
  return decoder_rows(pre_norm_layer(
      attention({.qkv_bias = bias, .output_bias = bias}),
      when(has_router, linear(ff + "router", "mlp_in.{i}", "router.{i}") + stack(ff + "experts.gate_up_proj", "mlp_in.{i}", "experts_gate_up.{i}", Layout::stacked_in_out) +
                           operation(Op::gated_activation, ff + "experts", {"experts_gate_up.{i}"}, {"experts.{i}"}) +
                           stack(ff + "experts.down_proj", "experts.{i}", stream, Layout::stacked_in_out) +
                           gated_mlp({.prefix = ff + "shared_expert.", .at = "shared_expert_"})) +
          when(!has_router, gated_mlp({.prefix = ff, .at = "dense_"}))));
}

/// gpt-oss: experts as in Llama 4, with biases.
[[nodiscard]] inline Rows gpt_oss_rows() {
  const Presence bias = flag("attention_bias", true);
  const std::string moe = layer + "mlp.";
  return decoder_rows(pre_norm_layer(attention({.qkv_bias = bias, .output_bias = bias}),
                                     linear(moe + "router", "mlp_in.{i}", "router.{i}", always()) +
                                         stack(moe + "experts.gate_up_proj", "mlp_in.{i}", "experts_gate_up.{i}", Layout::stacked_in_out, always()) +
                                         operation(Op::gated_activation, moe + "experts", {"experts_gate_up.{i}"}, {"experts.{i}"}) +
                                         stack(moe + "experts.down_proj", "experts.{i}", std::string(residual), Layout::stacked_in_out, always())));
}

/// The families.
[[nodiscard]] inline std::vector<Family> moe_families() {
  const Presence attention_bias = flag("attention_bias", false);
  const Presence use_bias = flag("use_bias", false);
  const Rows biased_attention = attention({.qkv_bias = attention_bias, .output_bias = attention_bias});
  const Rows normed_attention = attention({.qkv_bias = attention_bias, .output_bias = attention_bias, .between = head_norms()});
  const MoeRows shared_experts{.shared = "shared_experts"};
  const std::string correction = "mlp.gate.e_score_correction_bias";
  const std::vector<std::string> corrections{layer + correction, "{root}layers.{m}." + correction};
  const Rows deepseek_layer = pre_norm_layer(latent_attention(), moe_or_mlp(shared_experts));
  const Rows glm_layer = pre_norm_layer(attention({.qkv_bias = attention_bias, .between = when(flag("use_qk_norm", false), head_norms())}), moe_or_mlp(shared_experts));
  return {
      {.model_type = "mixtral", .architectures = {"MixtralForCausalLM"},
       .rows = decoder_rows(pre_norm_layer(
           attention({}), when(in_file(layer + "block_sparse_moe.gate.weight"), moe({.prefix = layer + "block_sparse_moe.", .gate = "w1", .up = "w3", .down = "w2"})) +
                              when(!in_file(layer + "block_sparse_moe.gate.weight"), moe({})))),
       .leave_alone = rotary_buffers},
      {.model_type = "qwen2_moe", .architectures = {"Qwen2MoeForCausalLM"},
       .rows = decoder_rows(pre_norm_layer(attention({.qkv_bias = flag("qkv_bias", true)}), moe_or_mlp({.shared = "shared_expert", .shared_gate = "shared_expert_gate"})))},
      {.model_type = "qwen3_moe", .architectures = {"Qwen3MoeForCausalLM"}, .rows = decoder_rows(pre_norm_layer(normed_attention, moe_or_mlp({})))},
      {.model_type = "olmoe", .architectures = {"OlmoeForCausalLM"},
       .rows = decoder_rows(pre_norm_layer(attention({.qkv_bias = attention_bias, .output_bias = attention_bias,
                                                      .between = full_width_qk_norms() + clamped_values(layer + "self_attn.clip_qkv", "clip_qkv")}),
                                           moe({})))},
      {.model_type = "deepseek_v2", .architectures = {"DeepseekV2ForCausalLM"},
       .rows = decoder_rows(pre_norm_layer(latent_attention(), moe_or_mlp({.shared = "shared_experts", .shared_bias = flag("mlp_bias", false)}, flag("mlp_bias", false))))},
      {.model_type = "deepseek_v3", .architectures = {"DeepseekV3ForCausalLM"}, .rows = decoder_rows(deepseek_layer) + draft_layers(deepseek_layer),
       .signals = draft_signals, .repeats = {drafts}, .leave_alone = corrections},
      {.model_type = "dots1", .architectures = {"Dots1ForCausalLM"}, .rows = decoder_rows(pre_norm_layer(normed_attention, moe_or_mlp(shared_experts))),
       .leave_alone = {layer + correction}},
      {.model_type = "glm4_moe", .architectures = {"Glm4MoeForCausalLM"}, .rows = decoder_rows(glm_layer) + draft_layers(glm_layer), .signals = draft_signals,
       .repeats = {drafts}, .leave_alone = corrections},
      {.model_type = "granitemoe", .architectures = {"GraniteMoeForCausalLM"}, .rows = decoder_rows(pre_norm_layer(biased_attention, granite_experts()))},
      {.model_type = "ernie4_5_moe", .architectures = {"Ernie4_5_MoeForCausalLM"},
       .rows = embedding("{root}embed_tokens") +
               pre_norm_layer(attention({.qkv_bias = use_bias, .output_bias = use_bias}), moe_or_mlp({.shared = "shared_experts", .shared_present = is_set("moe_num_shared_experts"), .shared_bias = use_bias}, use_bias)) + head({.module = "{root}norm"}, use_bias),
       .tie = {.if_absent = true}, .leave_alone = {layer + "mlp.moe_statics.e_score_correction_bias", layer + "mlp.gate.moe_statics.e_score_correction_bias"},
       .drafts = {"{root}mtp_*", "mtp*"}},
      {.model_type = "hunyuan_v1_moe", .architectures = {"HunYuanMoEV1ForCausalLM"},
       .rows = decoder_rows(pre_norm_layer(attention({.qkv_bias = attention_bias, .output_bias = attention_bias,
                                                      .between = head_norms(layer + "self_attn.query_layernorm", layer + "self_attn.key_layernorm")}),
                                           moe({.router = "gate.wg", .shared = "shared_mlp"})))},
      {.model_type = "llama4_text", .architectures = {"Llama4ForCausalLM"}, .rows = llama4_rows(), .namings = {{"model.", "lm_head"}, {"language_model.model.", "language_model.lm_head"}}},
      {.model_type = "gpt_oss", .architectures = {"GptOssForCausalLM"}, .rows = gpt_oss_rows(), .leave_alone = {layer + "self_attn.sinks"}},
  };
}

}  // namespace rmsfold::model::family
