"""One thread's share of conv1 to pool2 on a CPU. Importing this module imports llvmlite."""

from typing import Any

from lenetgpu.cpu.native import Emitted
from lenetgpu.cpu.tile import windows
from lenetgpu.cpu.vector import CHANNELS, FLOAT, PIXELS, Vectors
from lenetgpu.cpu.vector import WIDTH as VECTOR
from lenetgpu.cpu.winograd import OUTPUTS, convolve, workspace_sizes
from lenetgpu.network import PIXEL_SCALE, stage
from lenetgpu.problems import Conv

_FIRST, _SECOND = stage("conv1").problem, stage("conv2").problem
assert isinstance(_FIRST, Conv) and isinstance(_SECOND, Conv)
LINE, SIDE = _FIRST.W, _FIRST.S
IMAGE = _FIRST.H * _FIRST.W
WIDTH, MAPS = _SECOND.W, _SECOND.C
MAP = _SECOND.H * WIDTH * MAPS
SIZES = _SECOND.OH // OUTPUTS, WIDTH, MAPS, _SECOND.M
assert IMAGE % VECTOR == 0
# Floats of a thread's workspace: pixels, their pooled map, and conv2's `workspace_sizes`.
WORKSPACE = IMAGE + MAP + sum(workspace_sizes(*SIZES))


def _first(v: Vectors, x: Any, w: Any, y: Any) -> None:
    """Compute conv1, ReLU and mean of an image (28, 28): the map (12, 12, 32)."""
    columns = PIXELS // 2
    line, pixel = FLOAT * LINE, FLOAT * MAPS
    shape = SIDE, LINE, SIDE, 1, MAPS
    with v.loop(MAPS // CHANNELS) as block, v.loop(WIDTH) as row:
        filters = v.at(w, (block, FLOAT * SIDE * SIDE * CHANNELS))
        with v.steps(0, 2 * WIDTH, columns) as column:
            at = v.at(x, (row, 2 * line), (column, FLOAT))
            out = v.at(y, (row, WIDTH * pixel), (column, pixel // 2), (block, FLOAT * CHANNELS))
            windows(v, (at, filters, out), shape)


def _features(
    v: Vectors, x: Any, size: Any, w1: Any, w2: Any, y: Any, workspace: Any, *part: Any
) -> None:
    """Compute features y (N, 1024) of images x (N, 28, 28), for the range `part` (lo, hi).

    `size` is a pixel's size in bytes: 1 for bytes, 4 for floats in 0..1. `workspace` holds
    WORKSPACE floats.
    """
    lo, hi = part
    pooled_map = v.at(workspace, (IMAGE, FLOAT))

    def conv1(i: Any) -> Any:
        image = v.at(x, (v.product(size, i), IMAGE))
        of_bytes = v.builder.icmp_signed("==", size, v.number(1))
        with v.builder.if_then(of_bytes), v.loop(IMAGE // VECTOR) as part:
            pixels = v.scaled(1 / PIXEL_SCALE, v.bytes(v.at(image, (part, VECTOR))))
            v.store(pixels, v.at(workspace, (part, FLOAT * VECTOR)))
        _first(v, v.builder.select(of_bytes, workspace, image), w1, pooled_map)
        return pooled_map

    pointers = w2, y, v.at(pooled_map, (MAP, FLOAT))
    convolve(v, conv1, pointers, (lo, hi), SIZES, means=True)


FEATURES = Emitted("winograd_features", 8, _features)
