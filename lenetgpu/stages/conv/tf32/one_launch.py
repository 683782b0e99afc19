"""Common code of TF32 products: split filters, tiles and persistent blocks in a single launch."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lenetgpu.arrays import Array, cupy, np
from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import MAPS, conv_defines
from lenetgpu.stages.registry import Rows, variant

FLOAT = 4
CHUNK = 32  # products of K that are summed before they are added to fp32 sums
VEC = 4  # floats in 16 bytes
_PARTS = 2
_DROPPED = 13  # bits of a float's significand that TF32 drops
_NORMAL = 126  # 2**-126 to 2**126 are normal floats
_MOST = 1 << 30  # elements of an image, outputs of a filter in a launch
_MOST_SIDE = 32  # a bit for each row or column of a filter
_SECTOR = 32


@dataclass(frozen=True)
class Fit:
    """Constants of the cost models per multiprocessor of an H200 (docs/convolutions.md)."""

    rate: float = 1024.0  # TF32 products per clock, the dense rate
    cache_rate: float = 34.7  # bytes per clock
    memory_share: float = 0.67  # fraction of the memory's bytes per clock
    copies: float = 16.0  # cycles of a warp's copy, one float per lane
    wide_copies: float = 28.0  # cycles, four floats per lane
    chunk: float = 180.0  # cycles to add a chunk's sums
    tile: float = 670.0  # cycles: start and end of 128 outputs
    filter: float = 17.0  # cycles to store 128 outputs of a filter
    launch: float = 4200.0  # cycles


TF32_FIT = Fit()


@dataclass(frozen=True)
class OneLaunch(ABC):
    """A convolution whose blocks of `threads` threads compute `rows` outputs of `width` filters."""

    problem: Conv
    width: int
    rows: int
    threads: int

    @property
    @abstractmethod
    def shared_bytes(self) -> int:
        """Dynamic shared memory per block in bytes."""

    @abstractmethod
    def kernel(self) -> Kernel:
        """Return the only kernel that is launched."""

    @abstractmethod
    def grid(self, images: int) -> int:
        """Return the number of blocks of a launch."""

    @abstractmethod
    def cycles(self, images: int, machine: Machine) -> float:
        """Estimate the cycles of a run of `images` images."""

    def __str__(self) -> str:
        tile = f"{self.rows} outputs x {self.width} filters"
        return f"{tile} a block of {self.threads} threads, one launch"

    @property
    def across(self) -> int:
        """Blocks that cover all filters."""
        return blocks_for(self.problem.M, self.width)

    @property
    def pointwise(self) -> bool:
        """True if an output reads a single pixel, never padding."""
        problem = self.problem
        return problem.R == problem.S == 1 and problem.pad == 0

    @property
    def wide(self) -> bool:
        """True if inputs are copied four floats at a time: neighbours in a pixel or in a map."""
        p = self.problem
        if p.reads == "NHWC":
            return p.C % 4 == 0
        return self.pointwise and p.stride == 1 and p.OH * p.OW % 4 == 0

    @property
    def filter_bytes(self) -> int:
        """Bytes of a chunk's filters, high and low."""
        return 2 * FLOAT * CHUNK * self.width

    def built(self, module: str, only: tuple[str, ...], **own: int) -> Kernel:
        """Return the kernel `tf32_<stem>` beside `module` with its `own` definitions."""
        problem = self.problem
        own |= {"MP": self.width * self.across, "SHARED_BYTES": self.shared_bytes}
        own |= {"BIAS": int(problem.bias), "RELU": int(problem.relu)}
        plain = conv_defines(replace(problem, bias=False, relu=False))
        return Kernel.beside(module, f"tf32_{Path(module).stem}", only, **plain, **own)

    def tiles(self, images: int) -> int:
        """Return the number of tiles of `images` images."""
        return blocks_for(images * self.problem.OH * self.problem.OW, self.rows) * self.across

    def image_bytes(self) -> float:
        """Return the bytes of memory traffic of one image's inputs and outputs, in sectors."""
        p = self.problem
        apart = 1 if p.reads == "NHWC" else _SECTOR // FLOAT
        skipped = max(1.0, p.stride / p.R) * max(1.0, p.stride / max(p.S, apart))
        return FLOAT * (p.C * p.H * p.W / skipped + p.OH * p.OW * p.M)


def _rounded(x: Array) -> Array:
    """Round float32 to the nearest of TF32's 11 bits, ties away from zero, like cvt.rna."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        near = (bits + np.uint32(1 << (_DROPPED - 1))) & np.uint32(-1 << _DROPPED & 0xFFFFFFFF)
    return np.where(np.isfinite(x), near.view(np.float32), x).astype(np.float32)


def chunks(problem: Conv) -> int:
    """Return the number of parts of CHUNK products in an output's K."""
    return blocks_for(problem.gemm_k, CHUNK)


