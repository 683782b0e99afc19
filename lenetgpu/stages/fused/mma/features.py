"""Images to pool2's features in one kernel on mma.sync (sm_80 and later)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.gpu.launch import blocks_for, launch
from lenetgpu.gpu.machines import WARP, current
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.occupancy import PROCESSORS, Demand, Processor, residency
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.mma.pack import pack
from lenetgpu.stages.fused.split import FLOAT_PIXEL_EXPONENT, Filters, filters
from lenetgpu.stages.registry import cuda, variant

_NEEDS = cuda(80)
_MAP_BYTES = 12 * 12 * 32 * 2
_PIXEL_BYTES = 28 * 28 * 2
_STAGE_BYTES = 4096


@dataclass(frozen=True)
class Tiling:
    """Warps per block, warps per image, minimum blocks per SM."""

    warps: int
    share: int
    blocks: int

    @property
    def images(self) -> int:
        """Images per block."""
        return self.warps // self.share

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps * WARP

    def shared_bytes(self, uint8: bool, parts: int) -> int:
        """Return the dynamic shared memory of a block; uint8 pixels are exact in one part."""
        pixel_parts = 1 if uint8 else parts
        per_image = parts * _MAP_BYTES + pixel_parts * _PIXEL_BYTES
        return self.images * per_image + (2 * parts + 1) * _STAGE_BYTES

    def blocks_per_sm(self, uint8: bool, parts: int, limits: Processor) -> int:
        """Return the blocks that an SM holds; launch bounds limit the registers."""
        demand = Demand(0, self.threads, self.shared_bytes(uint8, parts))
        return residency(demand, limits).blocks


# by number of parts, fastest first; a device uses the first that fits its shared memory
TILINGS = {
    1: (Tiling(4, 1, 2), Tiling(8, 1, 1)),
    2: (Tiling(4, 2, 2), Tiling(8, 2, 1), Tiling(6, 2, 1)),
}


def kernel(uint8: bool, parts: int, tiling: Tiling) -> Kernel:
    """Return the kernel for uint8 pixels or for float32 pixels in 0..1."""
    scale = f"{2**FLOAT_PIXEL_EXPONENT if parts == 2 else 1}.0f"
    form: dict[str, int | str] = {"UINT8_PIXELS": int(uint8), "PIXEL_SCALE": scale, "PARTS": parts}
    form |= {"WARPS": tiling.warps, "SHARE": tiling.share, "BLOCKS": tiling.blocks}
    shared_bytes = tiling.shared_bytes(uint8, parts)
    return Kernel.beside(__file__, "mma_features", **form, SHARED_BYTES=shared_bytes)


def _tilings(uint8: bool, parts: int) -> list[Tiling]:
    """Return the tilings of which every supported GPU can hold at least one block."""
    supported = [limits for c, limits in PROCESSORS.items() if c >= _NEEDS.compute_capability]
    return [t for t in TILINGS[parts] if all(t.blocks_per_sm(uint8, parts, s) for s in supported)]


@cache
def tiling(uint8: bool, parts: int, limits: Processor) -> Tiling:
    """Return the tiling for a device with these limits."""
    sizes = _tilings(uint8, parts)
    return next(t for t in sizes if t.blocks_per_sm(uint8, parts, limits) >= t.blocks)


def kernels(parts: int) -> tuple[Kernel, ...]:
    """Return all kernels of `parts` parts that any device may use."""
    forms = [(uint8, size) for uint8 in (True, False) for size in _tilings(uint8, parts)]
    return tuple(kernel(uint8, parts, size) for uint8, size in forms)


def _run(x: Any, w: Filters, y: Any, parts: int) -> None:
    uint8, machine = bool(x.dtype == "uint8"), current()
    size = tiling(uint8, parts, machine.limits)
    blocks = min(size.blocks * machine.multiprocessors, blocks_for(len(x), size.images))
    made, shared = kernel(uint8, parts, size), size.shared_bytes(uint8, parts)
    launch(made, (blocks,), (size.threads,), w.args(x, y), shared=shared)


def _variant(parts: int, **fields: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return variant(
        kind=FEATURES,
        needs=_NEEDS,
        prepare=lambda w, problem, batch: filters(pack(w, parts)),
        kernels=lambda problem, batch: kernels(parts),
        **fields,
    )


@_variant(1, family="mma_fp16", also="mma.features", writes="F16", precision="fp16")
def features(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on mma.sync, fp16 operands, fp32 sums."""
    _run(x, w, y, 1)


@_variant(2, family="mma_fp16x3", also="mma_split.features", writes="F16X2", precision="fp16x3")
def features_(x: Any, w: Filters, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on mma.sync, split fp16 operands."""
    _run(x, w, y, 2)
