# SPDX-License-Identifier: MIT
"""How the tiny checkpoint of one family is described; the zoo_*.py files hold the descriptions, group by group."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Animal:
    """A tiny model of a stock class: sizes that differ from each other, every bias the config allows, 2 or 3 layers
    with each kind of layer at least once, vocabulary about 96, few experts."""

    name: str  # family, or family and variant
    build: Callable  # () -> the stock class with a config, float64, any weights; the harness fills them
    inputs: str = "tokens"  # "tokens"; "encoder-decoder"; "pixels"; "tokens and pixels"; or "features" (whisper)
    one_plus: str = ""  # regex: norm weights that are stored minus one
    routers: str = ""  # regex: modules whose outputs choose the experts
    dense: bool = True  # does the algebra allow a dense rotation of the residual stream after the fold
    signs: bool = True  # does it allow signed permutations; else unsigned ones
    moves: bool = True  # does it allow permutations at all
    heads: bool = False  # does it allow a rotation of values per head
    note: str = ""  # anything a reader should know
