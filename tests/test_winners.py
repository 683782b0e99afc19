"""Fastest algorithm per shape: the picture of winners, and the tables next to it."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from lenetgpu.lab.conv.request import shape_of

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


def test_shipped_picture_is_current(winners):
    image = pytest.importorskip("PIL.Image")
    with image.open(winners.PICTURE) as picture:
        held = picture.info["Comment"]
    assert held == winners.digest(winners.measured_here()), "run scripts/winners.py"


def test_cells_are_measured_or_else_predicted(winners):
    planted, plain = cells_of(winners, PLANTED), cells_of(winners, None)
    at = ("56x56", 64, 512)
    assert (planted[at].winner, planted[at].margin) == ("texture.split", 2.0)
    assert planted[at].measured and plain[at].winner == "tensor.wgmma_fp16x3"
    assert {key for key in planted if planted[key] != plain[key]} == {at}
    assert not any(cell.measured for cell in plain.values())  # one candidate is no comparison
    assert len(plain) == len(winners.MAPS) * len(winners.CHANNELS) * len(winners.IMAGES)
    one = winners.choices(winners.problem_of(7, 16), 1, winners.H200)
    cell = plain["7x7", 1, 16]
    assert cell.winner == one[0].algorithm
    assert cell.margin == one[1].cycles / one[0].cycles


def test_rings_match_the_table_without_padding(winners):
    rings = {key: c.ring for key, c in cells_of(winners, None).items() if c.ring is not None}
    assert rings["28x28", 1, 256] == "winograd.f4" and rings["56x56", 1, 128] == "winograd.f2"
    assert {images for _, images, _ in rings} == {1} and len(rings) == 8


def test_title_states_what_was_not_measured(winners):
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


def test_picture_is_drawn_with_its_digest(winners, tmp_path):
    pytest.importorskip("vl_convert")
    image = pytest.importorskip("PIL.Image")
    winners.draw(tmp_path / "w.png", PLANTED)
    with image.open(tmp_path / "w.png") as picture:
        assert picture.info["Comment"] == winners.digest(PLANTED)


def test_printed_lines_are_the_cells(winners):
    done = CliRunner().invoke(winners.main, ["--lines"])
    shapes = [shape_of(line) for line in done.output.splitlines()]
    assert [(replace(s.problem, **MAPS), s.batch) for s in shapes] == [*winners.grid()]


def test_kernels_of_a_measured_picture_are_known(script):
    kernels = script("measured").kernels_of(PLANTED | {"command": "conv"})
    names = {name.rpartition("/")[2] for name in kernels}
    assert names == {"direct.cu", "winograd.cu", "texture.cu"}
