# SPDX-License-Identifier: MIT
"""Writes the demo checkpoint examples/data/tiny-llama: stock llama, bfloat16, tied, gains spread like trained ones."""

import pathlib
import shutil

import torch

import families
import stock
from families import Case, default_rope, shape

DEMO = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "tiny-llama"
CASE = Case(
    "tiny-llama",
    "llama",
    shape(64, 4, 2, 24, 160, vocab=256, tie_word_embeddings=True, rope_parameters=default_rope()),
    seed=2026,
    dtype=torch.bfloat16,
)

if __name__ == "__main__":
    shutil.rmtree(DEMO, ignore_errors=True)
    families.save(CASE, families.build(CASE, sigma=0.5), DEMO)
    model = stock.load(DEMO)
    print("bytes", sum(path.stat().st_size for path in DEMO.iterdir()), "tied", stock.tied(model))
