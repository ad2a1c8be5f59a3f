# SPDX-License-Identifier: MIT
"""Checkpoint directories read without our own code, and the deliberately naive merge."""

import json
import pathlib
import shutil

import numpy
import torch
from safetensors import safe_open
from safetensors.torch import save_file


def shards(directory):
    """The weight files of a directory, in order of their names."""
    return sorted(pathlib.Path(directory).glob("*.safetensors"))


def tensors(directory):
    """All tensors by name, and the file each is in."""
    values, places = {}, {}
    for path in shards(directory):
        with safe_open(path, "pt") as file:
            for name in file.keys():
                values[name], places[name] = file.get_tensor(name), path.name
    return values, places


def config(directory):
    return json.loads((pathlib.Path(directory) / "config.json").read_text())


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def changed_weights(before, after):
    """Names of the tensors, gains apart, that a transform wrote anew."""
    old, new = tensors(before)[0], tensors(after)[0]
    return [n for n in new if "norm" not in n and (n not in old or not same_bytes(old[n], new[n]))]


def layout_problem(before, after, untied):
    """What differs between two directories that must not: names, shapes, dtypes, shards, metadata, config. Or None."""
    a, a_places = tensors(before)
    b, b_places = tensors(after)
    head = {"lm_head.weight"} if untied else set()
    if set(b) != set(a) | head:
        return f"names differ: {sorted(set(a) ^ set(b))}"
    for name, value in a.items():
        if (value.shape, value.dtype, a_places[name]) != (b[name].shape, b[name].dtype, b_places[name]):
            return f"{name}: shape, dtype or shard differs"
    if untied and b_places["lm_head.weight"] != a_places["model.embed_tokens.weight"]:
        return "the untied head is not beside the embedding"
    for path in shards(before):
        with safe_open(path, "pt") as x, safe_open(pathlib.Path(after) / path.name, "pt") as y:
            if x.metadata() != y.metadata():
                return f"{path.name}: metadata differs"
    index = pathlib.Path(after) / "model.safetensors.index.json"
    if index.exists():
        record = json.loads(index.read_text())
        if record["weight_map"] != b_places:
            return "the index does not match the shards"
        if record["metadata"]["total_size"] != sum(v.numel() * v.element_size() for v in b.values()):
            return "the total size in the index is wrong"
    expected = dict(config(before), **({"tie_word_embeddings": False} if untied else {}))
    if config(after) != expected:
        return "config.json differs in more than the tie flag"
    return None


def random_rotation(size, seed):
    """A random orthogonal matrix that is not symmetric."""
    q, r = numpy.linalg.qr(numpy.random.default_rng(seed).standard_normal((size, size)))
    return torch.from_numpy(q * numpy.sign(numpy.diag(r)))


READERS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
WRITERS = ("o_proj", "down_proj")


def naive_merge(before, after, seed=0):
    """WRONG on purpose: rotates readers, writers and embeddings and leaves the gains where they are."""
    before, after = pathlib.Path(before), pathlib.Path(after)
    after.mkdir()
    for path in before.iterdir():
        if path.suffix != ".safetensors":
            shutil.copy(path, after / path.name)
    q = random_rotation(config(before)["hidden_size"], seed)
    for path in shards(before):
        result = {}
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
            for name in file.keys():
                value = wide = file.get_tensor(name)
                wide = value.double()
                if name.endswith(READERS) or "embed_tokens" in name or "lm_head" in name:
                    wide = wide @ q
                elif any(f"{writer}.weight" in name for writer in WRITERS):
                    wide = q.T @ wide
                elif any(f"{writer}.bias" in name for writer in WRITERS):
                    wide = wide @ q
                result[name] = wide.to(value.dtype).contiguous()
        save_file(result, after / path.name, metadata)
    return after
