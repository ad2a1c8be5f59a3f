// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The model families, as tables. A new family is a new table; no code knows a family's name.

#include <string>
#include <string_view>
#include <vector>

#include <rmsfold/core/error.hpp>
#include <rmsfold/model/recipe.hpp>

namespace rmsfold::model {

// clang-format off

/// Dense pre-norm decoders with RMSNorm, rotary attention and a gated MLP.
inline const Skeleton llama_shaped{
    .signals = {
        // name             width                 space
        {"tokens",          Width::vocabulary,    ""},
        {residual,          Width::hidden,        residual},
        {"attention_in.{i}", Width::hidden,       residual},
        {"query.{i}",       Width::query_heads,   ""},
        {"key.{i}",         Width::kv_heads,      ""},
        {"value.{i}",       Width::kv_heads,      values_space},
        {"attended.{i}",    Width::query_heads,   values_space},
        {"mlp_in.{i}",      Width::hidden,        residual},
        {"gate.{i}",        Width::intermediate,  ""},
        {"up.{i}",          Width::intermediate,  ""},
        {"activated.{i}",   Width::intermediate,  ""},
        {"final",           Width::hidden,        residual},
        {"logits",          Width::vocabulary,    ""},
    },
    .rows = {
        // op                   module                                    reads                                 writes              bias                 present          span
        {Op::embedding,        "model.embed_tokens",                      {"tokens"},                           "residual"},
        {Op::norm,             "model.layers.{i}.input_layernorm",        {"residual"},                         "attention_in.{i}"},
        {Op::linear,           "model.layers.{i}.self_attn.q_proj",       {"attention_in.{i}"},                 "query.{i}",        Option::qkv_bias},
        {Op::linear,           "model.layers.{i}.self_attn.k_proj",       {"attention_in.{i}"},                 "key.{i}",          Option::qkv_bias},
        {Op::linear,           "model.layers.{i}.self_attn.v_proj",       {"attention_in.{i}"},                 "value.{i}",        Option::qkv_bias},
        {Op::norm,             "model.layers.{i}.self_attn.q_norm",       {"query.{i}"},                        "query.{i}",        Option::never,       Option::qk_norm, Width::head},
        {Op::norm,             "model.layers.{i}.self_attn.k_norm",       {"key.{i}"},                          "key.{i}",          Option::never,       Option::qk_norm, Width::head},
        {Op::attention,        "model.layers.{i}.self_attn",              {"query.{i}", "key.{i}", "value.{i}"}, "attended.{i}"},
        {Op::linear,           "model.layers.{i}.self_attn.o_proj",       {"attended.{i}"},                     "residual",         Option::output_bias},
        {Op::norm,             "model.layers.{i}.post_attention_layernorm", {"residual"},                       "mlp_in.{i}"},
        {Op::linear,           "model.layers.{i}.mlp.gate_proj",          {"mlp_in.{i}"},                       "gate.{i}",         Option::mlp_bias},
        {Op::linear,           "model.layers.{i}.mlp.up_proj",            {"mlp_in.{i}"},                       "up.{i}",           Option::mlp_bias},
        {Op::gated_activation, "model.layers.{i}.mlp",                    {"gate.{i}", "up.{i}"},               "activated.{i}"},
        {Op::linear,           "model.layers.{i}.mlp.down_proj",          {"activated.{i}"},                    "residual",         Option::mlp_bias},
        {Op::norm,             "model.norm",                              {"residual"},                         "final"},
        {Op::linear,           "lm_head",                                 {"final"},                            "logits"},
    },
    .tie = {"lm_head", "model.embed_tokens", "tie_word_embeddings", false},
    .leave_alone = {"model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"},
};

/// Every family this version handles.
inline const std::vector<Family> families{
    {"llama", "LlamaForCausalLM", &llama_shaped, {
        {Option::qkv_bias,    {Presence::When::if_flag, "attention_bias", false}},
        {Option::output_bias, {Presence::When::if_flag, "attention_bias", false}},
        {Option::mlp_bias,    {Presence::When::if_flag, "mlp_bias", false}}}},
    {"mistral", "MistralForCausalLM", &llama_shaped, {}},
    {"qwen2", "Qwen2ForCausalLM", &llama_shaped, {
        {Option::qkv_bias,    {Presence::When::always}}}},
    {"qwen3", "Qwen3ForCausalLM", &llama_shaped, {
        {Option::qkv_bias,    {Presence::When::if_flag, "attention_bias", false}},
        {Option::output_bias, {Presence::When::if_flag, "attention_bias", false}},
        {Option::qk_norm,     {Presence::When::always}}}},
};

// clang-format on

/// The family of a `model_type`. @throws RefusedError naming the families there are: an unknown model is never treated as a known one.
[[nodiscard]] inline const Family& family_of(std::string_view model_type, const std::string& file) {
  std::string known;
  for (const Family& family : families) {
    if (family.model_type == model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  rmsfold::detail::raise<RefusedError>("{}: model_type \"{}\" is not a family this version knows (it knows {}); nothing was changed", file, model_type,
                                       known);
}

}  // namespace rmsfold::model
