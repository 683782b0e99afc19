"""Options of convolutions: strides, padding, dilation, groups, bias, ReLU, fp16 and bf16.

They are computed, stored, checked, refused, and found wrong.
"""

import json
import shlex
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from terminal import run
from test_kernels_on_a_cpu import folder, on_a_cpu, version  # noqa: F401

from lenetgpu.check.judge import TOLERANCE, Checked, Verdict, check_variant, judge
from lenetgpu.check.reference import random_input
from lenetgpu.cpu import memory
from lenetgpu.files.convs.described import as_line
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.conv import compared
from lenetgpu.lab.conv.compared import differing
from lenetgpu.lab.conv.request import ConvRequest, parse_shape
from lenetgpu.layouts import narrowed, widened
from lenetgpu.measure import conv_bench, torch_peer
from lenetgpu.measure.conv_bench import Case, ConvBench
from lenetgpu.papers.shapes import Shape
from lenetgpu.problems import ITEM_BYTES, Conv, ConvPool
from lenetgpu.stages import find, variants
from lenetgpu.stages.conv import unrolled
from lenetgpu.stages.prepared import PreparedKernel
from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import OPTIONS, dtype_refusal

SUPPORTING = [v for v in variants("conv", "cpu") if v.options]
ASKS = {
    "strides": (Conv(9, 8, 4, 6, 3, 3, strides=(2, 1)), "one stride, not 2x1"),
    "pads": (Conv(9, 8, 4, 6, 3, 3, pads=(1, 0, 2, 1)), "equal padding on every side, not 1,0,2,1"),
    "dilation": (Conv(9, 8, 4, 6, 3, 3, dilation=(1, 2)), "no dilation, not 1x2"),
    "groups": (Conv(9, 8, 4, 6, 3, 3, groups=2), "one group, not 2"),
    "bias": (Conv(9, 8, 4, 6, 3, 3, bias=True), "supports no bias"),
    "relu": (Conv(9, 8, 4, 6, 3, 3, relu=True), "supports no ReLU"),
    "fp16": (Conv(9, 8, 4, 6, 3, 3, dtype="fp16"), "fp32 in and out, not fp16"),
    "bf16": (Conv(9, 8, 4, 6, 3, 3, dtype="bf16"), "fp32 in and out, not bf16"),
}
SHAPES = ("strides", "pads", "dilation", "groups")
TOGETHER = Conv(13, 12, 6, 9, 3, 2, strides=(2, 1), pads=(1, 0, 2, 1), dilation=(1, 3), groups=3)
BITS = {"fp16": 11, "bf16": 8}
PLAIN = Conv(6, 5, 3, 4, 3, 2, pad=1)
DEPTHWISE = Conv(7, 6, 5, 10, 3, 3, pad=1, groups=5)
ENDS = [
    {"bias": bias, "relu": relu, "dtype": dtype}
    for dtype in ITEM_BYTES
    for bias in (False, True)
    for relu in (False, True)
]
NAMES = ("serial.loops", "unrolled.blas")


def drawn(rng, required=SHAPES):
    """Draw the parameters of a small convolution with at least one output."""
    while True:
        groups = int(rng.integers(1, 5)) if "groups" in required else 1
        numbers = {
            "H": rng.integers(1, 12), "W": rng.integers(1, 12), "C": groups * rng.integers(1, 4),
            "M": groups * rng.integers(1, 4), "R": rng.integers(1, 5), "S": rng.integers(1, 5),
            "strides": rng.integers(1, 4, 2) if "strides" in required else (1, 1),
            "pads": rng.integers(0, 4, 4) if "pads" in required else (0, 0, 0, 0),
            "dilation": rng.integers(1, 4, 2) if "dilation" in required else (1, 1),
            "groups": groups,
        }  # fmt: skip
        found = {
            name: tuple(map(int, value)) if np.ndim(value) else int(value)
            for name, value in numbers.items()
        }
        if 0 not in counted(**found):
            return found


def counted(H, W, R, S, strides, pads, dilation, **rest):
    """Return rows and columns of the output: positions at which the whole filter is inside."""
    above, left, below, right = pads
    sides = ((H + above + below, R), (W + left + right, S))
    return tuple(
        len(range(0, size - (side - 1) * far, by))
        for (size, side), by, far in zip(sides, strides, dilation, strict=True)
    )


