"""Plans bound to weights: buffers, layout conversions and copies; runs batches.

Activations stay on the device between stages (report, section 3.4). Intermediate results alternate
between two arenas per device, which are allocated once.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.cpu.flush import flushed
from lenetgpu.cpu.memory import aligned_empty
from lenetgpu.cpu.turns import Owned, Turn
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.machines import multiprocessors
from lenetgpu.layouts import dtype_of, equivalent, physical_shape
from lenetgpu.network import CLASSES, CLASSIFIER, FEATURES, IMAGE_SHAPE, STAGES, Problem
from lenetgpu.plan import Plan, requested_as
from lenetgpu.problems import Relayout, Scale
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.prepared import PreparedKernel, array_module

ALIGNED = 16  # bytes; kernels read images in vectors of this size
CPU_CHUNK, _CPU_FUSED_CHUNK = 64, 512  # images whose maps (fused: features) fit the cache
_IMAGES_EACH = 4 * 80  # of a multiprocessor: four tiles of 80 images
_SCORES_AT = STAGES[-1].problem.in_shape
# largest output of a stage; float32's leaves a margin for intermediate sums
_LARGEST_FLOAT, _LARGEST_HALF = 2.0**100, 65504.0


@dataclass
class Step:
    """One step of a pipeline: a stage, a layout or dtype conversion, or a copy (no `variant`)."""

    name: str
    stages: tuple[str, ...]
    variant: Variant | None
    problem: Problem | None
    device: str  # of the output
    dtype: str
    reads: tuple[str, tuple[int, ...]]
    writes: tuple[str, tuple[int, ...]]
    weights: tuple[str, ...] = ()
    prepared: PreparedKernel | None = None

    @property
    def label(self) -> str:
        """The variant's name, or the direction of a copy."""
        if self.variant is not None:
            return self.variant.full_name
        return "host to device" if self.device == "cuda" else "device to host"

    def run(self, x: Any, y: Any) -> None:
        """Compute y from x."""
        if self.prepared is not None:
            self.prepared.run(x, y)
        elif self.device == "cuda":
            y.set(x)
        else:
            x.get(out=y, blocking=True)


Observer = Callable[[Step, Any], None]


def build_steps(plan: Plan, input_dtype: str, transfers: str = "device") -> list[Step]:
    """Return stages, conversions and copies; `transfers` "host" copies every output to the host."""
    steps: list[Step] = []
    device, layout, dtype = plan.device, "NHWC", input_dtype
    shape: tuple[int, ...] = IMAGE_SHAPE

    def move(to: str) -> None:
        nonlocal device
        if device != to:
            at = (layout, shape)
            steps.append(Step(f"copy to {to}", (), None, None, to, dtype, at, at))
            device = to

    if input_dtype == "uint8" and not plan.stages[0].variant.raw_images:
        scale, (variant,) = Scale(*IMAGE_SHAPE, input_dtype), variants("scale", device)
        at = (layout, shape)
        dtype = "float32"
        steps.append(Step("input", (), variant, scale, device, dtype, at, at))
    for index, bound in enumerate(plan.stages):
        problem, home = bound.problem, bound.variant.needs.device
        if transfers == "host" and index:
            move("cpu")
        if home == "cuda":
            move(home)
        if not equivalent(layout, problem.reads, shape):
            to = problem.reads if problem.reads != "NC" else "NHWC"
            change = Relayout(shape[0], shape[1], shape[2], reads=layout, writes=to)
            (variant,) = variants("relayout", device)
            ends = (layout, shape), (to, shape)
            steps.append(Step(f"{layout} to {to}", (), variant, change, device, dtype, *ends))
            layout = to
        move(home)
        layout, shape = problem.writes, problem.out_shape
        dtype = dtype_of(layout)
        reads = (problem.reads, problem.in_shape)
        steps.append(
            Step(bound.name, bound.stages, bound.variant, problem, home, dtype, reads,
                 (layout, shape), bound.weights)
        )  # fmt: skip
    move(plan.device)
    return steps


