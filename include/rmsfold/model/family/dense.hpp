// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dense pre-norm decoders with RMSNorm and rotary attention.

#include <vector>

#include <rmsfold/model/family/parts.hpp>

namespace rmsfold::model::family {

/// What differs between them.
struct LlamaRows {
  Rows attention = family::attention({});   ///< between the first norm and the stream
  Rows mlp = gated_mlp({});                 ///< between the second norm and the stream
  std::string attention_norm = "input_layernorm";       ///< module in the layer
  std::string mlp_norm = "post_attention_layernorm";    ///< module in the layer
  GainConvention gain = GainConvention::plain;          ///< of these norms and the last
};
/// The rows of llama, and of most.
[[nodiscard]] inline Rows llama_rows(const LlamaRows& r = {}) {
  return embedding("{root}embed_tokens") +
         norm({.module = layer + r.attention_norm, .writes = "attention_in.{i}", .gain = r.gain}) + r.attention +
         norm({.module = layer + r.mlp_norm, .writes = "mlp_in.{i}", .gain = r.gain}) + r.mlp +
         head({.module = "{root}norm", .gain = r.gain});
}

/// Gate and up as one projection.
[[nodiscard]] inline Rows fused_gated_mlp(const std::string& prefix = layer + "mlp.") {
  return linear(prefix + "gate_up_proj", "mlp_in.{i}", "gate_up.{i}") +
         operation(Op::gated_activation, prefix.substr(0, prefix.size() - 1), {"gate_up.{i}"}, {"activated.{i}"}) +
         linear(prefix + "down_proj", "activated.{i}", std::string(residual));
}

/// Buffers of old checkpoints.
inline const std::vector<std::string> rotary_buffers{layer + "self_attn.rotary_emb.inv_freq", "{root}rotary_emb.inv_freq"};

/// The families.
[[nodiscard]] inline std::vector<Family> dense_families() {
  const Presence attention_bias = flag("attention_bias", false);
  const Presence mlp_bias = flag("mlp_bias", false);
  const Presence use_bias = flag("use_bias", false);
  const Rows biased_attention = attention({.qkv_bias = attention_bias, .output_bias = attention_bias});
  const Rows normed_attention = attention({.qkv_bias = attention_bias, .output_bias = attention_bias, .between = head_norms()});
  return {
      {.model_type = "llama", .architectures = {"LlamaForCausalLM"},
       .rows = llama_rows({.attention = biased_attention, .mlp = gated_mlp({.bias = mlp_bias})}), .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "mistral", .architectures = {"MistralForCausalLM"}, .rows = llama_rows(), .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "ministral3", .architectures = {"Ministral3ForCausalLM"}, .rows = llama_rows(), .has_forward = true,
       .arithmetic = {.rotary_must_be_stated = true, .queries_grow = true}},
      {.model_type = "qwen2", .architectures = {"Qwen2ForCausalLM"},
       .rows = llama_rows({.attention = attention({.qkv_bias = always()})}), .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "qwen3", .architectures = {"Qwen3ForCausalLM"},
       .rows = llama_rows({.attention = normed_attention}), .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "smollm3", .architectures = {"SmolLM3ForCausalLM"},
       .rows = llama_rows({.attention = biased_attention, .mlp = gated_mlp({.bias = mlp_bias})}), .tie = {.if_absent = true}, .has_forward = true,
       .arithmetic = {.theta = 2000000, .rotary_layers = "no_rope_layers", .rotary_interval = "no_rope_layer_interval", .rotary_interval_if_absent = 4}},
      {.model_type = "seed_oss", .architectures = {"SeedOssForCausalLM"},
       .rows = llama_rows({.attention = attention({.qkv_bias = flag("attention_bias", true), .output_bias = flag("attention_out_bias", false)}),
                           .mlp = gated_mlp({.bias = mlp_bias})}),
       .has_forward = true},
      {.model_type = "arcee", .architectures = {"ArceeForCausalLM"},
       .rows = llama_rows({.attention = biased_attention, .mlp = mlp({.bias = mlp_bias})}), .has_forward = true, .arithmetic = {.activation = "relu2"}},
      {.model_type = "apertus", .architectures = {"ApertusForCausalLM"},
       .rows = llama_rows({.attention = normed_attention, .mlp = mlp({}), .attention_norm = "attention_layernorm", .mlp_norm = "feedforward_layernorm"}),
       .leave_alone = {layer + "mlp.act_fn.*"}, .has_forward = true,
       .arithmetic = {.activation = "xielu", .theta = 12000000, .rotary_must_be_stated = true}},
      {.model_type = "ernie4_5", .architectures = {"Ernie4_5ForCausalLM"},
       .rows = llama_rows({.attention = attention({.qkv_bias = use_bias, .output_bias = use_bias}), .mlp = gated_mlp({.bias = use_bias})}),
       .tie = {.if_absent = true}, .has_forward = true, .arithmetic = {.theta = 500000, .rotates_neighbours = true}},
      {.model_type = "hunyuan_v1_dense", .architectures = {"HunYuanDenseV1ForCausalLM"},
       .rows = llama_rows({.attention = attention({.qkv_bias = attention_bias, .output_bias = attention_bias,
                                                   .between = head_norms(layer + "self_attn.query_layernorm", layer + "self_attn.key_layernorm")})}),
       .has_forward = true, .arithmetic = {.alpha_stretches_theta = true, .rotates_before_norms = true}},
      {.model_type = "granite", .architectures = {"GraniteForCausalLM"},
       .rows = llama_rows({.attention = biased_attention, .mlp = gated_mlp({.bias = mlp_bias})}), .has_forward = true,
       .arithmetic = {.embedding_factor = "embedding_multiplier", .branch_factor = "residual_multiplier", .score_factor = "attention_multiplier",
                      .logit_divisor = "logits_scaling"}},
      {.model_type = "glm", .architectures = {"GlmForCausalLM"},
       .rows = llama_rows({.attention = attention({.qkv_bias = flag("attention_bias", true)}), .mlp = fused_gated_mlp()}),
       .has_forward = true, .arithmetic = {.rotated_part = 0.5, .rotates_neighbours = true}},
      {.model_type = "phi3", .architectures = {"Phi3ForCausalLM"},
       .rows = llama_rows({.attention = fused_attention({}), .mlp = fused_gated_mlp()}), .has_forward = true},
      {.model_type = "gemma", .architectures = {"GemmaForCausalLM"},
       .rows = llama_rows({.attention = biased_attention, .gain = GainConvention::one_plus}), .tie = {.if_absent = true}, .has_forward = true,
       .arithmetic = {.activation = "gelu_pytorch_tanh", .gelu_is_tanh = true, .embedding_times_root = true}},
  };
}

}  // namespace rmsfold::model::family
