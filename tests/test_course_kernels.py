"""The course report's own kernels on a CPU: correct, with the report's grids and sector counts.

Figures 4 to 6 of the report print grids, blocks and the global load and store efficiency that NVVP
measured. The efficiency counted from our addresses must be the same.
"""

import csv
import ctypes
import re
import shutil
import sys
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import test_kernels_on_a_cpu as emulator
from conftest import ROOT
from problems import ODD, in_layouts
from test_kernels_compile import pytestmark as nvrtc_here
from test_kernels_on_a_cpu import assert_right, compiled, folder, launch_by, started
from test_launch_geometry import launches, run

from lenetgpu.check.reference import random_input
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT, compile_kernel
from lenetgpu.gpu.occupancy import Demand, residency
from lenetgpu.layouts import from_nhwc, physical_shape
from lenetgpu.network import stage
from lenetgpu.papers import course_ladder
from lenetgpu.papers.course import MEAN, RELU
from lenetgpu.papers.course_counters import NVVP
from lenetgpu.problems import Conv, Fc, Pool
from lenetgpu.stages.conv import direct
from lenetgpu.stages.conv.course import counts, grid, image, maps
from lenetgpu.stages.fc import apart
from lenetgpu.stages.pool import looped, mean
from lenetgpu.stages.registry import REGISTRY
from lenetgpu.stages.sectors import NONE, counted, some

__all__ = ["folder", "launches"]
CONV1, CONV2, POOL1, POOL2 = (stage(name).problem for name in ("conv1", "conv2", "pool1", "pool2"))
FC1, FC2, SCORES = (stage(name).problem for name in ("fc1", "fc2", "argmax"))
IMAGES = 10_000


def quad(problem, writes="QUAD"):
    return replace(problem, reads="NCHW" if writes == "QUAD" else "QUAD", writes=writes)


@pytest.mark.parametrize("line", NVVP, ids=[f"fig{line.figure}-{line.stage}" for line in NVVP])
def test_counted_sectors_match_nvvp(line):
    loads, stores = (100 * part.efficiency for part in line.counted())
    assert f"{stores:.1f}" == f"{line.stores:.1f}"
    same = f"{loads:.1f}" == f"{line.loads:.1f}"
    assert same == ((line.stage, line.figure) not in OTHERWISE)
    assert same or line.note


OTHERWISE = [("fc2", "4"), ("conv1", "6")]


def extents(text):
    return [tuple(map(int, part.split("x"))) for part in text.split()]


# "Grid Size" and "Block Size" of the report's figures and tables; fc's maps in one row
GEOMETRY = [
    (row["figure"], stage(row["stage"]).kind, row["variant"], stage(row["stage"]).problem,
     extents(row["grids"]), extents(row["threads"]))
    for row in csv.DictReader((ROOT / "tests" / "course-grids.csv").open())
]  # fmt: skip


@pytest.mark.parametrize(
    ("where", "kind", "name", "problem", "blocks", "threads"),
    GEOMETRY,
    ids=[f"{c[2]}-{c[0]}-{'x'.join(map(str, c[3].in_shape))}" for c in GEOMETRY],
)
def test_grids_match_the_report(launches, where, kind, name, problem, blocks, threads):
    state = grid.Filters(None, None)
    if name == "basic.in_place":
        state = np.broadcast_to(np.float32(0), (IMAGES, *problem.in_shape)).view(Unwritten)
    run(kind, name, problem, IMAGES, state)
    assert [whole(grid) for _, grid, *_ in launches] == [whole(grid) for grid in blocks]
    assert [block for _, _, block, *_ in launches] == threads
    for kernel, _, block, *_ in launches:
        if name.startswith("direct."):
            sizes = dict(kernel.defines)
            assert block[1] == sizes["BLOCK_H"]
            assert block[0] == sizes.get("BLOCK_W", 8 * sizes.get("MAPS_X", 0))


def whole(grid):
    """Return a grid with all three extents."""
    return (*grid, 1, 1)[:3]


