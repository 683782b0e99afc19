"""What the cuda-convnet2 paper's engines would have done, by a timing model of a multiprocessor.

The paper simulated them (GPGPU-Sim, GTX 480); here the steps of `convnet2_listings` run on the
model of `warps`, as stated and with one assumption changed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil
from typing import Any

from lenetgpu.gpu.occupancy import PROCESSORS, Demand, residency
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_listings import (
    COMPUTE,
    CONVERSION,
    GTX_480,
    IMAGES,
    Kernel,
    Sums,
    chunks_of,
    listing,
)
from lenetgpu.papers.warps import Core, run
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import Loads, Tile, ladder_tile

MULTIPROCESSORS, FERMI, REGISTERS = 15, 20, 28
"""Section 2.3: 15 SMs of a GTX 480, and the registers a thread that its compiler gave."""
_ARGUMENTS = 60
"""Shared bytes of a block besides its tile: section 2.3's 3,900 are 3,840 and these."""
WHOLE_CHUNKS = 7
"""So many chunks are simulated at most; the time of more is in proportion to the last of them."""


@dataclass(frozen=True)
class Simulated:
    """A step on the whole GPU: `cycles`, and a warp's mean cycles in each part."""

    cycles: float
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """A warp's mean cycles in all."""
        return sum(self.parts.values())


Results = Callable[[str], Simulated]
"""A step's result by the step's name."""


@dataclass(frozen=True)
class Step:
    """One step of the paper, simulated."""

    name: str
    section: str
    kernel: Kernel


STEPS = (
    Step("rolled", "3.1.1", Kernel(Sums.ROLLED, Loads.PLAIN)),
    Step("unrolled", "3.1.2", Kernel(Sums.UNROLLED, Loads.PLAIN)),
    Step("inner product engine", "3.2", Kernel(Sums.INNER, Loads.PLAIN)),
    Step("outer product engine", "3.3", Kernel(Sums.OUTER, Loads.PLAIN)),
    Step("strength reduced", "4.1", Kernel(Sums.INNER, Loads.REDUCED)),
    Step("conditionals extracted", "4.2", Kernel(Sums.INNER, Loads.HOISTED)),
    Step("index converter", "4.3", Kernel(Sums.INNER, Loads.HOISTED, converter=True)),
)
"""Section 4's steps with the inner product engine: "after improvements" (figure 25)."""


@dataclass(frozen=True)
class Assumption:
    """One thing that the model takes for granted, changed: fields of the core, of the kernels."""

    name: str
    what: str
    core: dict[str, Any] = field(default_factory=dict)
    kernel: dict[str, Any] = field(default_factory=dict)


CHANGED = (
    Assumption(
        "first cache hit", "a global load takes what a shared one does",
        core={"far": GTX_480.shared},
    ),
    Assumption(
        "four loads under way", "from strength reduction on, four are asked for before one is kept",
        kernel={"together": 4},
    ),
    Assumption(
        "instructions held", "no line of instructions is ever waited for", core={"fetch": 0},
    ),
    Assumption(
        "one reader at a time", "an engine keeps the memory unit while it reads shared memory",
        kernel={"engines_hold": True},
    ),
    Assumption("one scheduler", "one instruction a cycle instead of two", core={"schedulers": 1}),
)  # fmt: skip


