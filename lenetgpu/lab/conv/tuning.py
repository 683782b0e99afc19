"""`lenetgpu conv --tune`: what `best.fp32` may run is timed, and the fastest kept."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

from lenetgpu.dispatch.algorithms import ALGORITHMS
from lenetgpu.dispatch.choose import choices, decide, further
from lenetgpu.dispatch.measured import Measured, counted, inexact, keep
from lenetgpu.errors import LenetError
from lenetgpu.gpu import machines
from lenetgpu.lab.conv.request import ConvRequest
from lenetgpu.measure.conv_bench import laid_out
from lenetgpu.measure.roofline import load_on
from lenetgpu.papers.shapes import Shape
from lenetgpu.plan import choose_device
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, find
from lenetgpu.store.entries import alone

CHOOSER = "best.fp32"


def tuning(request: ConvRequest) -> ConvRequest:
    """What is measured to tune: best's algorithms and nothing else.

    LenetError without a GPU, or where others are asked for.
    """
    if request.only not in (None, "best", CHOOSER):
        raise LenetError(f"--tune: expected --only best beside it, found --only {request.only}")
    gpu, why = choose_device(request.device)
    if gpu is None:
        words = f"expected a GPU, which {CHOOSER} runs on, found device cpu ({why})"
        raise LenetError(f"--tune: {words}")
    return replace(request, only=",".join(ALGORITHMS), watch=0.0)


def tilings(request: ConvRequest, shape: Shape) -> list[Variant]:
    """What is tried on a shape beside the variants themselves, where one is tuned."""
    problem = _problem(shape)
    if not request.tune or isinstance(problem, str):
        return []
    return [*further(problem, shape.batch, machines.current())]


def _problem(shape: Shape) -> Conv | str:
    return laid_out(find("conv", CHOOSER, "cuda"), shape.problem)


@dataclass(frozen=True)
class Tuned:
    """What came of one shape: times in microseconds, who was chosen before, by the model, now.

    `off` is the model's time over the fastest's, None where it was not timed; `load` is how many
    other processes computed on the GPU; `why` says why nothing was kept.
    """

    us: dict[str, float]
    algorithm: str | None = None
    before: str | None = None
    model: str | None = None
    off: float | None = None
    why: str | None = None
    load: float = 0.0


def tune(shape: Shape, case: dict[str, Any]) -> Tuned:
    """Keep the fastest of a case's right algorithms, on the current GPU."""
    problem, machine = _problem(shape), machines.current()
    few = () if isinstance(problem, str) else inexact(problem, shape.batch, machine)
    us, _ = counted(case["candidates"], inexact=few)
    if isinstance(problem, str):
        return Tuned(us, why=problem)
    if case["interrupted"]:
        return Tuned(us, why="interrupted before every algorithm was timed")
    if not us:
        return Tuned(us, why="no algorithm was right and timed")
    today, load = datetime.date.today().isoformat(), load_on("cuda")
    found = Measured(machine.name, shape.batch, us, today, load=load)
    before = decide(problem, shape.batch, machine).algorithm
    model = choices(problem, shape.batch, machine)[0].algorithm
    with alone():  # another may tune the shape for other images meanwhile
        why = None if keep(problem, found) else "the cache folder takes no entry"
    return Tuned(us, found.algorithm, before, model, found.off(model), why, load)


def note(cases: list[dict[str, Any]]) -> str:
    """How many choices were kept, and how far the model was off."""
    found = {case["label"]: case["tuned"] for case in cases if case.get("tuned")}
    held = sum(tuned["why"] is None for tuned in found.values())
    said = f"tune: {held} of {len(found)} choices kept"
    off = [(tuned["off"], label) for label, tuned in found.items() if tuned["off"]]
    if not off:
        return said
    mean, (most, worst) = geometric_mean(times for times, _ in off), max(off)
    return f"{said}; the model's were {mean:.2f}x the fastest, {most:.2f}x at most ({worst})"