class Unwritten(np.ndarray):
    """Workspace that checks the shape of writes and drops them."""

    def __setitem__(self, where, value):
        assert value.shape == self[where].shape


@pytest.fixture
def on_a_cpu(folder, monkeypatch):
    """Launch kernels on this CPU; copy filters for constant memory to the library's symbol."""

    def launch(kernel, grid, block, args, shared=0, loaded=None, overlap=False):
        library, together = compiled(kernel, folder)
        if loaded is not None:
            place = (ctypes.c_char * loaded.nbytes).in_dll(library, "filters")
            ctypes.memmove(place, loaded.ctypes.data, loaded.nbytes)
        started(library, together, grid, block, args)

    def hold(w, kernel, problem):
        array = np.ascontiguousarray(w)
        return grid.Filters(array, array if grid.fits(problem) else None)

    monkeypatch.setitem(sys.modules, "cupy", np)
    for module in (direct, maps, image):
        monkeypatch.setattr(module, "hold", hold)
    launch_by(launch, monkeypatch)


def test_large_shapes_are_sampled_and_network_counted_whole():
    assert list(some(range(64))) == list(range(64))
    assert list(some(range(200), 4)) == [0, 50, 100, 150]
    large = Conv(226, 226, 64, 64, 3, 3, reads="NCHW", writes="NCHW")
    loads, stores = counts.image_counts(large, (2, 2), True)
    assert stores.floats < 224 * 224 * 64 / 4 and 0.5 < loads.efficiency < 1.0
    assert counts.image_counts(CONV2, (2, 2), True)[1].floats == 8 * 8 * 64


@pytest.fixture
def asked(folder, monkeypatch):
    """Return, per array, the floats and sectors that one launch accesses, warp by warp.

    Kernels are compiled with `Traced` in place of pointers. A thread's nth access to an array
    counts as its warp's nth, so the shapes are such that a lane's accesses end early or never
    begin.
    """
    made = folder / "traced"
    made.mkdir(exist_ok=True)
    pointer = re.compile(r"(?:const )?float\* (?:__restrict__ )?(\w+)(?=[,)])")
    for name in ("cpu_cuda.hpp", "traced.hpp"):
        shutil.copy(ROOT / "tests" / name, made)
    for header in HEADERS:
        (made / header).parent.mkdir(parents=True, exist_ok=True)
        (made / header).write_text(pointer.sub(r"Traced \1", (INCLUDE_ROOT / header).read_text()))

    def trace(kernel, grid, block, args, blocks):
        text = re.sub(r"^\s*#pragma unroll.*$", "", kernel.source.read_text(), flags=re.MULTILINE)
        lines = ['#include "traced.hpp"', pointer.sub(r"Traced \1", text), f"RUN({kernel.entry})"]
        defines = ((f"ENTRY_{kernel.entry}", 1), *kernel.defines)
        defined = replace(kernel, defines=defines)
        code = emulator.built_with(made, defined, "cpu_cuda.hpp", "\n".join(lines))
        started(code, "__syncthreads" in text, (blocks,), block, args)
        code.recorded.restype = ctypes.c_longlong
        fields = [("base", "u8"), ("index", "i8"), ("block", "u4"), ("thread", "u4")]
        found = np.empty(code.recorded(None), fields)
        code.recorded(ctypes.c_void_p(found.ctypes.data))
        return {base: by_warp(found[found["base"] == base]) for base in np.unique(found["base"])}

    return trace


HEADERS = (
    "stages/layout.cuh",
    "stages/conv/shape.cuh",
    "stages/conv/unrolled.cuh",
    "stages/conv/course/plain.cuh",
)


