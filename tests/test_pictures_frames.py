"""What is drawn round or beside a digit is left out, and said; what is no digit is refused."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageDraw

from lenetgpu.errors import LenetError
from lenetgpu.pictures.as_mnist import as_mnist

TURNED = "dark on light, turned"
STROKES = [(160, 140), (240, 140), (190, 270)]


def page(draw, at=STROKES):
    """(400, 400): a 7, and what `draw` adds."""
    image = Image.new("L", (400, 400), 235)
    pen = ImageDraw.Draw(image)
    pen.line(at, fill=20, width=14, joint="curve")
    draw(pen)
    return np.asarray(image, np.float32)


SEVEN = as_mnist(page(lambda pen: None)).pixels


def cells(pen):
    for left in (10, 140, 270):
        pen.rectangle([left, 110, left + 120, 300], outline=40, width=4)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda pen: pen.rectangle([50, 50, 350, 350], outline=40, width=4), "a frame"),
        (lambda pen: pen.ellipse([80, 80, 320, 320], outline=40, width=5), "a frame"),
        (cells, "a frame"),
        (lambda pen: pen.line([(110, 320), (290, 318)], fill=20, width=6), "a line"),
        (lambda pen: pen.line([(330, 60), (370, 370)], fill=40, width=16), "a line"),
    ],
    ids=["box", "circle", "cells", "underline", "pen"],
)
def test_frames_and_lines_are_left_out_and_said(draw, said):
    made = as_mnist(page(draw))
    assert made.notes == (TURNED, f"{said} was left out")
    assert np.abs(made.pixels.astype(float) - SEVEN).mean() < 2


def test_a_written_0_with_specks_in_it_stays():
    image = Image.new("L", (400, 400), 235)
    pen = ImageDraw.Draw(image)
    pen.ellipse([120, 80, 280, 320], outline=20, width=14)
    pen.ellipse([190, 190, 205, 205], fill=20)
    made = as_mnist(np.asarray(image, np.float32))
    assert made.notes == (TURNED,) and (made.pixels[:, 14] > 127).sum() < 8


def test_a_digit_that_touches_the_borders_is_whole():
    image = Image.new("L", (144, 240), 235)
    ImageDraw.Draw(image).ellipse([0, 0, 143, 239], outline=20, width=30)
    wide = Image.new("L", (344, 440), 235)
    wide.paste(image, (100, 100))
    cropped, free = (as_mnist(np.asarray(one, np.float32)) for one in (image, wide))
    assert cropped.notes == free.notes == (TURNED,)
    assert np.abs(cropped.pixels.astype(float) - free.pixels).mean() < 6


def test_lines_across_the_page_that_touch_the_digit_are_none_of_it():
    def rule(pen):
        for row in range(20, 400, 24):
            pen.line([(0, row), (399, row)], fill=120, width=3)

    made = as_mnist(page(rule))
    assert made.notes == (TURNED,)
    assert np.abs(made.pixels.astype(float) - SEVEN).mean() < 6


@pytest.mark.parametrize("box", [[100, 100, 300, 300], [0, 0, 200, 400]])
def test_a_solid_shape_is_no_digit(box):
    image = Image.new("L", (400, 400), 235)
    ImageDraw.Draw(image).rectangle(box, fill=20)
    with pytest.raises(LenetError, match="^expected a digit, found (a solid shape|a blank)"):
        as_mnist(np.asarray(image, np.float32))
