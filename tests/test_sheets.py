"""Sheets of many digits: `lenetgpu infer --all` finds, orders and reads them, or says why not."""

import csv
import re
from functools import partial

import numpy as np
import pytest
import terminal
from PIL import Image

from lenetgpu import LeNet
from lenetgpu.files.assets import default_digits
from lenetgpu.files.source import load_dataset
from lenetgpu.pictures.sheets import read_sheet

run = partial(terminal.run, "infer", "--device", "cpu", "--all")


@pytest.fixture(scope="module")
def digits():
    return load_dataset(default_digits())


def save(path, pixels):
    Image.fromarray(pixels.astype(np.uint8)).save(path)
    return path


def sheet(rng, digits, count, scale, ruled):
    """Return a sheet (H, W) uint8 and each digit's (row, column, label, y, x of its centre)."""
    per_row, side = int(rng.integers(4, 11)), 28 * scale
    down, across = side * rng.uniform(0.95, 1.3), side * rng.uniform(0.9, 1.3)
    ink = np.zeros((int(down * (-(-count // per_row) + 1.6)), int(across * (per_row + 1.5))))
    lean, places = rng.uniform(-0.02, 0.02), []
    for number, one in enumerate(rng.integers(len(digits.labels), size=count)):
        row, column = divmod(number, per_row)
        size = round(side * rng.uniform(0.85, 1.1))
        y, x = (row + 0.96) * down + lean * across * column, (column + 0.76) * across
        top, left = (np.array([y, x]) - size / 2 + rng.uniform(-0.1, 0.1, 2) * side).astype(int)
        glyph = Image.fromarray(digits.images[one, ..., 0]).resize((size, size))
        place = ink[top : top + size, left : left + size]
        np.maximum(place, np.asarray(glyph) / 255, out=place)
        places.append((row + 1, column + 1, digits.labels[one], top + size / 2, left + size / 2))
    if ruled:
        for y in down * (np.arange(count // per_row) + 1.4):
            ink[int(y) : int(y) + 2, 9:-9] = 1
        ink[3:-3, [3, 4, -5, -4]] = ink[[3, 4, -5, -4], 3:-3] = 1
    for y, x in zip(*(rng.integers(1, length - 3, 25) for length in ink.shape), strict=True):
        ink[y : y + 2, x : x + 2] = 1  # dust
    levels = rng.permutation([rng.uniform(190, 250), rng.uniform(10, 90)])
    noise = rng.normal(0, rng.uniform(0, 14), ink.shape)
    return np.clip(levels[0] + (levels[1] - levels[0]) * ink + noise, 0, 255), places


@pytest.mark.slow
def test_digits_of_sixty_sheets_are_found_in_order_and_read(digits, tmp_path):
    rng, right, total = np.random.default_rng(60), 0, 0
    with LeNet.load(device="cpu") as net:
        for number in range(60):
            count, scale = int(rng.integers(10, 81)), rng.uniform(1, 4)
            pixels, places = sheet(rng, digits, count, scale, ruled=number % 5 == 0)
            found = read_sheet(save(tmp_path / "sheet.png", pixels))
            labels, boxes = net(found.pixels), np.array([[*at.values()][2:] for at in found.places])
            for row, _, label, y, x in places:
                inside = ((x, y) - boxes[:, :2] >= 0) & ((x, y) - boxes[:, :2] < boxes[:, 2:])
                (at,) = np.nonzero(inside.all(axis=1))
                right += [(found.places[k]["row"], labels[k]) for k in at] == [(row, label)]
            total += count
    assert right >= 0.95 * total, f"{right:,} of {total:,}"


def test_digits_are_printed_written_and_drawn(digits, tmp_path):
    pixels, places = sheet(np.random.default_rng(0), digits, 23, 2, ruled=True)
    path, table, page = (tmp_path / name for name in ("=a.png", "b.csv", "c.html"))
    result = run(save(path, pixels), "--output", table, "--errors", page, code=0)
    with table.open() as file:
        rows = list(csv.DictReader(file))
    found = [tuple(int(row[name]) for name in ("row", "column", "label")) for row in rows]
    assert found == [place[:3] for place in places]
    text = "".join(" " * (column == 1) + str(label) for _, column, label in found)
    assert f"{path}:{text}\n" in result.stdout
    assert re.findall(r"<text.*>(\d)</text>", page.read_text()) == [row["label"] for row in rows]


def test_broken_strokes_are_joined(digits, tmp_path):
    five = digits.images[np.flatnonzero(digits.labels == 5)[0], ..., 0].repeat(3, 0).repeat(3, 1)
    five[32:36] = 0
    found = read_sheet(save(tmp_path / "a.png", 255 - np.tile(five, 3))).places
    assert [(at["row"], at["column"]) for at in found] == [(1, 1), (1, 2), (1, 3)]


def test_bar_of_a_digit_alone_is_not_taken_for_a_ruled_line(digits, tmp_path):
    for label in (2, 3, 5, 7):
        glyph = digits.images[np.flatnonzero(digits.labels == label)[0], ..., 0]
        page = save(tmp_path / "a.png", 255 - glyph.repeat(5, 0).repeat(5, 1))
        assert len(read_sheet(page).places) == 1, label


@pytest.mark.parametrize("sentence", ["a blank", "at most 10,000 parts", "a photo"])
def test_sheet_without_digits_is_refused_in_a_sentence(sentence, tmp_path):
    page = np.zeros((1800, 1800))
    if "parts" in sentence:
        page.reshape(120, 15, 120, 15)[:, 4:9, :, 4:9] = 255
    elif "photo" in sentence:
        name = pytest.importorskip("matplotlib.cbook").get_sample_data("grace_hopper.jpg")
        page = np.asarray(Image.open(name).convert("L"))
    result = run(save(tmp_path / "a.png", page), code=2)
    assert re.search(rf"a.png: expected .*{sentence}[^\n]*\n$", result.stderr)
