"""Strides, padding of each side, dilation and groups: computed, refused, found wrong."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.check.judge import check_variant, judge
from lenetgpu.check.truth import random_input
from lenetgpu.cli import main
from lenetgpu.cpu import memory
from lenetgpu.files.convs.described import as_line
from lenetgpu.lab.conv import compared
from lenetgpu.lab.conv.request import ConvRequest
from lenetgpu.measure import conv_bench, torch_peer
from lenetgpu.measure.conv_bench import Case, ConvBench
from lenetgpu.problems import Conv, ConvPool
from lenetgpu.stages import find, variants
from lenetgpu.stages.conv import unrolled
from lenetgpu.stages.conv.reference import reference
from lenetgpu.stages.mounted import Mounted
from lenetgpu.stages.registry import cpu, make_variant
from lenetgpu.stages.wants import WANTS

TAKING = [v for v in variants("conv", "cpu") if v.takes]
ASKS = {
    "strides": (Conv(9, 8, 4, 6, 3, 3, strides=(2, 1)), "one stride, not 2x1"),
    "pads": (Conv(9, 8, 4, 6, 3, 3, pads=(1, 0, 2, 1)), "alike on every side, not 1,0,2,1"),
    "dilation": (Conv(9, 8, 4, 6, 3, 3, dilation=(1, 2)), "no dilation, not 1x2"),
    "groups": (Conv(9, 8, 4, 6, 3, 3, groups=2), "one group, not 2"),
    "bias": (Conv(9, 8, 4, 6, 3, 3, bias=True), "sums as they are, not with a bias"),
    "relu": (Conv(9, 8, 4, 6, 3, 3, relu=True), "sums as they are, not through ReLU"),
    "fp16": (Conv(9, 8, 4, 6, 3, 3, dtype="fp16"), "fp32 in and out, not fp16"),
    "bf16": (Conv(9, 8, 4, 6, 3, 3, dtype="bf16"), "fp32 in and out, not bf16"),
}
SHAPES = ("strides", "pads", "dilation", "groups")
TOGETHER = Conv(13, 12, 6, 9, 3, 2, strides=(2, 1), pads=(1, 0, 2, 1), dilation=(1, 3), groups=3)


def drawn(rng, wanted=SHAPES):
    """A small convolution's numbers as they may be given, of which at least one output comes."""
    while True:
        groups = int(rng.integers(1, 5)) if "groups" in wanted else 1
        numbers = {
            "H": rng.integers(1, 12), "W": rng.integers(1, 12), "C": groups * rng.integers(1, 4),
            "M": groups * rng.integers(1, 4), "R": rng.integers(1, 5), "S": rng.integers(1, 5),
            "strides": rng.integers(1, 4, 2) if "strides" in wanted else (1, 1),
            "pads": rng.integers(0, 4, 4) if "pads" in wanted else (0, 0, 0, 0),
            "dilation": rng.integers(1, 4, 2) if "dilation" in wanted else (1, 1),
            "groups": groups,
        }  # fmt: skip
        found = {
            name: tuple(map(int, value)) if np.ndim(value) else int(value)
            for name, value in numbers.items()
        }
        if 0 not in counted(**found):
            return found


def counted(H, W, R, S, strides, pads, dilation, **rest):
    """Outputs of rows and columns: places of the first tap from which the last one is inside."""
    above, left, below, right = pads
    sides = ((H + above + below, R), (W + left + right, S))
    return tuple(
        len(range(0, size - (taps - 1) * far, by))
        for (size, taps), by, far in zip(sides, strides, dilation, strict=True)
    )


def by_hand(x, w, strides, pads, dilation, groups, **sizes):
    """The definition, a product at a time; the image ends where it ends."""
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


