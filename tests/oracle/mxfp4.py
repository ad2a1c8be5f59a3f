# SPDX-License-Identifier: MIT
"""A tiny gpt-oss whose experts are stored as MXFP4: our --dequantize against the conversion of transformers."""

import json
import shutil

import numpy
import safetensors.torch
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import stock
import zoo
import zoo_moe

CONFIG = {"num_local_experts": 3, "hidden_size": 64, "intermediate_size": 96}  # whole blocks of 32
ANIMAL = zoo_moe.animal("gpt_oss", "GptOssConfig", r"mlp\.router$", **CONFIG)


def write(work):
    """The checkpoint with codes, and the same with the numbers that transformers makes of them."""
    rng = numpy.random.default_rng(zoo.SEED)
    with stock.all_in_double():
        model = ANIMAL.build()
    zoo.randomise(model, ANIMAL)
    plain, coded = {}, {}
    for name, value in model.state_dict().items():
        if "norm" in name:  # powers of two, so that no product is rounded
            value = 2.0 ** torch.from_numpy(rng.integers(-1, 2, tuple(value.shape))).double()
        value = value.bfloat16().double()
        if not name.endswith("experts.gate_up_proj") and not name.endswith("experts.down_proj"):
            plain[name], coded[name] = value.clone(), value.bfloat16()
            continue
        experts, inputs, outputs = value.shape
        blocks = torch.from_numpy(rng.integers(0, 256, (experts, outputs, inputs // 32, 16), dtype=numpy.uint8))
        scales = torch.from_numpy(rng.integers(121, 125, (experts, outputs, inputs // 32), dtype=numpy.uint8))
        plain[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float64)
        coded[name + "_blocks"], coded[name + "_scales"] = blocks, scales
    for directory, tensors in (("plain", plain), ("coded", coded)):
        model.save_pretrained(work / directory)  # for its config
        safetensors.torch.save_file(tensors, work / directory / "model.safetensors", {"format": "pt"})
    config = json.loads((work / "coded" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (work / "coded" / "config.json").write_text(json.dumps(config))
    return type(model)


def case(program, work):
    """Folded and moved, nothing of which rounds: what the stock class makes of our numbers and of its own."""
    work = work / "mxfp4"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    kind = write(work)
    wanted, routers = zoo.outputs(ANIMAL, zoo.load(kind, work / "plain"), True)
    said, ok = [], True
    options = ["--dequantize", "bf16", "--threads", 1]
    for name, command in (("fold", ["fold"]), ("signed permutation", ["rotate", "--rotation", "signed-permutation", "--heads"])):
        target = work / "made"
        program.make(command[0], work / "coded", target, *command[1:], *options)
        status, _, _ = program.verify(work / "coded", target, "--no-logits", *options)
        values, others = zoo.outputs(ANIMAL, zoo.load(kind, target), True)
        off = max(zoo.distance(wanted, values), zoo.distance(routers, others))
        shutil.rmtree(target)
        said.append(f"{name} {off:.1e}" + ("" if status == 0 else f" (verify exited {status})"))
        ok = ok and status == 0 and off <= zoo.DOUBLE
    shutil.rmtree(work)
    return ok, "in double: " + ", ".join(said)
