# SPDX-License-Identifier: MIT
"""Tiny models of hybrids and state-space models, encoders and encoder-decoders, and multimodal wrappers."""

import torch
import transformers
from zoo_case import Animal

# 5.24's Llama4ForConditionalGeneration asks its language model for this, which has none.
transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None

ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MINISTRAL_ROPE = ROPE | {"llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 4}


def stock(model, config):
    """A model of a stock class in float64."""
    return getattr(transformers, model)(config).double()


def mamba(**more):
    config = {
        "vocab_size": 96, "hidden_size": 12, "state_size": 4, "num_hidden_layers": 2, "expand": 2, "conv_kernel": 3,
        "time_step_rank": 5, "use_bias": True, "use_conv_bias": True, "residual_in_fp32": False,
    }
    return stock("MambaForCausalLM", transformers.MambaConfig(**(config | more)))


def mamba2(**more):
    config = {
        "vocab_size": 96, "hidden_size": 12, "state_size": 5, "num_hidden_layers": 2, "expand": 2, "conv_kernel": 3,
        "num_heads": 6, "head_dim": 4, "n_groups": 2, "chunk_size": 8, "use_bias": True, "use_conv_bias": True,
        "residual_in_fp32": False,
    }
    return stock("Mamba2ForCausalLM", transformers.Mamba2Config(**(config | more)))


def jamba(**more):
    # layer 0: mamba and dense, 1: attention and experts, 2: mamba and dense, 3: mamba and experts
    config = {
        "vocab_size": 96, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2, "expert_layer_period": 2,
        "expert_layer_offset": 1, "attn_layer_period": 4, "attn_layer_offset": 1, "mamba_d_state": 5, "mamba_d_conv": 3,
        "mamba_expand": 2, "mamba_dt_rank": 7, "mamba_conv_bias": True, "mamba_proj_bias": True, "use_mamba_kernels": False,
    }
    return stock("JambaForCausalLM", transformers.JambaConfig(**(config | more)))


def lfm2(**more):
    config = {
        "vocab_size": 96, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "conv_bias": True, "conv_L_cache": 3, "block_multiple_of": 4,
        "layer_types": ["conv", "full_attention", "conv"], "rope_parameters": ROPE,
    }
    return stock("Lfm2ForCausalLM", transformers.Lfm2Config(**(config | more)))


def lfm2_moe(**more):
    # layer 0: convolution and a dense MLP, 1: attention and experts, 2: convolution and experts
    config = {
        "vocab_size": 96, "hidden_size": 24, "intermediate_size": 40, "moe_intermediate_size": 14, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "conv_bias": True, "conv_L_cache": 3, "num_dense_layers": 1,
        "num_experts": 4, "num_experts_per_tok": 2, "layer_types": ["conv", "full_attention", "conv"], "rope_parameters": ROPE,
    }
    return stock("Lfm2MoeForCausalLM", transformers.Lfm2MoeConfig(**(config | more)))


def falcon_h1(**more):
    config = {
        "vocab_size": 96, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2,
        "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_chunk_size": 8, "mamba_conv_bias": True, "mamba_rms_norm": False,
        "projectors_bias": True, "mamba_proj_bias": True, "attention_bias": True, "mlp_bias": True,
        "embedding_multiplier": 1.7, "lm_head_multiplier": 0.6, "key_multiplier": 0.8, "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.1, "ssm_out_multiplier": 0.7,
        "mlp_multipliers": [0.9, 1.3], "ssm_multipliers": [0.7, 0.8, 0.9, 1.1, 1.2], "rope_parameters": ROPE,
    }
    return stock("FalconH1ForCausalLM", transformers.FalconH1Config(**(config | more)))


def qwen3_next(**more):
    # layer 0: linear attention and a dense MLP, 1: full attention and experts, 2: linear attention and experts
    config = {
        "vocab_size": 96, "hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "linear_conv_kernel_dim": 3,
        "linear_key_head_dim": 6, "linear_value_head_dim": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "moe_intermediate_size": 14, "shared_expert_intermediate_size": 10, "num_experts": 4, "num_experts_per_tok": 2,
        "mlp_only_layers": [0], "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "rope_parameters": ROPE | {"partial_rotary_factor": 0.5},
    }
    return stock("Qwen3NextForCausalLM", transformers.Qwen3NextConfig(**(config | more)))


def t5(model="T5ForConditionalGeneration", config_class="T5Config", **more):
    config = {
        "vocab_size": 96, "d_model": 24, "d_kv": 5, "d_ff": 40, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "dropout_rate": 0.0,
        "decoder_start_token_id": 0,
    }
    return stock(model, getattr(transformers, config_class)(**(config | more)))


def t5_v1_1(**more):
    """As t5 1.1: gated, with a head of its own that is not scaled."""
    made = t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, **more)
    made.config.tie_word_embeddings = False
    made.lm_head.weight = torch.nn.Parameter(torch.randn_like(made.lm_head.weight))
    return made


