# SPDX-License-Identifier: MIT
"""Tiny models of the stock classes with random gains and biases, and how they are written to disk."""

import dataclasses
import json
import math
import pathlib

import numpy
import torch
import transformers

LINEAR = {"rope_type": "linear", "factor": 2.5, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
    "rope_theta": 10000.0,
}


def default_rope(theta=10000.0):
    return {"rope_type": "default", "rope_theta": theta}


@dataclasses.dataclass(frozen=True)
class Case:
    """One tiny checkpoint: a family, its config, and the way it is stored."""

    name: str
    family: str
    config: dict
    seed: int
    dtype: torch.dtype = torch.float64
    shard_size: str | None = None
    old_config_keys: bool = False  # rope_theta / rope_scaling / torch_dtype, as transformers 4 wrote them


CONFIGS = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "apertus": transformers.ApertusConfig,
    "arcee": transformers.ArceeConfig,
    "ernie4_5": transformers.Ernie4_5Config,
    "gemma": transformers.GemmaConfig,
    "glm": transformers.GlmConfig,
    "granite": transformers.GraniteConfig,
    "hunyuan_v1_dense": transformers.HunYuanDenseV1Config,
    "ministral3": transformers.Ministral3Config,
    "phi3": transformers.Phi3Config,
    "smollm3": transformers.SmolLM3Config,
}


def gains(rng, size, sigma=None):
    """Gains of 0.2 … 5 spread evenly in the logarithm, or log-normal of the given sigma; about a quarter negative."""
    if sigma is None:
        magnitude = numpy.exp(rng.uniform(math.log(0.2), math.log(5.0), size))
        return magnitude * numpy.where(rng.random(size) < 0.25, -1.0, 1.0)
    return numpy.exp(sigma * rng.standard_normal(size)) * numpy.where(rng.random(size) < 0.05, -1.0, 1.0)


def randomise(model, seed, sigma=None):
    """Gives every parameter a random value of a size that keeps activations near one. Biases are never zero.

    Queries and keys get half of that: large scores would make attention a hard choice, which hides small mistakes."""
    rng = numpy.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            shape = tuple(parameter.shape)
            if "norm" in name:
                value = gains(rng, shape, sigma)
                if any(part in name for part in ("q_norm", "k_norm", "query_layernorm", "key_layernorm")):
                    value *= 0.5
            elif name.endswith(".bias") or len(shape) == 1:
                value = 0.5 * rng.standard_normal(shape)
            elif "embed_tokens" in name:
                value = rng.standard_normal(shape)
            else:
                value = rng.standard_normal(shape) / math.sqrt(shape[1])
                if any(part in name for part in ("q_proj", "k_proj", "qkv_proj")):
                    value *= 0.5
            parameter.copy_(torch.from_numpy(numpy.asarray(value)))


def build(case, sigma=None):
    """The model of a case, in the dtype it will be stored in."""
    config = CONFIGS[case.family](**case.config)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    randomise(model, case.seed, sigma)
    model = model.to(case.dtype)
    model.config.dtype = case.dtype
    return model.eval()


def save(case, model, directory):
    """Writes the model as save_pretrained does; with the old config keys if the case asks for them."""
    directory = pathlib.Path(directory)
    extra = {"max_shard_size": case.shard_size} if case.shard_size else {}
    model.save_pretrained(directory, **extra)
    if case.old_config_keys:
        path = directory / "config.json"
        config = json.loads(path.read_text())
        rope = config.pop("rope_parameters")
        config["rope_theta"] = rope.pop("rope_theta")
        config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
        config["torch_dtype"] = config.pop("dtype")
        config["transformers_version"] = "4.57.0"
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for path in directory.iterdir():
        path.chmod(0o644)
    return directory


def shape(hidden, heads, kv, head_dim, intermediate, layers=3, vocab=96, **more):
    """Config keys; without a head_dim the key is left out."""
    return {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **({"head_dim": head_dim} if head_dim else {}),
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "max_position_embeddings": 512,
        **more,
    }


CASES = [
    Case(
        "llama-biases-sharded",
        "llama",
        shape(64, 4, 2, 24, 96, attention_bias=True, mlp_bias=True, rope_parameters=default_rope()),
        seed=1,
        shard_size="200KB",
    ),
    Case(
        "llama-tied-llama3-rope",
        "llama",
        shape(48, 4, 2, 20, 80, tie_word_embeddings=True, rope_parameters=LLAMA3),
        seed=2,
    ),
    Case(
        "llama-old-keys-linear-rope",
        "llama",
        shape(80, 4, 1, 12, 96, attention_bias=True, rope_parameters=LINEAR),
        seed=3,
        old_config_keys=True,
    ),
    Case(
        "llama-tied-mlp-bias",
        "llama",
        shape(56, 4, 2, 16, 72, mlp_bias=True, tie_word_embeddings=True, rope_parameters=default_rope(500000.0)),
        seed=4,
    ),
    Case(
        "mistral-linear-rope",
        "mistral",
        shape(64, 6, 2, 12, 96, sliding_window=None, rope_parameters=LINEAR),
        seed=5,
    ),
    Case(
        "mistral-tied",
        "mistral",
        shape(40, 4, 2, 16, 64, sliding_window=None, tie_word_embeddings=True, rope_parameters=default_rope()),
        seed=6,
    ),
    Case("qwen2-head-dim", "qwen2", shape(48, 4, 2, 16, 80, rope_parameters=default_rope(1000000.0)), seed=7),
    Case(
        "qwen2-tied-old-keys",
        "qwen2",
        shape(64, 4, 2, None, 96, tie_word_embeddings=True, rope_parameters=default_rope()),
        seed=8,
        old_config_keys=True,
    ),
    Case(
        "qwen3-biases",
        "qwen3",
        shape(64, 6, 3, 20, 96, attention_bias=True, rope_parameters=default_rope(1000000.0)),
        seed=9,
    ),
    Case(
        "qwen3-tied-llama3-rope",
        "qwen3",
        shape(80, 4, 2, 24, 96, tie_word_embeddings=True, rope_parameters=LLAMA3),
        seed=10,
    ),
]

# The storage dtypes: one tied and one biased model each.
NARROW_CASES = [
    dataclasses.replace(case, name=f"{case.name}-{label}", dtype=dtype)
    for case in (CASES[1], CASES[8])
    for label, dtype in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16))
]
