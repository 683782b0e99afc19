"""Mistakes as a page, opened in a browser, and as a picture: every count, every wrong image."""

import base64
import io
import re

import numpy as np
import pytest
from browser import DESK, PHONE, chromium
from test_mistakes import DIGITS, asked, data, run

from lenetgpu.check import mistakes
from lenetgpu.check.mistakes import Gallery, confusion
from lenetgpu.files.source import load_dataset
from lenetgpu.lab import infer as job
from lenetgpu.lab import mistakes as files
from lenetgpu.lab.mistakes import probability, share

__all__ = ["chromium", "data"]  # fixtures
pytest.importorskip("jinja2", reason="needs jinja2: extra report")


@pytest.fixture
def outcome(data):
    return job.infer(asked(data))


def cells(page):
    """Return the matrix shown on the page."""
    rows = page.locator("table.confusion tbody tr").all()
    shown = [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]
    return np.array([[int(text or 0) for text in row[:-1]] for row in shown]), [
        row[-1] for row in shown
    ]


@pytest.mark.parametrize(("width", "dark"), [(PHONE, True), (DESK, False)])
def test_page_is_complete_and_makes_no_requests(chromium, data, tmp_path, width, dark):
    path = tmp_path / "wrong.html"
    assert run("infer", data, "--device", "cpu", "--errors", path).exit_code == 0
    with chromium.open(path, width, dark) as seen:
        assert (seen.console, seen.requests) == ([], [])
        assert seen.overflow() == 0
        table = seen.page.locator("table.confusion")
        assert table.evaluate("t => t.scrollWidth - t.parentElement.clientWidth") <= 0
        assert seen.page.locator("h1").inner_text().endswith("of 240 digits read wrong")
        levels = [h.evaluate("h => +h.tagName[1]") for h in seen.page.locator("h1, h2, h3").all()]
        assert levels == [1, 2, 3, 2]


def test_page_shows_every_count(chromium, outcome, tmp_path):
    outcome.requested = 1000
    files.write_errors(tmp_path / "wrong.html", outcome)
    with chromium.open(tmp_path / "wrong.html") as seen:
        assert "240 of 1,000 images read" in seen.page.locator("dl.facts").inner_text()
        counts, right = cells(seen.page)
        np.testing.assert_array_equal(counts, confusion(outcome.truth, outcome.labels))
        assert right == [share(row[digit] / row.sum()) for digit, row in enumerate(counts)]
        assert seen.page.locator(".pairs li").count() == 8
        most = mistakes.confusions(counts)[0]
        assert seen.page.locator(".pairs li").first.inner_text().split() == [
            str(most["label"]), "read", "as", str(most["predicted"]), str(most["images"]),
        ]  # fmt: skip


def colour(page, selector):
    """Return the average colour of an element without its border."""
    image = pytest.importorskip("PIL.Image")
    shot = image.open(io.BytesIO(page.locator(selector).first.screenshot())).convert("RGB")
    return np.asarray(shot)[3:6, 3:-3].reshape(-1, 3).mean(axis=0)


def test_small_counts_are_visible_beside_large_ones(chromium, outcome, tmp_path):
    """One mistake among 10,000 correct labels differs from an empty cell; more are deeper."""
    counts = 10_000 * np.eye(10, dtype=int)
    counts[3, 5], counts[3, 8], counts[4, 9] = 1, 25, 100
    vars(outcome)["counts"] = counts
    files.write_errors(tmp_path / "wrong.html", outcome)
    with chromium.open(tmp_path / "wrong.html") as seen:
        found = [
            colour(seen.page, f"tbody tr:nth-child({label + 1}) td:nth-child({predicted + 2})")
            for label, predicted in ((3, 4), (3, 5), (3, 8), (4, 9))
        ]
        apart = [np.abs(one - found[0]).max() for one in found]
        assert apart[1] >= 5 and apart[2] > 2 * apart[1] and apart[3] > 1.5 * apart[2]
        blue = colour(seen.page, "td.right")
        assert blue[2] > blue[0] + 50 and found[3][0] > found[3][2] + 50


def test_gallery_shows_each_image_with_its_caption(chromium, outcome, tmp_path):
    from PIL import Image

    path, kept = tmp_path / "wrong.html", outcome.mistakes
    few = Gallery(kept.rows, kept.names, kept.worst[:7], kept.images[:7])
    outcome.mistakes = few
    files.write_errors(path, outcome)
    images = load_dataset(DIGITS).images[..., 0]
    with chromium.open(path) as seen:
        note = seen.page.locator("section:has(#gallery) > p.note").inner_text()
        assert note.startswith(
            f"7 of {len(few.rows)} shown: those with the most probable wrong labels."
        )
        tiles = seen.page.locator(".gallery li").all()
        assert len(tiles) == 7
        uri = re.search(r"--sheet: url\((.*?)\)", path.read_text())[1]
        sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
        for tile, row in zip(tiles, few.worst, strict=True):
            x, y = tile.locator(".digit").evaluate(
                "d => ['--x', '--y'].map(n => +getComputedStyle(d).getPropertyValue(n))"
            )
            shown = sheet[28 * y : 28 * y + 28, 28 * x : 28 * x + 28]
            np.testing.assert_array_equal(shown, images[row["index"]])
            words = [
                f"{row['label']} read as {row['predicted']}",
                probability(row["probability"]),
                f"then {row['runner_up']} {probability(row['runner_up_probability'])}",
                f"image {row['index']}",
            ]
            assert [line for line in tile.inner_text().split("\n") if line] == words


def test_run_without_mistakes_has_no_gallery(chromium, tmp_path):
    path = tmp_path / "right.html"
    assert run("infer", "--device", "cpu", "--limit", 20, "--errors", path).exit_code == 0
    with chromium.open(path) as seen:
        assert (seen.console, seen.overflow()) == ([], 0)
        assert seen.page.locator("h1").inner_text() == "None of 20 digits read wrong"
        assert seen.page.locator(".gallery, .pairs, #gallery").count() == 0
        assert cells(seen.page)[0].trace() == 20


def test_picture_shows_every_count_and_image(outcome, tmp_path):
    pytest.importorskip("vl_convert", reason="needs vl-convert-python: extra report")
    from PIL import Image

    from lenetgpu.lab.page import mistakes as pages

    path, kept = tmp_path / "$x_{2}$.png", outcome.mistakes
    outcome.data = "/data/$unbalanced"
    outcome.mistakes = Gallery(kept.rows, kept.names, kept.worst[:15], kept.images[:15])
    files.write_errors(path, outcome)
    with Image.open(path) as image:
        assert image.format == "PNG" and image.width > 1000
    counts = confusion(outcome.truth, outcome.labels)
    found = np.zeros((10, 10), int)
    for cell in pages._matrix(counts)["data"]["values"]:
        found[cell["is"], cell["read"]] = int(cell["shown"].replace(",", "") or 0)
        assert (cell["level"] > 0) == bool(cell["images"])
    np.testing.assert_array_equal(found, counts)
    tiles = pages._gallery(outcome.mistakes)["data"]["values"]
    for tile, row, digit in zip(tiles, kept.worst, kept.images, strict=False):
        drawn = Image.open(io.BytesIO(base64.b64decode(tile["image"].partition(",")[2])))
        np.testing.assert_array_equal(np.asarray(drawn), 255 - digit)
        assert tile["read"] == f"{row['label']} read as {row['predicted']}"
        assert tile["number"] == f"{row['index']:,}"
