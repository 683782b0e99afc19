"""Fifty pictures drawn by a script, classified with the shipped weights; the table in the docs."""

import re

import pytest
from conftest import ROOT

from lenetgpu import LeNet

LEAST = 47


@pytest.fixture(scope="module")
def net():
    with LeNet.load(device="cpu") as net:
        yield net


@pytest.fixture
def drawing(script):
    pytest.importorskip("matplotlib", reason="the fonts come with matplotlib")
    return script("draw_pictures")


@pytest.mark.slow
def test_nearly_all_drawn_digits_are_correct(drawing, net, tmp_path):
    drawn = drawing.pictures(drawing.SEED)
    assert len(drawn) == 50
    assert {sum(one.digit == digit for one in drawn) for digit in range(10)} == {5}
    for way, *_ in drawing.WAYS:
        assert sum(one.what.endswith(way) for one in drawn) == 5
    rows = drawing.classified(drawn, tmp_path, net)
    assert drawing.right(rows) >= LEAST, drawing.table(rows)
    dark = [row for row in rows if re.search("white|one bit|CMYK|pencil|palette", row["what"])]
    notes = [row["notes"] for row in dark if "EXIF" not in row["what"]]
    assert all("dark on light, inverted" in some for some in notes)
    page = (ROOT / "docs" / "pictures.md").read_text()
    part = page.split("<!-- begin:pictures -->")[1].split("<!-- end:pictures -->")[0]
    shown = [line.split(" | ")[:3] for line in part.splitlines() if line.startswith("| `")]
    made = [line.split(" | ")[:3] for line in drawing.table(rows).splitlines()[2:]]
    assert shown == made, "run scripts/draw_pictures.py"
    assert f"{drawing.right(rows)} of 50 are right (seed {drawing.SEED})" in part


def test_drawings_are_reproducible_by_seed(drawing):
    one, again, other = (drawing.pictures(seed, 3) for seed in (3, 3, 4))
    assert [picture.data for picture in one] == [picture.data for picture in again]
    assert [picture.data for picture in one] != [picture.data for picture in other]
