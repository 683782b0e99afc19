"""Random images of a convolution on the GPU: the convnet2 kernels are checked and timed on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.truth import random_input, reference
from lenetgpu.gpu.graph import Graph
from lenetgpu.measure.rounds import Entry, interleave
from lenetgpu.measure.timing import Replays, Summary, summarise
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.convnet2.ladder import Step
from lenetgpu.stages.conv.convnet2.layout import run_innermost
from lenetgpu.stages.mounted import Mounted

_WITH_A_TABLE = "convnet2.index_table"
"""The variant whose prepared state every kernel on images innermost can read."""
_CHECKED_IMAGES = 3
_CALLS, _REPLAYS, _LEAST_REPLAYS, _BUDGET_MS = 5, 20, 3, 60


class Field:
    """`batch` random images of `problem`, their filters, a float64 truth and workspaces.

    `problem`'s layouts are ignored: NCHW in and out. The truth is of the first and the last images.
    Needs a GPU with CuPy; raises MemoryError where the workspaces do not hold all images.
    """

    def __init__(self, problem: Conv, batch: int) -> None:
        self.problem, self.batch = replace(problem, reads="NCHW", writes="NCHW"), batch
        host, w = random_input("conv", self.problem, batch, np.random.default_rng())
        self._which = sorted({*range(batch)[:_CHECKED_IMAGES], *range(batch)[-_CHECKED_IMAGES:]})
        truth = reference("conv", host[self._which], w, self.problem)
        self._truth = truth.transpose(0, 3, 1, 2)
        self._x = cupy.asarray(host.transpose(0, 3, 1, 2), order="C")
        self._y = cupy.empty((batch, problem.M, problem.OH, problem.OW), cupy.float32)
        variant = find("conv", _WITH_A_TABLE, "cuda")
        self._state = Mounted(variant, self.problem, [w], batch).state
        if self._state.chunk < batch:
            raise MemoryError(f"workspace for {batch} images of {problem}")

    def verdict(self, step: Step, precision: str, spans: Any = None) -> Verdict:
        """`step` with its relayouts into poisoned outputs, judged; the others must be finite."""
        self._y.fill(cupy.nan)
        self._state.outputs.fill(cupy.nan)

        def convolve(images: Any, outputs: Any, n: int) -> None:
            step.convolve(images, self._state, outputs, n, self.problem, spans)

        run_innermost(convolve, self._x, self._state, self._y, self.problem)
        found = self._y.get()[self._which]
        whole = bool(cupy.isfinite(self._y).all())
        return judge(found if whole else found * float("nan"), self._truth, precision)

    def convolve(self, step: Step, spans: Any = None) -> None:
        """The convolution alone; after `verdict`, whose images it reads."""
        images, outputs = self._x, self._y
        if self.batch > 1:
            images, outputs = self._state.images, self._state.outputs
        step.convolve(images, self._state, outputs, self.batch, self.problem, spans)


def times(runs: dict[str, Callable[[], None]]) -> dict[str, Summary]:
    """Milliseconds a call of each of `runs` by its name: replays of CUDA graphs, interleaved."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    entries: list[Entry] = []
    for name, run in runs.items():
        run()
        replays = Replays(Graph(run, _CALLS), _CALLS)
        replays.once()
        entries.append((replays.sample, samples[name]))

    def enough(found: list[float]) -> bool:
        return len(found) >= _LEAST_REPLAYS and _CALLS * sum(found) > _BUDGET_MS

    if entries:
        interleave(entries, _REPLAYS, enough=enough)
    return {name: summarise(found) for name, found in samples.items()}