def by_hand(x, w, strides, pads, dilation, groups, **sizes):
    """Compute the definition, one product at a time, without padding the image."""
    n, H, W, _ = x.shape
    R, S, each, M = w.shape
    OH, OW = counted(strides=strides, pads=pads, dilation=dilation, **sizes)
    y = np.zeros((n, OH, OW, M))
    for oy, ox, r, s in np.ndindex(OH, OW, R, S):
        iy = oy * strides[0] - pads[0] + r * dilation[0]
        ix = ox * strides[1] - pads[1] + s * dilation[1]
        if 0 <= iy < H and 0 <= ix < W:
            for m, c in np.ndindex(M, each):
                group = m * groups // M
                y[:, oy, ox, m] += x[:, iy, ix, group * each + c] * w[r, s, c, m]
    return y


def test_reference_matches_naive_loops_on_60_shapes(rng):
    for number in range(60):
        numbers = drawn(rng, SHAPES if number % 2 else (SHAPES[number // 2 % 4],))
        problem = Conv(**numbers)
        x, w = random_input("conv", problem, 2, rng)
        expected = by_hand(x.astype("d"), w.astype("d"), **numbers)
        assert expected.shape == (2, *problem.out_shape), numbers
        assert np.allclose(reference(x, w, problem), expected, rtol=1e-12, atol=1e-12), numbers
        assert problem.flop(2) == 2 * expected.size * w.size // problem.M


@pytest.mark.parametrize("variant", SUPPORTING, ids=lambda v: v.full_name)
def test_variants_are_correct_for_supported_options(variant, rng):
    supported = tuple(name for name in SHAPES if name in variant.options)
    for number in range(40):
        required = supported if number % 2 else (supported[number // 2 % len(supported)],)
        problem = Conv(**drawn(rng, required))
        x, w = random_input("conv", problem, 3, rng)
        verdict = check_variant(variant, problem, x, w, reference(x, w, problem))
        assert verdict.passed, f"{verdict} for {problem}"


@pytest.mark.parametrize("variant", SUPPORTING, ids=lambda v: v.full_name)
def test_options_work_in_chunks_and_smaller_batches(variant, rng, monkeypatch):
    monkeypatch.setattr(unrolled, "_CPU_WORKSPACE_BYTES", 20_000)
    bases = [PLAIN, TOGETHER, DEPTHWISE, replace(TOGETHER, groups=2, M=12)]
    bases = bases if "groups" in variant.options else [PLAIN, replace(TOGETHER, groups=1)]
    for base, ends in product(bases, ENDS if "bias" in variant.options else [{}]):
        problem = replace(base, **ends)
        x, w = random_input("conv", problem, 7, rng)
        verdict = check_variant(variant, problem, x, w, reference(x, w, problem))
        assert verdict.passed, f"{verdict} for {problem}"
        prepared = PreparedKernel(variant, problem, w if problem.bias else (w,), 7)
        for images in (x, x[4:2:-1].copy()):
            y = prepared.output(len(images))
            prepared.run(images, y)
            assert judge(prepared.found(y), reference(images, w, problem), "fp32").passed, problem


def test_equivalent_convolutions_are_equal():
    plain = Conv(9, 8, 4, 6, 3, 3, 2, 1)
    forms = [
        Conv(9, 8, 4, 6, 3, 3, strides=(2, 2), pads=(1, 1, 1, 1), dilation=(1, 1), groups=1),
        Conv(9, 8, 4, 6, 3, 3, 7, 7, strides=(2, 2), pads=(1, 1, 1, 0)),
        replace(plain, H=9),
    ]
    assert {*forms} == {plain} and not plain.requires
    assert Conv(9, 8, 1, 1, 1, 3, dilation=(4, 2)) == Conv(9, 8, 1, 1, 1, 3, dilation=(1, 2))
    assert Conv(9, 8, 1, 1, 1, 1, dilation=(4, 2)) == Conv(9, 8, 1, 1, 1, 1)
    assert Conv(9, 8, 4, 6, 3, 3, 2, pads=(0, 0, 0, 1)).requires == {"pads"}
    assert Conv(9, 9, 4, 6, 3, 3, 2, pads=(0, 0, 0, 1)) == Conv(9, 9, 4, 6, 3, 3, 2)
    least, more = (Conv(9, 8, 4, 6, 3, 3, 2, pads=(0, 0, 0, right)) for right in (1, 2))
    assert least == more and least.OW == 4
    assert {name: p.requires for name, (p, _) in ASKS.items()} == {n: {n} for n in OPTIONS}
    assert TOGETHER.requires == {*SHAPES} == ConvPool(TOGETHER).requires
    # a dimension of one output takes the other's stride if that leaves one output
    assert Conv(1, 20, 4, 4, 1, 3, strides=(1, 2)) == Conv(1, 20, 4, 4, 1, 3, 2)
    assert Conv(5, 3, 2, 2, 3, 3, strides=(2, 1)) == Conv(5, 3, 2, 2, 3, 3, 2)
    assert Conv(9, 9, 1, 1, 3, 3, strides=(9, 1)).requires == {"strides"}


def test_variants_refuse_unsupported_options():
    for variant in variants("conv"):
        layouts = [(reads, writes) for reads in variant.reads for writes in variant.writes]
        for name, (problem, words) in ASKS.items():
            found = [variant.refusal(replace(problem, reads=r, writes=w)) for r, w in layouts]
            if name in variant.options:
                only_depthwise = variant.full_name == "direct.depthwise"
                assert None in found or only_depthwise, (variant.full_name, name, found)
            else:
                assert all(why and why.startswith("supports") and words in why for why in found)
    for variant in variants("conv_pool"):
        for name, (problem, words) in ASKS.items():
            assert name not in variant.options
            assert words in (variant.refusal(ConvPool(problem)) or "")


def test_four_variants_support_every_option():
    everything = {v.full_name for v in variants("conv") if v.options == {*OPTIONS}}
    assert everything == {"serial.loops", "unrolled.blas", "direct.grouped", "direct.depthwise"}
    ends = {*OPTIONS} - {"strides", "pads", "dilation", "groups"}
    supporting = {v.full_name for v in variants("conv", "cuda") if v.options == ends}
    split = {f"tensor.{name}" for name in ("fp16x3", "fp16", "wgmma_fp16x3", "wgmma_fp16")}
    assert supporting == {*split, "best.fp32"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [(name, Conv(64, 64, 4, 4, 3, 3, dilation=(1, 31)))
     for name in ("unrolled.blas", "tiled.blocked", "fft.pocketfft")]
    + [(name, Conv(64, 64, 4, 4, 3, 3, dtype="fp16")) for name in NAMES],
)  # fmt: skip
def test_workspace_is_checked_against_free_memory(name, problem, monkeypatch):
    variant = find("conv", name, "cpu")
    w = narrowed(np.ones(problem.weight_shape, np.float32), problem.dtype)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 30)
    PreparedKernel(variant, problem, [w], 1)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 12)
    with pytest.raises(MemoryError, match="4,096 bytes free of the"):
        PreparedKernel(variant, problem, [w], 1)


def test_rate_estimate_works_for_any_shape(rng, monkeypatch):
    """The estimate works for dilated filters, and for filters that extend into the padding."""
    monkeypatch.setattr(conv_bench, "_LONG_FLOP", 1)
    variant = find("conv", "unrolled.blas", "cpu")
    for numbers in [drawn(rng) for _ in range(10)]:
        case = Case(Conv(**numbers), 1, gpu=False)
        assert ConvBench(variant, case.problem, case, 0.01).check().verdict.passed


@pytest.fixture(params=[*NAMES, "direct.grouped"])
def variant(request):
    """Each variant that supports all options; the GPU's runs on this CPU if g++ can compile it."""
    if request.param in NAMES:
        return find("conv", request.param, "cpu")
    if version() < 11:
        pytest.skip("no g++ 11 to compile kernels for a CPU")
    request.getfixturevalue("on_a_cpu")
    return find("conv", request.param, "cuda")


def computed(variant, problem, x, w):
    """Return a variant's output in NHWC as float32."""
    state = variant.prepare(w, problem, len(x)) if variant.prepare else w
    y = np.empty((len(x), *problem.out_shape), narrowed(np.zeros(1, "f"), problem.dtype).dtype)
    PreparedKernel.poison(y)
    with np.errstate(invalid="ignore"):
        variant.launch(x, state, y, problem)
    return widened(y).astype(np.float32)


def by_definition(values, dtype):
    """Round float64 `values` to a dtype: to the nearest value, ties to even."""
    bits, least, most = {"fp16": (11, -13, 15), "bf16": (8, -125, 127)}[dtype]
    exponent = np.maximum(np.frexp(values)[1], least)
    unit = np.ldexp(1.0, exponent - bits)
    near = np.rint(values / unit) * unit
    beyond = abs(near) > (2 - 2.0 ** (1 - bits)) * 2.0**most
    near[beyond] = np.copysign(np.inf, near[beyond])
    return near


@pytest.mark.parametrize("dtype", BITS)
def test_every_16bit_value_rounds_to_nearest(dtype, rng):
    every = np.arange(1 << 16, dtype=np.uint16)
    held = every if dtype == "bf16" else every.view(np.float16)
    values = widened(held).astype(np.float32)
    again = narrowed(values, dtype)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(again[numbers].view(np.uint16), every[numbers])
    assert np.isnan(widened(again)[~numbers]).all()
    odd = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(widened(narrowed(odd, dtype))).all()
    finite = values[np.isfinite(values) & (values >= 0)].astype("d")
    beyond = 65536.0 if dtype == "fp16" else 2.0**128  # where the next one would be
    between = (finite + np.append(finite[1:], beyond)) / 2
    near = (np.nextafter(between.astype("f"), np.float32(to)) for to in (0, np.inf))
    drawn = rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 6, 5000)
    for numbers in (between, *near, drawn):
        of = numbers.astype(np.float32)
        of = of[np.isfinite(of)]
        expected = by_definition(of.astype("d"), dtype)
        np.testing.assert_array_equal(widened(narrowed(of, dtype)), expected.astype(np.float32))
        np.testing.assert_array_equal(widened(narrowed(-of, dtype)), -expected.astype(np.float32))


@pytest.mark.parametrize("ends", ENDS, ids=lambda e: "-".join(map(str, e.values())))
def test_reference_adds_bias_then_relu_in_float64(ends, rng):
    problem = replace(TOGETHER, **ends)
    given = x, w = random_input("conv", problem, 2, rng)
    w, *bias = w if problem.bias else (w,)
    held = {"fp32": "float32", "fp16": "float16", "bf16": "uint16"}[problem.dtype]
    assert {array.dtype for array in (x, w, *bias)} == {np.dtype(held)}
    x, w, *bias = (widened(array).astype("d") for array in (x, w, *bias))
    expected = reference(x, w, TOGETHER)
    for values in bias:
        assert values.shape == (9,) and abs(values).max() > 0.1
        expected = expected + values
    expected = np.where(expected < 0, 0, expected) if problem.relu else expected
    np.testing.assert_array_equal(reference(*given, problem), expected)
    assert problem.bytes(3) == ITEM_BYTES[problem.dtype] * (
        3 * (x[0].size + expected[0].size) + w.size + 9 * problem.bias
    )


SMALL = Conv(1, 6, 1, 3, 1, 1, bias=True)  # one shape: a kernel is compiled once per dtype


def held(dtype, x, w, bias):
    """Return images of six pixels, three 1x1 filters and three bias values, in `dtype`."""
    of = (np.reshape(x, (-1, 1, 6, 1)), np.reshape(w, (1, 1, 1, 3)), np.asarray(bias))
    x, w, bias = (narrowed(array.astype("f"), dtype) for array in of)
    return x, (w, bias)


def test_output_is_rounded_to_nearest(variant, rng):
    """Sums of small whole numbers are exact, so that the bits are known; some are ties."""
    for dtype, bits in BITS.items():
        problem, most = replace(SMALL, dtype=dtype), 2 ** (bits - 1)
        x, w = held(dtype, rng.integers(-most, most, 600), [1, 3, -7], [0, 0.5, 1.5])
        exact = reference(x, w, problem)
        found = computed(variant, problem, x, w)
        np.testing.assert_array_equal(found, by_definition(exact, dtype))
        assert (found != exact).any()


def test_nan_and_infinity_propagate(variant):
    """Test images, filters and biases; ReLU of NaN is NaN, and of -infinity zero."""
    nan, inf = np.nan, np.inf
    for dtype, relu in product(ITEM_BYTES, (False, True)):
        problem = replace(SMALL, relu=relu, dtype=dtype)
        for w, bias in (([1, -1, 2], [0, 0, 0]), ([1, -1, 2], [nan, inf, -inf]),
                        ([nan, inf, -inf], [1, 1, 1])):  # fmt: skip
            x, weights = held(dtype, [1, nan, inf, -inf, -2, 3], w, bias)
            with np.errstate(invalid="ignore"):
                sums = widened(x)[0, 0].astype("f") * np.array(w, "f") + np.array(bias, "f")
                exact = reference(x, weights, problem)
            expected = np.where(sums < 0, 0, sums) if relu else sums
            found = computed(variant, problem, x, weights)
            np.testing.assert_array_equal(found[0, 0], expected)
            np.testing.assert_array_equal(exact[0, 0], expected)
            verdict = judge(found, exact, "fp32")
            assert not verdict.passed and "NaN" in str(verdict)


def test_infinite_filters_make_no_nan_in_padding(variant, rng):
    """Agree with the reference, whether a variant pads copies of images or tests each position."""
    for dtype, groups in product(ITEM_BYTES, (1, 2)):
        problem = Conv(4, 5, 2, 2, 3, 3, pads=(1, 0, 2, 1), groups=groups, dtype=dtype)
        x = narrowed(rng.standard_normal((2, *problem.in_shape)).astype("f"), dtype)
        w = np.ones(problem.weight_shape, "f")
        w[0, 1, 0, 0], w[2, 2, 0, 1] = np.inf, np.nan
        with np.errstate(invalid="ignore"):
            exact = reference(x, narrowed(w, dtype), problem)
            found = computed(variant, problem, x, narrowed(w, dtype))
        assert np.isnan(exact[:, 0, :, 0]).all() and np.isinf(exact[:, 1:4, :, 0]).all()
        for mark in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(mark(found), mark(exact))


def test_overflow_of_16bit_outputs_is_infinite(variant):
    for dtype, largest, step in (("fp16", 65504.0, 16.0), ("bf16", 255 * 2.0**120, 2.0**119)):
        for off, expected in ((0, largest), (0.5, largest), (1, np.inf), (1.5, np.inf)):
            problem = replace(SMALL, dtype=dtype)
            x, w = held(dtype, [largest, -largest] * 3, [1, 1, -1], [off * step, -off * step, 0])
            found = computed(variant, problem, x, w)[0, 0]
            assert (found[0, 0], found[1, 1], found[1, 2]) == (expected, -expected, largest), off
            assert np.isfinite(found[1, 0])


@pytest.mark.parametrize("dtype", BITS)
def test_half_ulp_is_no_error_but_more_is(dtype):
    ulp = 2.0 ** (3 - BITS[dtype])  # of values from 4 up to 8
    expected = np.array([5.0, -7.75, 0.0, 1e-30])
    for off, error in ((0.49, 0.0), (0.5, 0.0), (0.5 + 1e-5, ulp * 1e-5 / 7.75),
                       (1.0, ulp / 2 / 7.75)):  # fmt: skip
        found = narrowed(np.array([5.0, -7.75, 0.0, 0.0], "f"), dtype)
        verdict = judge(found, expected + np.array([off * ulp, 0, 0, 0]), "fp32")
        assert verdict.error == pytest.approx(error, abs=1e-12), off
        assert verdict.passed == (error < TOLERANCE["fp32"])
        assert verdict.tolerance == TOLERANCE["fp32"]

    def judged(found, exact):
        return judge(narrowed(np.array(found, "f"), dtype), np.array(exact), "fp32")

    assert not judged([8.0, 0.0], [8.0, 1e-3]).passed, "a unit is the value's own"
    for side in (1, -1):  # at a power of two, half of the larger unit
        assert judged([1.0], [1.0 + side * 2.0 ** -BITS[dtype]]).passed
    least = {"fp16": 2.0**-24, "bf16": 2.0**-133}[dtype]
    assert judged([0.0], [least / 2]).error == 0.0
    assert judged([0.0], [least]).error == pytest.approx(0.5)
    assert not judged([np.nan], [1.0]).passed and not judged([np.inf], [1.0]).passed
    plain = np.array([8.0 + ulp / 2])
    assert not judge(plain, np.array([8.0]), "fp32").passed, "of float32 nothing is forgiven"


def test_16bit_buffers_are_guarded_poisoned_and_aligned(rng):
    """Unwritten outputs show up, and buffers are aligned, for every dtype."""
    for dtype in ITEM_BYTES:
        problem = replace(PLAIN, bias=True, relu=True, dtype=dtype)
        case = Case(problem, 3, gpu=False)
        bench = ConvBench(find("conv", "unrolled.blas", "cpu"), problem, case, 0.01)
        assert bench.check().verdict.passed
        assert bench.recheck().verdict.passed
        first = bench.one_output()
        assert first.itemsize == ITEM_BYTES[dtype] and differing(first, bench.one_output()) == 0
        y = bench._timed.y
        assert y.ctypes.data % 64 == case.input("NHWC").array.ctypes.data % 64 == 0
        PreparedKernel.poison(y)
        assert np.isnan(widened(y)).all()


@pytest.mark.peers
@pytest.mark.parametrize("problem", [*(p for p, _ in ASKS.values()), TOGETHER])
def test_pytorch_matches_the_reference(problem):
    for asked in [problem] + [replace(DEPTHWISE, **ends) for ends in ENDS]:
        bench = torch_peer.TorchBench(asked, Case(asked, 2, gpu=False), 0.05)
        assert bench.check().verdict.passed and bench.recheck().verdict.passed
        assert ("a copy padded in each call" in bench.note) == (asked.pads is not None)
        kinds = {str(of.dtype) for of in (bench._x, bench._w, bench._y)}
        assert kinds == {{"fp32": "torch.float32", "fp16": "torch.float16",
                          "bf16": "torch.bfloat16"}[asked.dtype]}  # fmt: skip


def test_faster_memory_format_of_pytorch_is_timed():
    """A format is sampled once if a call takes the time of all."""
    asked, made = [], object.__new__(torch_peer.TorchBench)
    checked = Checked(Verdict(True, 0.0, 1.0), 0.0, None, 2)
    made.problem, made._which = PLAIN, None
    made._case = SimpleNamespace(gpu=False, judged=lambda *_: checked)
    made._load_timed, made._call, made._found = asked.append, lambda: None, lambda: None
    calls = SimpleNamespace(sample=lambda: asked.append("sample") or len(asked), passes=1)
    made._timed = lambda: SimpleNamespace(once=True, note="", method="", calls=calls)
    assert made.check() == checked and made.note == "contiguous"
    assert asked == ["NCHW", "sample", "NHWC", "sample", "NCHW"]


def test_bf16_is_refused_by_older_gpus(monkeypatch):
    problem = replace(PLAIN, dtype="bf16")
    assert dtype_refusal(problem, 75) == "bf16 requires cuda 8.0, found 7.5"
    assert dtype_refusal(problem, 80) is dtype_refusal(replace(problem, dtype="fp16"), 75) is None
    chosen = [find("conv", "direct.grouped", "cuda")]
    run = compared._Run(ConvRequest(), None, Gpu(0, "T4", 75), None, "torch", chosen, None, [])
    found = run.candidates(Shape("", problem), SimpleNamespace(images=1))
    assert [(one.name, one.status) for one in found] == [
        ("direct.grouped", "refused"), ("torch", "refused"),
    ]  # fmt: skip


def ran(monkeypatch, *words):
    """Run `conv` on a CPU; return the exit code, the document and stderr."""
    monkeypatch.setattr(compared, "peer_version", lambda device: None)
    quick = ("--device", "cpu", "--seconds", "0.02", "--rounds", "5", "--watch", "0")
    words = ["conv", *quick, "--json", "-", *words]
    done = run(*words)
    return done.exit_code, json.loads(done.stdout), done.stderr


def statuses(document):
    (case,) = document["cases"]
    return {row["name"]: row["status"] for row in case["candidates"]}


def test_wrong_shape_handling_is_detected(monkeypatch):
    beside = ROOT / "tests" / "broken" / "shapes.py"
    code, document, _ = ran(monkeypatch, LINE, "--with", beside, "--only", "serial")
    wrong = ("first_group", "swapped_pads", "dilated_rows", "one_stride")
    assert code == 1 and statuses(document) == {
        "serial.loops": "right", "twin.plain_loops": "right",
        **{f"shapes.{name}": "wrong" for name in wrong},
    }  # fmt: skip


def test_row_and_repeat_command_describe_the_convolution(monkeypatch):
    words = ("g2ic4ih6oc4oh6kh3ph1", "--batch", 2, "--bias", "--relu", "--dtype", "bf16")
    code, document, _ = ran(monkeypatch, *words, "--only", "serial,unrolled,tiled", "--bitwise")
    (case,) = document["cases"]
    text = "g2ic4oc4_ih6oh6kh3ph1 --bias --relu --dtype bf16"
    assert (code, case["shape"], case["label"]) == (0, text, text)
    assert (case["bias"], case["relu"], case["dtype"]) == (True, True, "bf16")
    rows = {row["name"]: row for row in case["candidates"]}
    assert rows["tiled.blocked"]["note"] == "supports one group, not 2"
    assert {rows[name]["bits"] for name in NAMES} == {"same"}
    command = shlex.split(rows["unrolled.blas"]["command"])
    at = command.index("--bias")
    assert command[at : at + 4] == ["--bias", "--relu", "--dtype", "bf16"]


LINE = as_line(TOGETHER)
MIOPEN = "./bin/MIOpenDriver"


@pytest.mark.parametrize(
    ("line", "alone", "whole"),
    [
        ("ic8ih8oc8kh3", {}, {"bias": True}),
        ("--dir=FWD_B ic8ih8oc8kh3", {}, {"bias": True}),
        ("--dir=FWD_D ic8ih8oc8kh3", {}, {}),
        ("--dir=FWD_I --dt=f16 ic8ih8oc8kh3", {"dtype": "fp16"}, {"dtype": "fp16"}),
        ("--dt=bf16:bf16:bf16 --dir=FWD_D ic8ih8oc8kh3", {"dtype": "bf16"}, {"dtype": "bf16"}),
        ("--cfg=bf16bf16bf16 --dir=FWD_D ic8ih8oc8kh3", {"dtype": "bf16"}, {"dtype": "bf16"}),
        ("--attr-post-ops=relu ic8ih8oc8kh3", {"relu": True}, {"relu": True, "bias": True}),
        ("--attr-post-ops='relu:0.0' --dir=FWD_D ic8ih8oc8kh3", {"relu": True}, {"relu": True}),
        (f"{MIOPEN} conv -n 2 -c 8 -H 8 -W 8 -k 8 -b 1", {}, {"bias": True}),
        (f"{MIOPEN} conv -n 2 -c 8 -H 8 -W 8 -k 8 --bias 0", {}, {}),
        (f"{MIOPEN} convbfp16 -n 2 -c 8 -H 8 -W 8 -k 8", {"dtype": "bf16"}, {"dtype": "bf16"}),
    ],
)
def test_line_parsers_read_bias_relu_and_dtype(line, alone, whole):
    """A bias, which is benchdnn's default, counts only with `epilogue`."""
    plain = Conv(8, 8, 8, 8, 3, 3)
    for epilogue, ends in ((False, alone), (True, whole)):
        given = parse_shape(line, epilogue)
        assert given.problem == replace(plain, **ends) and not given.others


def test_options_apply_to_lines_files_and_suites(tmp_path, monkeypatch):
    path = tmp_path / "lines.txt"
    path.write_text("ic8ih8oc8kh3\n--dt=f16 mb3ic8ih8oc8kh3\n4,5,5,2,3\n")
    listed = ("--from", path, "--list")

    def rows(*words):
        done = run("conv", *words, "--json", "-", code=0)
        return [row["shape"] for row in json.loads(done.stdout)["network"]["rows"]]

    assert rows(*listed) == ["8,8,8,8,3,1,0", "8,8,8,8,3,1,0 --dtype fp16", "4,5,5,2,3,1,0"]
    assert rows(*listed, "--epilogue") == [
        "8,8,8,8,3,1,0 --bias", "8,8,8,8,3,1,0 --bias --dtype fp16", "4,5,5,2,3,1,0",
    ]  # fmt: skip
    assert rows(*listed, "--dtype", "fp32", "--batch", "2") == ["8,8,8,8,3,1,0", "4,5,5,2,3,1,0"]
    every = rows("--suite", "vgg16", "--list", "--relu", "--bias", "--dtype", "bf16")
    assert len(every) == 9 and all(row.endswith("--bias --relu --dtype bf16") for row in every)
