"""uint8 pixels to float32 in 0..1."""

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.problems import Scale
from lenetgpu.stages.defines import launch_each
from lenetgpu.stages.registry import variant

_KERNEL = Kernel.beside(__file__, "scale_pixels", THREADS=256, PIXEL_SCALE=f"{PIXEL_SCALE}f")


def _pixels_only(problem: Scale) -> str | None:
    return None if problem.dtype == "uint8" else f"supports uint8 pixels, not {problem.dtype}"


@variant(kind="scale", family="numpy", supports=_pixels_only)
def divide(x: Any, y: Any, problem: Scale) -> None:
    """NumPy division by 255."""
    np.divide(x, np.float32(PIXEL_SCALE), out=y, dtype=np.float32)


@variant(
    kind="scale", family="cuda", kernels=lambda problem, batch: (_KERNEL,), supports=_pixels_only
)
def pixels(x: Any, y: Any, problem: Scale) -> None:
    """Four pixels per thread."""
    launch_each(_KERNEL, y.size, x, y, each=4)
