"""Tests of `tensor.tf32x3` and `tensor.wgmma_tf32x3` without a GPU.

Covers packed filters and kernels compiled as C++. The threads' code runs unchanged through the
package's launcher; cpu_mma.hpp emulates tensor cores, copies and barriers. Outputs and shared
memory are poisoned.
"""

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensor_cores as cores
from test_kernels_on_a_cpu import common_folder

from lenetgpu.check.judge import judge
from lenetgpu.dispatch.algorithms import MODELED
from lenetgpu.gpu import machines
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.nvrtc import compile_kernel, supported
from lenetgpu.gpu.occupancy import PROCESSORS
from lenetgpu.layouts import from_nhwc, physical_shape, to_nhwc
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.tf32 import halo, mma, one_launch, wgmma
from lenetgpu.stages.prepared import Guarded
from lenetgpu.stages.reference import conv_reference as reference

SQUARE, TALL, SMALL, NARROW = mma.TILINGS


@dataclass(frozen=True)
class Case:
    """A convolution, its number of images, and the filters per wgmma block or the mma tiling.

    `halo` selects the kernel that reads input tiles.
    """

    problem: Conv
    images: int
    width: int = 64
    tiling: mma.MmaTiling | None = None
    halo: bool = False

    @property
    def product(self):
        stages = 2 if self.images % 2 else 3
        if self.halo:
            return halo.Product(self.problem, most=2 + self.images % 4)
        if self.tiling is None:
            return wgmma.Product(self.problem, self.width, most=stages)
        return mma.divided(self.problem, replace(self.tiling, stages=stages, min_blocks=1))

    def __str__(self):
        p = self.problem
        shape = f"{p.C},{p.H},{p.W},{p.M},{p.R}x{p.S},{p.stride},{p.pad}-{p.reads}-{p.writes}"
        by = "mma" if self.tiling else "halo" if self.halo else "wgmma"
        return f"{shape}-{self.images}-{by}-{self.product.rows}x{self.product.width}"


WGMMA = [Case(*case, int(width)) for *case, (width,) in cores.listed("tf32 wgmma")]
LEAST = replace(TALL, tiles_m=1, tiles_n=2)  # 64 x 16
BESIDE = replace(LEAST, warps_m=2, warps_n=2)  # 32 x 32
MMA = [Case(*case, tiling=globals()[tiling]) for *case, (tiling,) in cores.listed("tf32 mma")]
HALO = [Case(problem, images, halo=True) for problem, images, _ in cores.listed("tf32 halo")]
CASES = [*WGMMA, *MMA, *HALO]
ON_HALO = (HALO[11], Case(cores.conv("8,6,7,10,3,3,1,1"), 3, halo=True))
ON_MMA = (MMA[2], MMA[3])
NUMBERS = (MMA[2], HALO[11], *ON_MMA[1:], *ON_HALO[1:])
FIRST = [*NUMBERS[:2], WGMMA[2], WGMMA[5], WGMMA[9], MMA[3], HALO[5], HALO[10]]
FUSED = [
    replace(case, problem=replace(case.problem, bias=True, relu=relu))
    for case, relu in ((WGMMA[2], True), (MMA[2], False), (MMA[3], True), (HALO[11], True))
]
DEEP = [Case(cores.conv("160,3,3,8,3,3"), 1, tiling=tiling) for tiling in (None, LEAST)]
DEEP += [Case(cores.conv("6,7,12,8,7,7"), 1, halo=True)]
RESNET = cores.conv("64,56,56,64,3,3,1,1")
SPILLING = ("64,56,56,64,3,3,1,1", "256,14,14,512,1,1", "5,7,9,33,2,3,2,1", "3,28,28,6,5,5,1,2")


@pytest.fixture(scope="module")
def functions(request, tmp_path_factory):
    chosen = cores.selected(request, __name__) or [*CASES, *ON_HALO, *DEEP, *FUSED]
    kernels = (case.product.kernel() for case in chosen)
    return cores.compiled(kernels, common_folder(tmp_path_factory, "tf32"))


@pytest.fixture
def on_a_cpu(functions, monkeypatch, rng, request):
    """Make the package's launcher launch on this CPU, on at least two multiprocessors."""
    case = request.node.callspec.params["case"]
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=np.ascontiguousarray))
    monkeypatch.setattr(one_launch, "launch", cores.launcher(functions, rng))
    few = replace(H200, multiprocessors=max(2, case.product.across if case.halo else 0))
    monkeypatch.setattr(machines, "current", lambda: few)


