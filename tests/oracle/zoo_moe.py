# SPDX-License-Identifier: MIT
"""Tiny models of mixtures of experts."""

import torch
import transformers

from zoo_case import Animal

USUAL = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 40,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_experts_per_tok": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
DEEPSEEK = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
    "n_group": 2,
    "topk_group": 1,
}


def animal(name, config, routers, heads=True, **more):
    def build():
        made = getattr(transformers, config)(**{**USUAL, **more})
        return transformers.AutoModelForCausalLM.from_config(
            made, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        ).eval()

    return Animal(name, build, routers=routers, heads=heads)


GATE = r"mlp\.gate$"

CASES = [
    animal("mixtral", "MixtralConfig", GATE, num_local_experts=3),
    animal(
        "qwen2_moe",
        "Qwen2MoeConfig",
        GATE,
        num_experts=3,
        shared_expert_intermediate_size=20,
        mlp_only_layers=[0],
        head_dim=12,
    ),
    animal("qwen3_moe", "Qwen3MoeConfig", GATE, num_experts=3, mlp_only_layers=[1], attention_bias=True),
    animal("olmoe", "OlmoeConfig", GATE, num_experts=3, attention_bias=True, head_dim=12),
    animal("olmoe-clipped", "OlmoeConfig", GATE, heads=False, num_experts=3, clip_qkv=0.5, head_dim=12),
    animal("deepseek_v2", "DeepseekV2Config", GATE, heads=False, **DEEPSEEK, q_lora_rank=22, attention_bias=True),
    animal("deepseek_v2-lite", "DeepseekV2Config", GATE, heads=False, **DEEPSEEK, q_lora_rank=None, mlp_bias=True),
    animal("deepseek_v3", "DeepseekV3Config", GATE, heads=False, **DEEPSEEK, q_lora_rank=22, attention_bias=True),
    animal(
        "dots1",
        "Dots1Config",
        GATE,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=2,
        topk_group=1,
        attention_bias=True,
    ),
    animal(
        "glm4_moe",
        "Glm4MoeConfig",
        GATE,
        n_routed_experts=4,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=2,
        topk_group=1,
        attention_bias=True,
        use_qk_norm=True,
    ),
    animal(
        "granitemoe",
        "GraniteMoeConfig",
        r"block_sparse_moe\.router$",
        num_local_experts=3,
        head_dim=12,
        attention_bias=True,
        embedding_multiplier=3.0,
        residual_multiplier=0.7,
        attention_multiplier=0.2,
        logits_scaling=2.0,
    ),
    animal(
        "ernie4_5_moe",
        "Ernie4_5_MoeConfig",
        GATE,
        moe_num_experts=3,
        moe_k=2,
        moe_num_shared_experts=1,
        moe_layer_start_index=1,
        moe_layer_end_index=1,
        moe_layer_interval=1,
        use_bias=True,
    ),
    animal("hunyuan_v1_moe", "HunYuanMoEV1Config", r"gate\.wg$", num_experts=3, moe_topk=2, attention_bias=True),
    animal(
        "llama4_text",
        "Llama4TextConfig",
        r"feed_forward\.router$",
        num_local_experts=3,
        intermediate_size_mlp=36,
        interleave_moe_layer_step=2,
        attention_bias=True,
        num_experts_per_tok=1,
        layer_types=["chunked_attention", "full_attention"],
        attention_chunk_size=64,
    ),
    animal("gpt_oss", "GptOssConfig", r"mlp\.router$", num_local_experts=3),
]
