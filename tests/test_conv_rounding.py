"""Predicted rounding error of Winograd, against emulation, measurements and the tolerance."""

import csv
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from conftest import ROOT

from lenetgpu.dispatch import rounding
from lenetgpu.dispatch.algorithms import WINOGRAD, possible
from lenetgpu.gpu.machines import H100
from lenetgpu.lab.conv.request import shape_of
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.conv.tuned.product import TILES, Product

MAPS = {"reads": "NCHW", "writes": "NCHW"}
PLAIN = next(tile for tile in TILES if tile.warps_k == 1 and tile.bk == 16)
PARTED = next(tile for tile in TILES if tile.warps_k == 4)

# Rms errors over the rms of the outputs, of cuDNN (sequential sums), winograd.f2 and winograd.f4,
# measured on the same images on an NVIDIA H100 80GB HBM3 on 2026-11-26.
with (ROOT / "tests" / "winograd-errors.csv").open() as file:
    MEASURED = [*csv.reader(file)][1:]


def fused(total, a, b):
    """Return an fma, which is rounded once."""
    return (total.astype(np.float64) + a.astype(np.float64) * b).astype(np.float32)


def emulated(outputs, side, channels, parts, bound=0, tiles=100, maps=4, seed=7):
    """Emulate Winograd on random tiles, rounding to fp32 where kernels do.

    Return its outputs (maps, tiles, y, x) and the exact ones.
    """
    rng = np.random.default_rng(seed)
    to_output, from_filter, from_input = (
        np.array(matrix, float) for matrix in winograd.transforms(outputs, side)
    )
    points = outputs + side - 1
    x = rng.standard_normal((channels, tiles, points, points)).astype(np.float32)
    w = rng.standard_normal((channels, maps, side, side)).astype(np.float32)

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
    whole = np.zeros((maps, tiles, points, points), np.float32)
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
    for i in range(side):
        for j in range(side):
            part = x[:, :, i : i + outputs, j : j + outputs].astype(float)
            exact += np.einsum("ctyx,cm->mtyx", part, w[:, :, i, j].astype(float))
    return found, exact


def relative(found, exact):
    return sqrt(((found - exact) ** 2).mean() / (exact**2).mean())


@pytest.mark.parametrize(
    ("outputs", "side", "channels", "product"),
    [(2, 3, 128, Product(PLAIN, 1)), (4, 3, 128, Product(PARTED, 1)),
     (2, 5, 64, Product(PLAIN, 1)), (4, 3, 256, Product(PLAIN, 1, 32)),
     (4, 5, 16, Product(PLAIN, 1)), (2, 3, 256, Product(PARTED, 2))],
    ids=str,
)  # fmt: skip
def test_predicted_error_matches_fp32_emulation(outputs, side, channels, product):
    size = 6 * outputs + side - 1  # whole tiles
    problem = Conv(size, size, channels, 64, side, side, **MAPS)
    parts = product.split * product.tile.warps_k
    error = relative(*emulated(outputs, side, channels, parts, product.sum_rows))
    assert rounding.of_winograd(product, problem, outputs) == pytest.approx(error, rel=0.08)


@pytest.mark.parametrize(("shape", "images", "row", "f2", "f4"), MEASURED)
def test_predicted_error_matches_measurements(shape, images, row, f2, f4):
    problem = replace(shape_of(shape).problem, **MAPS)
    images, row, *errors = int(images), *map(float, (row, f2, f4))
    assert rounding.sequential(problem) == pytest.approx(row, rel=0.03)
    for (name, outputs), error in zip(WINOGRAD.items(), errors, strict=True):
        if (problem.R, outputs) == (5, 4):
            assert not possible(name, problem, H100, images=images)
            continue  # measured with other transform points, and sums of 32
        product = winograd.plan(problem, images, outputs, H100)
        found = rounding.of_winograd(product, problem, outputs)
        assert 0.95 * error < found < 1.12 * error
        assert possible(name, problem, H100, images=images) == (error < row)


def worst(channels, draws, seed):
    """Return the largest error of images with the fewest supported outputs.

    These have one tile, or 16 tiles with one channel.
    """
    bound = winograd.longest(4, Conv(8, 8, channels, 32, 5, 5))
    found, exact = emulated(4, 5, channels, 1, bound, tiles=draws, maps=32, seed=seed)
    errors, largest = (
        one.max((0, 2, 3)).reshape(-1, 16 if channels == 1 else 1).max(1)
        for one in (abs(found - exact), abs(exact))
    )
    return (errors / largest).max()


def test_f4_5x5_stays_well_within_tolerance():
    """Sums of 32 products had an error of 1.004e-5 in one draw on a GPU."""
    assert max(worst(channels, 320, 11) for channels in (1, 16, 64)) < 8e-6
    refusal = find("conv", "winograd.f4", "cuda").refusal
    few = "supports 5x5 filters with at least {} outputs an image, not {}"
    for problem, least in ((Conv(8, 8, 2, 32, 5, 5), 512), (Conv(20, 20, 1, 32, 5, 5), 8192)):
        problem = replace(problem, **MAPS)
        assert refusal(problem) is None and refusal(replace(problem, R=3, S=3, M=1)) is None
        fewer = replace(problem, M=31)
        assert refusal(fewer) == few.format(least, fewer.OH * fewer.OW * 31)
        assert find("conv", "winograd.f2", "cuda").refusal(fewer) is None
