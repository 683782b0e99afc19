"""The sweep's table and picture, of a sweep that is made up."""

from __future__ import annotations

import pytest

from lenetgpu.lab.show.plots import plot_streams


def way(name, median, **more):
    return {"way": name, "median_ms": median, "samples": 25, **more}


def sweep(plan, copy, kernels, dtype="uint8"):
    one, two, best = copy + kernels, max(copy, kernels) * 1.3, max(copy, kernels) * 1.1
    return {
        "plan": plan,
        "dtype": dtype,
        "images": 10_000,
        "rows": [
            way("bare copy", copy),
            way("kernels", kernels),
            way("auto", best * 1.01, streams=3, chunk=3_334, taper=0.5, predicted_ms=best * 0.98),
            way("zero-copy", best * 0.9, streams=1, chunk=10_000, zero_copy=True),
            way("schedule", one, streams=1, chunk=10_000, predicted_ms=one),
            way("schedule", two, streams=1, chunk=5_000, predicted_ms=two),
            way("schedule", best, streams=3, chunk=4_000, predicted_ms=best),
        ],
    }


@pytest.fixture
def document():
    return {
        "command": "streams",
        "date": "2026-11-22",
        "commit": "0123456789abcdef",
        "device": {"kind": "cuda", "name": "NVIDIA H200"},
        "sweeps": [sweep("int8", 0.150, 0.070), sweep("tiled", 0.160, 16.0)],
    }


def test_the_table_says_what_overlap_saved_and_could(document, script, monkeypatch):
    tables = script("stream_tables")
    monkeypatch.setattr(tables, "there", lambda *parts: True)
    monkeypatch.setattr(tables, "load", lambda *parts: document)
    lines = tables.table().splitlines()
    assert "25 samples a row" in lines[0] and "0123456789" in lines[0]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[4:]]
    assert cells[0][0] == "`int8`" and cells[0][3:5] == ["0.150", "0.070"]
    assert cells[0][5:9] == [
        "0.220 (1 x 10,000)",
        "0.165 (3 x 4,000)",
        "0.149",
        "0.167 (3 x 3,334, falling by 2), 0.162",
    ]
    assert cells[0][9:] == ["24%", "32%", "1.11x"]
    assert cells[1][0] == "`tiled`" and cells[1][10] == "1%"


def test_a_schedule_that_copies_nothing_says_so(document, script, monkeypatch):
    tables = script("stream_tables")
    document["sweeps"] = document["sweeps"][:1]
    (auto,) = (row for row in document["sweeps"][0]["rows"] if row["way"] == "auto")
    auto["zero_copy"] = True
    monkeypatch.setattr(tables, "there", lambda *parts: True)
    monkeypatch.setattr(tables, "load", lambda *parts: document)
    assert "| 0.167 (zero-copy), 0.162 |" in tables.table()


def test_the_kernels_of_every_plan_of_a_sweep_are_hashed(document, script):
    found = script("measured").kernels_of(document)
    assert {"lenetgpu/stages/fused/wgmma/int8_features.cu", "lenetgpu/stages/conv/tiled.py"} & set(
        found
    ) == {"lenetgpu/stages/fused/wgmma/int8_features.cu"}
    assert any("stages/pool" in name for name in found)


def test_the_picture_has_a_pane_a_plan(document, tmp_path):
    pytest.importorskip("matplotlib")
    target = tmp_path / "streams.svg"
    plot_streams(target, document["sweeps"], "title of it")
    drawn = target.read_text()
    assert drawn.startswith("<?xml") and len(drawn) > 5_000
    plot_streams(target, document["sweeps"][:1], "one pane")
    assert len(target.read_text()) < len(drawn)
