# SPDX-License-Identifier: MIT
"""Tiny llama, mistral, qwen2 and qwen3 checkpoints in every storage type, transformed by our program and run by the stock classes."""

import concurrent.futures
import re
import shutil

import torch

import checkpoint
import families
import stock
from program import Results

TOKENS = 200
SEED = 11
UNPATCHED = 1e-5  # the classes compute norms, rotary tables and softmax in float32: they agree to about 1e-6
DOUBLE = 1e-11  # all in float64: a few hundred roundings of 1e-16 each, times how much three layers amplify them
FAR_OFF = 0.1  # a wrong merge must be wrong by a good part of the logits' own size

# name, arguments, is it a fold or needs one (then a tied head is untied)
TRANSFORMS = [
    ("fold", ["fold"], True),
    ("hadamard", ["rotate", "--rotation", "hadamard"], True),
    ("orthogonal", ["rotate", "--rotation", "orthogonal"], True),
    ("hadamard --heads", ["rotate", "--rotation", "hadamard", "--heads"], True),
    ("orthogonal --heads", ["rotate", "--rotation", "orthogonal", "--heads"], True),
    ("signed-permutation", ["rotate", "--rotation", "signed-permutation"], False),
    ("permutation", ["rotate", "--rotation", "permutation"], False),
    ("signed-permutation --fold", ["rotate", "--rotation", "signed-permutation", "--fold"], True),
]

# `verify` compares logits after these; seven forward passes for each would say the same thing.
WITH_LOGITS = ("fold", "hadamard --heads", "signed-permutation")


def arguments(transform, source, target):
    command, *options = transform
    seed = ["--seed", SEED] if command == "rotate" else []
    return [command, source, target, *options, *seed]


def neutral_gains(directory):
    return all(
        bool((value == 1).all())
        for name, value in checkpoint.tensors(directory)[0].items()
        if re.search(r"layernorm\.weight$|^model\.norm\.weight$", name)
    )


class Source:
    """A checkpoint on disk with what is compared against it."""

    def __init__(self, case, work):
        self.case, self.work = case, work / case.name
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.path = families.save(case, families.build(case), self.work / "model")
        self.tied = bool(checkpoint.config(self.path)["tie_word_embeddings"])
        self.model = stock.load(self.path)
        assert stock.tied(self.model) == self.tied
        self.ids = stock.tokens(self.model.config.vocab_size, TOKENS, case.seed)
        self.logits = stock.logits(self.model, self.ids)
        self.double = stock.logits_double(self.model, self.ids)
        self.row = {"name": case.name}  # of the table in the results page

    def worst(self, key, value):
        self.row[key] = max(value, self.row.get(key, 0.0))

    def made(self, name):
        return self.work / name.replace(" ", "")

    def transform(self, program, name, transform, untie):
        """Program, layout, ties, gains, `verify`; then the stock class. Returns the model and problems found."""
        target = self.made(name)
        program.make(*arguments(transform, self.path, target))
        problems = []
        if problem := checkpoint.layout_problem(self.path, target, self.tied and untie):
            problems.append(problem)
        if untie and not neutral_gains(target):
            problems.append("a gain was left in place")
        logits = [] if name in WITH_LOGITS else ["--no-logits"]
        status, _, text = program.verify(self.path, target, "--threads", 1, *logits)
        if status != 0:
            problems.append(f"verify exited {status}: {text[-300:]}")
        model = stock.load(target)
        if stock.tied(model) != (self.tied and not untie):
            problems.append("the stock class ties the head wrongly")
        return model, problems


def f64(source, program, name, transform, untie):
    model, problems = source.transform(program, name, transform, untie)
    plain = stock.distance(source.logits, stock.logits(model, source.ids))
    double = stock.distance(source.double, stock.logits_double(model, source.ids))
    source.worst("stock", plain)
    source.worst("double", double)
    ok = not problems and plain <= UNPATCHED and double <= DOUBLE
    return ok, "; ".join([f"stock {plain:.1e}", f"in double {double:.1e}", *problems])


def narrow(source, program, name, transform, untie):
    """F32, F16, BF16: logits in double of what is stored, against the cost of one more rounding of the same weights."""
    model, problems = source.transform(program, name, transform, untie)
    measured = stock.distance(source.double, stock.logits_double(model, source.ids))
    if untie:
        changed = checkpoint.changed_weights(source.path, source.made(name))
        noisy = stock.load(source.path)
        if source.tied:
            stock.untie(noisy)
        away = [lambda result: stock.distance(source.double, result)]
        limit = 4 * stock.noise_floor(noisy, source.ids, changed, source.case.dtype, away)[0]
    else:
        limit = DOUBLE  # a permutation moves bits and rounds nothing
    ordinary = stock.logits(stock.load(source.made(name), dtype="auto"), source.ids)
    if not bool(torch.isfinite(ordinary).all()):
        problems.append("not finite in its own dtype")
    return not problems and measured <= limit, "; ".join([f"{measured:.1e} of {limit:.1e} allowed", *problems])