def by_warp(found):
    """Count one array's accesses, with one row of lanes for each nth access of a warp."""
    rows = defaultdict(lambda: np.full(32, -1, np.int64))
    turns = defaultdict(int)
    for one in found:
        key = (one["block"], one["thread"])
        rows[one["block"], one["thread"] // 32, turns[key]][one["thread"] % 32] = one["index"]
        turns[key] += 1
    return counted(np.stack(list(rows.values())))


def four_maps(problem):
    return counts.direct_counts(problem, (8, 8), (8, 32), (1, 4), False, True)


def one_map(problem, tile, block):
    return counts.direct_counts(problem, tile, block, (1, 1), False, True)


def often(cases, at, names):
    """Return all cases, with those not named in `names` marked slow."""
    return [
        pytest.param(
            *case,
            id="-".join(str(getattr(one, "in_shape", one)) for one in case[:2]),
            marks=() if case[at] in names else pytest.mark.slow,
        )
        for case in cases
    ]


NARROW = replace(CONV2, C=4)
# variant, problem, blocks that the count covers, counted loads and stores
TRACED = [
    ("direct.tight", CONV1, 1, lambda p: counts.map_counts(p, (24, 24))),
    ("direct.shared_constant", CONV1, 1, lambda p: one_map(p, (24, 24), (28, 28))),
    ("direct.shared_constant", NARROW, 1, lambda p: one_map(p, (8, 8), (12, 12))),
    ("direct.two_maps", NARROW, 1, lambda p: counts.direct_counts(p, (8, 8), (16, 12), (2, 1))),
    ("direct.quadrants", NARROW, 1, lambda p: counts.direct_counts(p, (8, 8), (16, 16), (2, 2))),
    ("direct.whole_warps", CONV1, 1, lambda p: counts.direct_counts(p, (24, 24), (28, 28))),
    ("unrolled.image_naive", replace(CONV1, M=8), 1, counts.naive_counts),
    ("unrolled.image_untransposed", CONV1, 1, lambda p: counts.image_counts(p, (1, 1), False)),
    ("unrolled.image_tiled", NARROW, 1, lambda p: counts.image_counts(p, (2, 2), True)),
    ("unrolled.image_layout", quad(NARROW), 1, lambda p: counts.image_counts(p, (2, 2), True)),
    ("unrolled.constant_layout", quad(CONV1), 1, lambda p: counts.image_counts(p, (1, 1), None)),
    ("fused.maps_looped", POOL1, 1, looped.access_counts),
    ("layout.quad_looped", quad(POOL1, "NCHW"), 1, looped.access_counts),
    ("layout.quad_looped", quad(POOL2, "NHWC"), 1, looped.access_counts),
    ("fused.relu_in_mean", POOL1, 4608 // 256, mean.access_counts),
    ("layout.quad", quad(POOL1, "NCHW"), 4608 // 256, mean.access_counts),
    ("layout.quad", quad(POOL2, "NHWC"), 1024 // 256, mean.access_counts),
    ("direct.four_maps", replace(NARROW, reads="NCHW"), 1, four_maps),
    ("direct.four_maps", NARROW, 1, four_maps),
    ("unrolled.naive", replace(CONV1, M=8), 18, counts.flat_counts),
    ("unrolled.tiled", CONV1, 9, lambda p: counts.image_counts(p, (1, 2), True)),
    ("unrolled.layout", quad(NARROW), 1, lambda p: counts.image_counts(p, (2, 2), True)),
    ("tiled.relu_apart", FC2, 4, apart.access_counts),
]
COUNTS = {"direct.two_maps", "unrolled.image_naive", "unrolled.naive", "unrolled.image_layout"}
COUNTS |= {"layout.quad", "tiled.relu_apart"}


@pytest.mark.parametrize(("name", "problem", "blocks", "count"), often(TRACED, 0, COUNTS))
@pytest.mark.skipif(emulator.version() < 11, reason="no g++ 11 to compile kernels for a CPU")
def test_counted_addresses_are_those_of_the_kernel(asked, name, problem, blocks, count, rng):
    kind = {Conv: "conv", Pool: "pool", Fc: "fc"}[type(problem)]
    n = 32 if kind == "fc" else 1
    variant = REGISTRY[kind, name]
    kernel = variant.kernels(problem, n)[0]
    if name in ("direct.whole_warps", "direct.shared_constant"):  # filters from memory
        sizes = dict(kernel.defines) | {"CONSTANT_FILTERS": 0}
        kernel = replace(kernel, defines=tuple(sizes.items()))
    x, w = random_input(kind, problem, n, rng)
    flat = np.ascontiguousarray(x if kind == "fc" else from_nhwc(x, problem.reads))
    y = np.empty(physical_shape(problem.writes, n, problem.out_shape), np.float32)
    block = BLOCKS.get((name, problem.in_shape[0])) or (problem.W // 2, problem.H // 2)
    args = [flat, *([] if kind == "pool" or name == "unrolled.constant_layout" else [w]), y]
    args += [np.int32(n)] * (kind == "fc") + [int(y.size)] * (name in COUNTING)
    found = asked(kernel, (blocks,), block, args, blocks)
    loads, stores = count(problem)
    assert found.pop(y.ctypes.data) == stores
    assert sum(found.values(), NONE) == loads


BLOCKS = {
    (name, problem.in_shape[0]): threads[0]
    for _, kind, name, problem, _, threads in GEOMETRY
    if kind in ("conv", "fc")
}
BLOCKS |= {("unrolled.image_tiled", 12): (32, 32), ("unrolled.tiled", 28): (32, 32)}
BLOCKS |= {("unrolled.layout", 12): (32, 32), ("direct.four_maps", 12): (256,)}
BLOCKS |= {("fused.relu_in_mean", 24): (256,), ("unrolled.naive", 28): (256,)}
BLOCKS |= {("layout.quad", 24): (256,), ("layout.quad", 8): (256,)}
COUNTING = ("fused.relu_in_mean", "layout.quad", "unrolled.naive")
SMALL1, SMALL2 = Conv(14, 12, 1, 32, 5, 5), Conv(12, 12, 2, 64, 5, 5)
RIGHT = [
    ("conv", name, problems)
    for name, problems in [
        ("direct.shared_constant", [SMALL1, ODD["conv"][1], ODD["conv"][4]]),
        ("direct.whole_warps", [SMALL1, ODD["conv"][1], ODD["conv"][4]]),
        ("direct.two_maps", [SMALL2, ODD["conv"][1], ODD["conv"][2]]),
        ("direct.quadrants", [SMALL2, ODD["conv"][0], ODD["conv"][1]]),
        ("unrolled.image_naive", [SMALL2, *ODD["conv"][:3]]),
        ("unrolled.image_untransposed", [SMALL1, ODD["conv"][1], ODD["conv"][5]]),
        ("unrolled.image_tiled", [SMALL1, SMALL2, ODD["conv"][1], ODD["conv"][5]]),
        ("unrolled.image_constant", [SMALL1, ODD["conv"][1], ODD["conv"][5]]),
        ("unrolled.constant_layout", [SMALL1, ODD["conv"][5]]),
        ("unrolled.image_layout", [SMALL2, ODD["conv"][5]]),
    ]
]
RIGHT += [
    ("pool", name, [POOL2, *ODD["pool"], Pool(64, 64, 1)])
    for name in ("basic.in_place", "fused.maps_looped", "layout.quad_looped")
]
RIGHT += [("fc", "tiled.relu_apart", ODD["fc"]), ("argmax", "thread.wide_blocks", ODD["argmax"])]
FIRST = {"direct.two_maps", "unrolled.image_constant", "unrolled.image_layout", "basic.in_place"}
FIRST |= {"thread.wide_blocks", "tiled.relu_apart"}


@pytest.mark.parametrize(("kind", "name", "bases"), often(RIGHT, 1, FIRST))
@pytest.mark.skipif(emulator.version() < 11, reason="no g++ 11 to compile kernels for a CPU")
def test_outputs_are_correct_and_in_bounds(kind, name, bases, on_a_cpu, rng):
    variant = REGISTRY[kind, name]
    done = 0
    for base in bases:
        laid_out = in_layouts(variant, base)
        for problem in laid_out if len(laid_out) < 3 else (laid_out[0], laid_out[-1]):
            assert_right(variant, problem, 2 if kind != "argmax" else 1025, rng, spare=1)
            done += 1
    assert done >= len(bases) - 1


@pytest.mark.parametrize("name", [RELU, MEAN])
@pytest.mark.skipif(emulator.version() < 11, reason="no g++ 11 to compile kernels for a CPU")
def test_pool_passes_are_checked_before_timing(name, on_a_cpu, rng, monkeypatch):
    monkeypatch.setattr(course_ladder, "gpu_ms", lambda work: (work(), 2.0)[1])
    x = rng.standard_normal((3, *POOL2.in_shape)).astype(np.float32)
    bench = SimpleNamespace(problem=POOL2, input=x)
    before = x.copy()
    row = course_ladder.passed(bench, name, None)
    assert row["median_ms"] == 2.0 and "status" not in row
    assert row["mbytes"] == (2 if name == RELU else 1.25) * bench.input.nbytes / 1e6
    np.testing.assert_array_equal(bench.input, before)
    monkeypatch.setattr(looped, "relu_in_place", lambda x, problem: None)
    monkeypatch.setattr(looped, "mean_alone", lambda x, y, problem: None)
    assert course_ladder.passed(bench, name, None)["status"] == "wrong"


LITERAL = sorted({(kind, name) for _, kind, name, *_ in GEOMETRY if kind != "argmax"})


@pytest.mark.parametrize(("kind", "name"), LITERAL)
def test_weight_pointers_are_not_restrict(kind, name):
    """`__restrict__` pointers would allow it."""
    variant = REGISTRY[kind, name]
    for problem in {case[3] for case in GEOMETRY if case[1:3] == (kind, name)}:
        for kernel in variant.kernels(variant.laid_out(problem), 10_000):
            source = kernel.source.read_text()
            signature = source[source.index(f"{kernel.entry}(") :].partition("{")[0]
            assert "float*" in signature and "__restrict__" not in signature


def held(name, problem=CONV1):
    """Return a direct kernel's blocks per multiprocessor, and its threads."""
    variant = REGISTRY["conv", name]
    (kernel,) = variant.kernels(variant.laid_out(problem), 1)
    sizes, used = dict(kernel.defines), compile_kernel(kernel, "sm_90a").resources
    threads = sizes["BLOCK_W"] * sizes["BLOCK_H"]
    demand = Demand(used.registers, threads, used.shared_bytes)
    return residency(demand, H200.limits).blocks, threads, sizes["MIN_BLOCKS"]


@nvrtc_here
def test_ladder_steps_share_launch_bounds():
    assert held("direct.shared_constant") == held("direct.whole_warps") == (2, 784, 2)
    wide = Conv(64, 64, 1, 3, 1, 1)
    assert held("direct.shared_constant", wide)[1:] == (1024, 1)
    assert held("direct.whole_warps", wide)[1:] == (1024, 1)


@pytest.mark.parametrize(
    ("name", "together", "side"), [("tight", 1, None), ("whole_warps", 1, 28), ("quadrants", 4, 8)]
)
def test_shapes_beyond_the_grid_are_refused(name, together, side):
    variant = REGISTRY["conv", f"direct.{name}"]
    most = (1 << 16) - 1

    def refusal(problem):
        found = variant.laid_out(problem)
        return found if isinstance(found, str) else None

    assert refusal(Conv(5, 5, 1, most * together, 5, 5)) is None
    more = most * together + 1
    assert f"across the maps, needs {most + 1}" in refusal(Conv(5, 5, 1, more, 5, 5))
    if side is None:
        return
    rows = side * blocks_for(most, 16) + 4
    assert refusal(Conv(rows, side * 15 + 4, 1, 1, 5, 5)) is None
    assert "blocks a map, needs" in refusal(Conv(rows, side * 18 + 4, 1, 1, 5, 5))
