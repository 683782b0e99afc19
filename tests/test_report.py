"""The report page: its contents, its behaviour in a browser, and untrusted input files."""

import base64
import copy
import io
import json
import random
import re
from functools import partial
from html.parser import HTMLParser

import numpy as np
import pytest
import terminal
from browser import DESK, PHONE, chromium
from conftest import ROOT

from lenetgpu.errors import LenetError
from lenetgpu.gpu.nvrtc import source_hash
from lenetgpu.lab import report as command
from lenetgpu.lab.documents import MOST_ROWS, UNDRAWN
from lenetgpu.lab.page import report as pages
from lenetgpu.lab.page.base import sheet
from lenetgpu.lab.page.blocks import changed

__all__ = ["chromium"]  # a fixture
pytest.importorskip("jinja2", reason="needs jinja2: extra report")
pytest.importorskip("vl_convert", reason="needs vl-convert-python: extra report")
H200 = ROOT / "docs" / "measured" / "nvidia-h200"
FILES = len(list(H200.rglob("*.json")))
SECTIONS = ("first", "machine", "pipeline", "plans", "peers", "roofline", "ladder", "comparisons",
            "suites", "shares", "streams", "labels", "counters")  # fmt: skip
CHARTS = "figure.chart"
run = partial(terminal.run, "report")