def test_the_truth_is_what_a_loop_by_hand_makes_of_200_shapes(rng):
    for number in range(200):
        numbers = drawn(rng, SHAPES if number % 2 else (SHAPES[number // 2 % 4],))
        problem = Conv(**numbers)
        x, w = random_input("conv", problem, 2, rng)
        expected = by_hand(x.astype("d"), w.astype("d"), **numbers)
        assert expected.shape == (2, *problem.out_shape), numbers
        assert np.allclose(reference(x, w, problem), expected, rtol=1e-12, atol=1e-12), numbers
        products = expected.size * problem.R * problem.S * problem.C // problem.groups
        assert problem.flop(2) == 2 * problem.flop(1) == 2 * products
        values = problem.R * problem.S * problem.C // problem.groups * problem.M
        moved = x[0].size + expected[0].size
        assert problem.bytes(3) == 4 * (3 * moved + values) and w.size == values


@pytest.mark.parametrize("variant", TAKING, ids=lambda v: v.full_name)
def test_variants_that_take_a_want_are_right_on_drawn_shapes(variant, rng):
    taken = tuple(name for name in SHAPES if name in variant.takes)
    for number in range(100):
        wanted = taken if number % 2 else (taken[number // 2 % len(taken)],)
        problem = Conv(**drawn(rng, wanted))
        x, w = random_input("conv", problem, 3, rng)
        verdict = check_variant(variant, problem, x, w, reference(x, w, problem))
        assert verdict.passed, f"{verdict} for {problem}"


@pytest.mark.parametrize("variant", TAKING, ids=lambda v: v.full_name)
def test_a_second_run_on_fewer_images_is_right_in_chunks_too(variant, rng, monkeypatch):
    monkeypatch.setattr(unrolled, "_CPU_WORKSPACE_BYTES", 20_000)
    groups = 3 if "groups" in variant.takes else 1
    for problem in (replace(TOGETHER, groups=groups), replace(TOGETHER, groups=2 * groups, M=12)):
        if variant.refusal(problem) is not None:
            continue
        x, w = random_input("conv", problem, 7, rng)
        mounted = Mounted(variant, problem, [w], 7)
        for images in (x, x[4:2:-1].copy()):
            y = mounted.output(len(images))
            mounted.run(images, y)
            assert judge(mounted.found(y), reference(images, w, problem), "fp32").passed, problem


def computed(variant, problem, x, w):
    """What a variant makes of it; of None, the reference."""
    if variant is None:
        return reference(x, w, problem)
    mounted = Mounted(variant, problem, [w], len(x))
    y = mounted.output(len(x))
    mounted.run(x, y)
    return mounted.found(y)


def same(found, expected):
    """Of values about 1; what sees zeros alone is zero, or an FFT's rounding."""
    return np.allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("variant", [None, *TAKING], ids=lambda v: v.full_name if v else "truth")
def test_what_they_mean_in_plain_convolutions(variant, rng):
    """Groups: a filter with zeros for the others. Dilation: zeros between. Pads: zeros around."""
    for _ in range(10):
        problem = Conv(**drawn(rng, ("groups",)))
        x, w = random_input("conv", problem, 2, rng)
        plain, (channels, maps) = replace(problem, groups=1), problem.each
        if variant is None or "groups" in variant.takes:
            dense = np.zeros(plain.weight_shape, np.float32)
            for g in range(problem.groups):
                of = slice(g * maps, g * maps + maps)
                dense[:, :, g * channels : (g + 1) * channels, of] = w[..., of]
            assert same(computed(variant, problem, x, w), computed(variant, plain, x, dense))

        problem = Conv(**drawn(rng, ("dilation",)))
        x, w = random_input("conv", problem, 2, rng)
        (far, wide), (rows, columns) = problem.dilation, problem.span
        spread = np.zeros((rows, columns, *w.shape[2:]), np.float32)
        spread[::far, ::wide] = w
        plain = replace(problem, R=rows, S=columns, dilation=(1, 1))
        assert same(computed(variant, problem, x, w), computed(variant, plain, x, spread))

        numbers = drawn(rng, ("pads", "strides"))
        problem, (above, left, below, right) = Conv(**numbers), numbers["pads"]
        by = numbers["strides"]
        x, w = random_input("conv", problem, 2, rng)
        held = np.pad(x, ((0, 0), (above, below), (left, right), (0, 0)))
        _, rows, columns, _ = held.shape
        plain = replace(problem, H=rows, W=columns, strides=by, pad=0, pads=None)
        assert same(computed(variant, problem, x, w), computed(variant, plain, held, w))


def test_forms_that_compute_the_same_are_one():
    plain = Conv(9, 8, 4, 6, 3, 3, 2, 1)
    forms = [
        Conv(9, 8, 4, 6, 3, 3, strides=(2, 2), pads=(1, 1, 1, 1), dilation=(1, 1), groups=1),
        Conv(9, 8, 4, 6, 3, 3, 7, 7, strides=(2, 2), pads=(1, 1, 1, 0)),
        replace(plain, H=9),
    ]
    assert {*forms} == {plain} and not plain.wants
    assert Conv(9, 8, 1, 1, 1, 3, dilation=(4, 2)) == Conv(9, 8, 1, 1, 1, 3, dilation=(1, 2))
    assert Conv(9, 8, 1, 1, 1, 1, dilation=(4, 2)) == Conv(9, 8, 1, 1, 1, 1)
    assert Conv(9, 8, 4, 6, 3, 3, 2, pads=(0, 0, 0, 1)).wants == {"pads"}
    assert Conv(9, 9, 4, 6, 3, 3, 2, pads=(0, 0, 0, 1)) == Conv(9, 9, 4, 6, 3, 3, 2)
    least, more = (Conv(9, 8, 4, 6, 3, 3, 2, pads=(0, 0, 0, right)) for right in (1, 2))
    assert least == more and least.OW == 4
    assert Conv(9, 8, 4, 6, 3, 3, pads=(0, 0, 1, 1)) != Conv(9, 8, 4, 6, 3, 3)
    assert {name: problem.wants for name, (problem, _) in ASKS.items()} == {n: {n} for n in WANTS}
    assert TOGETHER.wants == {*SHAPES} == ConvPool(TOGETHER).wants
    every = replace(TOGETHER, bias=True, relu=True, dtype="bf16")
    assert every.wants == {*WANTS} - {"fp16"} and every != TOGETHER


def test_a_side_of_one_output_has_the_others_stride_where_it_stays_one(rng):
    line = Conv(1, 20, 4, 4, 1, 3, strides=(1, 2))
    assert line == Conv(1, 20, 4, 4, 1, 3, 2) and not line.wants and line.out_shape == (1, 9, 4)
    assert Conv(5, 3, 2, 2, 3, 3, strides=(2, 1)) == Conv(5, 3, 2, 2, 3, 3, 2)
    both = {Conv(3, 3, 1, 1, 3, 3, strides=strides) for strides in ((1, 2), (2, 1), (2, 2))}
    assert both == {Conv(3, 3, 1, 1, 3, 3, 2)}
    less = Conv(6, 3, 2, 2, 3, 4, strides=(1, 2), pads=(1, 1, 1, 1))
    assert less == Conv(6, 3, 2, 2, 3, 4, 1, pads=(1, 1, 1, 0)) and less.out_shape == (6, 1, 2)
    held = Conv(9, 9, 1, 1, 3, 3, strides=(9, 1))
    assert held.wants == {"strides"} and held.out_shape == (1, 7, 1)
    for _ in range(300):
        numbers = drawn(rng)
        fits, problem = counted(**numbers), Conv(**numbers)
        again = replace(problem)
        assert (problem.OH, problem.OW) == (again.OH, again.OW) == fits and again == problem
        for given, taken, count in zip(numbers["strides"], problem.step, fits, strict=True):
            assert given == taken or count == 1


@pytest.mark.parametrize(
    "variant", variants("conv"), ids=lambda v: f"{v.needs.device}-{v.full_name}"
)
def test_a_variant_refuses_what_it_does_not_name(variant):
    layouts = [(reads, writes) for reads in variant.reads for writes in variant.writes]
    for name, (problem, words) in ASKS.items():
        found = [variant.refusal(replace(problem, reads=r, writes=w)) for r, w in layouts]
        if name in variant.takes:
            assert None in found, (name, found)
        else:
            assert all(why and why.startswith("supports") and words in why for why in found), name


@pytest.mark.parametrize("variant", variants("conv_pool"), ids=lambda v: v.full_name)
def test_spans_refuse_too(variant):
    for name, (problem, words) in ASKS.items():
        assert name not in variant.takes
        assert words in (variant.refusal(ConvPool(problem)) or "")


def test_one_kernel_and_the_truths_loops_take_everything():
    everything = {v.full_name for v in variants("conv") if v.takes == {*WANTS}}
    assert everything == {"serial.loops", "unrolled.blas", "direct.grouped"}
    ends = {*WANTS} - {"strides", "pads", "dilation", "groups"}
    taking = {v.full_name for v in variants("conv", "cuda") if v.takes == ends}
    halves = {f"tensor.{name}" for name in ("fp16x3", "fp16", "wgmma_fp16x3", "wgmma_fp16")}
    assert taking == {*halves, "best.fp32"}


def test_wants_that_are_none_are_refused_where_a_variant_is_made():
    with pytest.raises(ValueError, match=r"takes of strides, .*, bf16, found depth, group$"):
        make_variant(print, kind="conv", family="own", needs=cpu(), takes="depth strides group")


def rows_of(monkeypatch, *words):
    """`conv` of one line on a CPU: (exit code, candidates by name, what it says)."""
    monkeypatch.setattr(compared, "peer_version", lambda device: None)
    words = ["conv", "--device", "cpu", "--rounds", "5", "--watch", "0", *words, "--json", "-"]
    done = CliRunner().invoke(main, [*map(str, words)])
    (case,) = json.loads(done.stdout)["cases"]
    return done.exit_code, {row["name"]: row for row in case["candidates"]}, done.stderr


WRONG = ("first_group", "swapped_pads", "dilated_rows", "one_stride")
LINE = as_line(TOGETHER)
GUEST = """
from lenetgpu.stages.conv.reference import reference
from lenetgpu.stages.registry import cpu, variant


@variant(kind="conv", family="own", reads="NHWC", writes="NHWC", needs=cpu(){takes})
def guest(x, w, y, problem):
    y[...] = reference(x, w, problem)
"""


@pytest.mark.parametrize(
    ("takes", "status", "note"),
    [
        ("", "refused", "supports rows and columns of one stride, not 2x1"),
        (', takes="strides pads"', "refused", "supports no dilation, not 1x3"),
        (', takes="strides pads dilation groups"', "right", None),
    ],
)
def test_a_guest_refuses_unless_it_says_that_it_knows(tmp_path, monkeypatch, takes, status, note):
    path = tmp_path / "own.py"
    path.write_text(GUEST.format(takes=takes))
    only = ("--only", "tiled,unrolled")
    code, rows, said = rows_of(monkeypatch, LINE, "--with", path, *only)
    assert (code, rows["own.guest"]["status"]) == (0, status)
    assert rows["tiled.blocked"]["status"] == "refused"  # who is the baseline where it can be
    assert rows["unrolled.blas"]["verdict"] == "reference"
    assert rows["own.guest"].get("note") == (note or "")
    if note:
        assert f"own.guest: refused, {note}" in said


def test_what_gets_one_of_them_wrong_is_found(monkeypatch):
    beside = ROOT / "tests" / "broken" / "shapes.py"
    code, rows, _ = rows_of(monkeypatch, LINE, "--with", beside, "--only", "serial")
    assert code == 1
    assert {name: row["status"] for name, row in rows.items()} == {
        "serial.loops": "right", "twin.plain_loops": "right",
        **{f"shapes.{name}": "wrong" for name in WRONG},
    }  # fmt: skip
    assert "median_ms" not in rows["shapes.first_group"]


def test_only_those_that_take_it_are_planned_for_a_gpu_elsewhere(monkeypatch):
    monkeypatch.setattr(compared, "peer_version", lambda device: None)
    asked = ConvRequest(LINE, device="cpu", only="direct,best", explain=True, machine="h200")
    (case,) = compared.run_conv(asked, lambda *_: None).document["cases"]
    about = [section["about"] for section in case["explanation"]]
    refused = ["direct.basic, planned for H200", "best.fp32, planned for H200"]
    assert about == ["the shape", "direct.grouped, planned for H200", refused[1]]
    why = "supports rows and columns of one stride, not 2x1"
    assert case["explanation"][-1]["rows"] == [["refused", why]]
    asked = replace(asked, only="direct.basic,direct.grouped,best.fp32")
    (case,) = compared.run_conv(asked, lambda *_: None).document["cases"]
    assert {section["about"] for section in case["explanation"]} == {*about, *refused}


@pytest.mark.parametrize("name", ["unrolled.blas", "tiled.blocked", "fft.pocketfft"])
def test_what_a_variant_makes_room_for_is_asked_of_the_free_memory_first(name, monkeypatch):
    variant, problem = find("conv", name, "cpu"), Conv(64, 64, 4, 4, 3, 3, dilation=(1, 31))
    w = np.ones(problem.weight_shape, np.float32)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 30)
    Mounted(variant, problem, [w], 1)
    monkeypatch.setattr(memory, "free_bytes", lambda: 1 << 12)
    with pytest.raises(MemoryError, match="4,096 bytes free of the"):
        Mounted(variant, problem, [w], 1)


def test_the_rate_on_a_few_rows_is_asked_of_any_shape(rng, monkeypatch):
    """Of dilated filters, and of those that reach over the image into its padding."""
    monkeypatch.setattr(conv_bench, "_LONG_FLOP", 1)
    variant = find("conv", "unrolled.blas", "cpu")
    for numbers in [drawn(rng) for _ in range(10)]:
        case = Case(Conv(**numbers), 1, gpu=False)
        assert ConvBench(variant, case.problem, case, 0.01).check().verdict.passed


class Functional:
    """`torch.nn.functional` of arrays (N, C, H, W): as its documentation has it."""

    @staticmethod
    def pad(x, sides):
        left, right, above, below = sides
        return np.pad(x, ((0, 0), (0, 0), (above, below), (left, right)))

    @staticmethod
    def conv2d(x, w, bias, stride, padding, dilation, groups):
        assert bias is None
        assert w.shape[1] * groups == x.shape[1]
        sides = (*padding, *padding)
        images, filters = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
        sizes = dict(zip("HWRS", (*x.shape[2:], *w.shape[2:]), strict=True))
        return by_hand(images, filters, stride, sides, dilation, groups, **sizes).transpose(
            0, 3, 1, 2
        )


def test_the_peer_is_asked_for_the_same_convolution(rng):
    """A stand-in for PyTorch, which need not be here; padding is its own where it can be."""
    torch = SimpleNamespace(no_grad=nullcontext, nn=SimpleNamespace(functional=Functional))
    problems = [*(ASKS[name][0] for name in SHAPES), TOGETHER, Conv(9, 8, 4, 6, 3, 3, 2, 1)]
    problems += [Conv(**drawn(rng)) for _ in range(10)]
    for problem in problems:
        x, w = random_input("conv", problem, 2, rng)
        bench = object.__new__(torch_peer.TorchBench)
        bench.problem, bench._torch = problem, torch
        bench._x, bench._w, bench._bias = x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), None
        bench._call()
        assert np.allclose(bench._y.transpose(0, 2, 3, 1), reference(x, w, problem), atol=1e-4)
        above, left, below, right = problem.around
        assert bench._uneven == ((above, left) != (below, right))


@pytest.mark.peers
@pytest.mark.parametrize("problem", [*(p for p, _ in ASKS.values()), TOGETHER])
def test_pytorch_computes_it_too(problem):
    case = Case(problem, 2, gpu=False)
    bench = torch_peer.TorchBench(problem, case, 0.05)
    assert bench.check().verdict.passed
    uneven = problem.pads is not None
    assert ("a copy padded in each call" in bench.note) == uneven