def _step_saves(results: Results, name: str, before: str) -> float:
    return 1 - results(name).cycles / results(before).cycles


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
        lambda r: r("rolled").parts[COMPUTE] / r("rolled").total, remark="over 97 %",
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
        lambda r: r("unrolled").parts[COMPUTE] / r("unrolled").total,
    ),
    Claim(
        "inner product engine saves, of the computation", "3.2", "share", 0.88,
        lambda r: 1 - r("inner product engine").parts[COMPUTE] / r("unrolled").parts[COMPUTE], True,
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
        lambda r: _conversion(r("conditionals extracted").parts), remark="about a third",
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


def _conversion(parts: dict[str, float]) -> float:
    return parts[CONVERSION] / (parts[CONVERSION] + parts[IMAGES])


def agrees(claim: Claim, found: float) -> bool:
    """Whether `found` is as near to the paper's figure as said; ValueError where it gives none."""
    if claim.told is None:
        raise ValueError(f"{claim.name}: expected a figure of the paper, found none")
    apart = abs(found - claim.told)
    near = apart <= WITHIN[claim.unit] * claim.told
    return near and (claim.unit != "share" or apart <= MOST_APART)


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


def resident(tile: Tile) -> int:
    """Blocks of a GTX 480's multiprocessor at once: equations (2) to (4) of the paper."""
    depth = tile.cached_pixels * tile.cached_channels
    shared = 4 * depth * (tile.images + tile.filters) + _ARGUMENTS
    demand = Demand(REGISTERS, tile.threads_x * tile.threads_y, shared)
    return residency(demand, PROCESSORS[FERMI]).blocks


@cache
def _chunks(core: Core, kernel: Kernel, tile: Tile, blocks: int, chunks: int) -> Simulated:
    """`blocks` blocks of `chunks` chunks on one multiprocessor."""
    warps = ceil(tile.threads_x * tile.threads_y / 32)
    found = run(core, listing(kernel, tile, chunks), blocks, warps)
    parts = {part: cycles / found.warps for part, cycles in found.parts.items()}
    return Simulated(found.cycles, parts)


def simulate(
    kernel: Kernel, problem: Conv, batch: int, core: Core = GTX_480, most: int = WHOLE_CHUNKS
) -> Simulated:
    """`kernel` on `batch` images of `problem`: full waves of blocks, then the rest in one more.

    The tile is the paper's for the shape (Table 1), for an engine too: it holds as many sums.
    """
    tile = ladder_tile(problem, batch)
    blocks, chunks = tile.blocks(problem, batch), chunks_of(problem, tile)
    at_once = resident(tile)
    waves, rest = divmod(blocks, at_once * MULTIPROCESSORS)

    def whole(blocks: int) -> Simulated:
        """Of more than `most` chunks by the time of the last half of these."""
        found = _chunks(core, kernel, tile, blocks, min(chunks, most))
        if chunks <= most:
            return found
        before = _chunks(core, kernel, tile, blocks, most // 2)
        more = (chunks - most) / (most - most // 2)
        return Simulated(
            found.cycles + more * (found.cycles - before.cycles),
            {part: own + more * (own - before.parts[part]) for part, own in found.parts.items()},
        )

    runs = [(waves, whole(at_once))] if waves else []
    if rest:
        runs.append((1, whole(ceil(rest / MULTIPROCESSORS))))
    parts = {part: sum(times * one.parts[part] for times, one in runs) for part in runs[0][1].parts}
    return Simulated(sum(times * one.cycles for times, one in runs), parts)


def results(
    problem: Conv,
    batch: int,
    core: Core = GTX_480,
    assumption: Assumption | None = None,
    most: int = WHOLE_CHUNKS,
) -> Results:
    """Every step's simulation, with `assumption` changed, each made when it is first asked for."""
    kernels = {step.name: step.kernel for step in STEPS}
    changed = replace(core, **assumption.core) if assumption else core

    @cache
    def found(name: str) -> Simulated:
        kernel = kernels[name]
        if assumption and ("together" not in assumption.kernel or kernel.loads > Loads.PLAIN):
            kernel = replace(kernel, **assumption.kernel)
        return simulate(kernel, problem, batch, changed, most)

    return found


def step_rows(problem: Conv, batch: int) -> list[dict[str, Any]]:
    """A row a step: cycles, and a warp's mean cycles in each part."""
    found = results(problem, batch)
    return [
        {"step": step.name, "section": step.section, "cycles": round(found(step.name).cycles)}
        | {part: round(cycles) for part, cycles in found(step.name).parts.items()}
        for step in STEPS
    ]
