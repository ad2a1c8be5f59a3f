// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// State-space models, and hybrids of them or of short convolutions or linear attention with attention.

#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/family/parts.hpp>

namespace rmsfold::model::family {

/// A mixer that is no attention: one or several projections, something opaque, perhaps a norm, and a projection back.
struct MixerRows {
  std::string prefix = layer + "mixer.";       ///< of all its modules
  std::vector<std::string> in = {"in_proj"};   ///< modules that read the normed stream
  std::string norm = {};                       ///< module of the (gated) norm before the last projection; empty: none
  Presence norm_present = always();            ///< whether it is there
  std::string out = "out_proj";                ///< module that writes the stream
  Presence in_bias = never();                  ///< of `in`
  Presence out_bias = never();                 ///< of `out`
  Rows inner = {};                             ///< rows that read "ssm_inner.{i}" and write "ssm_inner_out.{i}"
};
/// Its rows. A gate is pointwise, so a norm's gain passes through it whichever comes first: the norm's row stands for both.
[[nodiscard]] inline Rows mixer(const MixerRows& m) {
  Rows rows;
  std::vector<std::string> projected;
  for (const std::string& module : m.in) {
    projected.push_back("mixer_" + module + ".{i}");
    rows = std::move(rows) + linear(m.prefix + module, "attention_in.{i}", projected.back(), m.in_bias);
  }
  const std::string core = m.prefix.substr(0, m.prefix.size() - 1);
  rows = std::move(rows) + m.inner;
  if (!m.inner.empty()) projected.push_back("ssm_inner_out.{i}");
  rows = std::move(rows) + operation(Op::opaque, core, std::move(projected), {"mixed.{i}"});
  const auto back = [&](const char* reads) { return linear(m.prefix + m.out, reads, std::string(residual), m.out_bias); };
  if (m.norm.empty()) return std::move(rows) + back("mixed.{i}");
  rows = std::move(rows) + when(m.norm_present, norm({.module = m.prefix + m.norm, .reads = "mixed.{i}", .writes = "mixed_normed.{i}", .span = Width::stored}) +
                                                    back("mixed_normed.{i}"));
  return m.norm_present.conditions.empty() ? rows : std::move(rows) + when(!m.norm_present, back("mixed.{i}"));
}

/// Tensors of a mixer that live among its inner channels.
[[nodiscard]] inline std::vector<std::string> mixer_tensors(const std::string& prefix) {
  return {prefix + "A_log", prefix + "D", prefix + "dt_bias", prefix + "conv1d.*"};
}

/// A gated MLP whose width is the files' to say.
[[nodiscard]] inline Rows stored_mlp(const std::string& prefix, const std::string& at, const std::string& gate = "gate_proj", const std::string& up = "up_proj",
                                     const std::string& down = "down_proj", const Presence& bias = never()) {
  return gated_mlp({.prefix = prefix, .gate = gate, .up = up, .down = down, .bias = bias, .at = at});
}

/// The rows of mamba, and of mamba2 with its norm.
[[nodiscard]] inline Rows mamba_rows(const std::string& inner_norm) {
  const Presence bias = flag("use_bias", false);
  return embedding("{root}embeddings") + norm({.module = layer + "norm"}) + mixer({.norm = inner_norm, .in_bias = bias, .out_bias = bias}) +
         head({.module = "{root}norm_f"});
}

/// The rows of jamba: layers of mamba or attention, each with an MLP or experts. The names that are stored tell which.
[[nodiscard]] inline Rows jamba_rows() {
  const std::string mamba = layer + "mamba.";
  const std::string ff = layer + "feed_forward.";
  const Presence bias = flag("mamba_proj_bias", false);
  const Rows selection =
      operation(Op::opaque, mamba + "x_proj", {"mixer_in_proj.{i}"}, {"ssm_dt.{i}", "ssm_b.{i}", "ssm_c.{i}"}) +
      norm({.module = mamba + "dt_layernorm", .reads = "ssm_dt.{i}", .writes = "ssm_dt_normed.{i}", .span = Width::stored}) +
      norm({.module = mamba + "b_layernorm", .reads = "ssm_b.{i}", .writes = "ssm_b_normed.{i}", .span = Width::stored}) +
      norm({.module = mamba + "c_layernorm", .reads = "ssm_c.{i}", .writes = "ssm_c_normed.{i}", .span = Width::stored}) +
      linear(mamba + "dt_proj", "ssm_dt_normed.{i}", "ssm_step.{i}", always()) +
      operation(Op::opaque, mamba + "scan", {"ssm_step.{i}", "ssm_b_normed.{i}", "ssm_c_normed.{i}"}, {"ssm_inner_out.{i}"});
  const Presence attends = in_file(layer + "self_attn.q_proj.weight");
  const Presence is_sparse = in_file(ff + "router.weight");
  return embedding("{root}embed_tokens") + norm({.module = layer + "input_layernorm"}) + when(attends, attention({})) +
         when(!attends, mixer({.prefix = mamba, .in_bias = bias, .out_bias = bias, .inner = selection})) +
         norm({.module = layer + "pre_ff_layernorm", .writes = "mlp_in.{i}"}) + when(!is_sparse, gated_mlp({.prefix = ff})) +
         when(is_sparse, linear(ff + "router", "mlp_in.{i}", "router.{i}") + gated_experts({.prefix = ff + "experts."})) +
         head({.module = "{root}final_layernorm"});
}

/// The rows of lfm2 and lfm2_moe: layers of a gated short convolution or attention. The final norm is called after the embedding.
/// @param mlp  between "mlp_in.{i}" and the stream
[[nodiscard]] inline Rows lfm2_rows(Rows mlp) {
  const std::string conv = layer + "conv.";
  const std::string attn = layer + "self_attn.";
  const Presence bias = flag("conv_bias", false);
  const Presence attends = in_file(attn + "q_proj.weight");
  return embedding("{root}embed_tokens") + norm({.module = layer + "operator_norm"}) +
         when(attends, attention({.o = "out_proj", .between = head_norms(attn + "q_layernorm", attn + "k_layernorm")})) +
         when(!attends, mixer({.prefix = conv, .in_bias = bias, .out_bias = bias})) + norm({.module = layer + "ffn_norm", .writes = "mlp_in.{i}"}) + std::move(mlp) +
         head({.module = "{root}embedding_norm"});
}

/// The rows of falcon_h1: attention and a state space side by side. All its multipliers are numbers, or act on inner channels.
[[nodiscard]] inline Rows falcon_h1_rows() {
  const Presence attention_bias = flag("attention_bias", false);
  return embedding("{root}embed_tokens") + norm({.module = layer + "input_layernorm"}) +
         mixer({.prefix = layer + "mamba.", .norm = "norm", .norm_present = flag("mamba_rms_norm", false), .in_bias = flag("mamba_proj_bias", false),
                .out_bias = flag("projectors_bias", false)}) +
         attention({.qkv_bias = attention_bias, .output_bias = attention_bias}) +
         norm({.module = layer + "pre_ff_layernorm", .writes = "mlp_in.{i}"}) +
         gated_mlp({.prefix = layer + "feed_forward.", .bias = flag("mlp_bias", false)}) + head({.module = "{root}final_layernorm"});
}

/// Attention whose query projection has a gate beside each head's query, for what attention gives.
[[nodiscard]] inline Rows gated_attention(const std::string& prefix, const Presence& bias, GainConvention gain) {
  return linear(prefix + "q_proj", "attention_in.{i}", "query_and_gate.{i}", bias) +
         operation(Op::opaque, prefix + "q_proj.split", {"query_and_gate.{i}"}, {"query.{i}", "output_gate.{i}"}) +
         linear(prefix + "k_proj", "attention_in.{i}", "key.{i}", bias) + linear(prefix + "v_proj", "attention_in.{i}", "value.{i}", bias) +
         head_norms(prefix + "q_norm", prefix + "k_norm", gain) +
         operation(Op::attention, prefix.substr(0, prefix.size() - 1), {"query.{i}", "key.{i}", "value.{i}"}, {"attended.{i}"}) +
         operation(Op::opaque, prefix + "output_gate", {"attended.{i}", "output_gate.{i}"}, {"gated.{i}"}) +
         linear(prefix + "o_proj", "gated.{i}", std::string(residual), bias);
}

/// The rows of qwen3_next. Norms store their gain minus one, but for the one inside linear attention.
[[nodiscard]] inline Rows qwen3_next_rows() {
  constexpr GainConvention gain = GainConvention::one_plus;
  const std::string delta = layer + "linear_attn.";
  const std::string mlp = layer + "mlp.";
  const Rows softmax = gated_attention(layer + "self_attn.", flag("attention_bias", false), gain);
  const Rows sparse = linear(mlp + "gate", "mlp_in.{i}", "router.{i}") + linear(mlp + "shared_expert_gate", "mlp_in.{i}", "shared_score.{i}") +
                      stored_mlp(mlp + "shared_expert.", "shared_") + gated_experts();
  const Presence is_sparse = in_file(mlp + "gate.weight");
  const Presence attends = in_file(layer + "self_attn.q_proj.weight");
  const Rows mixed = norm({.module = layer + "post_attention_layernorm", .writes = "mlp_in.{i}", .gain = gain}) +
                     when(!is_sparse, gated_mlp({.prefix = mlp})) + when(is_sparse, sparse);
  const Rows input_norm = norm({.module = layer + "input_layernorm", .gain = gain});
  // The block that predicts a further token: the embedding and the state after the final norm, each normed, one beside the other.
  Row joined{Op::linear, "mtp.fc", {"mtp_embedding", "mtp_state"}, {std::string(residual)}};
  Rows mtp = norm({.module = "mtp.pre_fc_norm_embedding", .writes = "mtp_embedding", .gain = gain}) +
             norm({.module = "mtp.pre_fc_norm_hidden", .reads = "final", .writes = "mtp_state", .gain = gain}) + Rows{std::move(joined)} +
             renamed(renamed(input_norm + softmax + mixed, layer, "mtp.layers.0."), ".{i}", ".mtp") +
             norm({.module = "mtp.norm", .writes = "mtp_final", .gain = gain});
  for (Row& row : mtp) row.mtp = true;
  return embedding("{root}embed_tokens") + input_norm + when(attends, softmax) +
         when(!attends, mixer({.prefix = delta, .in = {"in_proj_qkvz", "in_proj_ba"}, .norm = "norm"})) + mixed +
         norm({.module = "{root}norm", .writes = "final", .gain = gain}) + when(in_file("mtp.fc.weight"), std::move(mtp)) + linear("{head}", "final", "logits");
}

/// The families.
[[nodiscard]] inline std::vector<Family> hybrid_families() {
  const std::vector<Naming> backbone{{"backbone.", "lm_head"}};
  const std::vector<Repeat> many{layers, experts};
  const std::string ff = layer + "feed_forward.";
  const Rows lfm2_mlp = stored_mlp(ff, "ff_", "w1", "w3", "w2");
  const Presence is_sparse = in_file(ff + "gate.weight");
  const Rows lfm2_experts = when(is_sparse, linear(ff + "gate", "mlp_in.{i}", "router.{i}") + gated_experts({.prefix = ff + "experts.", .gate = "w1", .up = "w3", .down = "w2"})) +
                            when(!is_sparse, lfm2_mlp);
  return {
      {.model_type = "mamba", .architectures = {"MambaForCausalLM"}, .rows = mamba_rows({}),
       .tie = {.embedding = "{root}embeddings", .if_absent = true}, .namings = backbone,
       .leave_alone = both(mixer_tensors(layer + "mixer."), {layer + "mixer.x_proj.weight", layer + "mixer.dt_proj.*"})},
      {.model_type = "mamba2", .architectures = {"Mamba2ForCausalLM"}, .rows = mamba_rows("norm"),
       .tie = {.embedding = "{root}embeddings"}, .namings = backbone, .leave_alone = mixer_tensors(layer + "mixer.")},
      {.model_type = "jamba", .architectures = {"JambaForCausalLM"}, .rows = jamba_rows(), .repeats = many,
       .leave_alone = both(mixer_tensors(layer + "mamba."), {layer + "mamba.x_proj.weight"})},
      {.model_type = "lfm2", .architectures = {"Lfm2ForCausalLM"}, .rows = lfm2_rows(lfm2_mlp),
       .tie = {.flags = {"tie_embedding", "tie_word_embeddings"}, .if_absent = true}, .leave_alone = {layer + "conv.conv.*"}},
      {.model_type = "lfm2_moe", .architectures = {"Lfm2MoeForCausalLM"}, .rows = lfm2_rows(lfm2_experts),
       .tie = {.flags = {"tie_embedding", "tie_word_embeddings"}, .if_absent = true}, .repeats = many,
       .leave_alone = {layer + "conv.conv.*", layer + "feed_forward.expert_bias"}},
      {.model_type = "falcon_h1", .architectures = {"FalconH1ForCausalLM"}, .rows = falcon_h1_rows(),
       .leave_alone = both(mixer_tensors(layer + "mamba."), {layer + "self_attn.rotary_emb.inv_freq"})},
      {.model_type = "qwen3_next", .architectures = {"Qwen3NextForCausalLM"}, .rows = qwen3_next_rows(),
       .signals = {{"attention_in.mtp", Width::hidden, std::string(residual)}, {"mlp_in.mtp", Width::hidden, std::string(residual)},
                   {"mtp_embedding", Width::hidden, std::string(residual)}, {"mtp_state", Width::hidden, std::string(residual)},
                   {"mtp_final", Width::hidden, std::string(residual)}},
       .repeats = many, .leave_alone = mixer_tensors(layer + "linear_attn.")},
  };
}

}  // namespace rmsfold::model::family
