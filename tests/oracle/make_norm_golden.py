# SPDX-License-Identifier: MIT
"""Writes tests/data/norms/norms.safetensors: what the stock norm classes of transformers and torch make of a few
rows, for each class with its own cast order and each combination of types, or with --check compares the committed file.

Names: `x/TYPE`, `gate/TYPE`, `weight/TYPE`, `one_plus_weight/TYPE`, `bias/TYPE`, and `CASE/XTYPE_WTYPE` for the output
of a class on activations and weights of these types. Fewer rows are kept of the wide types; outputs belong to the first
rows of x. Where several classes must agree, that is asserted and one output is kept."""

import argparse
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1RMSNormGated
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm, Llama4TextRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.minimax.modeling_minimax import MiniMaxRMSNorm
from transformers.models.nemotron.modeling_nemotron import NemotronLayerNorm1P
from transformers.models.olmo.modeling_olmo import OlmoLayerNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNorm, Qwen3NextRMSNormGated
from transformers.models.t5.modeling_t5 import T5LayerNorm

FILE = pathlib.Path(__file__).resolve().parent.parent / "data" / "norms" / "norms.safetensors"
WIDTH = 64
GROUPS = 2
EPS = 1e-5  # the one that OlmoLayerNorm has built in
TYPES = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ROWS = {"f64": 2, "f32": 8, "bf16": 32, "f16": 18}
PAIRS = ["f32_f32", "bf16_bf16", "f16_f16", "bf16_f32", "f32_bf16", "f64_f64"]
# torch's own LayerNorm takes other weights than activations in one way only
TORCH_PAIRS = ["f32_f32", "bf16_bf16", "f16_f16", "bf16_f32", "f64_f64"]
MIXED_ROWS = 5


def root(values: torch.Tensor) -> torch.Tensor:
    return torch.rsqrt(values.float() + EPS)


def sums_are_right(x: torch.Tensor, gate: torch.Tensor) -> bool:
    """Whether torch gets every mean of this row, and the root over it, right to the last place of float32."""
    wide = x.double()
    for row in (x, *x.chunk(GROUPS), *(x * nn.functional.silu(gate)).chunk(GROUPS)):
        if root(row.pow(2).mean()) != root(row.double().pow(2).mean()):
            return False
    mean, variance = wide.mean(), wide.var(unbiased=False)
    _, layer_norm_mean, layer_norm_root = torch.native_layer_norm(x, (WIDTH,), None, None, EPS)
    means = (x.mean(), layer_norm_mean)
    roots = (root((x - x.mean()).pow(2).mean()), layer_norm_root)
    return all(m == mean.float() for m in means) and all(r == root(variance) for r in roots)


def gates_are_right(gate: torch.Tensor) -> torch.Tensor:
    """Where torch's gate functions in float32 are what a correctly rounded exponential gives."""
    one_plus = 1 + torch.exp(-gate.double()).float()
    return (nn.functional.silu(gate) == gate / one_plus) & (torch.sigmoid(gate) == 1 / one_plus)


def make_inputs() -> dict[str, torch.Tensor]:
    """Rows of scales 1e-3 to 1e3 (below 3e-3 eps decides), off centre, one of them far, and a row of zeros.

    The rows that are kept in float32 are drawn until torch's float32 sums and exponentials are right to the last place:
    these errors of its own (up to 2 units each) are not what a class prescribes, and its exponentials even differ
    between processors.
    """
    generator = torch.Generator().manual_seed(31)

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    def uniform(*size):
        return torch.rand(*size, generator=generator, dtype=torch.float64)

    rows = max(ROWS.values())
    x, gate = torch.zeros(rows, WIDTH, dtype=torch.float64), torch.zeros(rows, WIDTH, dtype=torch.float64)
    for row in range(rows):
        while True:
            scale = {0: 1.0, 1: 1e-3, 2: 1e3, 3: 0.0}.get(row, 10.0 ** (6 * float(uniform(1)) - 3))
            offset = 30.0 if row == 0 else normal(1)
            x[row], gate[row] = (normal(WIDTH) + offset) * scale, 2 * normal(WIDTH)
            while row < ROWS["f32"] and not (right := gates_are_right(gate[row].float())).all():
                gate[row] = torch.where(right, gate[row], 2 * normal(WIDTH))
            if row >= ROWS["f32"] or sums_are_right(x[row].float(), gate[row].float()):
                break
    gain = torch.exp(3.2 * uniform(WIDTH) - 1.6)  # 0.2 to 5
    gain[::3] *= -1
    wide = {"x": x, "gate": gate, "weight": gain, "one_plus_weight": gain - 1, "bias": normal(WIDTH)}
    tensors = {}
    for name, dtype in TYPES.items():
        for what, value in wide.items():
            tensors[f"{what}/{name}"] = (value[: ROWS[name]] if value.ndim == 2 else value).to(dtype).contiguous()
    return tensors


