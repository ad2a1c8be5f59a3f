# SPDX-License-Identifier: MIT
"""The stock classes: loading, logits as they compute them and with every float32 upcast made float64, perplexity."""

import contextlib
import math

import numpy
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_grad_enabled(False)
torch.set_num_threads(1)  # the tiny models run faster without threads, and sums always in the same order

FLOAT32 = torch.float32  # the real one, whatever the name means inside all_in_double()


class RefuseFloat32(TorchDispatchMode):
    """Fails when an operation makes a float32 tensor, so that an upcast which escaped the patch is not overlooked."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor) and value.dtype == FLOAT32:
                raise AssertionError(f"{function} computed in float32")
        return result


@contextlib.contextmanager
def all_in_double():
    """Inside, the names with which the classes ask for float32 (norm, rotary tables, softmax) mean float64."""
    names = torch.float32, torch.float, torch.Tensor.float
    default = torch.get_default_dtype()  # of what a division of whole numbers gives, too
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = names
        torch.set_default_dtype(default)


def load(directory, dtype=torch.float64):
    """The stock class with the stored weights; an error if a key is missing, left over or of another shape."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    problems = {key: value for key, value in info.items() if value}
    if problems:
        raise AssertionError(f"{directory}: {problems}")
    return model.eval()


def tied(model):
    return model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()


def tokens(vocab_size, count, seed=0):
    return torch.from_numpy(numpy.random.default_rng(seed).integers(0, vocab_size, count))


def logits(model, ids):
    """As the class computes them: float32 norms, rotary tables and softmax whatever the dtype of the weights."""
    return model(ids[None], use_cache=False).logits[0].double()


def logits_double(model, ids):
    """The same class with all of that in float64, checked operation by operation. The model must be float64."""
    rotary = model.model.rotary_emb
    with all_in_double(), RefuseFloat32():
        model.model.rotary_emb = type(rotary)(config=model.config)
        result = model(ids[None], use_cache=False).logits[0]
    model.model.rotary_emb = rotary
    return result


def distance(a, b):
    """Largest difference over the root mean square of the first. NaN stays NaN, so compare with `<=`."""
    return float((a - b).abs().max() / a.square().mean().sqrt())


def log_probabilities(scores, ids):
    """Of each next token, from the logits of all tokens but the last."""
    return torch.nn.functional.log_softmax(scores[:-1], -1).gather(1, ids[1:, None])[:, 0]


def perplexity(model, ids, window):
    """exp of the mean negative log-likelihood over disjoint windows; the first token of a window is not predicted."""
    values = []
    for part in ids.split(window):
        scores = model(part[None], use_cache=False).logits[0].float()
        values.append(log_probabilities(scores, part).double())
    return math.exp(-float(torch.cat(values).mean()))


def half_ulp(values, dtype):
    """Half the distance of neighbouring numbers of `dtype` at each (float64) value."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(values).exponent - 1
    smallest = int(math.log2(info.tiny))
    return torch.ldexp(torch.full_like(values, info.eps / 2), exponent.clamp(min=smallest))


def noise_floor(model, ids, names, dtype, measures, seeds=5):
    """Median of each measure of the logits when the named weights are perturbed by their own storage rounding.

    This is what writing them once more in `dtype` costs, so it is the scale on which two checkpoints may differ."""
    parameters = {name: model.get_parameter(name) for name in names}
    saved = {name: value.detach().clone() for name, value in parameters.items()}
    found = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in parameters.items():
            unit = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parameter.copy_(saved[name] + unit * half_ulp(saved[name], dtype))
        result = logits_double(model, ids)
        found.append([measure(result) for measure in measures])
    for name, parameter in parameters.items():
        parameter.copy_(saved[name])
    return numpy.median(found, axis=0).tolist()


def untie(model):
    """Gives the head its own copy, so that it can be perturbed by itself."""
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