def read(*parts):
    return json.loads(H200.joinpath(*parts).read_text())


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return the page of all measurements on the H200."""
    out = tmp_path_factory.mktemp("page") / "h200.html"
    done = run(out, H200, code=0)
    assert f"{out}: " in done.output and f" MB from {FILES} files" in done.output
    return out


class Parsed(HTMLParser):
    """Ids, links, types of scripts, and the cells of each table."""

    def __init__(self, html):
        super().__init__()
        self.ids, self.links, self.scripts, self.outside = [], [], [], []
        self.keys = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if tag == "a" else []
        self.scripts += [found.get("type")] if tag == "script" else []
        asked = [found[name] for name in ("src", "href", "action", "data") if name in found]
        self.outside += [url for url in asked if not url.startswith(("#", "data:"))]
        self.keys += [float(found["data-v"])] if "data-v" in found else []


def test_sections_are_complete_and_self_contained(file):
    html = file.read_text()
    page = Parsed(html)
    assert [name for name in page.ids if name in SECTIONS] == list(SECTIONS)
    assert len(set(page.ids)) == len(page.ids)
    assert page.outside == [] and page.scripts == ["application/json", None, None]
    inside = [link.removeprefix("#") for link in page.links]
    assert inside and set(inside) <= set(page.ids)
    assert "Not in these files: A pass as it ran." in html
    assert "nvidia-h200/sanitize.json" in html
    assert len(html.encode()) <= pages.MOST_BYTES


def test_page_shows_the_figures_of_the_files(file):
    """Sort keys and charts hold unrounded figures, visible text holds words."""
    html = file.read_text()
    keys = set(Parsed(html).keys)
    peers, one, course = read("peers.json"), read("one.json"), read("course.json")
    cells, fp16 = read("cells", "conv2.json"), read("plans", "fp16.json")
    suite = read("conv", "pascal-single.json")
    rows = [*peers["rows"], *one["rows"], *course["rows"], *cells["candidates"], *fp16["stages"]]
    assert {row["median_ms"] for row in rows if "median_ms" in row} <= keys
    times = [1e3 * e["median_ms"] for e in suite["cases"][0]["candidates"] if "median_ms" in e]
    assert times and set(times) <= keys
    fastest = min(r["median_ms"] for r in peers["rows"] if r["maker"] == "lenetgpu")
    assert f"<strong>{fastest:.3g} ms</strong>" in html
    assert f"<strong>{10_000 / fastest / 1e3:,.1f} M/s</strong>" in html
    found = re.search(r'id="charts">(.*?)</script>', html, re.S)[1]
    drawn = json.dumps(json.loads(found))
    sweep = read("streams.json")["sweeps"][3]["rows"][7]
    assert f'"median_ms": {sweep["median_ms"]!r}' in drawn
    assert f'"tflops": {fp16["stages"][0]["tflops"]!r}' in drawn


def test_each_figure_names_its_source(file):
    html = file.read_text()
    peers = read("peers.json")
    line = f"NVIDIA H200, {peers['date']}, commit {peers['commit'][:10]}, driver {peers['driver']}"
    assert html.count(line) > 3
    parts = dict(re.findall(r'<section id="([\w-]+)".*?>(.*?)</section>', html, re.S))
    del parts["machine"]
    blocks = [block for part in parts.values() for block in part.split('<div class="block">')[1:]]
    assert len(blocks) > 20
    assert [block for block in blocks if "NVIDIA H200, 2026-11-2" not in block] == []


def test_changed_kernels_are_detected(monkeypatch):
    document = {"kernels": {"lenetgpu/network.py": "0" * 64, "../secret": "", "lenetgpu/no.cu": ""}}
    assert changed(document) == ["../secret", "lenetgpu/network.py", "lenetgpu/no.cu"]
    name = next(iter(read("cells", "pool1.json")["kernels"]))
    current = source_hash(ROOT / name)
    assert changed({"kernels": {name: current}}) == []
    assert changed({"kernels": {name: current[::-1]}}) == [name]


# in a browser


def seen_whole(opened):
    """Draw all charts, as for a printer."""
    page = opened.page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function("document.querySelectorAll('.plot:not(.drawn)').length === 0")


@pytest.mark.parametrize(
    ("width", "dark"), [(DESK, False), (PHONE, True)], ids=["desk", "phone-dark"]
)
def test_browser_draws_everything_without_requests(chromium, file, width, dark):
    with chromium.open(file, width, dark) as opened:
        seen_whole(opened)
        assert (opened.console, opened.requests, opened.overflow()) == ([], [], 0)
        charts = opened.page.locator(f"{CHARTS} svg")
        assert charts.count() == opened.page.locator(CHARTS).count() > 40
        marks = opened.page.evaluate(
            "[...document.querySelectorAll('.plot')].filter("
            "place => place.querySelectorAll('[aria-roledescription*=mark] path').length < 1"
            ").map(place => place.closest('figure').textContent)"
        )
        assert marks == []
        wide = opened.page.evaluate(
            "Math.max(...[...document.querySelectorAll('.plot')].map("
            "p => p.querySelector('svg').getBoundingClientRect().width - p.clientWidth))"
        )
        assert wide <= 1


def tooltip(page, mark):
    """Return the tooltip of `mark`; the pointer moves again if the page shifted under it."""
    tip = page.locator("#vg-tooltip-element.visible")
    for _ in range(50):
        mark.hover()
        page.wait_for_timeout(100)
        if tip.count():
            return tip.inner_text()
        page.mouse.move(1, 1)
    raise AssertionError("no tooltip")


def table(page, title):
    region = page.locator(f'.scroll[aria-label="{title}"]')
    region.evaluate("part => part.closest('details')?.setAttribute('open', '')")
    return region.locator("table")


def column(found, index):
    return found.locator(f"tbody tr:not([hidden]) > :nth-child({index})").all_inner_texts()


def test_tables_sort_and_filter(chromium, file):
    with chromium.open(file) as opened:
        title = "All candidates: from images to labels, both on the device"
        found = table(opened.page, title)
        head = found.locator("thead th").nth(3)
        button = head.locator("button")
        assert button.inner_text().startswith("median ms") and not head.get_attribute("aria-sort")
        rows = sorted(read("peers.json")["rows"], key=lambda row: row["median_ms"])
        names = [row["name"] for row in rows]
        button.focus()
        opened.page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending" and column(found, 1) == names
        button.press("Enter")  # a click could hit another element: charts above move the page
        assert head.get_attribute("aria-sort") == "descending" and column(found, 1) == names[::-1]
        found.locator("thead th button").nth(0).press("Enter")
        assert head.get_attribute("aria-sort") is None
        assert column(found, 1) == sorted(names, key=str.lower)
        peers = found.locator("thead th", has_text="times as fast")
        for way in ("ascending", "descending"):
            peers.locator("button").press("Enter")
            shown = column(found, 9)
            last = [text for text in shown if text][-1]
            assert peers.get_attribute("aria-sort") == way
            assert shown.index("") > shown.index(last), "rows without a value come last"
        box = opened.page.locator(f'.scroll[aria-label="{title}"]').locator(
            "xpath=preceding-sibling::p[1]//input"
        )
        box.fill("JAX fp16")
        assert column(found, 1) == ["jax jit fp16"]
        said = box.locator("xpath=ancestor::p//output")
        assert said.inner_text() == f"1 of {len(rows)} rows"
        box.fill("")
        assert len(column(found, 1)) == len(rows) and said.inner_text() == ""


# untrusted files

EVIL = "</script><script>window.hit=1</script><img src=x onerror=window.hit=2>\u2028{{7*7}}\u202e"


def poisoned(value):
    """Return `value` with all texts made hostile, except those that select what is drawn."""
    if isinstance(value, dict):
        return {key: part if key in ("command", "kind", "maker", "status", "way", "stages", "what",
                                     "stage", "ph")
                else poisoned(part) for key, part in value.items()}  # fmt: skip
    if isinstance(value, list):
        return [poisoned(part) for part in value]
    return EVIL + value if isinstance(value, str) else value


def test_hostile_text_is_escaped(chromium, tmp_path):
    """Its texts appear in tables, charts and tooltips; none becomes markup or runs."""
    for parts in (("peers.json",), ("course.json",), ("streams.json",), ("cells", "conv2.json"),
                  ("plans", "fp16.json"), ("conv", "overfeat.json"), ("shares.json",),
                  ("counters.json",)):  # fmt: skip
        (tmp_path / parts[-1]).write_text(json.dumps(poisoned(read(*parts))))
    out = tmp_path / "out.html"
    run(out, tmp_path, code=0)
    html = out.read_text()
    page = Parsed(html)
    assert page.outside == [] and page.scripts == ["application/json", None, None]
    shown = html.partition('id="charts"')[0]
    assert "window.hit" in shown and "<img" not in shown and "\u2028" not in html
    assert "{{7*7}}" in shown and "{{7*7}}" in html.replace(shown, "")
    with chromium.open(out) as opened:
        seen_whole(opened)
        figure = opened.page.locator(CHARTS, has_text="both on the device").first
        mark = figure.locator("path[aria-roledescription=point]").first
        assert "window.hit" in tooltip(opened.page, mark)
        assert opened.page.locator("#vg-tooltip-element img").count() == 0
        assert opened.page.evaluate("window.hit") is None
        assert (opened.console, opened.requests) == ([], [])


def test_injected_script_does_not_run(chromium, file, tmp_path):
    """The page's policy allows only its own scripts and no external resources."""
    bad = tmp_path / "bad.html"
    more = "<script>window.hit = 1</script><img src='none.png'></main>"
    bad.write_text(file.read_text().replace("</main>", more))
    with chromium.open(bad) as opened:
        assert opened.page.evaluate("window.hit") is None
        for name in ("script", "none.png"):
            assert any("Content Security" in line and name in line for line in opened.console)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "found another document"),
        ('{"command": "format c:"}', "expected one of infer"),
        ('{"command": "peers", "device": {"kind": "cpu", "name": "x"}}', "peers: TypeError"),
        ('{"command": NaN}', "not a JSON number"),
        (json.dumps({"traceEvents": [1] * (MOST_ROWS + 1)}), "at most 20,000 entries"),
        ('{"command": "one", "p95_ms": -5}', "p95_ms: expected a time from 0 to 1e+30, found -5"),
    ],
    ids=["no-json", "unknown", "no-rows", "nan", "many", "negative"],
)
def test_damaged_file_is_named_in_the_error(text, said, tmp_path):
    bad, out = tmp_path / "bad.json", tmp_path / "out.html"
    bad.write_text(text)
    done = run(out, H200 / "peers.json", bad)
    terminal.refused(done, f"{bad}: expected JSON written by a lenetgpu command", said)
    assert not out.exists()


