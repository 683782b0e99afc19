"""What the course report times that is no stage of ours.

Passes of a stage alone; a mean and the linear stage behind it merged into one (section 3.1), whose
filters have twice the side; and what goes over the bus between stages, and streams (3.4, 3.5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.truth import Truth, reference
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.document import rates_json, times_json
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.timing import cpu_ms, gpu_ms, repeat, summarise
from lenetgpu.network import STAGES, stage
from lenetgpu.papers.course import HOST, MERGED, RELU, SERIAL_RELU
from lenetgpu.pipeline import Pipeline, Step
from lenetgpu.plan import Plan
from lenetgpu.problems import Conv, Fc, Pool
from lenetgpu.stages import find
from lenetgpu.stages.mounted import Mounted


def crossed_bytes(steps: list[Step], images: int) -> int:
    """Bytes that copies between stages take over the bus, both ways, for `images`."""
    copies = [step for step in steps if step.variant is None]
    return sum(4 * images * prod(step.writes[1]) for step in copies)


def activation_bytes(steps: list[Step], images: int) -> tuple[int, int]:
    """(all stages' outputs together, the largest one with the input it is made of), in bytes.

    What would lie on the device if nothing were freed, and what has to at least (section 3.4).
    """
    made = [step for step in steps if step.variant is not None]
    written = [4 * images * prod(step.writes[1]) for step in made]
    read = [4 * images * prod(step.reads[1]) for step in made]
    return sum(written), max(map(sum, zip(read, written, strict=True)))


class Transfers:
    """`plan` with every stage's output taken to the host and back (HOST), or left where it is."""

    def __init__(self, plan: Plan, weights: Weights, images: Any, where: str) -> None:
        from lenetgpu.net.streaming import pinned_copy

        way = "host" if where == HOST else "device"
        n = len(images)
        self.pipeline = Pipeline(plan, weights, n, str(images.dtype), n, way)
        self._host, self._held = pinned_copy(images), cupy.empty(images.shape, images.dtype)

    @property
    def explanation(self) -> str:
        """Bytes between stages, and of the activations."""
        steps, n = self.pipeline.steps, self.pipeline.batch
        together, least = activation_bytes(steps, n)
        crossed = crossed_bytes(steps, n)
        return (
            f"{crossed / 1e9:.2f} GB over the bus between stages, "
            f"{together / 1e9:.2f} GB of activations if none were freed, {least / 1e9:.2f} GB "
            "where each lies until the next is made"
        )

    def once(self) -> Any:
        """Images to the device, all stages, labels (n,) int32 on the host."""
        self._held.set(self._host)
        return self.pipeline.run(self._held).get()

    def sample(self) -> float:
        """Milliseconds by the host's clock."""
        return cpu_ms(self.once)


class Streamed:
    """`plan` over (streams, chunks) of the images in turn; `expected`: their labels.

    Raises LenetError where a run gives other labels.
    """

    def __init__(
        self, plan: Plan, weights: Weights, images: Any, shape: tuple[int, int], expected: Any
    ) -> None:
        from lenetgpu.net.streaming import Streamer, host_results, pinned_copy

        n, dtype = len(images), str(images.dtype)
        count, chunks = shape

        def make(size: int) -> Pipeline:
            made = Pipeline(plan, weights, size, dtype, size)
            made.with_scores = False
            return made

        self._streamer = Streamer(make, -(-n // chunks), count)
        self._host = pinned_copy(images)
        self._labels, _ = host_results(n, with_scores=False)
        for _ in range(2):
            self._labels[:] = -1
            self._run()
            wrong = int((self._labels != expected).sum())
            if wrong:
                raise LenetError(
                    f"{count} streams: expected the labels of one pass, found {wrong} others"
                )

    def _run(self) -> None:
        self._streamer.run(self._host, self._labels)

    def sample(self) -> float:
        """Milliseconds by the host's clock."""
        return cpu_ms(self._run)


# of each device: what runs the mean, the convolution, the fully connected layer
VARIANTS = {
    "cuda": {"pool": "fused.maps_looped", "conv": "unrolled.image_tiled", "fc": "tiled.shared"},
    "cpu": {"pool": "fused.rows", "conv": "tiled.blocked", "fc": "tiled.blocked"},
}


def merged_problem(pool: Pool, after: Conv | Fc) -> Conv | Fc:
    """The one linear stage from `pool`'s rectified input to `after`'s output."""
    if isinstance(after, Fc):
        return replace(after, K=pool.H * pool.W * pool.C)
    wide = replace(after, H=pool.H, W=pool.W, R=2 * after.R, S=2 * after.S)
    return replace(wide, stride=2 * after.stride, pad=2 * after.pad)


def merged_weights(pool: Pool, after: Conv | Fc, w: Any) -> Any:
    """Its weights: a quarter of each of `w`, at each of the four places of its window."""
    quarter = w * w.dtype.type(0.25)
    if isinstance(after, Conv):
        return quarter.repeat(2, axis=0).repeat(2, axis=1)
    maps = quarter.reshape(pool.H // 2, pool.W // 2, pool.C, after.M)
    return maps.repeat(2, axis=0).repeat(2, axis=1).reshape(-1, after.M)


@dataclass(frozen=True)
class Count:
    """Multiply-adds of an image, of the mean one an input."""

    apart: int
    merged: int

    def __str__(self) -> str:
        return (
            f"{self.merged / 1e6:.2f} M multiply-adds an image merged, {self.apart / 1e6:.2f} M "
            f"apart ({self.merged / self.apart:.2f}x)"
        )


def count(pool: Pool, after: Conv | Fc) -> Count:
    """Of `pool`'s mean and `after`, apart and merged."""
    mean = pool.H * pool.W * pool.C
    return Count(mean + after.flop(1) // 2, merged_problem(pool, after).flop(1) // 2)


class Linear:
    """A pool and the linear stage behind it, apart or merged, on the float64 chain's activations.

    `name` is MERGED or the other. The ReLU is done before either: what is timed is linear.
    """

    def __init__(self, span: str, name: str, images: int, device: str, facts: Truth) -> None:
        first, second = (stage(part) for part in span.split("+"))
        pool, after = first.problem, second.problem
        assert isinstance(pool, Pool) and isinstance(after, Conv | Fc) and second.weight
        self.count, self._device = count(pool, after), device
        w = facts.weights[second.weight]
        linear = find(second.kind, VARIANTS[device][second.kind], device)
        if name == MERGED:
            one = merged_problem(pool, after)
            self._steps = [Mounted(linear, _plain(one), [merged_weights(pool, after, w)], images)]
        else:
            mean = Mounted(find("pool", VARIANTS[device]["pool"], device), pool, [], images)
            self._steps = [mean, Mounted(linear, _plain(after), [w], images)]
        before = STAGES[STAGES.index(first) - 1].name
        few = np.maximum(facts.stages[before], 0).astype(np.float32)
        self._few = min(len(few), images)
        means = reference("pool", few[: self._few], None, pool)
        self._expected = reference(second.kind, means.reshape(self._few, *after.in_shape), w, after)
        x = np.resize(few, (images, *pool.in_shape))
        flat = self._steps[0].problem.reads == "NC"
        self._buffers = [self._steps[0].input(x.reshape(images, -1) if flat else x)]
        self._buffers += [step.output(images) for step in self._steps]

    @property
    def variants(self) -> str:
        """What runs it."""
        return " + ".join(step.variant.full_name for step in self._steps)

    def run(self) -> None:
        """All images once, input to output."""
        x = self._buffers[0]
        for step, y in zip(self._steps, self._buffers[1:], strict=True):
            shape = x.shape if step.problem.reads != "NC" else (len(x), *step.problem.in_shape)
            step.run(x.reshape(shape), y)
            x = y

    def check(self) -> Verdict:
        """The first images' output against the mean and the stage behind it in float64."""
        for step, y in zip(self._steps, self._buffers[1:], strict=True):
            step.poison(y)
        self.run()
        found = self._steps[-1].found(self._buffers[-1][: self._few])
        return judge(found.reshape(self._expected.shape), self._expected, "fp32")

    def sample(self) -> float:
        """Milliseconds for all images."""
        return gpu_ms(self.run) if self._device == "cuda" else cpu_ms(self.run)


def _plain(problem: Conv | Fc) -> Conv | Fc:
    """`problem` in the files' own layouts."""
    layout = "NC" if isinstance(problem, Fc) else "NHWC"
    return replace(problem, reads=layout, writes=layout)


GPU_BUDGET_S, CPU_BUDGET_S = 0.15, 0.5
_LEAST, MOST = 5, 50
_SERIAL_IMAGES = 100


def times_of(samples: list[float]) -> dict[str, Any]:
    """The JSON fields of a row's samples in milliseconds."""
    summary = summarise(samples)
    return times_json(summary) | {"samples_ms": summary.samples}


def timed(sample: Callable[[], float], device: str) -> dict[str, Any]:
    """The times of `sample`, warmed up once, for as long as a row of `device` may take."""
    sample()
    budget, least = (GPU_BUDGET_S, _LEAST) if device == "cuda" else (CPU_BUDGET_S, 1)
    return times_of(repeat(sample, budget, least, MOST))


def on_the_cpu() -> str:
    """Whose time a serial row is, on a machine with a GPU too."""
    return f"on one thread of the CPU, {cpu_name()}"


def _means(x: Any) -> Any:
    """The means in float64 of the 2x2 windows of x (N, H, W, C)."""
    n, height, width, maps = x.shape
    windows = x.reshape(n, height // 2, 2, width // 2, 2, maps)
    return windows.mean(axis=(2, 4), dtype=np.float64)


def passed(bench: StageBench, name: str, limits: Ceilings | None) -> dict[str, Any]:
    """RELU in place or MEAN alone, on the map that the pool reads; checked here against CuPy."""
    from lenetgpu.stages.pool.looped import access_counts, mean_alone, relu_in_place

    problem, x = bench.problem, bench.input
    assert isinstance(problem, Pool)
    if name == RELU:
        y = x.copy()
        expected = cupy.maximum(x, np.float32(0))
        work = partial(relu_in_place, y, problem)
        efficiency = "in place"
    else:
        expected = _means(x)
        y = cupy.full(expected.shape, cupy.nan, cupy.float32)
        work = partial(mean_alone, x, y, problem)
        loads, stores = access_counts(problem)
        efficiency = f"counted efficiency {loads.efficiency:.1%} of loads, "
        efficiency += f"{stores.efficiency:.1%} of stores"
    work()
    verdict = judge(y, expected, "fp32")
    if not verdict.passed:
        return {"status": "wrong", "relative_error": verdict.error}
    row = timed(lambda: gpu_ms(work), "cuda")
    moved = x.nbytes + y.nbytes
    row |= rates_json(x.size, moved, row["median_ms"] / 1e3, "fp32", limits)
    row["explanation"] = f"{efficiency}, {row['gbs']:.0f} GB/s"
    return row


def serial_pass(stage: str, name: str, images: int) -> dict[str, Any]:
    """The report's serial ReLU or mean on one thread of the CPU, scaled to `images`."""
    from lenetgpu.stages.pool.serial import mean_loops, relu_loops

    problem = stage_of(stage).problem
    assert isinstance(problem, Pool)
    few = min(_SERIAL_IMAGES, images)
    rng = np.random.default_rng()
    x = rng.standard_normal((few, *problem.in_shape)).astype(np.float32)
    relu, mean = np.full_like(x, np.nan), np.full((few, *problem.out_shape), np.nan, np.float32)

    def loops() -> None:
        if name == SERIAL_RELU:
            relu_loops(x.reshape(-1), relu.reshape(-1))
        else:
            for image, pooled in zip(x, mean, strict=True):
                mean_loops(image, pooled)

    def sample() -> float:
        return cpu_ms(loops) * images / few

    sample()
    if name == SERIAL_RELU:
        right = np.array_equal(relu, np.maximum(x, 0))
    else:
        right = judge(mean, _means(x), "fp32").passed
    row: dict[str, Any] = {"variant": name, "status": "right" if right else "wrong"}
    if right:
        row |= times_of(repeat(sample, CPU_BUDGET_S, 1, MOST))
        scaled = f"scaled from {few} images, " if few < images else ""
        row["note"] = scaled + on_the_cpu()
    return row