def umt5(**more):
    return t5("UMT5ForConditionalGeneration", "UMT5Config", **more)


def umt5_untied(**more):
    made = umt5(tie_word_embeddings=False, **more)
    made.lm_head.weight = torch.nn.Parameter(torch.randn_like(made.lm_head.weight))
    return made


def whisper(**more):
    config = {
        "vocab_size": 96, "num_mel_bins": 10, "encoder_layers": 2, "encoder_attention_heads": 3, "decoder_layers": 3,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 40, "encoder_ffn_dim": 36, "d_model": 24, "max_source_positions": 12,
        "max_target_positions": 40, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
        "suppress_tokens": None, "begin_suppress_tokens": None,
    }
    return stock("WhisperForConditionalGeneration", transformers.WhisperConfig(**(config | more)))


def vit(model="ViTForImageClassification", **more):
    config = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 12,
        "patch_size": 4, "num_channels": 3, "num_labels": 7, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }
    return stock(model, transformers.ViTConfig(**(config | more)))


SIGLIP_VISION = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 12, "patch_size": 4,
}


BERT = {
    "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 48, "type_vocab_size": 3, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 1,
}


def bert(model="BertForMaskedLM", **more):
    return stock(model, transformers.BertConfig(**(BERT | more)))


def roberta(model="RobertaForMaskedLM", **more):
    return stock(model, transformers.RobertaConfig(**(BERT | more)))


def modernbert(**more):
    config = {
        "vocab_size": 96, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
        "max_position_embeddings": 64, "local_attention": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "cls_token_id": 1, "sep_token_id": 2, "norm_bias": True, "attention_bias": True, "mlp_bias": True,
        "classifier_bias": True, "embedding_dropout": 0.0, "attn_implementation": "eager",
    }
    return stock("ModernBertForMaskedLM", transformers.ModernBertConfig(**(config | more)))


TEXT = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "rope_parameters": ROPE, "pad_token_id": 0,
}
CLIP_VISION = {
    "model_type": "clip_vision_model", "hidden_size": 20, "intermediate_size": 28, "num_hidden_layers": 2,
    "num_attention_heads": 2, "image_size": 12, "patch_size": 4, "projection_dim": 16,
}


def llava(text=None, **more):
    config = transformers.LlavaConfig(
        text_config=TEXT | {"model_type": "llama"} | (text or {}), vision_config=CLIP_VISION, image_token_id=5,
        image_seq_length=9, multimodal_projector_bias=True, vision_feature_layer=-2, **more)
    return stock("LlavaForConditionalGeneration", config)


def mistral3(text="mistral", rope=ROPE, **more):
    vision = {
        "model_type": "pixtral", "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 2, "num_attention_heads": 2,
        "head_dim": 12, "image_size": 16, "patch_size": 4,
    }
    config = transformers.Mistral3Config(
        text_config=TEXT | {"model_type": text, "rope_parameters": rope}, vision_config=vision, image_token_index=5, spatial_merge_size=2,
        multimodal_projector_bias=True, vision_feature_layer=-1, **more)
    return stock("Mistral3ForConditionalGeneration", config)


def gemma3(**more):
    text = TEXT | {
        "model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8,
        "attention_bias": True, "query_pre_attn_scalar": 8,
        "rope_parameters": {"full_attention": ROPE, "sliding_attention": ROPE},
    }
    vision = SIGLIP_VISION | {"model_type": "siglip_vision_model", "vision_use_head": False, "image_size": 16}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, image_token_id=5, boi_token_id=6, eoi_token_id=7, mm_tokens_per_image=4, **more)
    return stock("Gemma3ForConditionalGeneration", config)


