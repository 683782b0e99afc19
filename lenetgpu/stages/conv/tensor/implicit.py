"""Implicit GEMM on tensor cores: one fp16 product, or three of split fp16 at fp32 accuracy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import images_within
from lenetgpu.layouts import widened
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import epilogue, split_fp16
from lenetgpu.stages.conv.tensor.packed import Layout, pack
from lenetgpu.stages.conv.tensor.product import FIT, Product, Tiling, ranked
from lenetgpu.stages.conv.tensor.split_fp16 import Images, worth_sampling
from lenetgpu.stages.defines import MAPS
from lenetgpu.stages.registry import Rows, variant

_FORMER = {"taps": "halo", "pairs": "winograd"}  # products' words in older measurements
_MOST = 1 << 30  # elements of an image; offsets are 32-bit
_UNLIKE = 16.0  # largest ratio of a filter's columns for F(2, 3)


@dataclass(frozen=True)
class State:
    """Filters as float32 and as split fp16, the product, and its workspace for `batch` images.

    `bias` has a float32 value for every padded filter; without a bias it is `out_scales` and
    is not read.
    """

    w: Any
    filters: Any
    in_scales: Any
    out_scales: Any
    bias: Any
    worst: int
    product: Product
    images: Images
    parts: Any
    batch: int


def images_at_once(layout: Layout, batch: int) -> int:
    """Return the number of the `batch` images that are split and multiplied at a time."""
    problem = layout.problem
    rows = max(problem.OH * problem.OW, layout.slot)
    return min(images_within(batch, layout.image_bytes), max(1, _MOST // rows))


def _turns(layout: Layout, batch: int) -> tuple[int, int]:
    """Return the number of passes over `batch` images, and the images per pass."""
    once = images_at_once(layout, batch)
    return blocks_for(batch, once), once


@dataclass(frozen=True)
class Kind:
    """The distinguishing properties of a variant: the parts of its operands, and its tilings.

    `word` names the only product that it runs; if empty, the cost model selects one.
    """

    parts: int
    tilings: tuple[Tiling, ...]
    word: str = ""

    def products(
        self, problem: Conv, batch: int, machine: Machine | None = None
    ) -> tuple[Product, ...]:
        """Return the products for up to `batch` images, fastest first by the cost model.

        Empty if no product is named `word`.
        """
        layout = Layout(problem, self.parts)
        images = images_at_once(layout, batch)
        layout = replace(layout, sampled=worth_sampling(problem, images))
        found = ranked(layout, images, machine or machines.current(), self.tilings)
        kind, dash, size = self.word.partition("-")
        word = _FORMER.get(kind, kind) + dash + size
        return tuple(made for made in found if word in ("", made.word))

    def suited(self, w: Any, problem: Conv, batch: int) -> Product:
        """Return the product for the filters `w` on the host, or for (filters, bias).

        With F(2, 3), an input with a small filter element contributes to two transform points
        and cancels. If the columns differ by more than _UNLIKE, it would have more than
        _UNLIKE times the error of the `halo` product, so another product replaces them.
        """
        made = self.plan(problem, batch)
        filters = w[0] if problem.bias else w
        return made if not made.tiling.winograd or _alike(filters) else self._instead(made, batch)

    def _instead(self, product: Product, batch: int) -> Product:
        """Return the fastest product without F(2, 3), ignoring `word`."""
        found = replace(self, word="").products(product.layout.problem, batch)
        return next(made for made in found if not made.tiling.winograd)

    def plan(self, problem: Conv, batch: int, machine: Machine | None = None) -> Product:
        """Return the product for up to `batch` images on `machine`, by default the current one."""
        return self.products(problem, batch, machine)[0]

    @staticmethod
    def cycles(product: Product, batch: int, machine: Machine) -> float:
        """Estimate the cycles of every launch of a run of `batch` images with that product."""
        turns, once = _turns(product.layout, batch)
        passes = product.splitting_cycles(once, machine)
        return turns * (product.cycles(once, machine) + FIT.launch + passes)

    def kernels(self, problem: Conv, batch: int) -> tuple[Kernel, ...]:
        """Return every kernel that a run of up to `batch` images launches."""
        product = self.plan(problem, batch)
        made = (product, self._instead(product, batch)) if product.tiling.winograd else (product,)
        found: list[Kernel] = []
        for one in made:
            found += (*split_fp16.kernels(one.layout), *one.kernels(), epilogue.kernel(one.layout))
        return tuple(dict.fromkeys(found))

    def explain(self, problem: Conv, batch: int, machine: Machine) -> Rows:
        """Return the division of the work and the cost model's prediction."""
        product = self.plan(problem, batch, machine)
        layout = product.layout
        turns, once = _turns(layout, batch)
        passes = turns * product.splitting_cycles(once, machine)
        cycles = self.cycles(product, batch, machine)
        filled = problem.gemm_k / (layout.chunks * 64 // layout.parts)
        whole, split = (f"{found / machine.clock_mhz:.1f} us" for found in (cycles, passes))
        return [
            ("tiling", str(product)),
            ("split images", f"{batch * layout.image_bytes / 1e6:.1f} MB, {once} at a time"),
            ("K used", f"{filled:.0%} of {layout.chunks} chunks"),
            ("predicted", f"{whole}, {split} of them to split images"),
        ]


def _alike(w: Any) -> bool:
    """Return True if no column of the filters (R, S, C, M) is small compared with another."""
    sizes = np.abs(widened(w).astype(np.float32)).max((0, 2))
    with np.errstate(invalid="ignore"):
        return not bool((_UNLIKE * sizes.min(0) < sizes.max(0)).any())


def prepare(w: Any, batch: int, product: Product) -> State:
    """Prepare a run of up to `batch` images; `w` is (R, S, C, M) on the host, or (filters, bias).

    Both have the problem's dtype.
    """
    layout, problem = product.layout, product.layout.problem
    filters, bias = w if problem.bias else (w, None)
    exact = np.ascontiguousarray(widened(filters), np.float32)
    packed = pack(exact, layout, product.padded)
    out_scales = held = cupy.asarray(packed.out_scales)
    if bias is not None:
        padded = np.zeros(product.padded, np.float32)
        padded[: problem.M] = widened(bias)
        held = cupy.asarray(padded)
    images = images_at_once(layout, batch)
    return State(
        w=cupy.asarray(exact),
        filters=cupy.asarray(packed.filters),
        in_scales=cupy.asarray(packed.in_scales),
        out_scales=out_scales,
        bias=held,
        worst=packed.worst,
        product=product,
        images=Images(layout, images),
        parts=cupy.empty(product.parts_elements(images), cupy.float32),
        batch=images,
    )


def run(x: Any, w: State, y: Any) -> None:
    """Launch on the current stream, `w.batch` images at a time."""
    layout = w.product.layout
    for lo in range(0, len(x), w.batch):
        count = min(w.batch, len(x) - lo)
        w.images.fill(x[lo:], w.in_scales, count)
        w.product.run(w.images, w.filters, (w.out_scales, w.bias), y[lo:], w.parts, count)
        epilogue.recheck(layout, x[lo:], w.w, w.bias, w.images, y[lo:], count, w.worst)


def refusal(problem: Conv) -> str | None:
    """Return the reason if 32-bit offsets are too small, else None."""
    layout = Layout(problem, 2)
    outputs = problem.OH * problem.OW * problem.M
    inputs = max(problem.H * problem.W * problem.C, layout.image_bytes // (2 * layout.parts))
    if max(inputs, outputs, layout.chunks * layout.channels * problem.M) >= _MOST:
        return f"supports images and filters of fewer than {_MOST} elements"
    return None


def parts_of(kind: Kind) -> dict[str, Any]:
    """Return the fields of a variant that follow from its kind."""
    return {
        "prepare": lambda w, problem, batch: prepare(w, batch, kind.suited(w, problem, batch)),
        "kernels": kind.kernels,
        "explain": kind.explain,
    }


def tensor(kind: Kind, **fields: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a variant of this kind."""
    precision = "fp16x3" if kind.parts == 2 else "fp16"
    supported = {"supports": refusal, "options": "bias relu fp16 bf16", "precision": precision}
    maps = {"kind": "conv", "family": "tensor", "reads": MAPS, "writes": MAPS}
    return variant(**maps, **supported, **parts_of(kind), **fields)
