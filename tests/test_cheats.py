"""Cheats of kernel leaderboards are called WRONG, and their honest twins right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from lenetgpu.cli import main

BROKEN = Path(__file__).parent / "broken"
FILES = ("stale", "cached", "late", "partial", "writes")


def compare(what, path, *arguments):
    command = ["compare", what, "--with", path, "--batch", 200, "--seconds", 0.2, "--json", "-",
               *arguments]  # fmt: skip
    result = CliRunner().invoke(main, [str(word) for word in command])
    assert result.stdout, result.output
    entries = {entry["name"]: entry for entry in json.loads(result.stdout)["candidates"]}
    return result, entries


def on_a_cpu(what, path):
    return compare(what, path, "--device", "cpu")


WHY = {
    "stale.keeps_last": "what its timed calls left is wrong",
    "stale.every_second": "what its timed calls left is wrong",
    "stale.every_tenth": "what its timed calls left is wrong",
    "stale.first_calls": "what its timed calls left is wrong",
    "cached.by_address": "what its timed calls left is wrong",
    "cached.by_identity": "what its timed calls left is wrong",
    "cached.by_shape": "what its timed calls left is wrong",
    "cached.by_first_image": "what its timed calls left is wrong",
    "late.thread": "writes its output after it has returned|unwritten",
    "late.rewrites": "writes its output after it has returned|unwritten",
    "partial.zeros": "",
    "partial.without_negatives": "",
    "partial.whole_tiles": "outputs NaN, infinite or unwritten",
    "partial.but_last": "outputs NaN, infinite or unwritten",
    "writes.its_input": "changes its input",
    "writes.behind_its_output": "writes outside its output",
    "writes.before_its_output": "writes outside its output",
}


@pytest.mark.parametrize("file", FILES)
def test_cheats_are_wrong_and_their_twins_right(file):
    result, entries = on_a_cpu("pool1", BROKEN / f"{file}.py")
    assert result.exit_code == 1, result.output
    found = {name: entry["status"] for name, entry in entries.items()}
    cheats = {name for name in found if name.startswith(f"{file}.")}
    assert cheats == {name for name in WHY if name.startswith(f"{file}.")}
    for name in found:
        assert found[name] == ("wrong" if name in cheats else "right"), entries[name]
    for name in cheats:
        assert re.search(WHY[name], entries[name]["note"])
        assert "median_ms" not in entries[name]
        assert f"WRONG: {name}" in result.stderr
    assert any(name.startswith("twin.") for name in found)