def computed(case, x, w, looks_at=None):
    """Return the kernel's outputs for NHWC `x`, in NHWC; the output is between guard zones.

    `looks_at` are the filters of the recheck, `w` if None.
    """
    problem = case.problem
    state = one_launch.prepare(w, case.product)
    state = state if looks_at is None else replace(state, w=looks_at)
    guarded = Guarded(np, physical_shape(problem.writes, len(x), problem.out_shape), np.float32)
    guarded.array.fill(np.nan)
    held = np.ascontiguousarray(from_nhwc(x, problem.reads))
    before = held.copy()
    one_launch.run(held, state, guarded.array)
    assert guarded.intact and np.array_equal(held, before, equal_nan=True)
    return to_nhwc(guarded.array, problem.writes, problem.out_shape)


@cores.compiled_here
@cores.cases(FIRST, [case for case in CASES if case not in FIRST])
def test_outputs_are_correct_and_in_bounds(case, on_a_cpu, rng):
    """Check the tensor cores' results: the recheck has filters of zeros."""
    x, w = cores.operands(case, rng)
    found = computed(case, x, w, looks_at=0 * w)
    verdict = judge(found, reference(x, w, case.problem), "tf32x3")
    assert verdict.passed and verdict.error <= 1.5e-6, f"{verdict} for {case}"


@cores.compiled_here
@cores.cases(NUMBERS[:2], NUMBERS[2:])
def test_runs_agree_bitwise_and_images_are_independent(case, on_a_cpu, rng):
    x, w = cores.operands(replace(case, images=5), rng)
    found = computed(case, x, w)
    np.testing.assert_array_equal(computed(case, x, w), found)
    np.testing.assert_array_equal(computed(case, x[3:4], w), found[3:4])


@cores.compiled_here
@cores.cases(DEEP[1:], DEEP[:1])
def test_long_sums_keep_fp32_accuracy(case, on_a_cpu, rng):
    """Sum 1,440 products of one sign; tensor core accumulation alone has an error of 1e-5."""
    x = rng.random((1, *case.problem.in_shape), np.float32)
    w = rng.random(case.problem.weight_shape, np.float32)
    verdict = judge(computed(case, x, w), reference(x, w, case.problem), "tf32x3")
    assert verdict.passed and verdict.error <= 1.5e-6, verdict


@cores.compiled_here
@cores.cases(NUMBERS[:2], NUMBERS[2:])
@pytest.mark.parametrize("name", cores.SCALES)
def test_operands_of_any_scale(name, case, on_a_cpu, rng):
    x, w = cores.operands(case, rng)
    large, small = (np.float32(scale) for scale in cores.SCALES[name])
    x, w = x * large, w * small
    cores.assert_each_right(computed(case, x, w), x, w, case)


@cores.compiled_here
@cores.cases(NUMBERS[:2], NUMBERS[2:])
def test_scales_differ_by_image_channel_and_filter(case, on_a_cpu, rng):
    x, w = cores.operands(case, rng)
    x *= np.array([1e-20, 1, 1e12], np.float32)[:, None, None, None]
    w *= np.logspace(-6, 6, case.problem.M).astype(np.float32)
    x[..., 3], w[:, :, 5] = 0, 0
    x[..., 5] = np.where(x[..., 5] > 0, 1e33, x[..., 5])  # no filter reads it
    cores.assert_each_right(computed(case, x, w), x, w, case)


@cores.compiled_here
@cores.cases(NUMBERS[:2], NUMBERS[2:])
def test_only_flagged_rows_are_recomputed(case, on_a_cpu, rng):
    """Replace the filters of the recheck, which reveals the outputs that it recomputes."""
    x, w = cores.operands(case, rng)
    x[1] *= np.float32(1e-35)
    found = computed(case, x, w, looks_at=2 * w)
    cores.assert_each_right(found[[0, 2]], x[[0, 2]], w, case)
    cores.assert_each_right(found[1:2], x[1:2], 2 * w, case)
    x[2], w[..., 2:4] = 0, 0  # all filters of one lane
    found = computed(case, x, w, looks_at=w + 1)
    assert not found[2].any() and not found[0, ..., 2:4].any()


@cores.compiled_here
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@cores.cases(NUMBERS[:2], NUMBERS[2:])
def test_nan_and_infinity_propagate(value, case, on_a_cpu, rng):
    cores.no_numbers(case, value, computed, rng)


