# SPDX-License-Identifier: MIT
"""Tiny models of decoders with LayerNorm."""

import torch
import transformers

from zoo_case import Animal

USUAL = {
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "vocab_size": 96,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GPT = {
    "n_embd": 48,
    "n_head": 4,
    "n_layer": 2,
    "n_inner": 40,
    "vocab_size": 96,
    "n_positions": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FALCON = {"hidden_size": 48, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_hidden_size": 40, "vocab_size": 96,
          "bos_token_id": 1, "eos_token_id": 2}


def animal(name, config, keys=USUAL, one_plus="", heads=True, **more):
    def build():
        made = getattr(transformers, config)(**{**keys, **more})
        return transformers.AutoModelForCausalLM.from_config(
            made, dtype=torch.float64, attn_implementation="eager"
        ).eval()

    return Animal(name, build, one_plus=one_plus, signs=False, heads=heads)


GROUPED = {"num_key_value_heads": 2}

CASES = [
    animal("gpt2", "GPT2Config", GPT),
    animal("gpt2-untied", "GPT2Config", GPT, tie_word_embeddings=False),
    animal("gpt_neox", "GPTNeoXConfig"),
    animal("gpt_neox-sequential", "GPTNeoXConfig", use_parallel_residual=False, attention_bias=False),
    animal("gptj", "GPTJConfig", GPT, rotary_dim=8, tie_word_embeddings=False),
    animal("opt", "OPTConfig", ffn_dim=40, word_embed_proj_dim=48),
    animal("opt-no-bias", "OPTConfig", ffn_dim=40, word_embed_proj_dim=48, enable_bias=False),
    animal("falcon-7b", "FalconConfig", FALCON, multi_query=True, parallel_attn=True),
    animal("falcon-40b", "FalconConfig", FALCON, new_decoder_architecture=True, num_kv_heads=2, bias=True),
    animal("falcon-rw", "FalconConfig", FALCON, multi_query=False, parallel_attn=False, bias=True, alibi=True),
    animal("phi", "PhiConfig", **GROUPED, qk_layernorm=True),
    animal("stablelm", "StableLmConfig", **GROUPED, partial_rotary_factor=0.5, use_qkv_bias=True, qk_layernorm=True),
    animal("stablelm-parallel", "StableLmConfig", **GROUPED, partial_rotary_factor=0.5, use_parallel_residual=True),
    animal("starcoder2", "Starcoder2Config", **GROUPED),
    Animal(
        "bloom",
        animal("", "BloomConfig", {"hidden_size": 48, "n_head": 4, "n_layer": 2, "vocab_size": 96}).build,
        dense=False,
        signs=False,
        heads=True,
    ),
    animal("mpt", "MptConfig", {"d_model": 48, "n_heads": 4, "n_layers": 2, "vocab_size": 96, "max_seq_len": 128}),
    animal("cohere", "CohereConfig", **GROUPED, attention_bias=True, use_qk_norm=True),
    animal("cohere2", "Cohere2Config", **GROUPED, attention_bias=True, head_dim=16),
    animal("olmo", "OlmoConfig", **GROUPED, attention_bias=True),
    animal("olmo-clipped", "OlmoConfig", **GROUPED, clip_qkv=0.5, heads=False),
    animal("nemotron", "NemotronConfig", **GROUPED, one_plus="norm", attention_bias=True, mlp_bias=True, head_dim=16),
    animal("nemotron-no-bias", "NemotronConfig", **GROUPED, one_plus="norm", head_dim=16),
    animal("persimmon", "PersimmonConfig"),
]
