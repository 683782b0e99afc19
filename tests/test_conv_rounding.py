"""What Winograd errs by the model: as emulated, as measured, and what `best.fp32` makes of it."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from test_conv_tuned import MACHINE, MAPS, own_cache, ships, taken  # noqa: F401

from lenetgpu.dispatch import rounding
from lenetgpu.dispatch.algorithms import WINOGRAD, possible, why_not
from lenetgpu.dispatch.choose import choices, explain
from lenetgpu.dispatch.measured import counted, inexact
from lenetgpu.gpu.machines import H100, H200
from lenetgpu.lab.conv.given import taken as taken_shape
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.conv.tuned.product import TILES, Product

FEW = Conv(28, 28, 128, 128, 3, 3, 1, 1, **MAPS)
"""Whose channels are added in a row at many images, and in parts at one."""
PLAIN = next(tile for tile in TILES if tile.warps_k == 1 and tile.bk == 16)
PARTED = next(tile for tile in TILES if tile.warps_k == 4)

# Root mean squares over that of the outputs, of cuDNN in a row, winograd.f2, winograd.f4: measured
# on an NVIDIA H100 80GB HBM3 on 2026-11-26, beside one another on the same images.
MEASURED = {
    ("512,28,28,512,3,1,0", 1): (1.212e-6, 4.899e-7, 1.088e-6),
    ("512,15,15,512,3,1,1", 1): (1.180e-6, 3.568e-7, 1.077e-6),
    ("256,56,56,256,3,1,0", 1): (8.578e-7, 4.866e-7, 8.237e-7),
    ("128,56,56,128,3,1,0", 1): (6.086e-7, 2.627e-7, 6.443e-7),
    ("512,7,7,512,5,1,0", 1): (1.967e-6, 1.159e-6, 2.053e-6),
    ("256,56,56,256,5,1,0", 1): (1.432e-6, 1.664e-6, 2.586e-6),
    ("128,56,56,128,5,1,0", 1): (1.012e-6, 1.207e-6, 2.529e-6),
    ("3,224,224,64,3,1,1", 64): (9.394e-8, 1.110e-7, 3.655e-7),
    ("64,112,112,128,3,1,1", 64): (4.285e-7, 2.590e-7, 8.100e-7),
    ("512,7,7,512,3,1,1", 64): (1.129e-6, 6.772e-7, 1.411e-6),
    ("3,32,32,64,5,1,2", 64): (1.525e-7, 4.023e-7, 1.464e-6),
}


def fused(total, a, b):
    """An fma: rounded once."""
    return (total.astype(np.float64) + a.astype(np.float64) * b).astype(np.float32)


def emulated(outputs, taps, channels, parts, bound=0, tiles=100):
    """The error of random tiles, rounded to fp32 where the kernels do it; sums in `parts`."""
    rng = np.random.default_rng(7)
    to_output, from_filter, from_input = (
        np.array(matrix, float) for matrix in winograd.transforms(outputs, taps)
    )
    points = outputs + taps - 1
    x = rng.standard_normal((channels, tiles, points, points)).astype(np.float32)
    w = rng.standard_normal((channels, 4, taps, taps)).astype(np.float32)

    def both(matrix, data):
        for axes in ((-2, -1), (-1, -2)):
            moved = np.moveaxis(data, axes[0], -1)
            total = np.zeros((*moved.shape[:-1], len(matrix)), np.float32)
            for k in range(moved.shape[-1]):
                total = fused(total, moved[..., k, None], matrix[:, k].astype(np.float32))
            data = np.moveaxis(total, -1, axes[0])
        return data

    v = both(from_input, x)[:, None]
    u = (from_filter @ w.astype(float) @ from_filter.T).astype(np.float32)[:, :, None]
    whole = np.zeros((4, tiles, points, points), np.float32)
    each = channels // parts
    for part in range(parts):
        total, held = (np.zeros_like(whole) for _ in range(2))
        for row in range(part * each, (part + 1) * each):
            total = fused(total, u[row], v[row])
            if bound and (row + 1) % bound == 0:
                held, total = held + total, np.zeros_like(total)
        whole = whole + (total + held)
    found = both(to_output, whole).astype(float)
    exact = np.zeros(found.shape)
    for i in range(taps):
        for j in range(taps):
            part = x[:, :, i : i + outputs, j : j + outputs].astype(float)
            exact += np.einsum("ctyx,cm->mtyx", part, w[:, :, i, j].astype(float))
    return sqrt(((found - exact) ** 2).mean() / (exact**2).mean())


@pytest.mark.parametrize(
    ("outputs", "taps", "channels", "product"),
    [(2, 3, 128, Product(PLAIN, 1)), (4, 3, 128, Product(PARTED, 1)),
     (2, 5, 64, Product(PLAIN, 1)), (4, 3, 256, Product(PLAIN, 1, 32)),
     (4, 5, 16, Product(PLAIN, 1)), (2, 3, 256, Product(PARTED, 2))],
    ids=str,
)  # fmt: skip
def test_it_is_what_fp32_gives_when_emulated(outputs, taps, channels, product):
    size = 6 * outputs + taps - 1  # whole tiles
    problem = Conv(size, size, channels, 64, taps, taps, **MAPS)
    parts = product.split * product.tile.warps_k
    error = emulated(outputs, taps, channels, parts, product.sum_rows)
    assert rounding.of_winograd(product, problem, outputs) == pytest.approx(error, rel=0.08)


def test_a_row_of_sums_errs_as_emulated():
    rng, count = np.random.default_rng(3), 400
    a, b = rng.standard_normal((2, count, 3_000)).astype(np.float32)
    total, exact = np.zeros(3_000, np.float32), (a.astype(float) * b).sum(0)
    for k in range(count):
        total = fused(total, a[k], b[k])
    error = sqrt(((total - exact) ** 2).mean() / (exact**2).mean())
    row = rounding.in_a_row(Conv(9, 9, count, 1, 1, 1, **MAPS))
    assert row == pytest.approx(error, rel=0.05)
    assert row == pytest.approx(1.79e-8 * sqrt(count), rel=1e-3)


@pytest.mark.parametrize(("shape", "images"), MEASURED)
def test_it_is_what_was_measured(shape, images):
    problem = replace(taken_shape(shape).problem, **MAPS)
    row, *errors = MEASURED[shape, images]
    assert rounding.in_a_row(problem) == pytest.approx(row, rel=0.03)
    for (name, outputs), error in zip(WINOGRAD.items(), errors, strict=True):
        product = winograd.plan(problem, images, outputs, H100)
        found = rounding.of_winograd(product, problem, outputs)
        assert 0.95 * error < found < 1.12 * error
        assert possible(name, problem, H100, images=images) == (error < row)


def test_the_way_of_a_product_through_a_sum():
    assert rounding.longest(Product(PLAIN, 1), 128) == 128
    assert rounding.longest(Product(PLAIN, 1), 3) == 3  # a chunk's other rows are zeros
    assert rounding.longest(Product(PLAIN, 1, 32), 128) == 32 + 4
    assert rounding.longest(Product(PLAIN, 1, 32), 32) == 32
    assert rounding.longest(Product(PARTED, 1), 256) == 64 + 3
    assert rounding.longest(Product(PARTED, 2), 256) == 32 + 7
    assert rounding.longest(Product(PARTED, 2, 16), 256) == 16 + 2 + 7


def test_padding_and_cut_tiles_count():
    problem = Conv(7, 7, 64, 64, 3, 3, 1, 1, **MAPS)
    assert rounding.in_a_row(problem) < 0.95 * rounding.in_a_row(replace(problem, H=99, W=99))
    product = Product(PLAIN, 1)
    least, most = (  # the last output of a tile errs most, the inner ones least
        rounding.of_winograd(product, Conv(n + 2, n + 2, 64, 64, 3, 3, **MAPS), 4) for n in (3, 4)
    )
    assert least < 0.8 * most


def test_winograd_that_errs_more_is_refused_and_said():
    product = winograd.plan(FEW, 64, 4, H200)
    most = rounding.MARGIN * rounding.of_winograd(product, FEW, 4)
    row = rounding.in_a_row(FEW)
    said = f"by the model it errs up to {most:.2e} (root mean square), fp32 in a row {row:.2e}"
    assert most > 1.5 * row and why_not("winograd.f4", FEW, H200, images=64) == said
    assert why_not("winograd.f4", FEW, H200, measured=True, images=64) is None
    assert possible("winograd.f2", FEW, H200, images=64)
    machine = replace(H200, multiprocessors=131)
    rows = dict(explain(FEW, 64, machine))
    assert rows["winograd.f4"] == f"not taken, {said}" and "clocks" in rows["winograd.f2"]
    assert "winograd.f4" not in {choice.algorithm for choice in choices(FEW, 64, machine)}
    assert "winograd.f4" not in dict(explain(Conv(7, 7, 64, 64, 1, 1, **MAPS), 64, machine))


def test_an_error_within_the_margin_is_refused(monkeypatch):
    found = []
    for share in (0.97, 0.95):
        row = share * rounding.in_a_row(FEW)
        monkeypatch.setattr(rounding, "of_winograd", lambda *_, row=row: row)
        found.append(possible("winograd.f4", FEW, H200))
    assert found == [False, True]


DEEP = Conv(56, 56, 256, 256, 3, 3, **MAPS)
"""Winograd's sums are in parts at one image, in a row at two."""