def default_chunk(device: str, fused: bool = False) -> int:
    """Return the default images per chunk; `fused`: one variant computes all features."""
    if device == "cpu":
        return _CPU_FUSED_CHUNK if fused else CPU_CHUNK
    return _IMAGES_EACH * multiprocessors()


def _require_range(plan: Plan, weights: Weights) -> None:
    """Raise LenetError if some image could exceed a stage's number range with `weights`."""
    for bound in plan.stages:
        precision = requested_as(bound.variant.precision)
        for name in bound.stages:
            half = precision.startswith(("fp16", "int8")) and name != "fc2"  # summed in float32
            most = weights.balanced.reach.get(name, 0.0)
            if not most <= (_LARGEST_HALF if half else _LARGEST_FLOAT):
                raise LenetError(
                    f"plan {plan.name} with {weights.source}: expected weights such that {name} "
                    f"stays within {precision}'s range for every image, found up to {most:.1e}"
                )


class Pipeline:
    """`plan` with `weights`, for up to `batch` images per run.

    Steps compute with `weights.balanced`; scores are rescaled to those of `weights`. `bounded`: no
    image in 0..1 can overflow the float32 scores. Raises LenetError if weights exceed the range of
    a stage. `chunk` images pass through all stages before the next chunk starts (default:
    `default_chunk`). `input_dtype` is "uint8" (pixels) or "float32" (0..1). Clear `with_scores` if
    only labels are needed.

    Labels and scores of a run stay in the pipeline, so it belongs to one thread: `run` in another
    raises LenetError while the first one lives. An owner that serialises threads itself assigns
    a `Turn` to `turn`.
    """

    with_scores = True

    def __init__(
        self,
        plan: Plan,
        weights: Weights,
        batch: int,
        input_dtype: str = "uint8",
        chunk: int | None = None,
        transfers: str = "device",
    ) -> None:
        _require_range(plan, weights)
        self.plan = plan
        self.turn: Turn = Owned(f"pipeline of plan {plan.name}")
        self.batch = batch
        fused = plan.stages[0].variant.kind == FEATURES
        self.chunk = min(batch, chunk or default_chunk(plan.device, fused))
        self.input_dtype = input_dtype
        self.steps = build_steps(plan, input_dtype, transfers)
        self._on_cpu = any(step.device == "cpu" and step.variant is not None for step in self.steps)
        self.exponent = weights.balanced.exponent
        self.bounded = weights.balanced.bounded
        self._allocate()
        self._prepare(weights.balanced)

    def _allocate(self) -> None:
        sizes: dict[tuple[str, int], int] = {}
        self._targets: list[tuple[str, int] | str] = []
        at, turn = self.plan.device, 1
        scores_device = self.plan.device
        for index, step in enumerate(self.steps):
            if index == len(self.steps) - 1:
                self._targets.append("labels")
                break
            turn = 1 - turn if step.device == at else 0
            at = step.device
            if step.writes == ("NC", _SCORES_AT) and step.stages:
                self._targets.append("scores")
                scores_device = step.device
                continue
            target = (at, turn)
            self._targets.append(target)
            size = 4 * prod(physical_shape(step.writes[0], self.chunk, step.writes[1]))
            sizes[target] = max(sizes.get(target, 0), size)
        self._arenas = {target: self._empty(size, target[0]) for target, size in sizes.items()}
        self._views: dict[tuple[Any, ...], Any] = {}
        self.labels = array_module(self.plan.device).empty(self.batch, "int32")
        self.scores_on_gpu = scores_device == "cuda"  # after a run
        self._scores_module = array_module(scores_device)
        self._scores = self._scores_module.empty((self.batch, CLASSES), "float32")

    def _empty(self, size: int, device: str) -> Any:
        if device == "cuda":
            return array_module(device).empty(size, "uint8")
        if self.plan.device == "cuda":
            from lenetgpu.gpu.workspace import pinned_empty

            return pinned_empty((size,), "uint8")
        return aligned_empty((size,), "uint8")

    def _prepare(self, weights: Weights) -> None:
        for step in self.steps:
            if step.variant is not None:
                tensors = [weights[name] for name in step.weights]
                step.prepared = PreparedKernel(step.variant, step.problem, tensors, self.chunk)
        if self.exponent and self.scores_on_gpu:
            self._rescale(0, 1)  # compiled before a graph is captured

    def _rescale(self, lo: int, n: int) -> None:
        """Remove the weights' balancing factor from `n` scores starting at `lo`, in place."""
        part = self._scores[lo : lo + n]
        with np.errstate(over="ignore"):  # infinite scores are refused where they are read
            self._scores_module.ldexp(part, np.int32(self.exponent), part)

    def poison(self) -> None:
        """Fill every buffer that the pipeline writes with NaN (labels with -1)."""
        for arena in self._arenas.values():
            arena.view("float32").fill(float("nan"))
        self._scores.fill(float("nan"))
        self.labels.fill(-1)

    @property
    def labels_by_kernel(self) -> bool:
        """True if a kernel writes the labels, to any memory that the GPU can reach."""
        last = self.steps[-1]
        return last.device == "cuda" and last.prepared is not None

    def _output(self, target: tuple[str, int] | str, step: Step, part: slice, labels: Any) -> Any:
        n = part.stop - part.start
        if target == "labels":
            if step.variant is None or step.variant.kind != CLASSIFIER:
                return labels[part]
            return labels[part], (self._scores[part] if self.with_scores else None)
        if target == "scores":
            return self._scores[part]
        assert isinstance(target, tuple)
        shape = physical_shape(step.writes[0], n, step.writes[1])
        key = (target, shape, step.dtype)
        if key not in self._views:
            elements = self._arenas[target].view(step.dtype)[: prod(shape)]
            self._views[key] = elements.reshape(shape)
        return self._views[key]

    def run(self, x: Any, observer: Observer | None = None, labels: Any = None) -> Any:
        """Classify `x` (n, 28, 28, 1); return labels (n,) int32, a view of the label buffer.

        `x` lies in memory that the plan's device can read; on a GPU its address is a multiple of
        ALIGNED. If `labels` (n,) int32 is given, in memory that the device can write, labels are
        written there instead. On a GPU the work is queued on the current stream without waiting.
        `observer(step, output)` is called after each step is queued; after the last one the chunk's
        scores are final if `with_scores` is set.
        """
        n = len(x)
        if n > self.batch:
            raise LenetError(f"batch: expected at most {self.batch} images, found {n}")
        with self.turn, flushed() if self._on_cpu else nullcontext():
            into = self.labels if labels is None else labels
            for lo in range(0, n, self.chunk):
                self._run(x, slice(lo, min(lo + self.chunk, n)), into, observer)
        return into[:n]

    def _run(self, x: Any, part: slice, labels: Any, observer: Observer | None) -> None:
        current, n = x[part], part.stop - part.start
        for step, target in zip(self.steps, self._targets, strict=True):
            out = self._output(target, step, part, labels)
            step.run(current.reshape(physical_shape(step.reads[0], n, step.reads[1])), out)
            if self.exponent and self.with_scores and target == "labels":
                self._rescale(part.start, n)
            if observer is not None:
                observer(step, out)
            current = out

    def held_scores(self, n: int) -> Any:
        """Return the last run's scores (n, 10) on their device; overwritten by the next run."""
        return self._scores[:n]

    def scores(self, n: int) -> Any:
        """Return the last run's scores (n, 10) float32 as a NumPy array."""
        part = self.held_scores(n)
        return part.get() if self.scores_on_gpu else part.copy()