def _packed(w: Array, problem: Conv, width: int) -> tuple[Array, Array]:
    """Pack filters (R, S, C, M) float32 for blocks of `width` filters, zero-padded.

    Return (blocks, chunks, 2, CHUNK / VEC, width, VEC) float32, high parts, then low parts; and
    the factor that reverses each filter's scale, 0 for all zeros. Scales ignore NaN and infinity.
    """
    ordered = w.transpose(2, 0, 1, 3) if problem.reads == "NCHW" else w
    exact = ordered.reshape(problem.gemm_k, problem.M).astype(np.float64)
    sizes = np.where(np.isfinite(exact), np.abs(exact), 0).max(0)
    exponents = np.where(sizes > 0, np.clip(np.frexp(sizes)[1], -_NORMAL, _NORMAL), 0)
    spare = (0, -problem.gemm_k % CHUNK), (0, -problem.M % width)
    scaled = np.pad(np.ldexp(exact, -exponents), spare)
    with np.errstate(invalid="ignore"):
        high = _rounded(scaled.astype(np.float32))
        low = _rounded((scaled - high).astype(np.float32))
    factors = np.where((exact != 0).any(0), np.ldexp(1.0, exponents), 0).astype(np.float32)
    parts = np.stack([high, low]).reshape(
        _PARTS, -1, CHUNK // VEC, VEC, scaled.shape[1] // width, width
    )
    ordered = parts.transpose(4, 1, 0, 2, 5, 3)
    return np.ascontiguousarray(ordered), np.pad(factors, spare[1])


Plan = Callable[..., OneLaunch]  # (problem, batch, machine or None for the current one)


@dataclass(frozen=True)
class State:
    """Filters as float32 and as TF32, factors that reverse their scales, bias and product."""

    w: Any
    filters: Any
    factors: Any
    bias: Any  # one value per padded filter; without a bias it is `factors` and not read
    product: OneLaunch


def refusal(problem: Conv) -> str | None:
    """Return the reason if 32-bit offsets or a filter's bit mask are too small, else None."""
    if max(problem.R, problem.S) > _MOST_SIDE:
        return f"supports filters of up to {_MOST_SIDE}x{_MOST_SIDE}"
    outputs = problem.OH * problem.OW * problem.M
    inputs = (problem.H + 2 * problem.pad) * (problem.W + 2 * problem.pad) * problem.C
    if max(inputs, outputs, 2 * CHUNK * chunks(problem) * problem.M) >= _MOST:
        return f"supports images and filters of fewer than {_MOST} elements"
    return None


def prepare(w: Any, product: OneLaunch) -> State:
    """Prepare a run; `w` are float32 filters (R, S, C, M) on the host, or (filters, bias)."""
    problem = product.problem
    filters, bias = w if problem.bias else (w, None)
    packed, scales = _packed(filters, problem, product.width)
    factors = biases = cupy.asarray(scales)
    if bias is not None:
        biases = cupy.asarray(np.pad(bias, (0, -problem.M % product.width)))
    exact = cupy.asarray(np.ascontiguousarray(filters, np.float32))
    return State(exact, cupy.asarray(packed), factors, biases, product)


def run(x: Any, w: State, y: Any) -> None:
    """Launch on the current stream, once per 2**30 outputs of a filter."""
    product = w.product
    pixels = product.problem.OH * product.problem.OW
    kernel, block, once = product.kernel(), (product.threads,), max(1, _MOST // pixels)
    for lo in range(0, len(x), once):
        count = min(once, len(x) - lo)
        args = (x[lo:], w.filters, w.factors, w.bias, w.w, y[lo:], np.int32(count * pixels))
        launch(kernel, (product.grid(count),), block, args, product.shared_bytes, overlap=True)


def by_tf32(plan: Plan, **fields: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that registers a variant whose products `plan` selects."""

    def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
        product = plan(problem, batch, machine)
        filled = problem.gemm_k / (CHUNK * chunks(problem))
        return [
            ("tiling", str(product)),
            ("K used", f"{filled:.0%} of {chunks(problem)} chunks"),
            ("predicted", f"{product.cycles(batch, machine) / machine.clock_mhz:.1f} us"),
        ]

    return variant(
        kind="conv",
        family="tensor",
        reads=MAPS,
        writes=MAPS,
        precision="tf32x3",
        options="bias relu",
        prepare=lambda w, problem, batch: prepare(w, plan(problem, batch)),
        kernels=lambda problem, batch: (plan(problem, batch).kernel(),),
        supports=refusal,
        explain=explain,
        paper="after Ootomo and Yokota",
        **fields,
    )
