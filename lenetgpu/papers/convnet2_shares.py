"""How the convnet2 kernels' time parts into loads, sums and stores: figures 8, 14, 20 to 34.

Every warp reads clock64 between the parts of a build of its own (parts.cuh) and adds up what each
took it; a kernel's share is the sum over its warps. Both barriers of a chunk are clocked apart and
counted where they belong: the one behind the loads with the filters, which are loaded last, the
one behind the sums with these, as the timing model does. Writing is handing the stores over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.check.judge import Verdict
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.nvrtc import Kernel, compile_together
from lenetgpu.measure.timing import Summary
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_engines import STEPS as SIMULATED
from lenetgpu.papers.convnet2_engines import simulate
from lenetgpu.papers.convnet2_field import Field, times
from lenetgpu.papers.convnet2_listings import COMPUTE, CONVERSION, FILTERS, IMAGES, WRITE
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.convnet2.engines import INNER_PRODUCT, OUTER_PRODUCT
from lenetgpu.stages.conv.convnet2.ladder import (
    HOISTED_CHECKS,
    INDEX_TABLE,
    ROLLED,
    STRENGTH_REDUCED,
    UNROLLED,
    Loads,
    Step,
)

PARTS = ("image load", "filter load", "compute", "write")
"""The parts as the paper's figures have them."""
_CLOCKED = (("image load",), ("filter load", "waiting for loads"), ("compute", "waiting for sums"),
            ("write",))  # fmt: skip
_COUNT = 6
_WARP, _RUNS = 32, 5


@dataclass(frozen=True)
class Shown:
    """A kernel whose time is parted: its figure, and what the paper says of its computation.

    `told` is the computation's share there, None where it is drawn only. `simulated` names the step
    of the timing model that it is.
    """

    name: str
    variant: str
    step: Step
    figure: str
    told: float | None = None
    remark: str = "drawn only"
    simulated: str = ""


_IN_THE_TEXT = "(1 - 0.88) x 0.69 over (1 - 0.66), of section 3.2"
_AFTER_ENGINE = (1 - 0.88) * 0.69 / (1 - 0.66)
_CORES = "drawn with an engine in place, this row has none"
SHOWN = (
    Shown("rolled", "rolled", ROLLED, "8", 0.97, "over 97 %", "rolled"),
    Shown("unrolled", "unrolled", UNROLLED, "14", 0.69, "section 3.2's figure", "unrolled"),
    Shown(
        "inner product engine", "inner_product", replace(INNER_PRODUCT, loads=Loads.PLAIN),
        "20, 25", _AFTER_ENGINE, _IN_THE_TEXT, "inner product engine",
    ),
    Shown(
        "outer product engine", "outer_product", replace(OUTER_PRODUCT, loads=Loads.PLAIN),
        "24, 25", simulated="outer product engine",
    ),
    Shown(
        "inner product, strength reduced", "inner_product",
        replace(INNER_PRODUCT, loads=Loads.REDUCED), "28", simulated="strength reduced",
    ),
    Shown(
        "inner product, hoisted checks", "inner_product", INNER_PRODUCT, "31",
        simulated="conditionals extracted",
    ),
    Shown(
        "inner product, index table", "inner_product",
        replace(INNER_PRODUCT, loads=Loads.LOOKED_UP), "34", simulated="index converter",
    ),
    Shown("strength_reduced", "strength_reduced", STRENGTH_REDUCED, "28", remark=_CORES),
    Shown("hoisted_checks", "hoisted_checks", HOISTED_CHECKS, "31", remark=_CORES),
    Shown("index_table", "index_table", INDEX_TABLE, "34", remark=_CORES),
)  # fmt: skip
NOT_PARTED = {
    "index_engine": "not parted: its copies run under its sums, so that no warp's clocks tell them "
    "apart"
}
"""Kernels of the ladder that have no row of shares, and why."""


def clocked(step: Step) -> Step:
    """`step` in the build whose warps clock their parts."""
    return replace(step, noted="PARTS")