def inverse(source, program):
    """The inverse of a signed permutation gives every byte back."""
    there, back = source.made("signed-permutation"), source.made("back")
    program.make(*arguments(["rotate", "--rotation", "signed-permutation", "--inverse"], there, back))
    before, after = checkpoint.shards(source.path), checkpoint.shards(back)
    same = [p.name for p in before] == [p.name for p in after]
    same = same and all(p.read_bytes() == q.read_bytes() for p, q in zip(before, after))
    moved = any(p.read_bytes() != (there / p.name).read_bytes() for p in before)
    return same and moved, "every byte came back" if same and moved else f"same {same}, moved {moved}"


def heads(source):
    """--heads did change the values and the outputs, each head by an orthogonal matrix, and nothing else."""
    plain = checkpoint.tensors(source.made("hadamard"))[0]
    with_heads = checkpoint.tensors(source.made("hadamard--heads"))[0]
    head_dim = getattr(source.model.config, "head_dim", None)
    head_dim = head_dim or source.model.config.hidden_size // source.model.config.num_attention_heads
    problems, smallest = [], float("inf")
    for name, value in plain.items():
        other = with_heads[name]
        if re.search(r"v_proj\.(weight|bias)|o_proj\.weight", name):
            change = stock.distance(value, other)
            smallest = min(smallest, change)
            rows = value.T if "o_proj" in name else value.reshape(len(value), -1)
            others = other.T if "o_proj" in name else other.reshape(len(other), -1)
            for block, other_block in zip(rows.split(head_dim), others.split(head_dim)):
                gram = stock.distance(block.T @ block, other_block.T @ other_block)
                if not gram <= DOUBLE:
                    problems.append(f"{name}: not a rotation of each head ({gram:.1e})")
                    break
        elif not checkpoint.same_bytes(value, other):
            problems.append(f"{name} changed")
    ok = not problems and FAR_OFF <= smallest < float("inf")
    return ok, "; ".join([f"smallest change {smallest:.2f}", *problems])


def naive(source, program):
    target = checkpoint.naive_merge(source.path, source.work / "naive", seed=source.case.seed)
    off = stock.distance(source.double, stock.logits_double(stock.load(target), source.ids))
    status, _, text = program.verify(source.path, target)
    source.row["naive"] = off
    ok = off >= FAR_OFF and status == 1
    return ok, f"off by {off:.2f}; verify exited {status}" + ("" if status == 1 else f": {text[-300:]}")


def reference_forward(source, program):
    """Our own forward gives the logits of the class: with its float32 rotary tables, and all in double."""
    out = source.work / "logits.safetensors"
    plain = stock.distance(source.logits, program.forward(source.path, source.ids, out))
    double = stock.distance(source.double, program.forward(source.path, source.ids, out, "--rotary", "double"))
    return plain <= UNPATCHED and double <= DOUBLE, f"stock {plain:.1e}; in double {double:.1e}"


def upcasts(source):
    """The patch does something: without it the class is away from its own double result."""
    gap = stock.distance(source.double, stock.logits(source.model, source.ids))
    return gap > DOUBLE, f"float32 upcasts move the logits by {gap:.1e}"


def run_f64(number, program, work):
    """All cases of an F64 checkpoint: lines for the report, and its row of the table."""
    results, case = Results(quiet=True), families.CASES[number]
    source = Source(case, work)
    results.case(f"{case.name}: float32 upcasts", upcasts, source)
    results.case(f"{case.name}: reference forward", reference_forward, source, program)
    for name, transform, untie in TRANSFORMS:
        results.case(f"{case.name}: {name}", f64, source, program, name, transform, untie)
    results.case(f"{case.name}: heads changed", heads, source)
    results.case(f"{case.name}: inverse", inverse, source, program)
    results.case(f"{case.name}: naive merge", naive, source, program)
    return results.lines, source.row


def run_narrow(number, program, work):
    """The same for a checkpoint in a narrower type; no row."""
    results, case = Results(quiet=True), families.NARROW_CASES[number]
    source = Source(case, work)
    for name, transform, untie in TRANSFORMS:
        if name in ("fold", "hadamard --heads", "orthogonal", "signed-permutation"):
            results.case(f"{case.name}: {name}", narrow, source, program, name, transform, untie)
    results.case(f"{case.name}: inverse", inverse, source, program)
    results.case(f"{case.name}: naive merge", naive, source, program)
    return results.lines, None


def run(program, work, results, workers=2):
    """Returns a row per F64 checkpoint: the worst distances and that of the naive merge."""
    rows = []
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for function, cases in ((run_f64, families.CASES), (run_narrow, families.NARROW_CASES)):
            count = len(cases)
            for lines, row in pool.map(function, range(count), [program] * count, [work] * count):
                for line in lines:
                    results.line(*line)
                rows += [row] if row else []
    return rows