@cores.compiled_here
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@cores.cases(FUSED[:2], FUSED[2:])
def test_bias_and_relu(case, value, on_a_cpu, rng):
    """Check bias and ReLU for tensor core sums, recomputed sums, NaN and infinity."""
    x, (w, bias) = cores.operands(case, rng)
    x[1] *= np.float32(1e-35)
    x[2, 3, 3, 0] = value
    found, expected = computed(case, x, (w, bias)), reference(x, (w, bias), case.problem)
    kept = np.isfinite(expected)
    assert kept[:2].all() and not kept.all() and np.array_equal(np.isfinite(found), kept)
    assert judge(found[kept], expected[kept], "tf32x3").passed
    assert judge(found[1], expected[1], "tf32x3").passed


@pytest.mark.gpu
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("case", [*WGMMA, *HALO], ids=str)
def test_both_input_paths_are_correct_on_gpu(case, few, monkeypatch, rng, cupy):
    """Check both kernels, whichever the cost model selects, with many images and `few` blocks."""
    if not find("conv", "tensor.wgmma_tf32x3", "cuda").needs.met_by(driver_gpus()[0]):
        pytest.skip("no wgmma here")
    problem = case.problem
    if few:
        whole = machines.current()
        blocks = max(2, case.product.across)
        monkeypatch.setattr(machines, "current", lambda: replace(whole, multiprocessors=blocks))
    for images in (case.images, 40 * case.images):
        x, w = cores.operands(replace(case, images=images), rng)
        state = one_launch.prepare(w, case.product)
        y = cupy.full(physical_shape(problem.writes, images, problem.out_shape), np.nan, "f4")
        held = cupy.asarray(np.ascontiguousarray(from_nhwc(x, problem.reads)))
        one_launch.run(held, state, y)
        found = to_nhwc(cupy.asnumpy(y), problem.writes, problem.out_shape)
        verdict = judge(found, reference(x, w, problem), "tf32x3")
        assert verdict.passed, f"{verdict} for {case}, {images} images"


@pytest.mark.parametrize("maps", [64, 640, 9000])
@pytest.mark.parametrize("width", [64, 128])
def test_grid_lets_blocks_keep_their_filters(maps, width, monkeypatch):
    monkeypatch.setattr(machines, "current", lambda: H200)
    product = wgmma.Product(Conv(14, 14, 64, maps, 1, 1, **cores.NCHW), width)
    grid = product.grid(64)
    assert grid <= H200.multiprocessors
    if product.filters_held:
        assert grid % product.across == 0
    else:
        assert product.across > H200.multiprocessors and grid == H200.multiprocessors


@pytest.mark.slow
@pytest.mark.parametrize("arch", [arch for arch in ("sm_80", "sm_120") if supported(arch)])
def test_tilings_do_not_spill(arch):
    """Compile shapes with and without 16-byte copies in each layout for this architecture."""
    for text, tiling in zip(SPILLING, mma.TILINGS, strict=True):
        for layouts in ({"reads": "NCHW"}, {"writes": "NCHW"}):
            kernel = mma.divided(cores.conv(text, **layouts), tiling).kernel()
            used = compile_kernel(kernel, arch).resources
            assert used.spill_bytes == used.stack_bytes == 0, (text, tiling)


@pytest.mark.parametrize("case", HALO, ids=str)
def test_input_tile_height_is_sufficient_and_tight(case):
    """Count the rows tile by tile, until a tile starts at the start of an image."""
    problem = case.problem
    pixels, high = problem.OH * problem.OW, (problem.OH - 1) * problem.stride + problem.R

    def row(output):
        return output // pixels * high + output % pixels // problem.OW * problem.stride

    most = max(row(at + 63) - row(at) + problem.R for at in range(0, 64 * pixels, 64))
    assert most <= case.product.tile_rows <= most + problem.stride + problem.R


def test_few_channels_use_input_tiles_where_they_fit():
    for text, expected in (
        ("3,224,224,64,7,7,2,3", True),
        ("16,56,56,64,3,3,1,1", True),
        ("17,56,56,64,3,3,1,1", False),
        ("3,99,9000,8,7,7", False),
        ("3,32,32,9000,3,3", False),  # more blocks of filters than multiprocessors
    ):
        for layouts in ({}, cores.NCHW):
            cycles, found = MODELED["tensor.wgmma_tf32x3"](cores.conv(text, **layouts), 64, H200)
            assert isinstance(found, halo.Product) == expected, text
            assert cycles == found.cycles(64, H200)


def test_grid_fits_the_gpu():
    limit = min(p.shared_bytes - p.reserved_bytes for c, p in PROCESSORS.items() if c >= 80)
    for tiling in mma.TILINGS:
        product = mma.divided(RESNET, tiling)
        assert product.shared_bytes <= limit
        assert product.grid(10_000) == H200.multiprocessors * tiling.min_blocks
        assert product.grid(1) == min(product.tiles(1), product.grid(10_000))
