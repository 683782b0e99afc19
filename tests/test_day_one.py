"""First commands of a new user: scores, no arguments, README's commands without a GPU."""

import json
import re
import shlex

import pytest
from conftest import ROOT
from terminal import refused, run

from lenetgpu.cli import main
from lenetgpu.errors import choose
from lenetgpu.gpu import device
from lenetgpu.lab import infer as inference
from lenetgpu.papers import course

ON_CPU = ["--device", "cpu", "--plan", "tiled"]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "driver_gpus", lambda: ())


def table_of(text):
    """Return the rows of a printed table that begin with a number."""
    return [line.split() for line in text.splitlines() if re.match(r" +\d+ +\d ", line)]


def test_scores_are_printed(tmp_path):
    path = tmp_path / "all.json"
    words = ["infer", "--limit", 23, "--skip", 7, *ON_CPU, "--scores"]
    written = run(*words, "--output", path)
    assert written.exit_code == 0 and table_of(written.stdout) == []
    right = json.loads(path.read_text())
    result = run(*words, "--json", "-")
    assert json.loads(result.stdout)["images"] == 23
    rows = table_of(result.stderr)
    assert [int(row[0]) for row in rows] == list(range(7, 27))
    assert [int(row[1]) for row in rows] == right["labels"][:20]
    for row, scores in zip(rows, right["scores"], strict=False):
        assert [float(cell) for cell in row[3:]] == pytest.approx(scores, abs=0.0051)
    assert "of 3 more images: --output FILE.csv writes all" in result.stderr


def test_omitted_scores_are_reported(monkeypatch):
    monkeypatch.setattr(inference, "WHOLE_BYTES", 0)
    result = run("infer", "--limit", 30, *ON_CPU, "--scores")
    assert "not kept for so many images: --output FILE.csv" in result.stdout


def test_suite_at_another_batch_shows_no_ratio(monkeypatch, no_gpu):
    few = [f for f in course.FIGURES if f.table == "12"]  # argmax: serial, and a GPU's
    monkeypatch.setattr(course, "FIGURES", few)
    monkeypatch.setattr(course, "further_rows", lambda device: ())
    result = run("compare", "--suite", "course", "--batch", 100, code=0)
    said = " ".join(result.stdout.split())
    assert "The course timed 10,000 images, this run 100." in said
    assert "course/here" not in result.stdout.splitlines()[2]
    assert "1 of 2 rows are absent: they need a GPU." in said


def readme_commands():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if line.startswith("lenetgpu ")]
    assert len(lines) > 10
    return [line.partition("#")[::2] for line in lines]


def test_readme_commands_parse():
    """Each command is parsed; an unknown option or choice would be refused."""
    for line, _ in readme_commands():
        command, words = main, shlex.split(line)[1:]
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        assert command.make_context(command.name, words).params is not None, line


def test_commands_that_need_a_gpu_are_refused_without(no_gpu):
    marked = [line for line, said in readme_commands() if re.match(r" *GPU(;.*whole.*|$)", said)]
    assert len(marked) >= 2
    for line in marked:
        refused(run(*shlex.split(line)[1:]), "requires a GPU")


def test_list_of_choices_ends_with_a_suggestion():
    assert choose("fp61", ["fp16", "int8"]) == "choose from: fp16, int8; did you mean fp16?"
    assert choose("zzz", ["a", "b", "a"]) == "choose from: a, b"
