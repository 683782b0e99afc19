"""Implicit GEMM on tensor cores: one fp16 product, or three of split fp16 at fp32 accuracy."""

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
# Largest ratio of a filter's columns for F(2, 3): the contribution of a small element would cancel
# with as many times the error of `halo`.
_UNLIKE = 16.0


@dataclass(frozen=True)
class State:
    """Filters as float32 and as split fp16, the product, and its workspace for `batch` images."""

    w: Any
    filters: Any
    in_scales: Any
    out_scales: Any
    bias: Any  # float32, one per padded filter; without a bias it is `out_scales` and not read
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
    """A variant's operand parts, tilings, and the `word` of its only product (empty: any)."""

    parts: int
    tilings: tuple[Tiling, ...]
    word: str = ""

    def products(
        self, problem: Conv, batch: int, machine: Machine | None = None
    ) -> tuple[Product, ...]:
        """Return the products named `word` for up to `batch` images, fastest first."""
        layout = Layout(problem, self.parts)
        images = images_at_once(layout, batch)
        layout = replace(layout, sampled=worth_sampling(problem, images))
        products = ranked(layout, images, machine or machines.current(), self.tilings)
        kind, dash, size = self.word.partition("-")
        word = _FORMER.get(kind, kind) + dash + size
        return tuple(product for product in products if word in ("", product.word))

    def suited(self, w: Any, problem: Conv, batch: int) -> Product:
        """Return the product for the filters `w` on the host, or for (filters, bias)."""
        product = self.plan(problem, batch)
        if not product.tiling.winograd or _alike(w[0] if problem.bias else w):
            return product
        return self._without_winograd(problem, batch)

    def _without_winograd(self, problem: Conv, batch: int) -> Product:
        products = replace(self, word="").products(problem, batch)
        return next(product for product in products if not product.tiling.winograd)

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
        products = [self.plan(problem, batch)]
        if products[0].tiling.winograd:
            products.append(self._without_winograd(problem, batch))
        kernels: dict[Kernel, None] = {}
        for product in products:
            layout = product.layout
            launched = *split_fp16.kernels(layout), *product.kernels(), epilogue.kernel(layout)
            kernels |= dict.fromkeys(launched)
        return tuple(kernels)

    def explain(self, problem: Conv, batch: int, machine: Machine) -> Rows:
        """Return the division of the work and the cost model's prediction."""
        product = self.plan(problem, batch, machine)
        layout = product.layout
        turns, once = _turns(layout, batch)
        passes = turns * product.splitting_cycles(once, machine)
        cycles = self.cycles(product, batch, machine)
        filled = problem.gemm_k / (layout.chunks * 64 // layout.parts)
        total, split = (f"{clocks / machine.clock_mhz:.1f} us" for clocks in (cycles, passes))
        return [
            ("tiling", str(product)),
            ("split images", f"{batch * layout.image_bytes / 1e6:.1f} MB, {once} at a time"),
            ("K used", f"{filled:.0%} of {layout.chunks} chunks"),
            ("predicted", f"{total}, {split} of them to split images"),
        ]


def _alike(w: Any) -> bool:
    """Return True if no column of the filters (R, S, C, M) is small compared with another."""
    sizes = np.abs(widened(w).astype(np.float32)).max((0, 2))
    with np.errstate(invalid="ignore"):
        return not bool((_UNLIKE * sizes.min(0) < sizes.max(0)).any())


def prepare(w: Any, batch: int, product: Product) -> State:
    """Prepare a run of up to `batch` images; `w` are host filters (R, S, C, M), or with bias."""
    layout, problem = product.layout, product.layout.problem
    filters, bias = w if problem.bias else (w, None)
    exact = np.ascontiguousarray(widened(filters), np.float32)
    packed = pack(exact, layout, product.padded)
    out_scales = biases = cupy.asarray(packed.out_scales)
    if bias is not None:
        padded = np.pad(widened(bias).astype(np.float32), (0, product.padded - problem.M))
        biases = cupy.asarray(padded)
    images = images_at_once(layout, batch)
    return State(
        w=cupy.asarray(exact),
        filters=cupy.asarray(packed.filters),
        in_scales=cupy.asarray(packed.in_scales),
        out_scales=out_scales,
        bias=biases,
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
