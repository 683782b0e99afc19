"""Which algorithm for which shape: the picture of winners, and the tables beside it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.lab.conv.given import taken

MAPS = {"reads": "NCHW", "writes": "NCHW"}
GPU = {"kind": "cuda", "name": "Some GPU"}


@pytest.fixture
def winners(script):
    return script("winners")


def entry(name, us, **more):
    return {"name": name, "status": "right", "median_ms": us / 1e3, "speedup": 2.0} | MAPS | more


def case(shape, images, times, **more):
    found = [entry(name, us) for name, us in times.items()]
    return {"label": shape, "shape": shape, "images": images, "candidates": found} | more


def document(*cases):
    return {"device": GPU, "date": "2026-11-22", "cases": [*cases]}


SLOW = {"direct.tuned": 9.0, "winograd.f2": 6.0, "texture.split": 3.0}
PLANTED = document(
    case("512,56,56,512,3,1,1", 64, SLOW), case("16,7,7,16,3,1,1", 1, {"texture.split": 1.0})
)


def cells_of(winners, found):
    return {(name, c.images, c.channels): c for name, pane in winners.panes(found).items()
            for c in pane}  # fmt: skip


def test_the_picture_that_ships_shows_what_is_known(winners):
    image = pytest.importorskip("PIL.Image")
    with image.open(winners.PICTURE) as picture:
        held = picture.info["Comment"]
    assert held == winners.digest(winners.measured_here()), "run scripts/winners.py"


def test_a_cell_is_measured_where_it_was_and_else_the_model_s(winners):
    planted, plain = cells_of(winners, PLANTED), cells_of(winners, None)
    at = ("56x56", 64, 512)
    assert (planted[at].winner, planted[at].margin) == ("texture.split", 2.0)
    assert planted[at].measured and plain[at].winner == "tensor.wgmma_fp16x3"
    assert {key for key in planted if planted[key] != plain[key]} == {at}
    assert not any(cell.measured for cell in plain.values())  # one alone is no choice
    assert len(plain) == len(winners.MAPS) * len(winners.CHANNELS) * len(winners.IMAGES)
    one = winners.choices(winners.problem_of(7, 16), 1, winners.H200)
    cell = plain["7x7", 1, 16]
    assert cell.winner == one[0].algorithm
    assert cell.margin == one[1].clocks / one[0].clocks


def test_rings_are_what_the_table_has_without_padding(winners):
    rings = {key: c.ring for key, c in cells_of(winners, None).items() if c.ring is not None}
    assert rings["28x28", 1, 256] == "winograd.f4" and rings["56x56", 1, 128] == "winograd.f2"
    assert {images for _, images, _ in rings} == {1} and len(rings) == 8


def test_the_title_says_what_was_not_measured(winners):
    def title(found):
        return winners.title(found, winners.panes(found))

    assert title(None) == "by the model, for an H200: NOT MEASURED but for the rings"
    assert title(document()) == title(None)
    said = "Some GPU, 2026-11-22, 1 of 240 cells measured; pale ones by the model, not measured"
    assert title(PLANTED) == said
    every = document(*(case(f"{c},{n},{n},{c},3,1,1", images, SLOW) for n in winners.MAPS
                       for c in winners.CHANNELS for images in winners.IMAGES))  # fmt: skip
    assert title(every) == "Some GPU, 2026-11-22, 240 of 240 cells measured"
    assert len({winners.digest(found) for found in (None, PLANTED, every)}) == 3


def pixels(image, path, colour, alpha=1.0):
    levels = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    wanted = [255 - alpha * (255 - level) for level in levels]
    with image.open(path) as picture:
        counts = picture.convert("RGB").getcolors(1 << 24)
    return sum(
        count
        for count, found in counts
        if all(abs(a - b) < 2 for a, b in zip(found, wanted, strict=True))
    )


def test_the_picture_is_pale_where_nothing_was_measured(winners, tmp_path):
    pytest.importorskip("vl_convert")
    image = pytest.importorskip("PIL.Image")
    paths = {}
    for name, found in (("none", None), ("one", PLANTED)):
        paths[name] = tmp_path / f"{name}.png"
        winners.draw(paths[name], found)
        with image.open(paths[name]) as picture:
            assert picture.info["Comment"] == winners.digest(found)
    pink, blue = winners.COLOURS["texture.split"], winners.COLOURS["direct.tuned"]
    a_cell, a_key = 1_000, 700
    assert pixels(image, paths["none"], pink) == 0
    assert pixels(image, paths["one"], pink) > a_cell
    for path in paths.values():
        assert 0 < pixels(image, path, blue) < a_key
        assert pixels(image, path, blue, winners._PALE) > 50 * a_cell


def test_cells_that_take_too_long_are_not_measured(winners):
    cells = [*winners.grid()]
    assert 200 < len(cells) < 240 and len({*cells}) == len(cells)
    assert max(p.H * p.W * p.C * n for p, n in cells) <= winners.MOST_VALUES
    assert (winners.problem_of(56, 64), 64) in cells


def test_the_lines_are_the_cells(winners):
    done = CliRunner().invoke(winners.main, ["--lines"])
    shapes = [taken(line) for line in done.output.splitlines()]
    assert [(replace(s.problem, **MAPS), s.batch) for s in shapes] == [*winners.grid()]


def test_the_kernels_of_a_measured_picture_are_known(script):
    kernels = script("measured").kernels_of(PLANTED | {"command": "conv"})
    names = {name.rpartition("/")[2] for name in kernels}
    assert names == {"direct.cu", "winograd.cu", "texture.cu"}


def test_the_page_shows_the_picture():
    assert "](winners.png)" in (ROOT / "docs" / "convolutions.md").read_text()
