// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Dense pre-norm decoders with RMSNorm and rotary attention.

#include <vector>

#include <rmsfold/model/family/parts.hpp>

namespace rmsfold::model::family {

/// What differs between them.
struct LlamaRows {
  AttentionRows attention = {};   ///< see there
  GatedMlpRows mlp = {};          ///< see there
};
/// The rows of llama, and of most.
[[nodiscard]] inline Rows llama_rows(const LlamaRows& r = {}) {
  return embedding("{root}embed_tokens") +
         norm({.module = layer + "input_layernorm", .writes = "attention_in.{i}"}) + attention(r.attention) +
         norm({.module = layer + "post_attention_layernorm", .writes = "mlp_in.{i}"}) + gated_mlp(r.mlp) +
         head();
}

/// Buffers of old checkpoints.
inline const std::vector<std::string> rotary_buffers{layer + "self_attn.rotary_emb.inv_freq", "{root}rotary_emb.inv_freq"};

/// The families.
[[nodiscard]] inline std::vector<Family> dense_families() {
  const Presence attention_bias = flag("attention_bias", false);
  const Presence mlp_bias = flag("mlp_bias", false);
  return {
      {.model_type = "llama", .architectures = {"LlamaForCausalLM"},
       .rows = llama_rows({.attention = {.qkv_bias = attention_bias, .output_bias = attention_bias}, .mlp = {.bias = mlp_bias}}),
       .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "mistral", .architectures = {"MistralForCausalLM"}, .rows = llama_rows(), .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "qwen2", .architectures = {"Qwen2ForCausalLM"},
       .rows = llama_rows({.attention = {.qkv_bias = always()}}), .leave_alone = rotary_buffers, .has_forward = true},
      {.model_type = "qwen3", .architectures = {"Qwen3ForCausalLM"},
       .rows = llama_rows({.attention = {.qkv_bias = attention_bias, .output_bias = attention_bias, .between = head_norms()}}),
       .leave_alone = rotary_buffers, .has_forward = true},
  };
}

}  // namespace rmsfold::model::family