def warps_of(step: Step, problem: Conv, batch: int) -> int:
    """Warps of a launch of `step`: rows of what a clocked build notes."""
    tile = step.tile(problem, batch)
    return tile.blocks(problem, batch) * (tile.threads_x * tile.threads_y // _WARP)


def kernels(problem: Conv, batch: int) -> list[Kernel]:
    """What `measure_shares` launches, besides relayouts."""
    steps = [step for shown in SHOWN for step in ((shown.step, False), (clocked(shown.step), True))]
    return [step.kernel(problem, batch, clock) for step, clock in steps]


def parted(noted: Any) -> tuple[dict[str, float], dict[str, float]]:
    """(shares, waits) of `noted` (warps, 6) int64, the clocks of parts.cuh's parts.

    `shares` are those of `PARTS` and sum to 1; `waits` what of them was waiting at each barrier.
    Raises LenetError where a warp noted nothing, or no clock went by.
    """
    if noted.ndim != 2 or noted.shape[1] != _COUNT or not len(noted):
        raise LenetError(f"clocks: expected (warps, {_COUNT}), found {noted.shape}")
    if int(noted.min()) < 0 or not int(noted.sum(axis=1).min()):
        raise LenetError("clocks: expected every warp to note its parts, found one that did not")
    names = [name for names in _CLOCKED for name in names]
    total = float(noted.sum())
    each = dict(zip(names, (float(c) / total for c in noted.sum(axis=0)), strict=True))
    shares = {names[0]: sum(each[name] for name in names) for names in _CLOCKED}
    return shares, {name: each[name] for name in names if name not in PARTS}


@dataclass(frozen=True)
class Shares:
    """What a kernel's warps clocked, and the verdict on what that build computed.

    `shares` sum to 1; both dictionaries are empty where the verdict is not passed.
    """

    verdict: Verdict
    shares: dict[str, float]
    waits: dict[str, float]
    clocks_a_warp: float = 0.0


def _shares(step: Step, precision: str, field: Field) -> Shares:
    """`shares` on a field that is there."""
    build = clocked(step)
    spans = cupy.full((warps_of(step, field.problem, field.batch), _COUNT), -1, cupy.int64)
    verdict = field.verdict(build, precision, spans)
    if not verdict.passed:
        return Shares(verdict, {}, {})
    runs = []
    for _ in range(_RUNS):
        spans.fill(-1)
        field.convolve(build, spans)
        runs.append(spans.get())
    middle = sorted(runs, key=lambda noted: int(noted.sum()))[_RUNS // 2]
    found, waits = parted(middle)
    return Shares(verdict, found, waits, float(middle.sum()) / len(middle))


def shares(variant: str, problem: Conv, batch: int) -> dict[str, float]:
    """The share of each of `PARTS` in the time of the kernel `variant` of `SHOWN`, on this GPU.

    They sum to 1. Raises LenetError for a name that is none, or where the clocked build is wrong.
    """
    shown = next((one for one in SHOWN if one.name == variant), None)
    if shown is None:
        names = ", ".join(one.name for one in SHOWN)
        raise LenetError(f"shares: expected one of {names}, found {variant!r}")
    found = _shares(shown.step, _of(shown).precision, Field(problem, batch))
    if not found.verdict.passed:
        raise LenetError(f"shares of {variant}: expected a right output, found {found.verdict}")
    return found.shares


def _of(shown: Shown) -> Any:
    return find("conv", f"convnet2.{shown.variant}", "cuda")


def simulated_shares(name: str) -> dict[str, float]:
    """The timing model's shares of its step `name` at Table 1, on a GTX 480."""
    kernel = next(step.kernel for step in SIMULATED if step.name == name)
    parts = simulate(kernel, TABLE_1, TABLE_1_BATCH).parts
    total = sum(parts.values())
    grouped = ((CONVERSION, IMAGES), (FILTERS,), (COMPUTE,), (WRITE,))
    return {
        part: sum(parts[key] for key in keys) / total
        for part, keys in zip(PARTS, grouped, strict=True)
    }


def _row(shown: Shown, at_table_1: bool) -> dict[str, Any]:
    return {
        "kernel": shown.name,
        "variant": f"convnet2.{shown.variant}",
        "figure": shown.figure,
        "status": "waiting",
        "paper": shown.told if at_table_1 else None,
        "remark": shown.remark if at_table_1 else "",
        "model": simulated_shares(shown.simulated) if at_table_1 and shown.simulated else None,
        "shares": None,
        "waits": None,
        "slowed": None,
        "median_us": None,
        "relative_error": None,
        "note": "",
    }


def measure_shares(
    field: Field, *, gpu: Gpu, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """A row a kernel of `SHOWN`, then those that cannot be parted with the reason in `note`.

    `shares` are of `PARTS`, `waits` what of them was waiting at barriers, `slowed` the time with
    clocks over the time without, `median_us` the latter. `paper` is the computation's share in the
    paper, `model` the timing model's shares, both at Table 1 only. A build that is wrong against
    float64 has the status "wrong" and no shares.
    """
    from lenetgpu.gpu.device import current_arch

    compile_together(kernels(field.problem, field.batch), current_arch())
    here = replace(field.problem, reads="NCHW", writes="NCHW"), field.batch
    at_table_1 = here == (TABLE_1, TABLE_1_BATCH)
    rows: list[dict[str, Any]] = []
    runs: dict[str, Callable[[], None]] = {}
    for shown in SHOWN:
        row, variant = _row(shown, at_table_1), _of(shown)
        rows.append(row)
        if not variant.needs.met_by(gpu):
            row |= {"status": "refused", "note": f"needs {variant.needs}"}
            continue
        say(shown.name)
        plain = field.verdict(shown.step, variant.precision)
        found = _shares(shown.step, variant.precision, field)
        right = plain.passed and found.verdict.passed
        row |= {
            "status": "right" if right else "wrong",
            "relative_error": max(plain.error, found.verdict.error),
            "shares": found.shares or None,
            "waits": found.waits or None,
            "clocks_a_warp": found.clocks_a_warp or None,
        }
        if right:
            spans = cupy.empty((warps_of(shown.step, *here), _COUNT), cupy.int64)
            runs[_timed(shown.name, False)] = partial(field.convolve, shown.step)
            runs[_timed(shown.name, True)] = partial(field.convolve, clocked(shown.step), spans)
    _add_times(rows, times(runs))
    rows += [
        {"kernel": name, "variant": f"convnet2.{name}", "figure": "34", "status": "refused",
         "note": why}
        for name, why in NOT_PARTED.items()
    ]  # fmt: skip
    return rows


def _timed(kernel: str, with_clocks: bool) -> str:
    return f"{kernel}, with clocks" if with_clocks else kernel


def _add_times(rows: list[dict[str, Any]], found: dict[str, Summary]) -> None:
    for row in rows:
        plain, with_clocks = (found.get(_timed(row["kernel"], clock)) for clock in (False, True))
        if plain is not None and with_clocks is not None:
            row["median_us"] = 1e3 * plain.median
            row["slowed"] = with_clocks.median / plain.median