def holders(value):
    """Return every object and list of a document."""
    if isinstance(value, dict | list):
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from holders(part)


def test_mutated_document_is_refused_or_drawn(tmp_path, monkeypatch):
    """Any document that loads despite mutated values can also be drawn, and is text."""
    random_, path, refused = random.Random(7), tmp_path / "m.json", 0
    values = (None, True, -1, 0, 1e30, 10**400, "", EVIL, [], {}, [1], {"signal": "window.hit"})
    documents = [read(*parts) for parts in (("peers.json",), ("cells", "conv2.json"),
                 ("plans", "fp16.json"), ("shares.json",))]  # fmt: skip
    monkeypatch.setattr(pages, "_library", str)
    other = command.load_document(H200 / "cells" / "fc1.json")
    for number in range(80):
        document = copy.deepcopy(documents[number % len(documents)])
        for _ in range(random_.randint(1, 4)):
            holder = random_.choice([one for one in holders(document) if one])
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            holder[random_.choice(keys)] = random_.choice(values)
        path.write_text(json.dumps(document))
        try:
            loaded = command.load_document(path)
        except LenetError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable()
            refused += 1
            continue
        if loaded["command"] not in UNDRAWN:
            made = pages.page([loaded, other])
            assert "<img src=x" not in made.partition('id="charts"')[0]
    assert 10 < refused < 70


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("out.pdf",), "expected a name ending in .html or .htm, found .pdf"),
        (("no/out.html",), "does not exist; create it"),
        (("out.html", H200 / "peers.json", "--plan", "auto"), "found --plan and files"),
        (("out.html", "gone.json"), "no such file"),
        (("out.html", "empty"), "expected a folder with JSON files, found none"),
        (("out.html", H200 / "sanitize.json"), "expected JSON with figures to draw, found none"),
        (("out.html", "--seconds", "nan"), "--seconds: expected a finite time"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_usage_is_one_sentence(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    terminal.refused(run(*words), said)
    assert not (tmp_path / "out.html").exists()


# a fresh run


def test_fresh_run_makes_a_page(chromium, tmp_path, monkeypatch):
    """A CPU run with a comparison: its plan, trace, misread digits and failed candidates."""
    real = command.run_compare

    def wrong(request, say):
        outcome = real(request, say)
        outcome.wrong.append("argmax.mine")
        return outcome

    monkeypatch.setattr(command, "run_compare", wrong)
    monkeypatch.setattr(command, "COMPARED", ("argmax", "fc2"))
    out = tmp_path / "fresh.html"
    done = run(out, "--device", "cpu", "--limit", 300, "--seconds", 0.05)
    assert done.exit_code == 1 and "WRONG: argmax argmax.mine" in done.output, done.output
    assert "not compared for lack of time: fc2, argmax " in done.output
    html = out.read_text()
    assert re.search(r"not compared for time</dt>\s*<dd>fc2, argmax ", html)
    page = Parsed(html)
    asked = ("pipeline", "plans", "comparisons", "trace", "labels", "confusion", "gallery")
    assert set(asked) <= set(page.ids) and "Not in this run: " in html
    assert "of 300 labels correct, lenet-mnist.h5, digits-10k.h5" in html and str(ROOT) not in html
    with chromium.open(out, PHONE) as opened:
        seen_whole(opened)
        assert (opened.console, opened.requests, opened.overflow()) == ([], [], 0)
        assert opened.page.locator("figure.chart", has_text="lenetgpu profile").count() == 1


# parts shared by all pages


@pytest.mark.parametrize("count", [0, 1, 17])
def test_image_sheet_is_lossless(count, rng):
    from PIL import Image

    images = rng.integers(0, 256, (count, 28, 28, 1), np.uint8)
    made = sheet(images)
    kind, _, data = made.uri.partition(",")
    assert kind == "data:image/png;base64"
    whole = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))
    assert whole.shape == (28 * made.rows, 28 * made.columns) and whole.dtype == np.uint8
    for number, image in enumerate(images[..., 0]):
        column, row = made.cell(number)
        x, y = 28 * column, 28 * row
        assert (whole[y : y + 28, x : x + 28] == image).all()
