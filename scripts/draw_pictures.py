"""Draw pictures of digits as users have them, classify them, and show the results.

Half use strokes of the shipped digits, half five fonts, on ten kinds of paper. Without arguments
the table in docs/pictures.md is rewritten from `DRAWN` pictures of seed `SEED`; `--seed N` prints
another table, `--folder F` keeps the pictures. tests/test_drawn.py draws the same pictures.
"""

import importlib.util
import io
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from measured import ROOT, filled, md
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from lenetgpu import LeNet, LenetError
from lenetgpu.files.assets import default_digits
from lenetgpu.files.source import open_source
from lenetgpu.pictures import read_digit

PAGE = ROOT / "docs" / "pictures.md"
SEED, OTHERS, DRAWN = 14, 1400, 50
HANDS = ("strokes", "font", "strokes", "font", "strokes")
FONTS = ("Aileron", "DejaVuSans-Oblique", "DejaVuSerif", "DejaVuSansMono", "DejaVuSans")
_SUN, _DUSK = 1.0, 0.45
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Drawn:
    """A picture file's bytes and name, its digit, and a description."""

    name: str
    digit: int
    what: str
    data: bytes


def _stroke(digit: int, rng: np.random.Generator, digits: tuple[Array, Array]) -> Array:
    """Return ink (280, 280) in 0..1 of a shipped digit, enlarged ten times."""
    images, labels = digits
    chosen = images[rng.choice(np.flatnonzero(labels == digit))].reshape(28, 28)
    large = Image.fromarray(chosen).resize((280, 280), Image.Resampling.BICUBIC)
    ink = np.asarray(large.filter(ImageFilter.GaussianBlur(3)), np.float32) / 255
    return np.clip((ink - 0.35) / 0.3, 0, 1)


def _font(digit: int, font: str) -> Array:
    """Return ink (280, 280) in 0..1 of a digit in a font."""
    if font == "Aileron":
        face = ImageFont.load_default(220)
    else:
        found = importlib.util.find_spec("matplotlib")
        if found is None or found.origin is None:
            raise SystemExit("the fonts come with matplotlib: pip install matplotlib")
        folder = Path(found.origin).parent / "mpl-data" / "fonts" / "ttf"
        face = ImageFont.truetype(str(folder / f"{font}.ttf"), 220)
    image = Image.new("L", (280, 280))
    ImageDraw.Draw(image).text((140, 140), str(digit), font=face, fill=255, anchor="mm")
    return np.asarray(image, np.float32) / 255


def _placed(ink: Array, width: int, height: int, rng: np.random.Generator) -> Array:
    """Return (height, width) in 0..1: `ink` slightly rotated, scaled and shifted."""
    image = Image.fromarray((ink * 255).astype(np.uint8))
    image = image.rotate(float(rng.uniform(-7, 7)), Image.Resampling.BICUBIC)
    side = int(min(width, height) * rng.uniform(0.45, 0.8))
    image = image.resize((side, side), Image.Resampling.LANCZOS)
    whole = Image.new("L", (width, height))
    whole.paste(image, (int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))))
    return np.asarray(whole, np.float32) / 255


def _laid(ink: Array, paper: Array, colour: Array) -> Array:
    """Return (H, W, 3) uint8: `colour` (3,) covering `paper` (3,) or (H, W, 3) by `ink` (H, W)."""
    cover = ink[..., None]
    return np.clip(paper * (1 - cover) + colour * cover, 0, 255).astype(np.uint8)


def _photo(ink: Array, rng: np.random.Generator, paper: Array, colour: Array) -> Array:
    """Return the same lit from one side, with a dark corner and camera noise."""
    height, width = ink.shape
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    light = (_SUN + _DUSK) / 2 + (_SUN - _DUSK) / 2 * (np.cos(angle) * x + np.sin(angle) * y) / 1.4
    light = (light - 0.08 * (x * x + y * y))[..., None]
    noise = rng.normal(0, 7, (height, width, 1)).astype(np.float32)
    return np.clip(_laid(ink, paper, colour) * light + noise, 0, 255).astype(np.uint8)


def _saved(pixels: Array | Image.Image, form: str, **how: Any) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    out = io.BytesIO()
    image.save(out, form, **how)
    return out.getvalue()


WHITE, BLUE, BLACK = np.array([250, 249, 245]), np.array([30, 35, 90]), np.array([20, 20, 20])


def _turned(ink: Array, rng: np.random.Generator) -> bytes:
    """Return a JPEG rotated, with the EXIF orientation that undoes it."""
    orientation = int(rng.choice([3, 6, 8]))
    way = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90,
           8: Image.Transpose.ROTATE_270}[orientation]  # fmt: skip
    image = Image.fromarray(_laid(ink, WHITE, BLUE)).transpose(way)
    exif = Image.Exif()
    exif[0x0112] = orientation
    return _saved(image, "JPEG", exif=exif, quality=85)


def _alpha(ink: Array, rng: np.random.Generator) -> bytes:
    """Return black or white with the digit only in alpha."""
    grey = np.full_like(ink, float(rng.choice([0, 255])))
    return _saved(np.stack([grey, grey, grey, ink * 255], axis=-1).astype(np.uint8), "PNG")


def _deep(ink: Array, rng: np.random.Generator) -> bytes:
    """Return a 16-bit picture, dark on light, with low contrast."""
    return _saved((52_000 - 21_000 * ink + rng.normal(0, 300, ink.shape)).astype(np.uint16), "PNG")


