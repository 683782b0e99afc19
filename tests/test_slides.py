"""The kernel and tables of the Tegra X1 slides: tiling, results, and a run on a CPU."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_kernels_on_a_cpu import assert_right, folder, on_a_cpu, pytestmark  # noqa: F401

from lenetgpu.papers.shapes import SUITES
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv import texture
from lenetgpu.stages.conv.tegra import slides

LAYERS = {int(s.label.split()[1]): s for s in SUITES["overfeat"].shapes}
OVERFEAT_6 = LAYERS[6].problem


def printed(layer):
    """Return the slides' multiply-adds per byte for a layer, from the suite's label."""
    return LAYERS[layer].paper.split()[0]


def test_layer_6_is_tiled_as_on_the_slides():
    blocks = slides.Blocks(OVERFEAT_6)
    assert blocks.tiles == (3, 2) and blocks.regions == 1  # 15x15 by 5x8
    assert blocks.threads == 32 * 6
    assert blocks.grid(1) == 1024 // 32 and blocks.grid(3) == 96
    assert blocks.footprint(3, 2) == 17 * 18


def test_large_map_is_processed_in_regions():
    blocks = slides.Blocks(LAYERS[1].problem)  # 108x108 outputs, stride 2
    (y, x), footprint = blocks.tiles, blocks.footprint(*blocks.tiles)
    assert (y, x) == (1, 14) and footprint == (4 * 2 + 7) * (111 * 2 + 7)
    assert blocks.regions == 22  # 108 / 5 rows of tiles
    assert blocks.grid(1) == 3  # 96 maps


@pytest.mark.parametrize("layer", [2, 3, 4, 5, 6])
def test_math_per_byte_matches_the_slides(layer):
    assert f"{slides.math_per_byte(LAYERS[layer].problem):.1f}" == printed(layer)


def test_layer_1_differs_from_the_slides():
    """32.1 against 31.8: the slides' figure needs 1.1 % more bytes than their formula gives."""
    assert f"{slides.math_per_byte(LAYERS[1].problem):.1f}" == "32.1" != printed(1) == "31.8"


def test_unsupported_shapes_are_refused():
    variant = find("conv", "texture.slides", "cuda")
    assert "footprint" in variant.refusal(Conv(100, 100, 1, 1, 90, 90))
    assert "up to 16384" in variant.refusal(Conv(4, 4, 20_000, 1, 1, 1))


class Emulated(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("width", ctypes.c_int), ("height", ctypes.c_int),
                ("depth", ctypes.c_int)]  # fmt: skip


CASES = {
    "padded": Conv(7, 9, 3, 5, 3, 3, pad=1),
    "stride": Conv(11, 13, 2, 33, 3, 2, stride=2, pad=1),
    "valid": Conv(8, 20, 2, 3, 4, 5),
    "regions": Conv(23, 21, 1, 2, 2, 2),
}


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_outputs_are_correct(name, n, on_a_cpu, monkeypatch, rng):  # noqa: F811
    if name == "regions":
        monkeypatch.setattr(slides, "_MOST_TILES", 2)
    problem = replace(CASES[name], reads="NCHW", writes="NCHW")
    assert (slides.Blocks(problem).regions > 1) == (name == "regions")
    pixels = Emulated(None, problem.W, problem.H, n * problem.C)

    def no_texture(width, height, depth):
        assert (width, height, depth) == (problem.W, problem.H, n * problem.C)
        return SimpleNamespace(texture=ctypes.addressof(pixels), surface=None)

    def copied(kernel, grid, block, args):
        pixels.data = args[1].ctypes.data

    monkeypatch.setattr(texture, "Texture3D", no_texture)
    monkeypatch.setattr(texture, "launch", copied)
    assert_right(find("conv", "texture.slides", "cuda"), problem, n, rng)
