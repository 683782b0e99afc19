"""Tests of `tensor.*` without a GPU: packed filters, and kernels compiled as C++.

The threads' code runs unchanged through the package's own launchers; cpu_mma.hpp emulates tensor
cores, copies and barriers. Workspaces, outputs and shared memory are poisoned.
"""

import sys
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensor_cores as cores
from test_kernels_on_a_cpu import common_folder

from lenetgpu.check.judge import judge
from lenetgpu.check.reference import random_input, tensors
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.nvrtc import compile_kernel, supported
from lenetgpu.gpu.occupancy import PROCESSORS
from lenetgpu.layouts import from_nhwc, held_as, narrowed, physical_shape, to_nhwc, widened
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.tensor import epilogue, halo, implicit, mma, product, split_fp16, wgmma
from lenetgpu.stages.conv.tensor.packed import Layout
from lenetgpu.stages.conv.tensor.product import Product, Tiling, options
from lenetgpu.stages.conv.tf32 import one_launch
from lenetgpu.stages.prepared import Guarded, PreparedKernel
from lenetgpu.stages.reference import conv_reference as reference

LARGE, TALL, MIDDLE, LONG, SMALL, NARROW = mma.TILINGS
SQUARE, TOWER, HALF = wgmma.TILINGS
HALO, HALO_136, HALO_112, HALO_96 = halo.TILINGS
WINOGRAD, WINOGRAD_96, WINOGRAD_80 = halo.WINOGRAD


@dataclass(frozen=True)
class Case:
    """A convolution, its number of images, and its tiling."""

    problem: Conv
    images: int
    tiling: Tiling
    split: int = 1
    parts: int = 2
    sampled: bool = False

    @property
    def product(self):
        how = self.tiling.planes, self.tiling.winograd, self.sampled
        layout = Layout(self.problem, self.parts, *how)
        return Product(layout, self.tiling, self.split)

    @property
    def kernels(self):
        second = (epilogue.kernel(self.product.layout),) if self in RECHECKED else ()
        return (*split_fp16.kernels(self.product.layout), *self.product.kernels(), *second)

    def __str__(self):
        p, tiling = self.problem, self.tiling
        shape = f"{p.C},{p.H},{p.W},{p.M},{p.R}x{p.S},{p.stride},{p.pad}-{p.reads}-{p.writes}"
        cut = f"{tiling.bm}x{tiling.bn}" + f"-{tiling.word}" * tiling.planes
        wants = "".join(f"-{name}" for name in sorted(p.requires))
        return f"{shape}-{self.images}-{cut}-{self.split}-{self.parts}{wants}" + "-s" * self.sampled

    def fused(self, dtype="fp32", bias=True, relu=True):
        """Return the same case with a bias, ReLU and operands of `dtype`."""
        return replace(self, problem=replace(self.problem, dtype=dtype, bias=bias, relu=relu))

    @property
    def plain(self):
        return self.fused(bias=False, relu=False)


PLAIN = Case(cores.conv("8,7,7,10,3,3,1,1"), 3, NARROW)
PARTED = replace(PLAIN, split=3)
HALOED = Case(cores.conv("8,7,7,10,3,3,1,1", **cores.NCHW), 3, HALO)
PARTED_MAPS = Case(cores.conv("64,5,5,10,3,3,1,1", **cores.NCHW), 3, NARROW, 6)
STRIDED = Case(cores.conv("4,5,5,3,1,1,2"), 3, NARROW)


def case_of(problem, images, words):
    """Return the case of a row of conv-cases.txt."""
    tiling, *more = words
    numbers = {name: int(number) for name, number in (word.split("=") for word in more)}
    return Case(problem, images, globals()[tiling], **numbers)