def with_parameters(module: nn.Module, weight, bias=None) -> nn.Module:
    if weight is not None:
        module.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


def same(first, *others):
    for other in others:
        assert first.dtype == other.dtype and torch.equal(first, other)
    return first


def minimax(x, gate, weight):
    """As MiniMaxLightningAttention.forward ends."""
    norm = with_parameters(MiniMaxRMSNorm(WIDTH, EPS), weight)
    return nn.functional.sigmoid(gate) * norm(x)


def falcon_h1(x, gate, weight, norm_before_gate):
    return with_parameters(FalconH1RMSNormGated(WIDTH, EPS, GROUPS, norm_before_gate), weight)(x, gate)


def outputs(x, gate, w, w1, b, pair):
    """Every case's output for one pair of types."""
    yield "llama", same(*(with_parameters(c(WIDTH, EPS), w)(x) for c in (LlamaRMSNorm, MiniMaxRMSNorm, Llama4TextRMSNorm)))
    yield "olmo2", same(*(with_parameters(c(WIDTH, EPS), w)(x) for c in (Olmo2RMSNorm, GptOssRMSNorm)))
    yield "gemma", same(*(with_parameters(c(WIDTH, EPS), w1)(x) for c in (GemmaRMSNorm, Qwen3NextRMSNorm)))
    yield "gemma3n", same(*(with_parameters(c(WIDTH, EPS), w)(x) for c in (Gemma3nRMSNorm, Gemma4RMSNorm)))
    yield "t5", with_parameters(T5LayerNorm(WIDTH, EPS), w)(x)
    yield "mamba2", with_parameters(MambaRMSNormGated(WIDTH, WIDTH // GROUPS, EPS), w)(x, gate)
    yield "qwen3_next", with_parameters(Qwen3NextRMSNormGated(WIDTH, EPS), w)(x, gate)
    yield "falcon_h1_gate_first", falcon_h1(x, gate, w, False)
    yield "falcon_h1_norm_first", falcon_h1(x, gate, w, True)
    yield "minimax", minimax(x, gate, w)
    yield "cohere", with_parameters(CohereLayerNorm(WIDTH, EPS), w)(x)
    if x.dtype == w.dtype:  # no weight, or none that torch would take
        yield "unit", same(Gemma4RMSNorm(WIDTH, EPS, with_scale=False)(x), Llama4TextL2Norm(EPS)(x))
        yield "olmo", OlmoLayerNorm(WIDTH)(x)
    if pair in TORCH_PAIRS:
        yield "layer_norm", with_parameters(nn.LayerNorm(WIDTH, EPS), w, b)(x)
        yield "nemotron", with_parameters(NemotronLayerNorm1P(WIDTH, EPS), w1, b)(x)


def make() -> dict[str, torch.Tensor]:
    tensors = make_inputs()
    for pair in PAIRS:
        xt, wt = pair.split("_")
        rows = ROWS[xt] if xt == wt else MIXED_ROWS
        x, gate = tensors[f"x/{xt}"][:rows], tensors[f"gate/{xt}"][:rows]
        weights = [tensors[f"{what}/{wt}"] for what in ("weight", "one_plus_weight", "bias")]
        for case, y in outputs(x, gate, *weights, pair):
            tensors[f"{case}/{pair}"] = y.contiguous()
    return tensors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tensors = make()
    if not arguments.check:
        FILE.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, FILE)
        return 0
    committed = load_file(FILE)
    different = [k for k in tensors.keys() | committed.keys() if k not in tensors or k not in committed or
                 tensors[k].dtype != committed[k].dtype or not torch.equal(tensors[k], committed[k])]
    for name in sorted(different):
        print(f"differs: {name}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
