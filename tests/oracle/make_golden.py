# SPDX-License-Identifier: MIT
"""Writes the golden fixtures under tests/data/golden, or with --check recomputes them from the committed files.

Each folder is a checkpoint written by transformers, plus golden.safetensors: tokens, logits_stock (the class as it is)
and logits_double (the class with its float32 norms, rotary tables and softmax made float64)."""

import argparse
import contextlib
import pathlib
import shutil
import sys

import transformers
from safetensors import safe_open
from safetensors.torch import save_file
from transformers.models.llama import modeling_llama
from transformers.models.phi3 import modeling_phi3

import families
import stock
from families import Case, default_rope, shape

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "data" / "golden"
TOKENS = 24
SMALL = {"layers": 2, "vocab": 32}
# These put the four frequencies of the tiny head into all three bands of the llama3 rule.
LLAMA3 = dict(families.LLAMA3, original_max_position_embeddings=32, rope_theta=100.0)
# Some channels are left alone, some stretched, some in between; and queries grow after the eighth token.
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 1.0,
    "beta_slow": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
    "llama_4_scaling_beta": 0.1,
    "rope_theta": 100.0,
}
LONG = {
    "pad_token_id": None,
    "original_max_position_embeddings": 16,
    "rope_parameters": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.3, 1.5],
        "long_factor": [1.0, 1.5, 2.5, 4.0],
        "rope_theta": 100.0,
    },
}
ALPHA = {"rope_type": "dynamic", "alpha": 50.0, "factor": 1.0, "rope_theta": 10000.0}
MULTIPLIERS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
}

CASES = [
    Case(
        "llama",
        "llama",
        shape(16, 4, 2, 6, 20, **SMALL, attention_bias=True, mlp_bias=True, rope_parameters=default_rope()),
        seed=21,
    ),
    Case(
        "llama_tied_llama3_rope",
        "llama",
        shape(12, 4, 2, 8, 20, **SMALL, tie_word_embeddings=True, rope_parameters=LLAMA3),
        seed=22,
    ),
    Case(
        "mistral",
        "mistral",
        shape(16, 6, 2, 4, 20, **SMALL, sliding_window=None, rope_parameters=families.LINEAR),
        seed=23,
    ),
    Case(
        "qwen2_tied_old_keys",
        "qwen2",
        shape(16, 4, 2, None, 20, **SMALL, tie_word_embeddings=True, rope_parameters=default_rope()),
        seed=24,
        old_config_keys=True,
    ),
    Case(
        "qwen3",
        "qwen3",
        shape(20, 4, 2, 6, 16, **SMALL, attention_bias=True, rope_parameters=default_rope()),
        seed=25,
    ),
    # No class of these four families rotates a part of the head only: see partial_rotary below.
    Case(
        "llama_partial_rotary",
        "llama",
        shape(16, 4, 2, 8, 20, **SMALL, rope_parameters=dict(default_rope(), partial_rotary_factor=0.5)),
        seed=26,
    ),
    # What the other dense families compute otherwise.
    Case(
        "apertus_xielu",
        "apertus",
        shape(12, 2, 1, None, 16, **SMALL, rope_parameters=LLAMA3),
        seed=27,
    ),
    Case(
        "arcee_squared_relu",
        "arcee",
        shape(12, 2, 1, 8, 16, **SMALL, mlp_bias=True, rope_parameters=default_rope()),
        seed=28,
    ),
    Case(
        "ernie4_5_interleaved",
        "ernie4_5",
        shape(12, 2, 1, 8, 16, **SMALL, use_bias=True, rope_parameters=default_rope()),
        seed=29,
    ),
    Case(
        "gemma",
        "gemma",
        shape(12, 2, 1, 8, 16, **SMALL, rope_parameters=default_rope()),
        seed=30,
    ),
    Case(
        "glm_partial_interleaved",
        "glm",
        shape(12, 2, 1, 8, 16, **SMALL, pad_token_id=None, rope_parameters=default_rope()),
        seed=31,
    ),
    Case(
        "granite_multipliers",
        "granite",
        shape(12, 2, 1, None, 16, **SMALL, **MULTIPLIERS, rope_parameters=default_rope()),
        seed=32,
    ),
    Case(
        "hunyuan_norms_after_rope",
        "hunyuan_v1_dense",
        shape(12, 2, 1, 8, 16, **SMALL, rope_parameters=ALPHA),
        seed=33,
    ),
    Case(
        "ministral3_yarn",
        "ministral3",
        shape(12, 2, 1, 16, 16, **SMALL, pad_token_id=None, rope_parameters=YARN),
        seed=34,
    ),
    Case(
        "phi3_fused_longrope",
        "phi3",
        shape(16, 2, 1, None, 16, **SMALL, **LONG),
        seed=35,
    ),
    Case(
        "smollm3_layer_without_rope",
        "smollm3",
        shape(12, 2, 1, None, 16, **SMALL, pad_token_id=None, no_rope_layers=[0, 1], rope_parameters=default_rope()),
        seed=36,
    ),
]


@contextlib.contextmanager
def partial_rotary(case):
    """Lends the llama class the rotary functions of the phi3 class, which honour partial_rotary_factor.

    The stock llama, mistral, qwen2 and qwen3 classes ignore that key with the default rule and fail with the others."""
    saved = modeling_llama.apply_rotary_pos_emb, modeling_llama.LlamaRotaryEmbedding
    if "partial_rotary_factor" in case.config["rope_parameters"]:
        modeling_llama.apply_rotary_pos_emb = modeling_phi3.apply_rotary_pos_emb
        modeling_llama.LlamaRotaryEmbedding = modeling_phi3.Phi3RotaryEmbedding
    try:
        yield
    finally:
        modeling_llama.apply_rotary_pos_emb, modeling_llama.LlamaRotaryEmbedding = saved


def compute(case, directory):
    """The golden tensors of the checkpoint in a directory."""
    with partial_rotary(case):
        model = stock.load(directory)
        ids = stock.tokens(model.config.vocab_size, TOKENS, case.seed)
        return {
            "tokens": ids,
            "logits_stock": stock.logits(model, ids).contiguous(),
            "logits_double": stock.logits_double(model, ids).contiguous(),
        }


def check(case):
    """The committed tensors against the class: float64 to its rounding, the stock logits to that of float32."""
    with safe_open(GOLDEN / case.name / "golden.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
    again = compute(case, GOLDEN / case.name)
    if not bool((stored["tokens"] == again["tokens"]).all()):
        return False, "the tokens differ"
    plain = stock.distance(stored["logits_stock"], again["logits_stock"])
    double = stock.distance(stored["logits_double"], again["logits_double"])
    return plain <= 1e-5 and double <= 1e-11, f"stock {plain:.1e}; in double {double:.1e}"


def make(case):
    directory = GOLDEN / case.name
    shutil.rmtree(directory, ignore_errors=True)
    families.save(case, families.build(case), directory)
    (directory / "generation_config.json").unlink()
    save_file(compute(case, directory), directory / "golden.safetensors")
    (directory / "golden.safetensors").chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    checking = parser.parse_args().check
    print("transformers", transformers.__version__)
    good = True
    for case in CASES:
        if not checking:
            make(case)
        ok, text = check(case)
        good = good and ok
        print("ok    " if ok else "FAILED", case.name, text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