def test_what_was_measured_of_as_many_images_alone_is_known_to_be_exact(ships):  # noqa: F811
    assert possible("winograd.f4", DEEP, MACHINE) and inexact(DEEP, 2, MACHINE) == ("winograd.f4",)
    ships(1, {"winograd.f4": 0.1, "texture.split": 0.2}, DEEP)
    assert taken(DEEP, 1, MACHINE)[0] == "winograd.f4"
    name, found = taken(DEEP, 2, MACHINE)
    assert (name, found.us) == ("texture.split", {"texture.split": 0.2})
    ships(2, {"winograd.f4": 0.1, "texture.split": 0.2}, DEEP)
    assert taken(DEEP, 2, MACHINE)[0] == "winograd.f4"
    assert dict(explain(DEEP, 2, MACHINE))["winograd.f4"].startswith("by the model it errs up to ")
    assert dict(explain(DEEP, 2, MACHINE))["winograd.f4"].endswith("; measured 0.10 us")


def test_what_a_twin_measured_is_planned_anew(ships):  # noqa: F811
    ships(2, {"winograd.f4": 0.1, "texture.split": 0.2}, DEEP, device="NVIDIA H200")
    assert taken(DEEP, 2, H200)[0] == "winograd.f4"
    assert taken(DEEP, 2, MACHINE)[0] == "texture.split"


