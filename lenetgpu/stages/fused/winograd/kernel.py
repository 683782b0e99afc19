"""One thread's share of conv1 to pool2 on a CPU. Importing this module imports llvmlite."""

from __future__ import annotations

from typing import Any

from lenetgpu.cpu.native import Emitted
from lenetgpu.cpu.tile import windows
from lenetgpu.cpu.vector import CHANNELS, FLOAT, PIXELS, Vectors
from lenetgpu.cpu.vector import WIDTH as VECTOR
from lenetgpu.cpu.winograd import IMAGES, OUTPUTS, finish, products, transform, workspace_sizes
from lenetgpu.network import FEATURE_COUNT, PIXEL_SCALE, stage
from lenetgpu.problems import Conv

_FIRST, _SECOND = stage("conv1").problem, stage("conv2").problem
assert isinstance(_FIRST, Conv) and isinstance(_SECOND, Conv)
LINE, SIDE = _FIRST.W, _FIRST.S
IMAGE = _FIRST.H * _FIRST.W
WIDTH, MAPS = _SECOND.W, _SECOND.C
MAP = _SECOND.H * WIDTH * MAPS
FILTERS = _SECOND.M
TILES = _SECOND.OH // OUTPUTS
EACH = TILES * TILES
ROWS = IMAGES * EACH
assert ROWS % PIXELS == 0 and IMAGE % VECTOR == 0
HALF, VALUES, PRODUCTS = workspace_sizes(TILES, WIDTH, MAPS, FILTERS)
# Floats of a thread's workspace: pixels, their pooled map, and conv2's `workspace_sizes`.
WORKSPACE = IMAGE + MAP + HALF + VALUES + PRODUCTS


def _unscale(v: Vectors, x: Any, y: Any) -> None:
    """Convert an image's bytes to floats in 0..1."""
    with v.loop(IMAGE // VECTOR) as part:
        pixels = v.bytes(v.at(x, (part, VECTOR)))
        v.store(v.scaled(1 / PIXEL_SCALE, pixels), v.at(y, (part, FLOAT * VECTOR)))


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
    b, (lo, hi) = v.builder, part
    pooled_map = v.at(workspace, (IMAGE, FLOAT))
    half = v.at(pooled_map, (MAP, FLOAT))
    values = v.at(half, (HALF, FLOAT))
    results = v.at(values, (VALUES, FLOAT))
    tiles, width, maps, filters, pixels = map(v.number, (TILES, WIDTH, MAPS, FILTERS, ROWS))
    with v.steps(lo, hi, IMAGES) as start:
        count = v.least(IMAGES, b.sub(hi, start))
        with v.loop(count) as i:
            image = v.at(x, (v.product(size, b.add(start, i)), IMAGE))
            of_bytes = b.icmp_signed("==", size, v.number(1))
            with b.if_then(of_bytes):
                _unscale(v, image, workspace)
            _first(v, b.select(of_bytes, workspace, image), w1, pooled_map)
            into = v.at(values, (i, FLOAT * EACH * MAPS))
            transform(v, pooled_map, into, half, tiles, width, maps, pixels)
        rows = v.product(count, EACH)
        products(v, (values, w2, results), rows, pixels, maps, filters)
        with v.loop(count) as i:
            at = v.at(results, (i, FLOAT * EACH * FILTERS))
            out = v.at(y, (b.add(start, i), FLOAT * FEATURE_COUNT))
            finish(v, True, at, out, tiles, filters, pixels)


FEATURES = Emitted("winograd_features", 8, _features)
