# SPDX-License-Identifier: MIT
"""Tiny models of dense RMSNorm decoders, and of those with a gain in the residual path."""

import torch
import transformers

from zoo_case import Animal

SIZES = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def causal(config, **more):
    """Builds a causal model of a config class with these sizes and some other keys."""

    def build():
        made = getattr(transformers, config)(**{**SIZES, **more})
        return transformers.AutoModelForCausalLM.from_config(
            made, dtype=torch.float64, attn_implementation="eager"
        ).eval()

    return build


def dense(name, config, **more):
    return Animal(name, causal(config, **more), heads=True)


def one_plus(name, config, **more):
    return Animal(name, causal(config, **more), one_plus="norm", heads=True)


def stuck(name, config, gains="", **more):
    return Animal(name, causal(config, **more), one_plus=gains, dense=False, heads=True)


LAYER_TYPES = ["sliding_attention", "full_attention"]

CASES = [
    dense("llama", "LlamaConfig", head_dim=16, attention_bias=True, mlp_bias=True),
    dense("mistral", "MistralConfig", head_dim=16, sliding_window=None),
    dense("qwen2", "Qwen2Config", tie_word_embeddings=True),
    dense("qwen3", "Qwen3Config", head_dim=16, attention_bias=True),
    dense("ministral3", "Ministral3Config", head_dim=16),
    dense("smollm3", "SmolLM3Config", attention_bias=True, mlp_bias=True),
    dense("smollm3-untied", "SmolLM3Config", tie_word_embeddings=False),
    dense("seed_oss", "SeedOssConfig", head_dim=16, attention_bias=True, attention_out_bias=True, mlp_bias=True),
    dense("arcee", "ArceeConfig", head_dim=16, attention_bias=True, mlp_bias=True),
    dense("apertus", "ApertusConfig", attention_bias=True),
    dense("ernie4_5", "Ernie4_5Config", head_dim=16, use_bias=True),
    dense("hunyuan_v1_dense", "HunYuanDenseV1Config", head_dim=16, attention_bias=True),
    dense(
        "granite",
        "GraniteConfig",
        attention_bias=True,
        mlp_bias=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.7,
        attention_multiplier=0.2,
        logits_scaling=2.0,
    ),
    dense("glm", "GlmConfig", head_dim=16, attention_bias=True),
    dense("phi3", "Phi3Config"),
    dense("phi3-tied", "Phi3Config", tie_word_embeddings=True),
    one_plus("gemma", "GemmaConfig", head_dim=16, attention_bias=True),
    stuck("gemma2", "Gemma2Config", "norm", head_dim=16, attention_bias=True, layer_types=LAYER_TYPES, sliding_window=64),
    stuck("gemma3_text", "Gemma3TextConfig", "norm", head_dim=16, layer_types=LAYER_TYPES, sliding_window=64),
    stuck("glm4", "Glm4Config", head_dim=16, attention_bias=True),
    stuck("olmo2", "Olmo2Config", attention_bias=True),
    stuck("olmo3", "Olmo3Config", attention_bias=True, layer_types=LAYER_TYPES, sliding_window=64),
    stuck("exaone4", "Exaone4Config", head_dim=16, layer_types=LAYER_TYPES, sliding_window=64),
    Animal(
        "minimax",
        causal(
            "MiniMaxConfig",
            head_dim=16,
            num_local_experts=3,
            num_experts_per_tok=2,
            layer_types=["full_attention", "linear_attention"],
            block_size=16,
            linear_attn_alpha_factor=0.8,
            linear_attn_beta_factor=1.3,
            full_attn_alpha_factor=1.2,
            full_attn_beta_factor=0.6,
            mlp_alpha_factor=0.9,
            mlp_beta_factor=1.1,
        ),
        routers=r"mlp\.gate$",
        dense=False,
        heads=True,
        note="linear attention has a gate and keeps no values per head; --heads turns those of softmax attention",
    ),
]