ROWS, MORE_ROWS, PLANES, MORE_PLANES, ALL_F23 = (
    [case_of(*row) for row in cores.listed(section)]
    for section in ("rows", "more rows", "planes", "more planes", "winograd")
)
F23, *MORE_F23 = ALL_F23
ASIDE = MORE_PLANES[-1]
F23_FUSED = [ALL_F23[0].fused("fp16"), ALL_F23[1].fused("bf16", bias=False)]
F23_FUSED += [ALL_F23[2].fused("bf16"), ALL_F23[3].fused("fp16", relu=False)]
FUSED = [PLAIN.fused(), HALOED.fused("fp16"), PARTED.fused("bf16", bias=False)]
MORE_FUSED = [
    PARTED_MAPS.fused("fp16"),
    MORE_ROWS[9].fused("fp16"),
    ROWS[4].fused(),
    PLANES[1].fused("fp16", bias=False, relu=False),
    ASIDE.fused("fp16"),
]
CASES = [PLAIN, PARTED, PARTED_MAPS, HALOED, *ROWS, *MORE_ROWS, *PLANES, *MORE_PLANES]
RESNET = [
    cores.conv(t) for t in ("64,56,56,64,3,3,1,1", "256,14,14,256,3,3,1,1", "512,7,7,512,3,3,1,1")
]
SOME = (PLAIN, PARTED, HALOED, F23)
SAMPLED = [replace(case, sampled=True) for case in (
    F23, PLAIN, HALOED, ALL_F23[2], MORE_ROWS[1], MORE_ROWS[5], PLANES[1].fused("fp16"),
    F23_FUSED[1],
)]  # fmt: skip
DEEP = Case(cores.conv("512,3,3,8,3,3"), 1, NARROW)
DEEP_HALO = replace(DEEP, images=40, tiling=HALO)
DEEP_F23 = replace(DEEP, images=40, tiling=WINOGRAD)
FUSED_STRIDED = [STRIDED.fused(), STRIDED.fused("bf16", relu=False)]
# Rows, parts, planes of both layouts, F(2, 3):
FUSED_RECHECKED = [HALOED.fused(), PLAIN.fused(), PARTED.fused("bf16"), F23_FUSED[0]]
ALL = [*CASES, DEEP, DEEP_HALO, DEEP_F23, STRIDED, *FUSED, *MORE_FUSED, *FUSED_STRIDED]
ALL += [*FUSED_RECHECKED, *ALL_F23, *F23_FUSED, *SAMPLED]
RECHECKED = (PLAIN, PARTED, STRIDED, F23, *FUSED_STRIDED, *FUSED_RECHECKED)


@pytest.fixture(scope="module")
def functions(request, tmp_path_factory):
    chosen = cores.selected(request, __name__)
    chosen = ALL if chosen is None else [one for case in chosen for one in (case, case.plain)]
    kernels = (kernel for case in chosen for kernel in case.kernels)
    return cores.compiled(kernels, common_folder(tmp_path_factory, "tensor"))


def poisoned(shape, dtype):
    made = np.empty(shape, dtype)
    made.reshape(-1).view(np.uint8).fill(0xFF)
    return made


@pytest.fixture
def with_recheck(functions, monkeypatch, rng):
    """Make the package's launchers launch on this CPU."""
    types = {name: getattr(np, name) for name in ("float32", "uint8", "uint32", "int32")}
    made = {"empty": poisoned, "zeros": np.zeros, "asarray": np.ascontiguousarray}
    stand_in = SimpleNamespace(**made, **types)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    for module in (split_fp16, product, epilogue):
        monkeypatch.setattr(module, "launch", cores.launcher(functions, rng))
    monkeypatch.setattr(halo.HaloTiling, "grid", lambda _, blocks: min(2, blocks))


@pytest.fixture
def on_a_cpu(with_recheck, monkeypatch):
    """Launch on this CPU without `tensor_recheck`, which would repair wrong results."""
    monkeypatch.setattr(epilogue, "recheck", lambda *_: None)


def computed(case, x, w, batch=None):
    """Return the kernels' outputs for NHWC `x`, in NHWC; the output is between guard zones."""
    problem = case.problem
    state = implicit.prepare(w, batch or len(x), case.product)
    shape = physical_shape(problem.writes, len(x), problem.out_shape)
    guarded = Guarded(np, shape, held_as(problem))
    PreparedKernel.poison(guarded.array)
    held = np.ascontiguousarray(from_nhwc(x, problem.reads))
    before = held.copy()
    implicit.run(held, state, guarded.array)
    assert guarded.intact and np.array_equal(held, before, equal_nan=True)
    return to_nhwc(guarded.array, problem.writes, problem.out_shape)


def assert_right(found, x, w, case, most=None):
    """Check by the common tolerance table; `most` is the much smaller error expected here."""
    verdict = judge(found, reference(x, w, case.problem), "fp16x3" if case.parts == 2 else "fp16")
    assert verdict.passed and (most is None or verdict.error <= most), f"{verdict} for {case}"


