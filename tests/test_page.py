"""The frame of every page: it asks for nothing, can be read at two widths, hides nothing."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
from browser import DESK, PHONE, browser

from lenetgpu.lab.page import base
from lenetgpu.lab.page.base import sheet

pytest.importorskip("jinja2", reason="needs jinja2: extra report")

HEAD = base.Head(
    title="A page",
    lead="What it shows, in a sentence.",
    device="A <b>device</b>",
    date="2026-11-22",
    commit=None,
    facts={"data": "digits\u202e.h5"},
)
PAGE = """{% extends "base.html.j2" %}
{% block content %}
<section><h2>Digits</h2>
{% call parts.digits(sheet, class="row") %}
{% for number in range(3) %}{{ parts.digit(sheet, number, "digit " ~ number) }}{% endfor %}
{% endcall %}
<div class="scroll"><table><caption>A table</caption><thead><tr>
{% for n in range(40) %}<th scope="col">column {{ n }}</th>{% endfor %}
</tr></thead></table></div></section>
{% endblock %}
"""


def page(**values):
    template = base.environment().from_string(PAGE)
    return template.render(head=HEAD, version="1", **values)


def digits(count):
    """Digits that are even grey, a shade for each."""
    return np.stack([np.full((28, 28), 10 * n + 5, np.uint8) for n in range(count)])


@pytest.fixture(scope="module")
def chromium():
    with browser() as opened:
        yield opened


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "page.html"
    base.write_page(path, page(sheet=sheet(digits(3))))
    return path


@pytest.mark.parametrize(("width", "dark"), [(PHONE, False), (DESK, True)])
def test_a_page_asks_for_nothing_and_fits(chromium, file, width, dark):
    with chromium.open(file, width, dark) as seen:
        assert (seen.console, seen.requests) == ([], [])
        assert seen.overflow() == 0
        assert seen.page.locator("h1").inner_text() == "A page"
        facts = seen.page.locator("dl.facts").inner_text().split("\n")
        assert facts[2:6] == ["date", "2026-11-22", "commit", "not recorded"]
        paper = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", paper))) < 3 * 128) is dark


def test_a_page_may_not_ask(chromium, file):
    """What slips into a page and would load something is stopped by the page itself."""
    more = "<img src='none.png'><iframe src='none.html'></iframe></main>"
    file.write_text(file.read_text().replace("</main>", more))
    with chromium.open(file) as seen:
        for name in ("none.png", "none.html"):
            assert any("Content Security" in line and name in line for line in seen.console)


def test_digits_are_cut_from_their_sheet(chromium, file):
    """Each shows its own shade; a light page shows ink dark on light."""
    from PIL import Image

    for dark in (False, True):
        with chromium.open(file, dark=dark) as seen:
            found = []
            for digit in seen.page.locator(".digit").all():
                shot = Image.open(io.BytesIO(digit.screenshot())).convert("L")
                found.append(shot.getpixel((shot.width // 2, shot.height // 2)))
        shades = [5, 15, 25]
        assert found == (shades if dark else [255 - shade for shade in shades])


def test_text_is_shown_as_text():
    html = page(sheet=sheet(digits(3)))
    assert "A &lt;b&gt;device&lt;/b&gt;" in html and "<b>" not in html
    assert "\u202e" not in html and "digits\\u202e.h5" in html


def test_a_missing_value_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError, match="missing"):
        base.environment().from_string("{{ missing }}").render()


@pytest.mark.parametrize("count", [0, 1, 17])
def test_a_sheet_holds_every_digit(count, rng):
    from PIL import Image

    images = rng.integers(0, 256, (count, 28, 28, 1), np.uint8)
    made = sheet(images)
    kind, _, data = made.uri.partition(",")
    assert kind == "data:image/png;base64"
    whole = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert whole.shape == (28 * made.rows, 28 * made.columns) and whole.dtype == np.uint8
    for number, image in enumerate(images[..., 0]):
        column, row = made.place(number)
        x, y = 28 * column, 28 * row
        assert (whole[y : y + 28, x : x + 28] == image).all()


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_dark():
    """WCAG 2.2: 4.5 to 1 for text on what it stands on, 3 to 1 for what charts draw."""
    assert round(contrast("#000000", "#ffffff"), 3) == 21
    css = (base._TEMPLATES / "style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", css, re.S)
    )
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        for text in ("ink", "soft", "accent", "right", "wrong", "good", "bad"):
            for ground in ("paper", "surface", "sunk"):
                assert contrast(theme[text], theme[ground]) >= 4.5, (text, ground)
        assert contrast(theme["accent"], theme["accent-soft"]) >= 4.5
        for series in (f"c{n}" for n in range(1, 9)):
            assert contrast(theme[series], theme["surface"]) >= 3
        for heat in ("heat-right", "heat-wrong"):
            assert contrast(theme["ink"], theme[heat]) >= 4.5
