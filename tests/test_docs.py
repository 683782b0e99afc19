"""What the repository says of itself is generated, and current."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from conftest import ROOT

from lenetgpu.papers.shapes import SUITES
from lenetgpu.stages import variants

PAGES = [
    path
    for folder in (ROOT, ROOT / "docs", ROOT / "data", ROOT / "weights")
    for path in sorted(folder.glob("*.md"))
]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_pages_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "update_docs.py", "--check"])
    assert done.returncode == 0, "run scripts/update_docs.py"


def test_the_picture_is_current():
    """What it shows exists and is drawn as today; what it does not show yet is a warning only."""
    drawing = script("draw_pipeline")
    picture = (ROOT / "docs" / "pipeline.svg").read_text()
    shown, registered = drawing.shown_in(picture), drawing.registered()
    gone = [name for name in shown if name not in registered]
    assert shown and not gone, "run scripts/draw_pipeline.py"
    assert picture == drawing.draw(shown), "run scripts/draw_pipeline.py"
    new = ", ".join(name for name in registered if name not in shown)
    if new:
        warnings.warn(f"docs/pipeline.svg lacks {new}: run scripts/draw_pipeline.py", stacklevel=1)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "measured").rglob("lab-*/*.json")), ids=lambda p: p.name
)
def test_measured_suites_are_right_and_dated(path):
    document = json.loads(Path(path).read_text())
    assert document["date"]
    assert document["device"]["kind"] == "cuda"
    assert {row["status"] for row in document["rows"]} == {"right"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "measured").rglob("conv-*/*.json")), ids=lambda p: p.name
)
def test_measured_convolutions_are_right_dated_and_whole(path):
    document = json.loads(Path(path).read_text())
    assert document["date"]
    assert document["device"]["kind"] == "cuda"
    assert not document["interrupted"]
    assert document["suite"] == path.stem
    labels = [case["label"] for case in document["cases"]]
    assert labels == [shape.label for shape in SUITES[path.stem].shapes]
    for case in document["cases"]:
        status = {entry["status"] for entry in case["candidates"]}
        assert status <= {"right", "refused", "skipped"}


INFER = [
    path
    for path in sorted((ROOT / "docs" / "measured").rglob("*.json"))
    if not path.parent.name.startswith(("lab-", "conv-", "peers-"))
]


@pytest.mark.parametrize("path", INFER, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_measured_files_are_right_and_dated(path):
    document = json.loads(Path(path).read_text())
    if document["precision"] == "fp32":
        assert document["correct"] == 8_722
    else:
        assert abs(document["correct"] - 8_722) <= 5
    assert document["date"]
    assert document["device"]["name"]
    assert document["timing_ms"]["compute"]["samples"]


def test_every_measured_gpu_plan_beats_the_report():
    medians = [
        json.loads(path.read_text())["timing_ms"]["compute"]["median"]
        for path in (ROOT / "docs" / "measured" / "nvidia-h200").glob("*.json")
    ]
    assert max(medians) < 270
    assert min(medians) < 8


@pytest.mark.parametrize("stage", ["conv1", "conv2"])
def test_the_ladder_has_every_gpu_convolution_once_and_climbs(stage):
    text = (ROOT / "docs" / "ladder.md").read_text()
    part = text.split(f"<!-- begin:ladder-{stage} -->")[1].split(f"<!-- end:ladder-{stage} -->")[0]
    rows = re.findall(r"^\| (\d+) \| \[`([\w.]+)`\].* \| ([\d.,]+) \| \w+ \|", part, re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    times = [float(took.replace(",", "")) for _, _, took in rows]
    assert times == sorted(times, reverse=True)
    without = re.findall(r"^- \[`([\w.]+)`\]", part, re.MULTILINE)
    listed = [name for _, name, _ in rows] + without
    registered = [v.full_name for v in variants("conv", "cuda")]
    assert len(set(listed)) == len(listed)
    assert set(listed) <= set(registered), "run scripts/update_docs.py"
    new = ", ".join(name for name in registered if name not in listed)
    if new:
        warnings.warn(f"docs/ladder.md lacks {new}: run scripts/update_docs.py", stacklevel=1)


def fragments(path):
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, fragment = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (fragment and fragment not in fragments(there)):
            dead.append(target)
    assert not dead


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert page.name == "README.md" or f"({page.name})" in index
