// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Models that put pictures into a language model: what they have beside it.

#include <string>
#include <utility>
#include <vector>

#include <rmsfold/model/family/parts.hpp>

namespace rmsfold::model {

/// A family that a wrapper's text model may be of.
struct WrappedText {
  std::string model_type;                              ///< of the family
  std::vector<std::pair<std::string, long>> defaults;  ///< what its class takes for numbers that the section leaves out, as published wrappers do
  double eps;                                          ///< the same for eps
};

/// A model around the text model of another family, whose config stands in a section of config.json. Its family is the wrapper's rows before the text model's
/// own, with the wrapper's names and tie; all else is the text model's.
struct Wrapper {
  std::string model_type;                   ///< `model_type` in config.json
  std::vector<std::string> architectures;   ///< classes in `architectures` that the rows describe
  std::vector<WrappedText> texts;           ///< which families the text model may be of, by `model_type` in the section; the first where it does not say
  Rows rows;                                ///< what writes into the text model's stream
  std::vector<Naming> namings;              ///< how names may begin; the first is today's
  std::vector<std::string> leave_alone;     ///< tensors that live in other spaces only
  std::vector<std::string> tie_flags;       ///< keys of config.json, with the section before a dot; the first that is there counts, all are corrected
  bool tied_if_absent = false;              ///< what absent keys mean
  std::vector<SignalRow> signals = {};      ///< signals beside the text model's
  std::string section = "text_config";      ///< section of config.json that describes the text model
};

/// The family of a wrapper around one kind of text model.
[[nodiscard]] inline Family wrapped(const Wrapper& wrapper, const WrappedText& kind, Family text) {
  text.text_type = text.model_type;
  text.model_type = wrapper.model_type;
  text.architectures = wrapper.architectures;
  text.rows = wrapper.rows + std::move(text.rows);
  text.tie.flags = wrapper.tie_flags;
  text.tie.if_absent = wrapper.tied_if_absent;
  text.namings = wrapper.namings;
  text.signals.insert(text.signals.end(), wrapper.signals.begin(), wrapper.signals.end());
  text.leave_alone.insert(text.leave_alone.end(), wrapper.leave_alone.begin(), wrapper.leave_alone.end());
  text.section = wrapper.section;
  text.defaults = kind.defaults;
  text.eps = kind.eps;
  text.has_forward = false;
  return text;
}

namespace family {

/// What files are called today, and in the memory of transformers 5.
inline const std::vector<Naming> wrapped_namings{{"language_model.model.", "language_model.lm_head", ""}, {"model.language_model.", "lm_head", "model."}};

/// The wrappers.
[[nodiscard]] inline std::vector<Wrapper> wrappers() {
  const std::string project = "{outer}multi_modal_projector.";
  const std::string stream{residual};
  const std::string inner_tie = "text_config.tie_word_embeddings";
  const std::string outer_tie = "tie_word_embeddings";
  const Rows vision = operation(Op::opaque, "{outer}vision", {}, {"image"});
  // Two linears with a pointwise function between them.
  const auto two = [&](bool bias_if_absent) {
    const Presence bias = outer_flag("multimodal_projector_bias", bias_if_absent);
    return vision + linear(project + "linear_1", "image", "image_hidden", bias) + operation(Op::activation, project + "act", {"image_hidden"}, {"image_activated"}) +
           linear(project + "linear_2", "image_activated", stream, bias);
  };
  // One matrix, stored [in, out], after a norm of its own that stores its gain minus one.
  const Rows gemma = vision +
                     norm({.module = project + "mm_soft_emb_norm", .reads = "image", .writes = "image_normed", .gain = GainConvention::one_plus, .span = Width::stored}) +
                     stack(project + "mm_input_projection_weight", "image_normed", stream, Layout::in_out);
  const auto sizes = [](long hidden, long intermediate, long count, long heads, long kv_heads) {
    return std::vector<std::pair<std::string, long>>{{"hidden_size", hidden}, {"intermediate_size", intermediate}, {"num_hidden_layers", count},
                                                     {"num_attention_heads", heads}, {"num_key_value_heads", kv_heads}};
  };
  using Numbers = std::vector<std::pair<std::string, long>>;
  const WrappedText llama{"llama", both(sizes(4096, 11008, 32, 32, 32), Numbers{{"vocab_size", 32000}}), 1e-6};
  const WrappedText mistral{"mistral", both(sizes(4096, 14336, 32, 32, 8), Numbers{{"vocab_size", 32000}}), 1e-6};
  const WrappedText ministral3{"ministral3", both(sizes(4096, 14336, 34, 32, 8), Numbers{{"head_dim", 128}, {"vocab_size", 131072}}), 1e-5};
  const WrappedText qwen2{"qwen2", both(sizes(4096, 22016, 32, 32, 32), Numbers{{"vocab_size", 151936}}), 1e-6};
  const WrappedText gemma3{"gemma3_text", both(sizes(2304, 9216, 26, 8, 4), Numbers{{"head_dim", 256}, {"vocab_size", 262208}}), 1e-6};
  const WrappedText llama4{"llama4_text", both(sizes(5120, 8192, 48, 40, 8), Numbers{{"head_dim", 128}, {"vocab_size", 202048}, {"num_local_experts", 16}}), 1e-5};
  return {
      {.model_type = "llava", .architectures = {"LlavaForConditionalGeneration"}, .texts = {llama, mistral, qwen2}, .rows = two(true),
       .namings = wrapped_namings, .leave_alone = {"{outer}vision_tower.*"}, .tie_flags = {inner_tie, outer_tie}},
      {.model_type = "mistral3", .architectures = {"Mistral3ForConditionalGeneration"}, .texts = {mistral, ministral3}, .rows = two(false),
       .namings = wrapped_namings, .leave_alone = {"{outer}vision_tower.*", project + "norm.weight", project + "patch_merger.*"},
       .tie_flags = {outer_tie, inner_tie}},
      {.model_type = "gemma3", .architectures = {"Gemma3ForConditionalGeneration"}, .texts = {gemma3}, .rows = gemma,
       .namings = wrapped_namings, .leave_alone = {"{outer}vision_tower.*"}, .tie_flags = {outer_tie, inner_tie}, .tied_if_absent = true},
      {.model_type = "llama4", .architectures = {"Llama4ForConditionalGeneration"}, .texts = {llama4},
       .rows = vision + linear(project + "linear_1", "image", stream), .namings = {wrapped_namings.front()}, .leave_alone = {"{outer}vision_model.*"},
       .tie_flags = {inner_tie, outer_tie}},
  };
}

}  // namespace family
}  // namespace rmsfold::model