@cores.compiled_here
@cores.cases(
    [PLAIN, PARTED, HALOED, *ROWS, *PLANES, F23, F23_FUSED[1], *FUSED, SAMPLED[0]],
    [PARTED_MAPS, *MORE_ROWS, *MORE_PLANES, *MORE_F23, F23_FUSED[0], *F23_FUSED[2:],
     *MORE_FUSED, *SAMPLED[1:]],
)  # fmt: skip
def test_outputs_are_correct_and_in_bounds(case, on_a_cpu, rng):
    x, w = cores.operands(case, rng)
    assert_right(computed(case, x, w), x, w, case, 1.5e-6 if case.parts == 2 else 1e-3)


@cores.compiled_here
@cores.cases([PLAIN, HALOED], [PARTED, F23, *FUSED_RECHECKED])
def test_chunked_and_repeated_runs_agree_bitwise(case, on_a_cpu, rng):
    x, w = cores.operands(replace(case, images=5), rng)
    found = computed(case, x, w)
    assert_right(found, x, w, case)
    np.testing.assert_array_equal(computed(case, x, w, batch=2), found)
    np.testing.assert_array_equal(computed(case, x[3:4], w), found[3:4])


@cores.compiled_here
@cores.cases([HALOED])
def test_zero_padding_survives_a_larger_run(case, on_a_cpu, rng):
    case = replace(case, images=9)
    x, w = cores.operands(case, rng)
    x[3:] = np.nan
    state = implicit.prepare(w, 9, case.product)
    for count in (9, 3, 4):
        y = np.full(physical_shape("NCHW", count, case.problem.out_shape), np.nan, np.float32)
        implicit.run(np.ascontiguousarray(from_nhwc(x[:count], "NCHW")), state, y)
        assert_right(to_nhwc(y[:3], "NCHW", case.problem.out_shape), x[:3], w, case)
        assert np.isnan(y[3:]).all()


@cores.compiled_here
@cores.cases([DEEP])
def test_long_sums_keep_fp32_accuracy(case, on_a_cpu, rng):
    """Sum 4,608 products of one sign; tensor core accumulation alone has an error of 6e-5."""
    problem = case.problem
    x = rng.random((1, *problem.in_shape), np.float32)
    w = rng.random(problem.weight_shape, np.float32)
    assert_right(computed(case, x, w), x, w, case, 1.5e-6)


@cores.compiled_here
@pytest.mark.slow
@pytest.mark.parametrize(("case", "most"), [(DEEP_HALO, 1.9e-7), (DEEP_F23, 2.3e-7)], ids=str)
def test_long_filter_element_sums_have_bounded_error(case, most, on_a_cpu, rng):
    """Bound the error: 144 filter elements added one by one give 2.5e-7 of the root of 4,608."""
    problem = case.problem
    x, w = cores.operands(case, rng)
    off = computed(case, x, w) - reference(x, w, problem)
    assert np.sqrt((off**2).mean() / problem.gemm_k) < most


@cores.compiled_here
@cores.cases([MORE_ROWS[-1]])
@pytest.mark.parametrize("at", [(0, 0, 0), (62, 4, 7), (129, 129, 7)])
def test_max_input_of_an_image_is_found_anywhere(case, at, on_a_cpu, rng):
    problem = case.problem
    x, w = cores.operands(case, rng)
    x[(1, *at)] = 1e20
    state = implicit.prepare(w, 2, case.product)
    implicit.run(x, state, np.empty((2, *problem.out_shape), np.float32))
    found = state.images.exponents - [0, state.in_scales[at[2]]]
    assert found[1] == np.frexp(1e20)[1] > 10 > found[0]


@cores.compiled_here
@cores.cases(SAMPLED[1:3], [SAMPLED[0], *SAMPLED[3:]])
@pytest.mark.parametrize("usual", [1, 0])
def test_image_with_outlier_is_split_again(usual, case, on_a_cpu, rng):
    """Place a larger input anywhere; the other images' outputs must not change."""
    problem = case.problem
    few = replace(case, images=3)
    x, w = cores.operands(few, rng)
    x[1] *= usual
    plain = computed(few, x, w)
    at = tuple(int(rng.integers(size)) for size in problem.in_shape)
    x[(1, *at)] = narrowed(np.float32([2e3]), problem.dtype)[0]
    found = computed(few, x, w)
    cores.assert_each_right(found, x, w, few)
    np.testing.assert_array_equal(found[[0, 2]], plain[[0, 2]])


