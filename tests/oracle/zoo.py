# SPDX-License-Identifier: MIT
"""Tiny stock models of every family: transformed by our program, loaded and run by their own classes."""

import concurrent.futures
import contextlib
import json
import math
import re
import shutil

import numpy
import torch

import stock
import zoo_dense
import zoo_layer_norm
import zoo_moe
import zoo_other
from program import Results

ANIMALS = zoo_dense.CASES + zoo_moe.CASES + zoo_layer_norm.CASES + zoo_other.CASES

SEED = 11
UNPATCHED = 1e-5  # as the classes compute, some of it in float32; more where that costs the class itself more
DOUBLE = 1e-11  # all in float64
FAR_OFF = 1e-3  # what was refused must change the outputs by at least this part of their size
EXPERTS_NEED = 64  # tokens, so that every expert is chosen


def gains(rng, shape):
    """Gains of 0.3 ... 3, a quarter of them negative."""
    return numpy.exp(rng.uniform(math.log(0.3), math.log(3.0), shape)) * numpy.where(rng.random(shape) < 0.25, -1, 1)


def randomise(model, animal):
    """Random numbers for every parameter: gains away from 1, biases that are not zero, activations near 1."""
    rng, seen = numpy.random.default_rng(SEED), set()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if parameter.data_ptr() in seen:
                continue  # tied
            seen.add(parameter.data_ptr())
            shape, last = tuple(parameter.shape), name.split(".")[-1]
            is_norm = re.search(r"norm|(^|\.)ln_", name.lower()) is not None
            if is_norm and last == "weight":
                value = gains(rng, shape)
                if animal.one_plus and re.search(animal.one_plus, name):
                    value = value - 1
            elif last in ("A_log", "dt_bias"):
                continue  # of state spaces, which their own values keep stable
            elif "bias" in last:
                value = 0.5 * rng.standard_normal(shape)
            elif parameter.ndim < 2 or re.search(r"embed|shared\.|wte|wpe", name):
                value = rng.standard_normal(shape)
            else:
                fan_in = numpy.prod(shape[1:]) if "conv" in name else shape[-1]
                value = rng.standard_normal(shape) / math.sqrt(fan_in)
            parameter.copy_(torch.from_numpy(numpy.asarray(value)))
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.copy_(torch.from_numpy(0.1 * rng.standard_normal(tuple(buffer.shape))))


