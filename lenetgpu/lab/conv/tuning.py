"""`lenetgpu conv --tune`: time the algorithms of `best.fp32` and cache the fastest."""

import datetime
from dataclasses import dataclass, replace
from statistics import geometric_mean
from typing import Any

from lenetgpu.dispatch.algorithms import ALGORITHMS
from lenetgpu.dispatch.choose import choices, decide, further
from lenetgpu.dispatch.measured import Measured, counted, inexact, save
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
    """Return the request that times best's algorithms; LenetError without a GPU or for others."""
    if request.only not in (None, "best", CHOOSER):
        raise LenetError(f"--tune: expected --only best or none, found --only {request.only}")
    gpu, why = choose_device(request.device)
    if gpu is None:
        raise LenetError(f"--tune: expected a GPU for {CHOOSER}, found device cpu ({why})")
    return replace(request, only=",".join(ALGORITHMS), watch=0.0)


def tilings(request: ConvRequest, shape: Shape) -> list[Variant]:
    """Return further tilings to time on a shape; none without `--tune`."""
    problem = _problem(shape)
    if not request.tune or isinstance(problem, str):
        return []
    return [*further(problem, shape.batch, machines.current())]


def _problem(shape: Shape) -> Conv | str:
    return laid_out(find("conv", CHOOSER, "cuda"), shape.problem)


@dataclass(frozen=True)
class Tuned:
    """Result for one shape: times in microseconds, and the choice now, before, and by the model.

    `off` is the model's time over the fastest's, None if it was not timed; `load` the number of
    other processes that computed on the GPU; `why` the reason if nothing was cached.
    """

    us: dict[str, float]
    algorithm: str | None = None
    before: str | None = None
    model: str | None = None
    off: float | None = None
    why: str | None = None
    load: float = 0.0


def tune(shape: Shape, case: dict[str, Any]) -> Tuned:
    """Cache the fastest of a case's correct algorithms, on the current GPU."""
    problem, machine = _problem(shape), machines.current()
    if isinstance(problem, str):
        return Tuned(counted(case["candidates"], inexact=())[0], why=problem)
    us, _ = counted(case["candidates"], inexact=inexact(problem, shape.batch, machine))
    if case["interrupted"]:
        return Tuned(us, why="interrupted before every algorithm was timed")
    if not us:
        return Tuned(us, why="no algorithm passed its check and was timed")
    today, load = datetime.date.today().isoformat(), load_on("cuda")
    measured = Measured(machine.name, shape.batch, us, today, load=load)
    before = decide(problem, shape.batch, machine).algorithm
    model = choices(problem, shape.batch, machine)[0].algorithm
    with alone():  # another process may be tuning the shape for other images
        why = None if save(problem, measured) else "the cache folder cannot be written"
    return Tuned(us, measured.algorithm, before, model, measured.off(model), why, load)


def note(cases: list[dict[str, Any]]) -> str:
    """Return how many choices were cached, and how far the model was off."""
    tuned = {case["label"]: case["tuned"] for case in cases if case.get("tuned")}
    cached = sum(entry["why"] is None for entry in tuned.values())
    sentence = f"tune: {cached} of {len(tuned)} choices cached"
    off = [(entry["off"], label) for label, entry in tuned.items() if entry["off"]]
    if not off:
        return sentence
    mean, (most, worst) = geometric_mean(ratio for ratio, _ in off), max(off)
    model = f"{mean:.2f}x the fastest time, at most {most:.2f}x ({worst})"
    return f"{sentence}; the model's choices took {model}"