@cores.compiled_here
@cores.cases([F23])
def test_transform_points_do_not_overflow_fp16(case, on_a_cpu, rng):
    """Check transform points at the limit: a sum of two just below 2**16 overflows fp16."""
    x, w = cores.operands(case, rng)
    for sign in (1, np.resize([1, 1, -1, -1], (case.problem.W, 1))):
        largest = np.full_like(x, np.nextafter(np.float32(2), 0)) * np.float32(sign)
        cores.assert_each_right(computed(case, largest, w), largest, w, case)


@cores.compiled_here
@cores.cases([PLAIN, HALOED], [PARTED, F23])
@pytest.mark.parametrize("name", cores.SCALES)
def test_operands_of_any_scale(name, case, on_a_cpu, rng):
    x, w = cores.operands(case, rng)
    large, small = (np.float32(scale) for scale in cores.SCALES[name])
    x, w = x * large, w * small
    cores.assert_each_right(computed(case, x, w), x, w, case)


@cores.compiled_here
@cores.cases([PLAIN, HALOED], [PARTED, F23, PARTED_MAPS])
def test_scales_differ_by_image_channel_and_filter(case, on_a_cpu, rng):
    x, w = cores.operands(case, rng)
    x *= np.array([1e-20, 1, 1e12], np.float32)[:, None, None, None]
    channels = np.logspace(-9, 9, case.problem.C).astype(np.float32)
    w *= np.logspace(-6, 6, case.problem.M).astype(np.float32)
    x, w = x * channels, w / channels[:, None]
    cores.assert_each_right(computed(case, x, w), x, w, case)
    x[1], x[..., 3], w[:, :, 5] = 0, 0, 0
    x[..., 5] = np.where(x[..., 5] > 0, 1e38, x[..., 5])  # no filter reads it
    found = computed(case, x, w)
    cores.assert_each_right(found, x, w, case)
    assert not found[1].any() and not computed(case, x, 0 * w).any()


@cores.compiled_here
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@cores.cases([PLAIN, HALOED], [PARTED, F23])
def test_nan_and_infinity_propagate(value, case, on_a_cpu, rng):
    cores.no_numbers(case, value, computed, rng)


@cores.compiled_here
@cores.cases([PLAIN, HALOED], [PARTED, F23, *(case for case in MORE_PLANES if case.images < 4)])
def test_recheck_gets_max_output_of_each_image(case, on_a_cpu, rng):
    x, w = cores.operands(case, rng)
    x *= np.exp2(rng.integers(-9, 9, (case.images, 1, 1, 1))).astype(np.float32)
    for sign in (1, -1) if case in SOME else (-1,):
        state = implicit.prepare(w, case.images, case.product)
        shape = physical_shape(case.problem.writes, case.images, case.problem.out_shape)
        y = np.full(shape, np.nan, np.float32)
        implicit.run(from_nhwc(sign * x, case.problem.reads), state, y)
        largest = np.abs(y).reshape(case.images, -1).max(1)
        np.testing.assert_array_equal(state.images.reached.view(np.float32), largest, str(case))


@cores.compiled_here
@cores.cases(FUSED_STRIDED)
def test_outputs_too_small_for_fp16_are_recomputed(case, with_recheck, monkeypatch, rng):
    """Small inputs vanish in fp16 next to the largest; doubled filters show what is rechecked."""
    x, w = cores.operands(case, rng)
    large = {"fp32": 1e30, "fp16": 6e4, "bf16": 1e30}[case.problem.dtype]
    values = widened(x).astype("f")
    values[1:] *= np.float32(1e-3)
    values[1, 1, 1], values[2, 3, 2] = large, -3e4  # no output reads them
    x, bias = narrowed(values, case.problem.dtype), 1e-3 * widened(w[1]).astype("f")
    w = w[0], narrowed(bias, case.problem.dtype)
    cores.assert_each_right(computed(case, x, w), x, w, case)
    recheck = epilogue.recheck
    monkeypatch.setattr(
        epilogue, "recheck", lambda layout, x, w, *rest: recheck(layout, x, 2 * w, *rest)
    )
    found = computed(case, x, w)
    cores.assert_each_right(found[:1], x[:1], w, case)
    twice = narrowed(2 * widened(w[0]).astype("f"), case.problem.dtype)
    cores.assert_each_right(found[1:], x[1:], (twice, w[1]), case)


