"""The cuda-convnet2 paper's figures beside the timing model's.

Where the two part: which changed assumption brings the model to the paper's figure, and what one
latency would have to be for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_engines import CHANGED, Results, Simulated, results
from lenetgpu.papers.convnet2_listings import COMPUTE, CONVERSION, GTX_480, IMAGES
from lenetgpu.problems import Conv

LATENCIES = {
    "far": "global load",
    "local": "local load",
    "fetch": "line of instructions",
    "arithmetic": "arithmetic",
}
"""What is solved for: the core's field, and its name in tables."""


def _share(of: Simulated, *parts: str) -> float:
    return sum(of.parts[part] for part in parts) / of.total


def _saved(before: float, after: float) -> float:
    return 1 - after / before


def _step_saves(results: Results, name: str, before: str) -> float:
    return _saved(results(before).cycles, results(name).cycles)


@dataclass(frozen=True)
class Claim:
    """A figure of the paper and the model's own: `unit` is cycles, share or times.

    `told` is None where the paper draws it only. `reproduced` claims that the model comes within
    `WITHIN` of it at Table 1; of the other figures that it does not.
    """

    name: str
    section: str
    unit: str
    told: float | None
    of: Callable[[Results], float]
    reproduced: bool = False
    remark: str = ""


WITHIN = {"cycles": 0.2, "share": 0.5, "times": 0.2}
"""How far from the paper's figure still agrees, in proportion to it."""
MOST_APART = 0.05
"""And how far a share may be from it at most."""
CLAIMS = (
    Claim(
        "rolled, cycles", "3.1.2", "cycles", 524_000, lambda r: r("rolled").cycles, True,
    ),
    Claim(
        "rolled, computation's share", "3, fig. 8", "share", 0.97,
        lambda r: _share(r("rolled"), COMPUTE), remark="over 97 %",
    ),
    Claim(
        "unrolled, cycles", "3.1.2", "cycles", 148_000, lambda r: r("unrolled").cycles, True,
    ),
    Claim(
        "unrolling saves", "3.1.2", "share", 0.71,
        lambda r: _step_saves(r, "unrolled", "rolled"), remark="1 - 148/524 is 0.718",
    ),
    Claim(
        "unrolled, computation's share", "3.2", "share", 0.69,
        lambda r: _share(r("unrolled"), COMPUTE),
    ),
    Claim(
        "inner product engine saves, of the computation", "3.2", "share", 0.88,
        lambda r: _saved(
            r("unrolled").parts[COMPUTE], r("inner product engine").parts[COMPUTE]
        ), True,
    ),
    Claim(
        "inner product engine saves", "3.2", "share", 0.66,
        lambda r: _step_saves(r, "inner product engine", "unrolled"),
        remark="0.88 of 0.69 is 0.61 only",
    ),
    Claim(
        "outer product engine saves", "3.3, fig. 24", "share", None,
        lambda r: _step_saves(r, "outer product engine", "unrolled"), remark="drawn, no number",
    ),
    Claim(
        "index conversion, share of image loading", "4.3", "share", 1 / 3,
        lambda r: _share_of_loading(r("conditionals extracted")), remark="about a third",
    ),
    Claim(
        "strength reduction saves", "4.1", "share", 0.259,
        lambda r: _step_saves(r, "strength reduced", "inner product engine"),
    ),
    Claim(
        "extracted conditionals save", "4.2", "share", 0.026,
        lambda r: _step_saves(r, "conditionals extracted", "strength reduced"), True,
    ),
    Claim(
        "index converter saves", "4.3", "share", 0.05,
        lambda r: _step_saves(r, "index converter", "conditionals extracted"), True,
    ),
    Claim(
        "all of it, times faster than unrolled", "abstract, 6", "times", 4.4,
        lambda r: r("unrolled").cycles / r("index converter").cycles,
        remark="the paper's own savings multiply to this",
    ),
)  # fmt: skip


def _share_of_loading(of: Simulated) -> float:
    return of.parts[CONVERSION] / (of.parts[CONVERSION] + of.parts[IMAGES])


def own_total(low: bool = False, high: bool = False) -> float:
    """Sections 3.2 to 4.3's savings multiplied: times faster than the unrolled kernel.

    `low` and `high` take every percentage at the end of what rounds to it.
    """
    half = (high - low) / 2
    savings = ((0.66, 0.01), (0.259, 0.001), (0.026, 0.001), (0.05, 0.01))
    left = 1.0
    for saving, unit in savings:
        left *= 1 - saving - half * unit
    return 1 / left


def agrees(claim: Claim, found: float) -> bool:
    """Whether `found` is as near to the paper's figure as said; ValueError where it gives none."""
    if claim.told is None:
        raise ValueError(f"{claim.name}: expected a figure of the paper, found none")
    apart = abs(found - claim.told)
    near = apart <= WITHIN[claim.unit] * claim.told
    return near and (claim.unit != "share" or apart <= MOST_APART)


_SEARCHED_CHUNKS, _MOST_CYCLES = 2, 2048


def would_be(claim: Claim, field: str, problem: Conv, batch: int) -> int | None:
    """The least cycles of the core's `field` from which the model gives the claim's figure.

    None where nothing from 1 to 2,048 does. Found by halving on the first chunks, the figure taken
    to go one way with the latency.
    """
    if claim.told is None:
        return None
    told = claim.told

    def above(cycles: int) -> bool:
        core = replace(GTX_480, **{field: cycles})  # type: ignore[arg-type]
        return claim.of(results(problem, batch, core, most=_SEARCHED_CHUNKS)) >= told

    low, high = 1, _MOST_CYCLES
    first = above(low)
    if above(high) == first:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if above(middle) == first:
            low = middle
        else:
            high = middle
    return high


def claim_rows(problem: Conv, batch: int) -> Iterator[dict[str, Any]]:
    """A row a figure: the model's, under each change too; of Table 1's run the paper's as well.

    `paper` and `agrees` are None for another shape, and where the paper gives no number.
    """
    there = (replace(problem, reads="NCHW", writes="NCHW"), batch) == (TABLE_1, TABLE_1_BATCH)
    stated = results(problem, batch)
    changed = {one.name: results(problem, batch, assumption=one) for one in CHANGED}
    for claim in CLAIMS:
        found = claim.of(stated)
        told = there and claim.told is not None
        yield {
            "figure": claim.name,
            "section": claim.section,
            "unit": claim.unit,
            "paper": claim.told if told else None,
            "model": found,
            "agrees": agrees(claim, found) if told else None,
            "remark": claim.remark,
            "changed": {name: claim.of(under) for name, under in changed.items()},
        }
