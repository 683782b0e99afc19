"""Linear stages merged into one (course report, section 3.1), and what that costs.

The mean is a convolution with filters of 0.25, so that it and the linear stage behind it make one
linear stage; a ReLU between two forbids it. Behind a mean that means filters of twice the side,
each weight four times: the count says whether that pays before any clock does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.truth import Truth, reference
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.network import STAGES, Stage, stage
from lenetgpu.papers.course import MERGED
from lenetgpu.problems import Conv, Fc, Pool
from lenetgpu.stages import find
from lenetgpu.stages.mounted import Mounted

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
    """Multiply-adds of an image, of the mean one an input, and MB that its stages move."""

    apart: int
    merged: int
    apart_mb: float
    merged_mb: float

    def __str__(self) -> str:
        times = self.merged / self.apart
        return (
            f"{self.merged / 1e6:.2f} M multiply-adds an image merged, {self.apart / 1e6:.2f} M "
            f"apart ({times:.2f}x)"
        )


def count(pool: Pool, after: Conv | Fc) -> Count:
    """Of `pool`'s mean and `after`, apart and merged."""
    one = merged_problem(pool, after)
    mean = pool.H * pool.W * pool.C
    return Count(
        mean + after.flop(1) // 2,
        one.flop(1) // 2,
        (pool.bytes(1) + after.bytes(1)) / 1e6,
        one.bytes(1) / 1e6,
    )


def before_a_mean(conv: Conv) -> Count:
    """Of a convolution and a mean behind it, if no ReLU lay between as it does.

    The mean of four neighbouring windows is one window, a stride wider each way.
    """
    pool = Pool(*conv.out_shape)
    one = replace(conv, R=conv.R + conv.stride, S=conv.S + conv.stride, stride=2 * conv.stride)
    return Count(
        pool.H * pool.W * pool.C + conv.flop(1) // 2,
        one.flop(1) // 2,
        (conv.bytes(1) + pool.bytes(1)) / 1e6,
        one.bytes(1) / 1e6,
    )


class Linear:
    """A pool and the linear stage behind it, apart or merged, on the float64 chain's activations.

    `name` is MERGED or the other. The ReLU is done before either: what is timed is linear.
    """

    def __init__(self, span: str, name: str, images: int, device: str, facts: Truth) -> None:
        first, second = (stage(part) for part in span.split("+"))
        pool, after = first.problem, second.problem
        assert isinstance(pool, Pool) and isinstance(after, Conv | Fc) and second.weight
        self.count, self._device, self._name = count(pool, after), device, name
        w = facts.weights[second.weight]
        before = [one.name for one in STAGES].index(first.name) - 1
        few = np.maximum(facts.stages[STAGES[before].name], 0).astype(np.float32)
        x = np.resize(few, (images, *pool.in_shape))
        self._few = min(len(few), images)
        mean = reference("pool", few[: self._few], None, pool)
        self._expected = reference(second.kind, mean.reshape(self._few, *after.in_shape), w, after)
        self._steps = self._mount(first, second, w, images)
        self._buffers = [self._steps[0].input(self._held(x))]
        self._buffers += [step.output(images) for step in self._steps]

    def _held(self, x: Any) -> Any:
        flat = self._steps[0].problem.reads == "NC"
        return x.reshape(len(x), -1) if flat else x

    def _mount(self, first: Stage, second: Stage, w: Any, images: int) -> list[Mounted]:
        names = VARIANTS[self._device]
        pool, after = first.problem, second.problem
        assert isinstance(pool, Pool) and isinstance(after, Conv | Fc)
        linear = find(second.kind, names[second.kind], self._device)
        if self._name == MERGED:
            one = merged_problem(pool, after)
            return [Mounted(linear, _plain(one), [merged_weights(pool, after, w)], images)]
        mean = find("pool", names["pool"], self._device)
        return [Mounted(mean, pool, [], images), Mounted(linear, _plain(after), [w], images)]

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
