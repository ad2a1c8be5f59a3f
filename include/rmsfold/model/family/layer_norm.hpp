// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Pre-norm decoders with LayerNorm: their stream allows rotations that fix the ones vector, and permutations without signs.

#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/family/dense.hpp>

namespace rmsfold::model::family {

/// A LayerNorm between the stream and a branch. @param bias  whether it has one
[[nodiscard]] inline Rows pre_layer_norm(const std::string& module, const std::string& writes, const Presence& bias = always()) {
  return norm({.module = module, .writes = writes, .norm = NormKind::layer, .bias = bias});
}

/// LayerNorms of each head of queries and keys.
[[nodiscard]] inline Rows head_layer_norms(const std::string& prefix) {
  return norm({.module = prefix + "q_layernorm", .reads = "query.{i}", .writes = "query.{i}", .norm = NormKind::layer, .bias = always(), .span = Width::head}) +
         norm({.module = prefix + "k_layernorm", .reads = "key.{i}", .writes = "key.{i}", .norm = NormKind::layer, .bias = always(), .span = Width::head});
}

/// GPT-2.
[[nodiscard]] inline Family gpt2_family() {
  const std::string block = "{root}h.{i}.";
  return {.model_type = "gpt2", .architectures = {"GPT2LMHeadModel"},
          .rows = embedding("{root}wte") + embedding("{root}wpe", "positions") +
                  pre_layer_norm(block + "ln_1", "attention_in.{i}") +
                  fused_attention({.prefix = block + "attn.", .qkv = "c_attn", .o = "c_proj", .layout = Layout::in_out, .qkv_bias = always(), .output_bias = always()}) +
                  pre_layer_norm(block + "ln_2", "mlp_in.{i}") + mlp({.prefix = block + "mlp.", .up = "c_fc", .down = "c_proj", .bias = always(), .layout = Layout::in_out}) +
                  head({.module = "{root}ln_f", .norm = NormKind::layer, .bias = always()}),
          .tie = {.embedding = "{root}wte", .if_absent = true}, .namings = {{"transformer.", "lm_head"}, {"", "lm_head"}},
          .leave_alone = {block + "attn.bias", block + "attn.masked_bias"}};
}

/// GPT-NeoX: attention and MLP side by side or one after the other; either way each reads the stream through a norm of its own.
[[nodiscard]] inline Family gpt_neox_family() {
  return {.model_type = "gpt_neox", .architectures = {"GPTNeoXForCausalLM"},
          .rows = embedding("{root}embed_in") + pre_layer_norm(layer + "input_layernorm", "attention_in.{i}") +
                  fused_attention({.prefix = layer + "attention.", .qkv = "query_key_value", .o = "dense", .fused = Fused::per_kv_head,
                                   .qkv_bias = flag("attention_bias", true), .output_bias = flag("attention_bias", true)}) +
                  pre_layer_norm(layer + "post_attention_layernorm", "mlp_in.{i}") + mlp({.up = "dense_h_to_4h", .down = "dense_4h_to_h", .bias = always()}) +
                  head({.module = "{root}final_layer_norm", .norm = NormKind::layer, .bias = always()}),
          .tie = {.embedding = "{root}embed_in"}, .namings = {{"gpt_neox.", "embed_out"}, {"gpt_neox.", "lm_head"}},
          .leave_alone = {layer + "attention.bias", layer + "attention.masked_bias", layer + "attention.rotary_emb.inv_freq"}};
}

/// GPT-J: attention and MLP read the same norm.
[[nodiscard]] inline Family gptj_family() {
  const std::string block = "{root}h.{i}.";
  return {.model_type = "gptj", .architectures = {"GPTJForCausalLM"},
          .rows = embedding("{root}wte") + pre_layer_norm(block + "ln_1", "attention_in.{i}") + attention({.prefix = block + "attn.", .o = "out_proj"}) +
                  mlp({.prefix = block + "mlp.", .up = "fc_in", .down = "fc_out", .bias = always(), .reads = "attention_in.{i}"}) +
                  head({.module = "{root}ln_f", .norm = NormKind::layer, .bias = always()}, always()),
          .tie = {.embedding = "{root}wte"}, .namings = {{"transformer.", "lm_head"}},
          .leave_alone = {block + "attn.bias", block + "attn.masked_bias", block + "attn.embed_positions"}};
}

/// OPT with norms before the branches.
[[nodiscard]] inline Family opt_family() {
  const Presence bias = flag("enable_bias", true);
  return {.model_type = "opt", .architectures = {"OPTForCausalLM"},
          .rows = embedding("{root}embed_tokens") + embedding("{root}embed_positions", "positions") +
                  pre_layer_norm(layer + "self_attn_layer_norm", "attention_in.{i}") + attention({.o = "out_proj", .qkv_bias = bias, .output_bias = bias}) +
                  pre_layer_norm(layer + "final_layer_norm", "mlp_in.{i}") + mlp({.prefix = layer, .up = "fc1", .down = "fc2", .bias = bias}) +
                  head({.module = "{root}final_layer_norm", .norm = NormKind::layer, .bias = always()}),
          .tie = {.if_absent = true}, .namings = {{"model.decoder.", "lm_head"}, {"decoder.", "lm_head"}},
          .requirements = {{flag("do_layer_norm_before", true), "its norms come after the branches are added, so their gains lie in the stream and nothing folds (opt-350m)"},
                           {!in_file("{root}project_in.weight"), "its words live in another space than its layers (project_in, project_out)"},
                           {flag("layer_norm_elementwise_affine", true), "its norms have no gains"},
                           {!flag("_remove_final_layer_norm", false), "it has no last norm"}},
          .eps = 1e-5};
}

/// Falcon: one norm for attention and MLP (7b), one for each (40b), or one after the other (rw).
[[nodiscard]] inline Family falcon_family() {
  const std::string block = "{root}h.{i}.";
  const Presence bias = flag("bias", false);
  const Presence has_two = in_file(block + "ln_attn.weight");
  const Presence is_sequential = !flag("parallel_attn", true);
  const auto branch = [&](const std::string& reads) {
    return mlp({.prefix = block + "mlp.", .up = "dense_h_to_4h", .down = "dense_4h_to_h", .bias = bias, .reads = reads});
  };
  return {.model_type = "falcon", .architectures = {"FalconForCausalLM"},
          .rows = embedding("{root}word_embeddings") + when(has_two, pre_layer_norm(block + "ln_attn", "attention_in.{i}")) +
                  when(!has_two, pre_layer_norm(block + "input_layernorm", "attention_in.{i}")) +
                  fused_attention({.prefix = block + "self_attention.", .qkv = "query_key_value", .o = "dense", .fused = Fused::per_kv_head, .qkv_bias = bias,
                                   .output_bias = bias}) +
                  when(has_two, pre_layer_norm(block + "ln_mlp", "mlp_in.{i}") + branch("mlp_in.{i}")) +
                  when(is_sequential, pre_layer_norm(block + "post_attention_layernorm", "mlp_in.{i}") + branch("mlp_in.{i}")) +
                  when(!has_two && !is_sequential, branch("attention_in.{i}")) +
                  head({.module = "{root}ln_f", .norm = NormKind::layer, .bias = always()}),
          .tie = {.embedding = "{root}word_embeddings", .if_absent = true}, .namings = {{"transformer.", "lm_head"}},
          .leave_alone = {block + "self_attention.rotary_emb.inv_freq"}, .one_kv_head = flag("multi_query", true) && !flag("new_decoder_architecture", false)};
}

/// BLOOM: the embedding goes through a norm whose gain lies in the stream.
[[nodiscard]] inline Family bloom_family() {
  const std::string block = "{root}h.{i}.";
  return {.model_type = "bloom", .architectures = {"BloomForCausalLM"},
          .rows = embedding("{root}word_embeddings", "tokens", "embedded") +
                  norm({.module = "{root}word_embeddings_layernorm", .reads = "embedded", .writes = std::string(residual), .norm = NormKind::layer, .bias = always()}) +
                  pre_layer_norm(block + "input_layernorm", "attention_in.{i}") +
                  fused_attention({.prefix = block + "self_attention.", .qkv = "query_key_value", .o = "dense", .fused = Fused::per_kv_head, .qkv_bias = always(),
                                   .output_bias = always()}) +
                  pre_layer_norm(block + "post_attention_layernorm", "mlp_in.{i}") +
                  mlp({.prefix = block + "mlp.", .up = "dense_h_to_4h", .down = "dense_4h_to_h", .bias = always()}) +
                  head({.module = "{root}ln_f", .norm = NormKind::layer, .bias = always()}),
          .tie = {.embedding = "{root}word_embeddings", .if_absent = true}, .namings = {{"transformer.", "lm_head"}, {"", "lm_head"}},
          .signals = {{"embedded", Width::hidden, std::string(residual)}},
          .requirements = {{!flag("apply_residual_connection_post_layernorm", false), "its stream is what its norms put out, so their gains fold into nothing"}}};
}

/// MPT.
[[nodiscard]] inline Family mpt_family() {
  const std::string block = "{root}blocks.{i}.";
  return {.model_type = "mpt", .architectures = {"MptForCausalLM"},
          .rows = embedding("{root}wte") + pre_layer_norm(block + "norm_1", "attention_in.{i}", never()) +
                  fused_attention({.prefix = block + "attn.", .qkv = "Wqkv", .o = "out_proj", .between = clamped_values(block + "attn.clip_qkv", "attn_config.clip_qkv")}) +
                  pre_layer_norm(block + "norm_2", "mlp_in.{i}", never()) + mlp({.prefix = block + "ffn."}) +
                  head({.module = "{root}norm_f", .norm = NormKind::layer}),
          .tie = {.embedding = "{root}wte", .if_absent = true}, .namings = {{"transformer.", "lm_head"}}};
}

/// Command R, with norms of queries and keys where config.json says so, and Command R7B.
[[nodiscard]] inline Rows cohere_rows() {
  const Presence bias = flag("attention_bias", false);
  const auto qk_norm = [](const std::string& name, const std::string& signal) {
    return norm({.module = layer + "self_attn." + name, .reads = signal, .writes = signal, .norm = NormKind::layer, .span = Width::stored});
  };
  return embedding("{root}embed_tokens") + pre_layer_norm(layer + "input_layernorm", "attention_in.{i}", never()) +
         attention({.qkv_bias = bias, .output_bias = bias, .between = when(flag("use_qk_norm", false), qk_norm("q_norm", "query.{i}") + qk_norm("k_norm", "key.{i}"))}) +
         gated_mlp({.reads = "attention_in.{i}"}) + head({.module = "{root}norm", .norm = NormKind::layer});
}

/// OLMo: LayerNorms without any parameters.
[[nodiscard]] inline Rows olmo_rows() {
  const Presence bias = flag("attention_bias", false);
  const auto plain = [](const std::string& module, const std::string& writes) {
    return norm({.module = module, .writes = writes, .norm = NormKind::layer, .has_weight = false});
  };
  return embedding("{root}embed_tokens") + plain(layer + "input_layernorm", "attention_in.{i}") +
         attention({.qkv_bias = bias, .output_bias = bias, .between = clamped_values(layer + "self_attn.clip_qkv", "clip_qkv")}) +
         plain(layer + "post_attention_layernorm", "mlp_in.{i}") + gated_mlp({}) + head({.module = "{root}norm", .norm = NormKind::layer, .has_weight = false});
}

/// Nemotron: gains are stored minus one.
[[nodiscard]] inline Rows nemotron_rows() {
  const auto plus_one = [](const std::string& module, const std::string& writes) {
    return norm({.module = module, .writes = writes, .norm = NormKind::layer, .gain = GainConvention::one_plus_in_own_type, .bias = always()});
  };
  const Presence bias = flag("attention_bias", false);
  return embedding("{root}embed_tokens") + plus_one(layer + "input_layernorm", "attention_in.{i}") + attention({.qkv_bias = bias, .output_bias = bias}) +
         plus_one(layer + "post_attention_layernorm", "mlp_in.{i}") + mlp({.bias = flag("mlp_bias", false)}) + plus_one("{root}norm", "final") +
         linear("{head}", "final", "logits");
}

/// StableLM: MLP beside attention or behind it; a norm of its own for each head of queries and keys where config.json says so.
[[nodiscard]] inline Family stablelm_family() {
  const Presence is_parallel = flag("use_parallel_residual", false);
  const auto per_head = [](const std::string& module, const std::string& signal) {
    return norm({.module = layer + "self_attn." + module, .reads = signal, .writes = signal, .norm = NormKind::layer, .span = Width::head});
  };
  return {.model_type = "stablelm", .architectures = {"StableLmForCausalLM"},
          .rows = embedding("{root}embed_tokens") + pre_layer_norm(layer + "input_layernorm", "attention_in.{i}") +
                  attention({.qkv_bias = flag("use_qkv_bias", false),
                             .between = when(flag("qk_layernorm", false), per_head("q_layernorm.norms.{h}", "query.{i}") + per_head("k_layernorm.norms.{k}", "key.{i}"))}) +
                  when(is_parallel, gated_mlp({.reads = "attention_in.{i}"})) +
                  when(!is_parallel, pre_layer_norm(layer + "post_attention_layernorm", "mlp_in.{i}") + gated_mlp({})) +
                  head({.module = "{root}norm", .norm = NormKind::layer, .bias = always()}),
          .repeats = {{"{h}", {"num_attention_heads"}}, {"{k}", {"num_key_value_heads", "num_attention_heads"}}},
          .leave_alone = rotary_buffers};
}

/// The families.
[[nodiscard]] inline std::vector<Family> layer_norm_families() {
  const Presence use_bias = flag("use_bias", true);
  return {
      gpt2_family(), gpt_neox_family(), gptj_family(), opt_family(), falcon_family(), bloom_family(), mpt_family(), stablelm_family(),
      {.model_type = "phi", .architectures = {"PhiForCausalLM"},
       .rows = embedding("{root}embed_tokens") + pre_layer_norm(layer + "input_layernorm", "attention_in.{i}") +
               attention({.o = "dense", .qkv_bias = always(), .output_bias = always(), .between = when(flag("qk_layernorm", false), head_layer_norms(layer + "self_attn."))}) +
               mlp({.up = "fc1", .down = "fc2", .bias = always(), .reads = "attention_in.{i}"}) +
               head({.module = "{root}final_layernorm", .norm = NormKind::layer, .bias = always()}, always())},
      {.model_type = "starcoder2", .architectures = {"Starcoder2ForCausalLM"},
       .rows = embedding("{root}embed_tokens") + pre_layer_norm(layer + "input_layernorm", "attention_in.{i}") + attention({.qkv_bias = use_bias, .output_bias = use_bias}) +
               pre_layer_norm(layer + "post_attention_layernorm", "mlp_in.{i}") + mlp({.up = "c_fc", .down = "c_proj", .bias = use_bias}) +
               head({.module = "{root}norm", .norm = NormKind::layer, .bias = always()}),
       .tie = {.if_absent = true}},
      {.model_type = "cohere", .architectures = {"CohereForCausalLM"}, .rows = cohere_rows(), .tie = {.if_absent = true}},
      {.model_type = "cohere2", .architectures = {"Cohere2ForCausalLM"}, .rows = cohere_rows(), .tie = {.if_absent = true}},
      {.model_type = "olmo", .architectures = {"OlmoForCausalLM"}, .rows = olmo_rows(), .eps = 1e-5},
      {.model_type = "nemotron", .architectures = {"NemotronForCausalLM"}, .rows = nemotron_rows()},
      {.model_type = "persimmon", .architectures = {"PersimmonForCausalLM"},
       .rows = embedding("{root}embed_tokens") + pre_layer_norm(layer + "input_layernorm", "attention_in.{i}") +
               fused_attention({.qkv = "query_key_value", .o = "dense", .fused = Fused::per_kv_head, .qkv_bias = always(), .output_bias = always(),
                                .between = when(flag("qk_layernorm", true), head_layer_norms(layer + "self_attn."))}) +
               pre_layer_norm(layer + "post_attention_layernorm", "mlp_in.{i}") + mlp({.up = "dense_h_to_4h", .down = "dense_4h_to_h", .bias = always()}) +
               head({.module = "{root}final_layernorm", .norm = NormKind::layer, .bias = always()})},
  };
}

}  // namespace rmsfold::model::family
