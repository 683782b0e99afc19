"""What `lenetgpu conv` is asked for: a shape, or a paper's suite."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from lenetgpu.commands.asked import check_effort, check_gate
from lenetgpu.errors import LenetError, choose
from lenetgpu.gpu import machines
from lenetgpu.measure.power import WATCHED_S
from lenetgpu.measure.rounds import Effort
from lenetgpu.measure.sampling.facts import CHECK_IMAGES
from lenetgpu.papers.shapes import SUITES, Shape, Suite
from lenetgpu.problems import Conv
from lenetgpu.show import plots
from lenetgpu.show.conv_document import shape_text

SHAPE = "C,H,W,M,K[,stride[,pad]]"
_MOST_VALUES = 1 << 31
_WIDEST = 256
"""Of a filter: the check's float64 sum goes over its places one by one."""
_MOST_CHECKED = 2 * 10**12
"""Operations of the check on a CPU, some minutes of them."""


@dataclass(frozen=True)
class ConvRequest:
    """What `lenetgpu conv` was asked for. `batch` is the suite's own where it is None.

    `machine` is the known GPU that `explain` plans for instead of the one here.
    """

    shape: str | None = None
    suite: str | None = None
    batch: int | None = None
    device: str = "auto"
    seconds: float = 1.0
    only: str | None = None
    reference: str | None = None
    explain: bool = False
    machine: str | None = None
    rounds: int | None = None
    warmup: int | None = None
    watch: float = WATCHED_S
    cold_l2: bool = False
    plot: Path | None = None
    regression: float | None = None
    against: Path | None = None
    outside: tuple[Path, ...] = ()


def parse_shape(text: str) -> Conv:
    """The convolution that SHAPE names; LenetError where it names none."""
    words = [word.strip() for word in text.split(",")]
    if not 5 <= len(words) <= 7 or not all(re.fullmatch(r"-?[0-9]{1,9}", word) for word in words):
        raise LenetError(f"SHAPE {text!r}: expected {SHAPE} in whole numbers, as 64,56,56,64,3,1,1")
    c, h, w, m, k, stride, pad = (*map(int, words), *(1, 0)[len(words) - 5 :])
    named = {"C": c, "H": h, "W": w, "M": m, "K": k, "stride": stride}
    for name, value in named.items():
        if value < 1:
            raise LenetError(f"SHAPE {text!r}: expected {name} of at least 1, found {value}")
    if pad < 0:
        raise LenetError(f"SHAPE {text!r}: expected pad of at least 0, found {pad}")
    if k > min(h, w) + 2 * pad:
        raise LenetError(
            f"SHAPE {text!r}: expected filters within the padded map of "
            f"{h + 2 * pad}x{w + 2 * pad}, found {k}x{k}"
        )
    return Conv(h, w, c, m, k, k, stride, pad)


def _require_countable(problem: Conv, n: int) -> None:
    padded = (problem.H + 2 * problem.pad) * (problem.W + 2 * problem.pad) * problem.C
    held = {
        "input": n * padded,
        "filters": problem.depth * problem.M,
        "output": n * problem.OH * problem.OW * problem.M,
    }
    for name, values in held.items():
        if values >= _MOST_VALUES:
            raise LenetError(
                f"conv {shape_text(problem)}, batch {n}: expected fewer than 2^31 values in the "
                f"{name}, found {values:,}"
            )


def require_checkable(shapes: list[Shape], device: str) -> None:
    """LenetError where the float64 truth of one would take hours on `device` ("cpu" or "cuda")."""
    for shape in shapes:
        problem, judged = shape.problem, min(shape.batch, CHECK_IMAGES)
        where = f"conv {shape_text(problem)}, batch {shape.batch}"
        if problem.R * problem.S > _WIDEST**2:
            raise LenetError(
                f"{where}: expected filters of at most {_WIDEST**2:,} places, "
                f"found {problem.R:,}x{problem.S:,}"
            )
        if device == "cpu" and problem.flop(judged) > _MOST_CHECKED:
            raise LenetError(
                f"{where}: expected at most {_MOST_CHECKED:.0e} operations to check on a CPU, "
                f"found {problem.flop(judged):.1e}"
            )


def shapes_of(request: ConvRequest) -> tuple[Suite | None, list[Shape]]:
    """What is to be run; LenetError where the request is not one."""
    if (request.shape is None) == (request.suite is None):
        found = "neither" if request.shape is None else "both"
        raise LenetError(f"conv: expected SHAPE ({SHAPE}) or --suite NAME, found {found}")
    if request.batch is not None and request.batch < 1:
        raise LenetError(f"--batch: expected at least 1 image, found {request.batch}")
    check_effort(Effort(request.seconds, request.rounds, request.warmup), request.watch)
    check_gate(request.regression, request.against)
    if request.plot is not None:
        plots.check_plot(request.plot)
    if request.machine is not None:
        machines.known(request.machine)
    if request.machine is not None and not request.explain:
        raise LenetError(f"--as {request.machine}: expected --explain beside it, found none")
    suite = None
    if request.suite is not None:
        suite = SUITES.get(request.suite)
        if suite is None:
            raise LenetError(
                f"suite {request.suite!r} does not exist; {choose(request.suite, SUITES)}"
            )
        shapes = list(suite.shapes)
    else:
        assert request.shape is not None
        problem = parse_shape(request.shape)
        shapes = [Shape(shape_text(problem), problem)]
    if request.batch is not None:
        shapes = [replace(shape, batch=request.batch) for shape in shapes]
    for shape in shapes:
        _require_countable(shape.problem, shape.batch)
    return suite, shapes
