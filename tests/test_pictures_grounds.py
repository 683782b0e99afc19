"""Digits on a sheet or screen, hollow, thin, or differing from the paper only in colour."""

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from lenetgpu.errors import LenetError
from lenetgpu.pictures import read_digit
from lenetgpu.pictures.as_mnist import as_mnist
from lenetgpu.pictures.read import read_colours
from lenetgpu.pictures.shapes import FILLED, filled_outline, sheet_of

TURNED = "dark on light, inverted"
RED, GREEN = (200, 60, 60), (60, 127, 80)  # same luminance: 102 of 255


def strokes(size=(400, 400), width=26, at=(0, 0)):
    """Return a mask (H, W) of a 7."""
    image = Image.new("L", size)
    line = [(at[0] + x, at[1] + y) for x, y in ((130, 120), (260, 120), (190, 300))]
    ImageDraw.Draw(image).line(line, fill=255, width=width, joint="curve")
    return image


def laid(mask, paper, ink):
    """Return `ink` on `paper` where `mask` is 255, (H, W) float32."""
    return paper + (ink - paper) * np.asarray(mask, np.float32) / 255


def put(tmp_path, array, form="PNG", **how):
    path = tmp_path / f"picture.{form.lower()}"
    Image.fromarray(np.clip(array, 0, 255).astype(np.uint8)).save(path, form, **how)
    return path


def alike(one, other, most=8.0):
    return np.abs(one.astype(float) - other).mean() < most


SEVEN = as_mnist(laid(strokes(), 235, 20)).pixels


def on_ground(sheet, ground, angle, bezel=None, noise=3.0):
    """Return (600, 700): a sheet (400, 400) turned by `angle`, within a bezel, on a background."""
    if bezel is not None:
        sheet = np.pad(sheet, 14, constant_values=bezel)
    image, cover = Image.fromarray(sheet), Image.new("L", sheet.shape[::-1], 255)
    whole = Image.new("F", (700, 600), ground)
    turned = [one.rotate(angle, Image.Resampling.BILINEAR, expand=True) for one in (image, cover)]
    whole.paste(turned[0], (80, 60), turned[1].point(lambda value: 255 * (value > 250)))
    return np.asarray(whole) + np.random.default_rng(2).normal(0, noise, (600, 700))


@pytest.mark.parametrize(
    ("paper", "ink", "ground", "bezel"),
    [(230, 30, 70, None), (30, 220, 150, None), (230, 30, 15, 60)],
    ids=["sheet", "dark screen", "bezel, night"],
)  # fmt: skip
def test_sheet_or_screen_is_cropped(paper, ink, ground, bezel):
    page = on_ground(laid(strokes(), paper, ink), ground, 7, bezel).astype(np.float32)
    made = as_mnist(page)
    assert alike(made.pixels, SEVEN, 30)
    assert (TURNED in made.notes) == (ink < paper)


@pytest.mark.parametrize(("paper", "ground"), [(230, 60), (20, 160)])
def test_empty_sheet_is_refused(paper, ground):
    page = on_ground(np.full((400, 400), paper, np.float32), ground, 6)
    with pytest.raises(LenetError, match="^expected a digit, found a solid shape or an empty"):
        as_mnist(page.astype(np.float32))


def test_sheet_is_found_at_any_angle_and_digit_is_not_a_sheet():
    for angle in (0, 20, 45):
        image = Image.new("L", (300, 300))
        ImageDraw.Draw(image).rectangle([70, 90, 230, 210], fill=255)
        ImageDraw.Draw(image).line([(120, 120), (180, 180)], fill=0, width=8)
        sheet = sheet_of(np.asarray(image.rotate(angle)) > 127)
        assert sheet is not None and sheet[150, 150] and 17_000 < sheet.sum() < 19_500
    for shape in ([70, 40, 230, 260], [100, 30, 200, 270]):
        image = Image.new("L", (300, 300))
        ImageDraw.Draw(image).ellipse(shape, outline=255, width=40)
        assert sheet_of(np.asarray(image) > 127) is None
    assert sheet_of(np.asarray(strokes()) > 127) is None


def outlined(mask, width):
    """Return only the outer `width` pixels of a mask."""
    inner = mask
    for _ in range(width):
        inner = inner.filter(ImageFilter.MinFilter(3))
    return Image.fromarray(np.asarray(mask) - np.asarray(inner))


@pytest.mark.parametrize(("width", "size"), [(1, 400), (3, 200)])
@pytest.mark.parametrize(("paper", "ink"), [(235, 20), (25, 210)])
def test_hollow_digit_is_filled_with_a_note(width, size, paper, ink):
    mask = strokes().resize((size, size)).point(lambda value: 255 * (value > 127))
    made = as_mnist(laid(outlined(mask, width), paper, ink))
    assert made.notes == ((TURNED, FILLED) if ink < paper else (FILLED,))
    assert alike(made.pixels, SEVEN)


def ring(boxes, width):
    image = Image.new("L", (200, 240))
    for box in boxes:
        ImageDraw.Draw(image).ellipse(box, outline=255, width=width)
    return np.asarray(image) > 127