@cores.compiled_here
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@cores.cases(FUSED_RECHECKED[:1], FUSED_RECHECKED[1:])
def test_relu_keeps_nan_and_zeroes_minus_infinity(case, value, with_recheck, rng):
    """Set an element of an input, a filter and a bias; every other output must be right."""
    dtype = case.problem.dtype
    for spoilt in ("an input", "a filter", "a bias"):
        x, (w, bias) = cores.operands(case, rng)
        x, w, bias = (widened(array).astype("f") for array in (x, w, bias))
        where = {"an input": (x, (1, 2, 3, 4)), "a filter": (w, (1, 1, 4, 6)), "a bias": (bias, 6)}
        array, at = where[spoilt]
        array[at] = value
        x, w, bias = (narrowed(one, dtype) for one in (x, w, bias))
        with np.errstate(invalid="ignore"):
            expected = reference(x, (w, bias), case.problem)
        found = computed(case, x, (w, bias))
        values, kept = widened(found), np.isfinite(expected)
        np.testing.assert_array_equal(values[~kept], expected[~kept], spoilt)
        assert kept.any() and judge(found[kept], expected[kept], "fp16x3").passed, spoilt


@cores.compiled_here
@cores.cases([STRIDED])
@pytest.mark.parametrize("blocks", [2, 264])
def test_recheck_visits_every_image(case, blocks, with_recheck, monkeypatch, rng):
    """Recheck with few blocks, which loop over images, and with more blocks than needed."""
    monkeypatch.setattr(epilogue, "_MOST_BLOCKS", blocks)
    layout, problem = case.product.layout, case.problem
    count = 600
    x, w = cores.operands(replace(case, images=count), rng)
    exponents = np.zeros(count, np.int32)
    reached = np.full(count, np.inf, np.float32)
    some = [0, 31, 255, 256, 300, 511, 512, 599]
    reached[some], exponents[511] = 0, -4096
    y = np.full((count, *problem.out_shape), np.nan, np.float32)
    images = SimpleNamespace(exponents=exponents, reached=reached.view("u4"))
    epilogue.recheck(layout, x, w, exponents, images, y, count, 0)
    some.remove(511)
    cores.assert_each_right(y[some], x[some], w, case)
    assert np.isnan(np.delete(y, some, 0)).all()


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fp16x3", "fp16", "wgmma_fp16x3", "wgmma_fp16"])
def test_common_inputs_need_no_recheck_on_gpu(name, monkeypatch, rng):
    """Check that common inputs need no recheck and that two runs agree bit for bit."""
    chosen = find("conv", f"tensor.{name}", "cuda")
    if not chosen.needs.met_by(driver_gpus()[0]):
        pytest.skip(f"needs {chosen.needs}")
    monkeypatch.setattr(epilogue, "recheck", lambda *_: None)
    fused = replace(RESNET[1], bias=True, relu=True, dtype="fp16")
    for problem in (*RESNET, fused, *dict.fromkeys(case.problem for case in (*CASES, *FUSED))):
        x, w = random_input("conv", problem, 3, rng)
        prepared = PreparedKernel(chosen, problem, tensors(w), 3)
        given, outputs = prepared.input(x), [prepared.output(3), prepared.output(3)]
        for output in outputs:
            prepared.run(given, output)
        first, second = map(prepared.found, outputs)
        np.testing.assert_array_equal(first, second)
        assert judge(first, reference(x, w, problem), chosen.precision).passed, problem
        assert not prepared.wrote_outside()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_winograd_is_not_used_for_unlike_filter_columns(dtype, rng):
    """Check that F(2, 3) is not used if inputs under a small filter element would cancel."""
    problem = cores.conv("256,14,14,256,3,3,1,1", **cores.NCHW, dtype=dtype, bias=True)
    usual = wgmma.FP16X3.plan(problem, 64)
    named = replace(wgmma.FP16X3, word=usual.word)
    assert usual.tiling.winograd and named.plan(problem, 64) == usual
    w = rng.standard_normal(problem.weight_shape).astype(np.float32)
    bias = narrowed(np.zeros(problem.M, np.float32), dtype)
    alike, unlike = ((0, 0.3), (2, 3.0)), ((1, 0.0), (2, 0.02), (0, 99))
    for column, by in (*alike, *unlike):
        filters = w.copy()
        filters[:, column, :, 200] *= by
        for kind in (wgmma.FP16X3, named):
            found = kind.suited((narrowed(filters, dtype), bias), problem, 64)
            kept = (column, by) in alike
            assert (found == usual) == kept == found.tiling.winograd, (column, by)
            assert {*found.kernels(), epilogue.kernel(found.layout)} <= {*kind.kernels(problem, 64)}
    filters[..., 200], filters[..., 100], filters[0, 0, 0, 50] = 0, np.nan, np.inf
    for odd, expected in ((filters[..., 60:], True), (filters, False)):
        plain = replace(problem, bias=False)
        assert wgmma.FP16X3.suited(narrowed(odd, dtype), plain, 64).tiling.winograd == expected