def _palette(ink: Array, rng: np.random.Generator) -> bytes:
    image = Image.fromarray(_laid(ink, np.array([255, 240, 170]), np.array([160, 20, 40])))
    return _saved(image.quantize(16), "GIF")


def _chalk(ink: Array, rng: np.random.Generator) -> bytes:
    rough = np.clip(ink - 0.5 * rng.random(ink.shape), 0, 1)
    board, chalk = np.array([35, 60, 45]), np.array([225, 225, 215])
    return _saved(_photo(rough, rng, board, chalk), "WEBP", quality=80)


def _stamped(ink: Array, rng: np.random.Generator) -> bytes:
    return _saved(Image.fromarray(_laid(ink, WHITE, BLACK)).convert("CMYK"), "TIFF")


WAYS: tuple[tuple[str, str, int, int, Callable[[Array, np.random.Generator], bytes]], ...] = (
    ("blue on white, turned by EXIF", "jpg", 640, 480, _turned),
    ("ink in alpha only", "png", 300, 300, _alpha),
    ("16 bits, little contrast", "png", 400, 300, _deep),
    ("palette of 16 colours", "gif", 200, 260, _palette),
    ("photo of 3 megapixels", "jpg", 2048, 1536,
     lambda ink, rng: _saved(_photo(ink, rng, WHITE, BLUE), "JPEG", quality=88)),
    ("chalk on a board", "webp", 500, 400, _chalk),
    ("CMYK", "tif", 250, 250, _stamped),
    ("one bit", "tif", 160, 220,
     lambda ink, rng: _saved(Image.fromarray(ink < 0.5), "TIFF", compression="group4")),
    ("pencil on grey, shaded", "bmp", 320, 320,
     lambda ink, rng: _saved(_photo(ink, rng, np.full(3, 190.0), np.full(3, 95.0)), "BMP")),
    ("light on dark, 48 pixels", "pgm", 48, 48,
     lambda ink, rng: _saved((20 + 220 * ink).astype(np.uint8), "PPM")),
)  # fmt: skip


def pictures(seed: int, count: int = DRAWN) -> list[Drawn]:
    """Return `count` pictures with equally many of each digit, style and source."""
    with open_source(default_digits()) as source:
        digits = source.whole()
    rng = np.random.default_rng(seed)
    drawn = []
    for number in range(count):
        digit, hand = number % 10, number // 10
        way = WAYS[(digit + 3 * hand) % len(WAYS)]
        if HANDS[hand % len(HANDS)] == "font":
            font = str(rng.choice(FONTS))
            ink, source_words = _font(digit, font), font
        else:
            ink, source_words = _stroke(digit, rng, (digits.images, digits.labels)), "strokes"
        words, ending, width, height, make = way
        data = make(_placed(ink, width, height, rng), rng)
        name = f"{number:02d}-{digit}.{ending}"
        drawn.append(Drawn(name, digit, f"{source_words}, {words}", data))
    return drawn


def classified(drawn: list[Drawn], folder: Path, net: LeNet) -> list[dict[str, Any]]:
    """Return a row per picture; each is written to `folder` and read from there."""
    rows = []
    for picture in drawn:
        path = folder / picture.name
        path.write_bytes(picture.data)
        row = {"file": picture.name, "digit": picture.digit, "what": picture.what}
        try:
            made = read_digit(path)
            labels, chances = net.top(made.pixels, 2)
            found = {"found": int(labels[0]), "sure": float(chances[0]), "second": int(labels[1])}
            rows.append(row | found | {"notes": list(made.notes)})
        except LenetError as error:
            rows.append(row | {"found": None, "notes": [str(error).partition(": ")[2]]})
    return rows


def right(rows: list[dict[str, Any]]) -> int:
    return sum(row["found"] == row["digit"] for row in rows)


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a row per picture, wrong ones in bold, and the number right."""
    cells = []
    for row in rows:
        digit = "none" if row["found"] is None else str(row["found"])
        if row["found"] != row["digit"]:
            digit = f"**{digit}**, is {row['digit']}"
        sure = f"{row['sure']:.0%}" if "sure" in row else ""
        cells.append([f"`{row['file']}`", row["what"], digit, sure, "; ".join(row["notes"])])
    return md("picture | drawn | found> | sure> | notes", cells)


def counts(seed: int, rows: list[dict[str, Any]], other: list[dict[str, Any]]) -> str:
    return (
        f"{right(rows)} of {len(rows)} are right (seed {seed}), and {right(other)} of {len(other)} "
        f"others (seed {OTHERS}), on a CPU with the shipped weights."
    )


@click.command()
@click.option("--seed", type=int, help="Print the table of this seed's pictures.")
@click.option("--folder", type=click.Path(path_type=Path), help="Keep the pictures here.")
def main(seed: int | None, folder: Path | None) -> None:
    """Draw pictures, classify them, and write the table in docs/pictures.md."""
    with tempfile.TemporaryDirectory() as scratch, LeNet.load(device="cpu") as net:
        folder = folder or Path(scratch)
        folder.mkdir(exist_ok=True)
        rows = classified(pictures(SEED if seed is None else seed), folder, net)
        if seed is not None:
            click.echo(f"{table(rows)}\n{right(rows)} of {len(rows)} are right")
            return
        other = classified(pictures(OTHERS, 20 * DRAWN), folder, net)
    text = f"{counts(SEED, rows, other)}\n\n{table(rows)}"
    PAGE.write_text(filled(PAGE.name, PAGE.read_text(), "pictures", text))


if __name__ == "__main__":
    main()