@pytest.mark.parametrize("width", [2, 12])
@pytest.mark.parametrize(
    "boxes",
    [[[40, 30, 160, 210]], [[70, 30, 130, 210]], [[60, 30, 140, 115], [50, 110, 150, 210]]],
    ids=["0", "narrow 0", "8"],
)
def test_written_0_and_8_are_not_outlines(boxes, width):
    assert filled_outline(ring(boxes, width)) is None


def coloured(paper, ink, mask=None):
    cover = np.asarray(strokes() if mask is None else mask, np.float32)[..., None] / 255
    page = np.asarray(paper, np.float32) * (1 - cover) + np.asarray(ink, np.float32) * cover
    return page + np.random.default_rng(3).normal(0, 2, page.shape[:2])[..., None]


@pytest.mark.parametrize(("paper", "ink"), [(RED, GREEN), (GREEN, RED)])
def test_ink_of_equal_luminance_is_found_by_colour(tmp_path, paper, ink):
    made = read_digit(put(tmp_path, coloured(paper, ink), "JPEG", quality=80))
    assert made.notes == ("ink found by colour, not by brightness",)
    assert alike(made.pixels, SEVEN)


def test_coloured_fields_are_refused(tmp_path):
    disc = Image.new("L", (400, 400))
    ImageDraw.Draw(disc).ellipse([100, 100, 300, 280], fill=255)
    path = put(tmp_path, coloured(RED, GREEN, disc))
    with pytest.raises(LenetError, match=r"picture\.png: expected a digit, found (a blank|only)"):
        read_digit(path)


def test_colour_bands_are_equal_in_every_mode_and_orientation(tmp_path):
    page = np.zeros((60, 80, 3), np.uint8)
    page[:20], page[:, 50:] = RED, GREEN
    image, exif = Image.fromarray(page), Image.Exif()
    exif[0x0112] = 6
    for mode, form in (("RGB", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("CMYK", "TIFF")):
        path = tmp_path / f"{mode}.x"
        (image.quantize(8) if mode == "P" else image.convert(mode)).save(path, form)
        bands = read_colours(path)
        assert len(bands) == 3
        for band, wanted in zip(bands, np.moveaxis(page, -1, 0), strict=True):
            assert np.abs(band - wanted).max() <= 2, mode
    image.save(tmp_path / "t.png", exif=exif)
    assert (np.stack(read_colours(tmp_path / "t.png"), axis=-1) == np.rot90(page, -1)).all()
    for mode in ("L", "1", "LA"):
        image.convert(mode).save(tmp_path / "g.png")
        assert read_colours(tmp_path / "g.png") == []


@pytest.mark.parametrize(
    ("boxes", "size"),
    [([(30, 30, 59, 119)], (90, 150)), ([(40, 40, 60, 140)], (101, 181)),
     ([(30, 30, 59, 59), (30, 90, 59, 119)], (90, 150)),
     ([(30, 36, 70, 65), (30, 101, 70, 130)], (101, 167))],
    ids=["0", "thick 0", "8", "broad 8"],
)  # fmt: skip
def test_angular_0_or_8_is_not_a_sheet(boxes, size):
    image = Image.new("L", size, 255)
    for box in boxes:
        ImageDraw.Draw(image).rectangle(box, fill=0)
    mask = np.pad(np.asarray(image) > 127, 40)
    assert sheet_of(mask) is None
    made = as_mnist(laid(mask * 255, 235, 30))
    assert made.notes == (TURNED,)
    assert np.ptp(np.nonzero(made.pixels.max(axis=1) > 60)) == 19
    assert made.pixels[4:24].max(axis=1).min() > 60


def framed(draw):
    """Return (400, 400): a 7, with what `draw` adds."""
    image = Image.new("L", (400, 400), 235)
    pen = ImageDraw.Draw(image)
    pen.line([(160, 140), (240, 140), (190, 270)], fill=20, width=14, joint="curve")
    draw(pen)
    return np.asarray(image, np.float32)


FRAMED = as_mnist(framed(lambda pen: None)).pixels


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
def test_frames_and_lines_are_removed_with_a_note(draw, said):
    made = as_mnist(framed(draw))
    assert made.notes == (TURNED, f"{said} was left out")
    assert np.abs(made.pixels.astype(float) - FRAMED).mean() < 2


def test_digit_touching_the_borders_is_whole():
    image = Image.new("L", (144, 240), 235)
    ImageDraw.Draw(image).ellipse([0, 0, 143, 239], outline=20, width=30)
    wide = Image.new("L", (344, 440), 235)
    wide.paste(image, (100, 100))
    cropped, free = (as_mnist(np.asarray(one, np.float32)) for one in (image, wide))
    assert cropped.notes == free.notes == (TURNED,)
    assert np.abs(cropped.pixels.astype(float) - free.pixels).mean() < 6


def test_ruled_lines_touching_the_digit_are_removed():
    def rule(pen):
        for row in range(20, 400, 24):
            pen.line([(0, row), (399, row)], fill=120, width=3)

    made = as_mnist(framed(rule))
    assert made.notes == (TURNED,)
    assert np.abs(made.pixels.astype(float) - FRAMED).mean() < 6