def inputs(animal, model):
    """What the class is called with."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(8, 90, (2, EXPERTS_NEED if animal.routers else 24), generator=generator)
    decoder_tokens = torch.randint(8, 90, (2, 9), generator=generator)
    if animal.inputs == "encoder-decoder":
        return {"input_ids": tokens, "decoder_input_ids": decoder_tokens}
    if animal.inputs == "features":
        features = torch.randn(2, 10, 24, generator=generator, dtype=torch.float64)
        return {"input_features": features, "decoder_input_ids": decoder_tokens}
    if animal.inputs == "tokens":
        return {"input_ids": tokens}
    config = model.config
    size = getattr(config, "vision_config", config).image_size
    pixels = {"pixel_values": torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)}
    if animal.inputs == "pixels":
        return pixels
    patches = {"llava": 9, "mistral3": 4, "gemma3": 4, "llama4": 4}[config.model_type]
    tokens[:, 2 : 2 + patches] = 5  # the token that stands for a part of the picture
    if config.model_type == "mistral3":
        pixels["image_sizes"] = torch.tensor([[size, size], [size, size]])
    if config.model_type == "gemma3":
        pixels["token_type_ids"] = (tokens == 5).long()
    return {"input_ids": tokens, **pixels}


def load(kind, directory, in_double=True):
    """The stock class with the stored weights; an error if a key is missing, left over or of another shape."""
    keywords = {"dtype": torch.float64, "attn_implementation": "eager", "output_loading_info": True}
    with stock.all_in_double() if in_double else contextlib.nullcontext():  # some routers are float32 whatever is asked
        model, info = kind.from_pretrained(directory, **keywords)
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise AssertionError(f"{directory}: {problems}")
    for module in model.modules():  # the fast ways to multiply experts know no float64
        if hasattr(getattr(module, "config", None), "_experts_implementation"):
            module.config._experts_implementation = "eager"
    return model.eval()


def outputs(animal, model, in_double):
    """Everything the class puts out, and what its routers say."""
    routers, hooks = [], []
    for name, module in model.named_modules():
        if animal.routers and re.search(animal.routers, name):

            def keep(_module, _arguments, result):
                routers.append(result[0] if isinstance(result, tuple) else result)

            hooks.append(module.register_forward_hook(keep))
    keywords = inputs(animal, model)
    if in_double:
        with stock.all_in_double():
            result = model(**keywords)
    else:
        result = model(**keywords)
    for hook in hooks:
        hook.remove()
    if isinstance(result, tuple):
        values = [result[0]]
    else:
        keys = ("logits", "seq_relationship_logits", "last_hidden_state", "pooler_output")
        values = [result[key] for key in keys if result.get(key) is not None]
    assert values and all(bool(value.isfinite().all()) for value in values)
    return [value.double() for value in values], [value.double().reshape(-1, value.shape[-1]) for value in routers]


def distance(a, b):
    """Of several outputs: the largest; 0 for none."""
    return max((stock.distance(x, y) for x, y in zip(a, b)), default=0.0)


class Source:
    """The checkpoint of one animal and what it puts out."""

    def __init__(self, animal, work):
        self.animal, self.work = animal, work / animal.name
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        with stock.all_in_double():
            model = animal.build()
        randomise(model, animal)
        self.kind, self.path = type(model), self.work / "model"
        model.save_pretrained(self.path)
        self.plain = outputs(animal, load(self.kind, self.path, False), False)[0]
        self.double, self.routers = outputs(animal, load(self.kind, self.path), True)
        # What float32 costs the class itself; two checkpoints cannot agree better than that when it computes in it.
        self.arithmetic = max(UNPATCHED, 4 * distance(self.double, self.plain))
        self.row = {"name": animal.name, "stock": 0.0, "double": 0.0, "routers": 0.0}
        for scores in self.routers:
            used = scores.argmax(-1).unique().numel()
            if used < scores.shape[-1]:
                raise AssertionError(f"only {used} of {scores.shape[-1]} experts are ever the first choice")

    def compare(self, target):
        plain = distance(self.plain, outputs(self.animal, load(self.kind, target, False), False)[0])
        values, routers = outputs(self.animal, load(self.kind, target), True)
        return plain, distance(self.double, values), distance(self.routers, routers)


def step(source, program, name, command, options):
    """One step that the algebra allows."""
    target = source.work / name.replace(" ", "")
    program.make(command, source.path, target, *options, "--threads", 1)
    status, _, text = program.verify(source.path, target, "--no-logits", "--threads", 1)
    plain, double, routers = source.compare(target)
    shutil.rmtree(target)
    for key, value in (("stock", plain), ("double", double), ("routers", routers)):
        source.row[key] = max(source.row[key], value)
    problems = [] if status == 0 else [f"verify exited {status}: {text[-300:]}"]
    ok = not problems and plain <= source.arithmetic and double <= DOUBLE and routers <= DOUBLE
    said = f"stock {plain:.1e}; in double {double:.1e}" + (f"; routers {routers:.1e}" if source.routers else "")
    return ok, "; ".join([said, *problems])


def refused(source, program, rotation, options, forced):
    """A step that is refused with a reason; forcing it changes the outputs, so that the refusal is no superstition."""
    target = source.work / "refused"
    status, _, text = program.run("rotate", source.path, target, "--rotation", rotation, *options)
    problems = [] if status == 2 and not target.exists() else [f"exited {status}"]
    said = text.split(": ", 2)[-1][:110]
    if forced:
        program.force(source.path, target, rotation)
        off = distance(source.double, outputs(source.animal, load(source.kind, target), True)[0])
        shutil.rmtree(target)
        said = f"off by {off:.2g} when forced; {said}"
        if not off >= FAR_OFF:
            problems.append("forcing it changes nothing")
    return not problems, "; ".join([said, *problems])


def run_one(name, program, work):
    """All cases of an animal: lines for the report, and a row for the table."""
    animal = next(animal for animal in ANIMALS if animal.name == name)
    results = Results(quiet=True)
    try:
        source = Source(animal, work)
    except Exception as error:
        results.line(False, animal.name, f"{type(error).__name__}: {str(error)[:600]}")
        return results.lines, None
    seed = ["--seed", SEED]
    moves = "signed-permutation" if animal.signs else "permutation"
    heads = ["--heads"] if animal.heads else []
    results.case(f"{animal.name}: fold", step, source, program, "fold", "fold", [])
    options = ["--rotation", moves, *seed, *([] if animal.dense else heads)]
    if animal.moves:
        results.case(f"{animal.name}: {moves}", step, source, program, "moves", "rotate", options)
    else:
        results.case(f"{animal.name}: no {moves}", refused, source, program, moves, [], True)
    if animal.dense:
        options = ["--rotation", "orthogonal", *heads, *seed]
        results.case(f"{animal.name}: orthogonal", step, source, program, "dense", "rotate", options)
    else:
        results.case(f"{animal.name}: no orthogonal", refused, source, program, "orthogonal", [], True)
    if not animal.signs:
        arguments = source, program, "signed-permutation", [], True
        results.case(f"{animal.name}: no signs", refused, *arguments)
    if not animal.heads:
        results.case(f"{animal.name}: no heads", refused, source, program, "permutation", ["--heads"], False)
    shutil.rmtree(source.work)
    return results.lines, source.row


def run(program, work, results, names=None, workers=2):
    """Returns a row per animal."""
    chosen = [animal.name for animal in ANIMALS if not names or animal.name in names]
    rows = []
    with concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for lines, row in pool.map(run_one, chosen, [program] * len(chosen), [work] * len(chosen)):
            for line in lines:
                results.line(*line)
            if row:
                rows.append(row)
    return rows


def write_summary(rows, path):
    """What the page of families takes from here."""
    lines = [
        f"{json.dumps(row['name'])}: " + json.dumps({k: float(f"{v:.1e}") for k, v in row.items() if k != "name"})
        for row in sorted(rows, key=lambda row: row["name"])
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
