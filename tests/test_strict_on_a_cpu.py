"""The Pascal paper's literal kernels without a GPU: few threads, few multiprocessors."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from test_kernels_on_a_cpu import folder, on_a_cpu, pytestmark  # noqa: F401

from lenetgpu.check.judge import judge
from lenetgpu.check.truth import random_input, reference
from lenetgpu.layouts import from_nhwc, physical_shape, to_nhwc
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch import single_strict, strict
from lenetgpu.stages.conv.prefetch.single_strict_plan import StrictParts
from lenetgpu.stages.conv.prefetch.strict_plan import StrictTile
from lenetgpu.stages.mounted import Fenced, Mounted

MANY = {
    "taps across channels": Conv(7, 9, 5, 11, 3, 3),
    "one tap": Conv(6, 8, 10, 9, 1, 1),
    "padded": Conv(6, 7, 3, 5, 3, 2, pad=1),
    "wide filters": Conv(8, 12, 2, 6, 2, 5),
    "one round": Conv(6, 9, 1, 7, 2, 3),
}
TILES = {
    "both": StrictTile("both", 8, 32, 4, 3, threads=64),
    "both, wide": StrictTile("both", 8, 128, 5, 2, threads=64),
    "both, a plane": StrictTile("both", 3, 32, 6, 3, threads=64),
    "both, past the registers": StrictTile("both", 8, 32, 4, 3, threads=64, asynchronous=True),
    "both, packed": StrictTile("both", 16, 32, 4, 3, threads=64, asynchronous=True, packed=True),
    "both, spread": StrictTile("both", 8, 64, 4, 3, threads=64, spread=True),
    "channels": StrictTile("channels", 8, 32, 4, 3, threads=64),
    "filters": StrictTile("filters", 8, 32, 4, 3, threads=64),
    "filters, kept": StrictTile("filters", 8, 32, 4, 3, threads=64, cached=True),
    "maps": StrictTile("maps", 8, 32, 4, 3, threads=64),
    "maps, kept": StrictTile("maps", 8, 64, 4, 3, threads=64, cached=True),
}


# Stands for gpu/ptx/async.cuh: copies that land at once, as early as they may.
COPIES = """
namespace ptx {
inline void copy4_or_zero(float* to, const float* from, bool there) { *to = there ? *from : 0; }
inline void copy_commit() {}
template <int> void copy_wait() {}
}
"""


@pytest.fixture(scope="module", autouse=True)
def copies(folder):  # noqa: F811
    (folder / "gpu" / "ptx").mkdir(parents=True)
    (folder / "gpu" / "ptx" / "async.cuh").write_text(COPIES)


def assert_right(problem, n, rng, w, launch):
    problem = replace(problem, reads="NCHW", writes="NCHW")
    x, filters = random_input("conv", problem, n, rng)
    held = Fenced(np, physical_shape("NCHW", n, problem.in_shape), "float32")
    held.array[...] = from_nhwc(x, "NCHW")
    y = Fenced(np, physical_shape("NCHW", n, problem.out_shape), "float32")
    Mounted.poison(y.array)
    launch(held.array, w(filters, problem), y.array, problem)
    found = to_nhwc(y.array, "NCHW", problem.out_shape)
    verdict = judge(found, reference("conv", x, filters, problem), "fp32")
    assert verdict.passed, str(verdict)
    assert y.intact


@pytest.mark.parametrize("tile", TILES.values(), ids=TILES)
@pytest.mark.parametrize("problem", MANY.values(), ids=MANY)
def test_every_division_and_segment(problem, tile, on_a_cpu, rng):  # noqa: F811
    if tile.division == "filters":
        tile = replace(tile, filters=2 * ceil(ceil(problem.M / 3) / 2))
    if tile.cached and tile.division == "maps" and tile.segments(problem) > 1:
        pytest.skip("several runs of pixels are not kept")
    assert_right(
        problem,
        4,
        rng,
        lambda w, p: strict.pack(w, p, tile),
        lambda x, w, y, p: strict.launch_tile(x, w, y, p, tile),
    )


PARTS = {
    "method 1": StrictParts(1, 3, "lines", 1, 3, threads=32),
    "method 1, P = 3": StrictParts(1, 3, "lines", 3, 3, threads=32),
    "method 2": StrictParts(4, 1, "filters", 1, 4, threads=32),
    "method 2, Q = 3": StrictParts(4, 1, "filters", 3, 4, threads=32),
    "both": StrictParts(2, 2, "lines", 1, 5, threads=32),
    "both, filters shared": StrictParts(3, 2, "filters", 1, 6, threads=32),
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("problem", [Conv(9, 7, 1, 10, 3, 3), Conv(8, 11, 1, 5, 2, 4, pad=1)])
def test_every_method_and_piece(problem, parts, n, on_a_cpu, rng):  # noqa: F811
    assert_right(
        problem,
        n,
        rng,
        lambda w, p: np.ascontiguousarray(w.transpose(3, 2, 0, 1)),
        lambda x, w, y, p: single_strict.launch_parts(x, w, y, p, parts),
    )