def llama4(**more):
    # layer 0: dense, 1: experts
    text = TEXT | {
        "model_type": "llama4_text", "intermediate_size": 20, "intermediate_size_mlp": 36, "num_local_experts": 3,
        "num_experts_per_tok": 1, "moe_layers": [1], "interleave_moe_layer_step": 2, "attention_bias": True,
        "attention_chunk_size": 64, "no_rope_layers": [1, 0], "use_qk_norm": True,
    }
    vision = {
        "hidden_size": 24, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
        "patch_size": 4, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 20, "projector_output_dim": 20, "vision_output_dim": 20,
    }
    config = transformers.Llama4Config(text_config=text, vision_config=vision, image_token_index=5, **more)
    return stock("Llama4ForConditionalGeneration", config)


QWEN_ONE_PLUS = r"(input_layernorm|post_attention_layernorm|[qk]_norm|model\.norm)\.weight$"
GEMMA_ONE_PLUS = r"(layernorm|[qk]_norm|model\.norm|mm_soft_emb_norm|language_model\.norm)\.weight$"

CASES = [
    Animal("mamba", mamba),
    Animal("mamba_untied", lambda: mamba(tie_word_embeddings=False, use_bias=False)),
    Animal("mamba2", mamba2),
    Animal("jamba", jamba, routers=r"feed_forward\.router$", heads=True),
    Animal("lfm2", lfm2, heads=True),
    Animal("lfm2_moe", lfm2_moe, routers=r"feed_forward\.gate$", heads=True),
    Animal("falcon_h1", falcon_h1, heads=True),
    Animal("falcon_h1_norm", lambda: falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=False), heads=True),
    Animal("falcon_h1_norm_first", lambda: falcon_h1(mamba_rms_norm=True, mamba_norm_before_gate=True), heads=True),
    Animal("qwen3_next", qwen3_next, one_plus=QWEN_ONE_PLUS, routers=r"mlp\.gate$",
           note="linear_attn.norm is stored as it is; the output gate of full attention excludes --heads"),
    Animal("t5", t5, inputs="encoder-decoder", heads=True, note="tied: the untied head takes over the factor d_model ** -0.5"),
    Animal("t5_v1_1", t5_v1_1, inputs="encoder-decoder", heads=True),
    Animal("whisper", whisper, inputs="features", signs=False, heads=True,
           note="the decoder stream; the encoder's starts at a GELU and is left alone. dense: a Q that fixes the ones vector"),
    Animal("vit", vit, inputs="pixels", signs=False, heads=True, note="dense: a Q that fixes the ones vector"),
    Animal("vit_base", lambda: vit("ViTModel"), inputs="pixels", dense=False, signs=False, moves=False,
           note="its output is the last hidden state: only what stays inside folds"),
    Animal("bert", bert, dense=False, signs=False, heads=True),
    Animal("bert_base", lambda: bert("BertModel"), dense=False, signs=False, moves=False, note="as vit_base"),
    Animal("umt5", umt5, inputs="encoder-decoder", dense=False, heads=True, note="tied, and has to stay so"),
    Animal("umt5_untied", umt5_untied, inputs="encoder-decoder", heads=True),
    Animal("roberta", roberta, dense=False, signs=False, heads=True),
    Animal("roberta_base", lambda: roberta("RobertaModel"), dense=False, signs=False, moves=False, note="as vit_base"),
    Animal("modernbert", modernbert, dense=False, signs=False, heads=True),
    Animal("llava_llama", llava, inputs="tokens and pixels", heads=True),
    Animal("llava_mistral", lambda: llava({"model_type": "mistral"}), inputs="tokens and pixels", heads=True),
    Animal("llava_qwen2", lambda: llava({"model_type": "qwen2"}), inputs="tokens and pixels", heads=True),
    Animal("mistral3", mistral3, inputs="tokens and pixels", heads=True),
    Animal("mistral3_ministral3", lambda: mistral3("ministral3", MINISTRAL_ROPE), inputs="tokens and pixels", heads=True),
    Animal("gemma3_vision", gemma3, inputs="tokens and pixels", one_plus=GEMMA_ONE_PLUS, dense=False, heads=True),
    Animal("llama4_vision", llama4, inputs="tokens and pixels", routers=r"feed_forward\.router$", heads=True),
]