def test_the_model_s_promise_is_of_what_errs_no_more(ships):  # noqa: F811
    machine = replace(MACHINE, compute_capability=75)
    ships(1, {"texture.split": 1e9}, DEEP)
    assert [taken(DEEP, n, machine)[0] for n in (1, 2)] == ["winograd.f4", "winograd.f2"]


def ran(name, us, rms=None, largest=1e-7):
    entry = {"name": name, "status": "right", "median_ms": us / 1e3, "relative_error": largest}
    return entry | ({} if rms is None else {"same_images": {"rms": rms}})


def test_without_errors_on_the_same_images_the_model_says_which_count():
    older = [ran("direct.tuned", 9), ran("winograd.f2", 3), ran("winograd.f4", 2)]
    for peer in (None, ran("peer", 9)):
        assert counted(older, peer)[1] == ()
        us, dropped = counted(older, peer, inexact(FEW, 64, H200))
        assert dropped == ("winograd.f4",) and us.keys() == {"direct.tuned", "winograd.f2"}
    newer = [ran("direct.tuned", 9, 2e-7), ran("winograd.f4", 2, 3e-7)]
    assert counted(newer, ran("peer", 9, 4e-7), ("winograd.f4",))[1] == ()
    assert counted(newer, None, ("winograd.f4",))[1] == ("winograd.f4",)
    assert inexact(FEW, 1, H200) == ("winograd.f4",) and inexact(DEEP, 1, H200) == ()


def test_the_table_that_ships_has_no_winograd_that_errs_more(script):
    """Without errors on the same images: of those the model's, for the GPU that was measured."""
    choices_ = script("conv_choices")
    case = {"shape": "128,28,28,128,3,1,1", "images": 64}
    older = [ran(name, us) | MAPS for name, us in (("direct.tuned", 9), ("winograd.f4", 2))]
    peer = ran(choices_.NAMES["cuda"], 9)
    us, dropped = choices_.told(case | {"candidates": [*older, peer]}, H200)
    assert (us, dropped) == ({"direct.tuned": 9.0}, ("winograd.f4",))
    newer = [e | {"same_images": {"rms": 1e-7}} for e in (*older, peer)]
    assert choices_.told(case | {"candidates": newer}, H200)[1] == ()