BIAS_RELU = {"bias": True, "relu": True}
DIVIDED = (
    *(RESNET[2], cores.conv("3,30,31,70,5,5,2,2"), cores.conv("40,13,12,33,3,3,1,1", **cores.NCHW)),
    *(
        cores.conv("40,13,12,33,3,3,1,1", **cores.NCHW, **BIAS_RELU),
        cores.conv("20,9,8,70,3,3", **BIAS_RELU, dtype="fp16"),
    ),
    cores.conv("36,9,8,70,3,3", **cores.NCHW, **BIAS_RELU, dtype="bf16"),
)


def assert_right_on_a_gpu(products, x, w, monkeypatch):
    """Check without the recheck, which would repair wrong results."""
    import cupy

    monkeypatch.setattr(epilogue, "recheck", lambda *_: None)
    problem = products[0].layout.problem
    expected = reference(x, w, problem)
    held = cupy.asarray(np.ascontiguousarray(from_nhwc(x, problem.reads)))
    for made in products:
        y = cupy.empty(physical_shape(problem.writes, len(x), problem.out_shape), held_as(problem))
        PreparedKernel.poison(y)
        implicit.run(held, implicit.prepare(w, len(x), made), y)
        found = to_nhwc(y.get(), problem.writes, problem.out_shape)
        precision = "fp16x3" if made.layout.parts == 2 else "fp16"
        assert judge(found, expected, precision).passed, (made, problem)


def here(name):
    return find("conv", f"tensor.{name}", "cuda").needs.met_by(driver_gpus()[0])


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("problem", DIVIDED, ids=str)
def test_all_tilings_are_correct_on_gpu(problem, monkeypatch, rng):
    if not here("fp16x3"):
        pytest.skip("needs a GPU of 8.0")
    tilings = mma.TILINGS + (halo.TILINGS + wgmma.TILINGS if here("wgmma_fp16x3") else ())
    products = [made for parts in (2, 1) for made in options(Layout(problem, parts), tilings)]
    assert_right_on_a_gpu(products, *random_input("conv", problem, 3, rng), monkeypatch)


@pytest.mark.gpu
def test_winograd_and_sampled_images_are_correct_on_gpu(monkeypatch, rng):
    if not here("wgmma_fp16x3"):
        pytest.skip("needs a GPU of 9.0")
    for case in (*ALL_F23, *F23_FUSED, *SAMPLED):
        x, w = cores.operands(case, rng)
        if case.sampled:
            x[0].reshape(-1)[7] = narrowed(np.float32([2e3]), case.problem.dtype)[0]
        assert_right_on_a_gpu([case.product], x, w, monkeypatch)


