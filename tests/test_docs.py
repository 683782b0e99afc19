"""What the repository says of itself is generated, and current."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from lenetgpu.papers.shapes import SUITES


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_tables_are_current():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "update_readme.py", "--check"])
    assert done.returncode == 0, "run scripts/update_readme.py"


def test_the_picture_is_current():
    drawn = (ROOT / "docs" / "pipeline.svg").read_text()
    assert drawn == script("draw_pipeline").draw(), "run scripts/draw_pipeline.py"


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
