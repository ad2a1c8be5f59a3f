// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Encoders, and encoders with a decoder.

#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/family/parts.hpp>

namespace rmsfold::model::family {

/// Attention with names of its own. `at` ends the names of its inner signals, so that one layer can have two of them.
struct HeadsRows {
  std::string q;  ///< module
  std::string k;  ///< module
  std::string v;  ///< module
  std::string o;  ///< module
  Presence q_bias = never();  ///< of each
  Presence k_bias = never();  ///< of each
  Presence v_bias = never();  ///< of each
  Presence o_bias = never();  ///< of each
  std::string reads = "attention_in.{i}";        ///< signal of the queries
  std::string keys_read = {};                    ///< signal of keys and values; empty: the same
  std::string writes = std::string(residual);    ///< signal
  std::string at = "{i}";                        ///< see above
};
/// Its rows.
[[nodiscard]] inline Rows heads(const HeadsRows& a) {
  const std::string& keys = a.keys_read.empty() ? a.reads : a.keys_read;
  return linear(a.q, a.reads, "query." + a.at, a.q_bias) + linear(a.k, keys, "key." + a.at, a.k_bias) + linear(a.v, keys, "value." + a.at, a.v_bias) +
         operation(Op::attention, a.o + ".attention", {"query." + a.at, "key." + a.at, "value." + a.at}, {"attended." + a.at}) +
         linear(a.o, "attended." + a.at, a.writes, a.o_bias);
}

/// Values that a rotation per head may act on.
[[nodiscard]] inline std::vector<SignalRow> head_signals(const std::string& at) {
  return {{"query." + at, Width::query_heads, ""}, {"key." + at, Width::kv_heads, ""},
          {"value." + at, Width::kv_heads, "value." + at}, {"attended." + at, Width::query_heads, "value." + at}};
}

/// Signals as wide as a stream, in its space.
[[nodiscard]] inline std::vector<SignalRow> stream_signals(const std::vector<std::string>& names, const std::string& space = std::string(residual)) {
  std::vector<SignalRow> rows;
  for (const std::string& name : names) rows.push_back({name, Width::hidden, space});
  return rows;
}

/// Two linears with a pointwise function between them.
[[nodiscard]] inline Rows two_layers(const std::string& up, const std::string& down, const std::string& reads, const std::string& at, const Presence& bias,
                                     const std::string& writes = std::string(residual)) {
  return linear(up, reads, "fc1." + at, bias) + operation(Op::activation, up + ".activation", {"fc1." + at}, {"fc1_activated." + at}) +
         linear(down, "fc1_activated." + at, writes, bias);
}

/// A LayerNorm with a bias, whose tensors old files call gamma and beta.
[[nodiscard]] inline Rows bert_norm(const std::string& module, const std::string& reads = std::string(residual), const std::string& writes = std::string(residual)) {
  const Presence old = in_file(module + ".gamma");
  Rows today = norm({.module = module, .reads = reads, .writes = writes, .norm = NormKind::layer, .bias = always()});
  Rows before = today;
  before.front().weight = ".gamma";
  before.front().bias_name = ".beta";
  return when(!old, std::move(today)) + when(old, std::move(before));
}

/// A LayerNorm with a bias.
[[nodiscard]] inline Rows layer_norm(const std::string& module, const std::string& reads, const std::string& writes, const Presence& bias = always()) {
  return norm({.module = module, .reads = reads, .writes = writes, .norm = NormKind::layer, .bias = bias});
}

/// The rows of t5. Encoder and decoder share the table of embeddings, hence the basis: one stream stands for both.
[[nodiscard]] inline Rows t5_rows() {
  const std::string enc = "{root}encoder.block.{j}.layer.";
  const std::string dec = "{root}decoder.block.{i}.layer.";
  const auto attention = [](const std::string& prefix, const std::string& at, const std::string& keys_read = {}) {
    return heads({.q = prefix + "q", .k = prefix + "k", .v = prefix + "v", .o = prefix + "o", .reads = "attention_in." + at, .keys_read = keys_read, .at = at});
  };
  const auto dense = [](const std::string& prefix, const std::string& at) {
    const std::string reads = "mlp_in." + at;
    const Presence gated = in_file(prefix + "wi_0.weight");
    return when(!gated, two_layers(prefix + "wi", prefix + "wo", reads, at, never())) +
           when(gated, linear(prefix + "wi_0", reads, "wi_0." + at) + linear(prefix + "wi_1", reads, "wi_1." + at) +
                           operation(Op::gated_activation, prefix + "gate", {"wi_0." + at, "wi_1." + at}, {"wi_activated." + at}) +
                           linear(prefix + "wo", "wi_activated." + at, std::string(residual)));
  };
  const auto table = [](const std::string& module) { return when(in_file(module + ".weight"), embedding(module)); };
  return embedding("{root}shared") + table("{root}encoder.embed_tokens") + table("{root}decoder.embed_tokens") +
         norm({.module = enc + "0.layer_norm", .writes = "attention_in.encoder.{j}"}) + attention(enc + "0.SelfAttention.", "encoder.{j}") +
         norm({.module = enc + "1.layer_norm", .writes = "mlp_in.encoder.{j}"}) + dense(enc + "1.DenseReluDense.", "encoder.{j}") +
         norm({.module = "{root}encoder.final_layer_norm", .writes = "encoded"}) +
         norm({.module = dec + "0.layer_norm", .writes = "attention_in.{i}"}) + attention(dec + "0.SelfAttention.", "{i}") +
         norm({.module = dec + "1.layer_norm", .writes = "attention_in.cross.{i}"}) + attention(dec + "1.EncDecAttention.", "cross.{i}", "encoded") +
         norm({.module = dec + "2.layer_norm", .writes = "mlp_in.{i}"}) + dense(dec + "2.DenseReluDense.", "{i}") +
         head({.module = "{root}decoder.final_layer_norm"});
}

/// The rows of whisper. The encoder's stream begins at a GELU and has a basis of its own.
[[nodiscard]] inline Rows whisper_rows() {
  const std::string enc = "{root}encoder.";
  const std::string dec = "{root}decoder.";
  const auto attention = [](const std::string& prefix, const std::string& at, const std::string& keys_read, const std::string& writes) {
    return heads({.q = prefix + "q_proj", .k = prefix + "k_proj", .v = prefix + "v_proj", .o = prefix + "out_proj", .q_bias = always(), .v_bias = always(),
                  .o_bias = always(), .reads = "attention_in." + at, .keys_read = keys_read, .writes = writes, .at = at});
  };
  const std::string each = enc + "layers.{j}.";
  const std::string one = dec + "layers.{i}.";
  const std::string stream{residual};
  return linear(enc + "conv1", "features", "conv1", always(), Layout::convolution) +
         operation(Op::activation, enc + "conv1.activation", {"conv1"}, {"conv1_activated"}) +
         linear(enc + "conv2", "conv1_activated", "stem", always(), Layout::convolution) +
         operation(Op::activation, enc + "conv2.activation", {"stem"}, {"encoder"}) + embedding(enc + "embed_positions", "frames", "encoder") +
         layer_norm(each + "self_attn_layer_norm", "encoder", "attention_in.encoder.{j}") + attention(each + "self_attn.", "encoder.{j}", {}, "encoder") +
         layer_norm(each + "final_layer_norm", "encoder", "mlp_in.encoder.{j}") +
         two_layers(each + "fc1", each + "fc2", "mlp_in.encoder.{j}", "encoder.{j}", always(), "encoder") +
         layer_norm(enc + "layer_norm", "encoder", "encoded") +
         embedding(dec + "embed_tokens") + embedding(dec + "embed_positions", "positions") +
         layer_norm(one + "self_attn_layer_norm", stream, "attention_in.{i}") + attention(one + "self_attn.", "{i}", {}, stream) +
         layer_norm(one + "encoder_attn_layer_norm", stream, "attention_in.cross.{i}") + attention(one + "encoder_attn.", "cross.{i}", "encoded", stream) +
         layer_norm(one + "final_layer_norm", stream, "mlp_in.{i}") + two_layers(one + "fc1", one + "fc2", "mlp_in.{i}", "{i}", always()) +
         head({.module = dec + "layer_norm", .norm = NormKind::layer, .bias = always()});
}

/// Something outside reads a stream or the last norm as it is: the output of a class without a head.
[[nodiscard]] inline Rows public_state(const std::string& reads) { return operation(Op::opaque, "last_hidden_state", {reads}, {"output"}); }

/// The rows of vit, under the names that files have.
[[nodiscard]] inline Rows vit_rows() {
  const std::string at = "{root}encoder.layer.{i}.";
  const std::string self = at + "attention.attention.";
  const Presence bias = flag("qkv_bias", true);
  const std::string stream{residual};
  const auto optional = [](const std::string& module, const std::string& writes, const std::string& tensor) {
    return when(in_file(tensor), linear(module, "final", writes, always()));
  };
  const std::string mask = "{root}embeddings.mask_token";
  return embedding("{root}embeddings.cls_token", "images", stream, "") + embedding("{root}embeddings.position_embeddings", "positions", stream, "") +
         when(in_file(mask), embedding(mask, "masks", stream, "")) +
         linear("{root}embeddings.patch_embeddings.projection", "pixels", stream, always(), Layout::convolution) +
         layer_norm(at + "layernorm_before", stream, "attention_in.{i}") +
         heads({.q = self + "query", .k = self + "key", .v = self + "value", .o = at + "attention.output.dense", .q_bias = bias, .k_bias = bias, .v_bias = bias,
                .o_bias = always()}) +
         layer_norm(at + "layernorm_after", stream, "mlp_in.{i}") + two_layers(at + "intermediate.dense", at + "output.dense", "mlp_in.{i}", "{i}", always()) +
         layer_norm("{root}layernorm", stream, "final") + optional("{root}pooler.dense", "pooled", "{root}pooler.dense.weight") +
         optional("classifier", "labels", "classifier.weight");
}

/// The rows of bert and roberta up to the last layer: every LayerNorm's output is the stream.
[[nodiscard]] inline Rows bert_rows() {
  const std::string at = "{root}encoder.layer.{i}.";
  const std::string self = at + "attention.self.";
  const std::string stream{residual};
  return embedding("{root}embeddings.word_embeddings") + embedding("{root}embeddings.position_embeddings", "positions") +
         embedding("{root}embeddings.token_type_embeddings", "types") + bert_norm("{root}embeddings.LayerNorm") +
         heads({.q = self + "query", .k = self + "key", .v = self + "value", .o = at + "attention.output.dense", .q_bias = always(), .k_bias = always(),
                .v_bias = always(), .o_bias = always(), .reads = stream}) +
         bert_norm(at + "attention.output.LayerNorm") + two_layers(at + "intermediate.dense", at + "output.dense", stream, "{i}", always()) +
         bert_norm(at + "output.LayerNorm") + when(in_file("{root}pooler.dense.weight"), linear("{root}pooler.dense", stream, "pooled", always()));
}

/// A head that guesses masked tokens: a linear, a pointwise function, a norm, and the table of embeddings again. That table's basis is the stream's.
[[nodiscard]] inline Rows masked_head(const std::string& dense, Rows last_norm, const std::string& reads, const Presence& bias, const Presence& head_bias) {
  return linear(dense, reads, "transformed", bias) + operation(Op::activation, dense + ".activation", {"transformed"}, {"transformed_activated"}) +
         std::move(last_norm) + linear("{head}", "final", "logits", head_bias);
}
/// Signals inside it.
inline const std::vector<SignalRow> masked_head_signals = stream_signals({"transformed", "transformed_activated"});

/// The rows of modernbert. Layer 0 has no norm before its attention.
[[nodiscard]] inline Rows modernbert_rows() {
  const std::string attn_norm = layer + "attn_norm";
  const Presence norm_bias = flag("norm_bias", false);
  const Presence attention_bias = flag("attention_bias", false);
  const Presence mlp_bias = flag("mlp_bias", false);
  const std::string stream{residual};
  const auto attention = [&](const std::string& reads) {
    return fused_attention({.prefix = layer + "attn.", .qkv = "Wqkv", .o = "Wo", .qkv_bias = attention_bias, .output_bias = attention_bias, .reads = reads});
  };
  return embedding("{root}embeddings.tok_embeddings") + layer_norm("{root}embeddings.norm", stream, stream, norm_bias) +
         when(in_first("{i}"), attention(stream)) + when(!in_first("{i}"), layer_norm(attn_norm, stream, "attention_in.{i}", norm_bias) + attention("attention_in.{i}")) +
         layer_norm(layer + "mlp_norm", stream, "mlp_in.{i}", norm_bias) + linear(layer + "mlp.Wi", "mlp_in.{i}", "gate_up.{i}", mlp_bias) +
         operation(Op::gated_activation, layer + "mlp", {"gate_up.{i}"}, {"activated.{i}"}) + linear(layer + "mlp.Wo", "activated.{i}", stream, mlp_bias) +
         layer_norm("{root}final_norm", stream, "encoded", norm_bias) +
         masked_head("head.dense", layer_norm("head.norm", "transformed_activated", "final", norm_bias), "encoded", flag("classifier_bias", false),
                     flag("decoder_bias", true));
}

/// The families.
[[nodiscard]] inline std::vector<Family> encoder_families() {
  const std::vector<Repeat> t5_layers{{"{i}", {"num_decoder_layers", "num_layers"}}, {"{j}", {"num_layers"}}};
  const std::vector<SignalRow> t5_signals =
      both(both(stream_signals({"attention_in.encoder.{j}", "mlp_in.encoder.{j}", "encoded", "attention_in.cross.{i}"}), head_signals("encoder.{j}")),
             head_signals("cross.{i}"));
  const std::vector<std::string> t5_tables{"{root}encoder.block.{j}.layer.0.SelfAttention.relative_attention_bias.weight",
                                           "{root}decoder.block.{j}.layer.0.SelfAttention.relative_attention_bias.weight",
                                           "{root}decoder.block.{j}.layer.1.EncDecAttention.relative_attention_bias.weight"};
  // Versions of the runtime differ in which of the two says whether the head is tied and its logits are scaled; the first is the newer.
  const std::vector<std::string> t5_flags{"scale_decoder_outputs", "tie_word_embeddings"};
  const std::string patches = "{root}embeddings.patch_embeddings.projection";
  const std::string words = "{root}embeddings.word_embeddings";
  const auto bert_head = [](const std::string& dense, const std::string& last_norm) {
    return masked_head(dense, bert_norm(last_norm, "transformed_activated", "final"), std::string(residual), always(), never());
  };
  const std::string bert_tie = "with a head of its own, stock classes would not find the bias that it shares with the masked-token head";
  const std::string nsp = "cls.seq_relationship";
  return {
      {.model_type = "t5", .architectures = {"T5ForConditionalGeneration"}, .rows = t5_rows(),
       .tie = {.embedding = "{root}shared", .flags = t5_flags, .if_absent = true, .scaled = true}, .namings = {{"", "lm_head"}}, .signals = t5_signals,
       .repeats = t5_layers, .leave_alone = t5_tables},
      {.model_type = "umt5", .architectures = {"UMT5ForConditionalGeneration"}, .rows = t5_rows(),
       .tie = {.embedding = "{root}shared", .flags = t5_flags, .if_absent = true, .scaled = true,
               .never_untie = "stock classes differ in whether logits of an untied umt5 are scaled"},
       .namings = {{"", "lm_head"}}, .signals = t5_signals, .repeats = t5_layers, .leave_alone = t5_tables},
      {.model_type = "whisper", .architectures = {"WhisperForConditionalGeneration"}, .rows = whisper_rows(),
       .tie = {.embedding = "{root}decoder.embed_tokens", .if_absent = true}, .namings = {{"model.", "proj_out"}},
       .signals = both(both(stream_signals({"attention_in.cross.{i}"}), head_signals("cross.{i}")),
                         stream_signals({"stem", "encoder", "attention_in.encoder.{j}", "mlp_in.encoder.{j}", "encoded"}, "encoder")),
       .repeats = {{"{i}", {"decoder_layers"}}, {"{j}", {"encoder_layers"}}}, .eps = 1e-5},
      {.model_type = "vit", .architectures = {"ViTForImageClassification"}, .rows = vit_rows(), .tie = {.embedding = patches, .has_head = false},
       .namings = {{"vit.", ""}}},
      {.model_type = "vit", .architectures = {"ViTModel"}, .rows = vit_rows() + public_state("final"), .tie = {.embedding = patches, .has_head = false},
       .namings = {{"", ""}, {"vit.", ""}}},
      {.model_type = "bert", .architectures = {"BertForMaskedLM"},
       .rows = bert_rows() + when(in_file(nsp + ".weight"), linear(nsp, "pooled", "next_sentence", always())) + bert_head("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"),
       .tie = {.embedding = words, .if_absent = true, .never_untie = bert_tie}, .namings = {{"bert.", "cls.predictions.decoder"}}, .signals = masked_head_signals,
       .leave_alone = {"{root}embeddings.position_ids", "cls.predictions.bias", "cls.predictions.decoder.bias"}},
      {.model_type = "roberta", .architectures = {"RobertaForMaskedLM"}, .rows = bert_rows() + bert_head("lm_head.dense", "lm_head.layer_norm"),
       .tie = {.embedding = words, .if_absent = true, .never_untie = bert_tie}, .namings = {{"roberta.", "lm_head.decoder"}}, .signals = masked_head_signals,
       .leave_alone = {"{root}embeddings.position_ids", "lm_head.bias", "lm_head.decoder.bias"}},
      {.model_type = "bert", .architectures = {"BertModel"}, .rows = bert_rows() + public_state(std::string(residual)),
       .tie = {.embedding = words, .has_head = false}, .namings = {{"", ""}, {"bert.", ""}}, .leave_alone = {"{root}embeddings.position_ids"}},
      {.model_type = "roberta", .architectures = {"RobertaModel"}, .rows = bert_rows() + public_state(std::string(residual)),
       .tie = {.embedding = words, .has_head = false}, .namings = {{"", ""}, {"roberta.", ""}}, .leave_alone = {"{root}embeddings.position_ids"}},
      {.model_type = "modernbert", .architectures = {"ModernBertForMaskedLM"}, .rows = modernbert_rows(),
       .tie = {.embedding = "{root}embeddings.tok_embeddings", .if_absent = true}, .namings = {{"model.", "decoder"}},
       .signals = both(masked_head_signals, stream_signals({"encoded"}))},
  };
}

/// Those that are not handled, and why.
[[nodiscard]] inline std::vector<std::pair<std::string, std::string>> refused_encoders() {
  const std::string towers = "it holds two towers with a config each, and the pooling head reads the last norm with a slice of its rows only";
  return {{"siglip", towers}, {"siglip_vision_model", "its pooling head reads the last norm with a slice of its rows only"},
          {"siglip_text_model", "its outputs are public states in the basis of the stream"}};
}

}  // namespace rmsfold::model::family