@pytest.mark.parametrize(
    ("tilings", "least"),
    [(mma.TILINGS, 80), (wgmma.TILINGS, 90), (halo.TILINGS + halo.WINOGRAD, 90)],
)
def test_all_tilings_fit_and_have_work(tilings, least):
    limit = min(p.shared_bytes - p.reserved_bytes for c, p in PROCESSORS.items()
               if c == least or c > least == 80)  # fmt: skip
    for problem in (*RESNET, *(case.problem for case in ALL)):
        for parts in (1, 2):
            found = options(Layout(problem, parts), tilings)
            in_points = problem.S == 3 and problem.stride == 1 and problem.C >= 32
            assert {made.tiling for made in found} == {
                tiling for tiling in tilings if in_points or not tiling.winograd
            }
            for made in found:
                tiling, layout = made.tiling, made.layout
                chunks = tiling.chunks(layout)
                assert -(-chunks // made.split) * (made.split - 1) < chunks
                assert tiling.shared_bytes(layout) <= limit and made.padded % tiling.bn == 0
                if tiling.planes:
                    read = -(-4 * layout.slot // tiling.bm) * tiling.bm + layout.reach
                    assert read <= layout.plane(4)
    for text in ("8,224,224,8,7,7,1,3", "64,300,300,64,9,9,2,4"):
        assert not options(Layout(cores.conv(text), 2), halo.TILINGS), text


SPILLING = [  # ptxas unrolls short loops of known length, and serializes wgmma of few elements
    *((RESNET[0], 2, tiling, split) for split, tiling in ((6, LARGE), (3, TALL), (3, MIDDLE))),
    *((replace(RESNET[0], **BIAS_RELU, dtype="fp16"), 2, tiling, 1) for tiling in (LARGE, TALL)),
    (cores.conv("256,56,56,64,1,1"), 1, HALO_136, 1),
    (cores.conv("64,56,56,64,1,1"), 2, HALO_136, 1),
    (cores.conv("64,9,9,64,1,2"), 1, HALO_136, 1),
    (cores.conv("64,9,9,64,3,3", **BIAS_RELU, **cores.NCHW, dtype="bf16"), 2, HALO_136, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "parts", "tiling", "split"), SPILLING)
def test_short_k_splits_and_few_filter_elements_do_not_spill(problem, parts, tiling, split):
    arch = "sm_90a" if tiling.planes else "sm_100"
    if not supported(arch):
        pytest.skip(f"this NVRTC does not know {arch}")
    made = Product(Layout(problem, parts, planes=tiling.planes), tiling, split)
    compiled = compile_kernel(made.kernels()[0], arch)
    assert compiled.resources.spill_bytes == compiled.resources.stack_bytes == 0
    assert "serialized" not in compiled.log


@pytest.mark.parametrize(
    "name", ["fp16x3", "fp16", "wgmma_fp16x3", "wgmma_fp16", "tf32x3", "wgmma_tf32x3"]
)
def test_launched_kernels_are_listed(name, monkeypatch):
    launched = []
    for module in (split_fp16, product, epilogue, one_launch):
        monkeypatch.setattr(module, "launch", lambda kernel, *_, **__: launched.append(kernel))
    types = {name: getattr(np, name) for name in ("float32", "uint8", "uint32", "int32")}
    stand_in = SimpleNamespace(empty=np.empty, zeros=np.zeros, asarray=np.asarray, **types)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    chosen = find("conv", f"tensor.{name}", "cuda")
    fused = cores.conv("3,9,9,4,3,3", **BIAS_RELU, dtype="fp32" if "tf32" in name else "bf16")
    for problem in (RESNET[2], cores.conv("3,9,9,4,3,3", **cores.NCHW), fused):
        launched.clear()
        x, y = np.zeros((2, *problem.in_shape)), np.zeros((2, *problem.out_shape))
        w = np.ones(problem.weight_shape, held_as(problem))
        given = (w, np.ones(problem.M, w.dtype)) if problem.bias else w
        chosen.launch(x, chosen.prepare(given, problem, 2), y, problem)
        assert tuple(launched) == chosen.kernels(problem, 2)


@pytest.mark.parametrize("name", ["fp16x3", "tf32x3", "wgmma_tf32x3"])
def test_shapes_beyond_32bit_offsets_are_refused(name):
    refusal = find("conv", f"tensor.{name}", "cuda").refusal
    assert refusal(RESNET[0]) is None
    for text in ("64,4096,4096,1,1,1", "1,40000,40000,1,1,1", "4096,9,9,30000,3,3,1,1"):
        assert "fewer than 1073741824 elements" in refusal(cores.conv(text)), text
    padded = "1,1,134217728,1,17,1,16,16" if "tf32" in name else "1,64,64,1,1,1,1,20000"
    assert "fewer than" in refusal(cores.conv(padded))
    if "tf32" in name:
        assert "filters of up to 32x32" in refusal(cores.conv("5,40,3,8,33,1"))
