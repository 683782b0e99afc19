"""What a new user types first: scores, typos, nothing at all, README's commands without a GPU."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main
from lenetgpu.errors import choose
from lenetgpu.gpu import device
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab import infer as inference
from lenetgpu.lab import listing
from lenetgpu.lab.compare import suite_notes
from lenetgpu.papers import course_ladder
from lenetgpu.papers.course import FIGURES

ON_CPU = ["--device", "cpu", "--plan", "tiled"]


def run(*arguments, **environment):
    return CliRunner().invoke(main, [str(a) for a in arguments], env=environment or None)


def refused(result, *parts):
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("lenetgpu: error: ") and result.stderr.count("\n") == 1
    assert "\\n" not in result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "driver_gpus", lambda: ())


def table_of(text):
    """The rows of a printed table that begin with a number."""
    return [line.split() for line in text.splitlines() if re.match(r" +\d+ +\d ", line)]


def test_scores_are_printed(tmp_path):
    path = tmp_path / "all.json"
    written = run("infer", "--limit", 23, "--skip", 7, *ON_CPU, "--scores", "--output", path)
    assert written.exit_code == 0, written.output
    right = json.loads(path.read_text())
    result = run("infer", "--limit", 23, "--skip", 7, *ON_CPU, "--scores")
    assert result.exit_code == 0, result.output
    rows = table_of(result.stdout)
    assert [int(row[0]) for row in rows] == list(range(7, 27))
    assert [int(row[1]) for row in rows] == right["labels"][:20]
    for row, scores in zip(rows, right["scores"], strict=False):
        assert [float(cell) for cell in row[3:]] == pytest.approx(scores, abs=0.0051)
    assert "of 3 more images: --output FILE.csv writes all" in result.stdout


def test_scores_are_printed_once_and_where_results_go(tmp_path):
    words = ["infer", "--limit", 3, *ON_CPU]
    assert table_of(run(*words).stdout) == []
    assert table_of(run(*words, "--scores", "--output", tmp_path / "a.csv").stdout) == []
    whole = run(*words, "--scores")
    assert len(table_of(whole.stdout)) == 3 and "more images" not in whole.stdout
    result = run(*words, "--scores", "--json", "-")
    assert json.loads(result.stdout)["images"] == 3
    assert len(table_of(result.stderr)) == 3


def test_scores_that_were_not_kept_are_said(monkeypatch):
    monkeypatch.setattr(inference, "WHOLE_BYTES", 0)
    result = run("infer", "--limit", 30, *ON_CPU, "--scores")
    assert result.exit_code == 0, result.output
    assert "none were kept of so many images: --output FILE.csv" in result.stdout


@pytest.mark.parametrize("name", ["course", "report"])
def test_a_suite_of_another_batch_says_what_is_done(name, monkeypatch, no_gpu):
    few = [f for f in FIGURES if f.table == "12"]  # argmax: serial, and a GPU's
    monkeypatch.setattr(course_ladder, "FIGURES", few)
    for other in ("LINEAR", "ON_CPU"):
        monkeypatch.setattr(course_ladder, other, ())
    result = run("compare", "--suite", name, "--batch", 100)
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "The course's times are of 10,000 images, those here of 100: no ratio is made" in said
    assert "--batch 10000 gives course/here" in said
    assert "course/here" not in result.stdout.splitlines()[2]
    assert "1 of 2 rows are absent: they need a GPU." in said


def test_a_suite_of_the_courses_batch_says_nothing_of_it():
    rows = [{"status": "right"}]
    assert suite_notes({"images": 10_000, "rows": rows}) == []
    assert len(suite_notes({"images": 9_999, "rows": rows})) == 1


def readme_commands():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines = [line for line in lines if line.startswith("lenetgpu ")]
    assert len(lines) > 10
    return [line.partition("#")[::2] for line in lines]


def test_readmes_commands_are_commands(monkeypatch):
    """Each is parsed, and refused where an option or a choice is none."""
    for line, _ in readme_commands():
        command, ctx, words = main, None, shlex.split(line)[1:]
        while hasattr(command, "commands"):
            command, words = command.commands[words[0]], words[1:]
        ctx = command.make_context(command.name, words)
        assert ctx.params is not None, line


GPU_ONLY = [line for line, said in readme_commands() if re.match(r" *GPU(;.*whole.*|$)", said)]


@pytest.mark.parametrize("line", GPU_ONLY)
def test_a_command_that_needs_a_gpu_says_so(line, no_gpu):
    refused(run(*shlex.split(line)[1:]), "needs a GPU")


def test_readme_marks_what_needs_a_gpu():
    assert len(GPU_ONLY) >= 2
    marked = " ".join(line for line, said in readme_commands() if "GPU" in said)
    assert all(word in marked for word in ("--plan course", "--reference course", "--suite course"))


@pytest.mark.parametrize(
    ("gpu", "here", "lacks"),
    [
        (None, {"cpu"}, {"a GPU"}),
        (75, {"cpu", "cuda 7.5"},
         {"a GPU of compute capability 9.0", "a GPU of compute capability 8.0 or later"}),
        (90, {"cpu", "cuda 7.5", "cuda 8.0", "cuda 9.0 only"}, set()),
        (100, {"cpu", "cuda 7.5", "cuda 8.0"}, {"a GPU of compute capability 9.0"}),
    ],
)  # fmt: skip
def test_variants_say_what_runs_here(gpu, here, lacks, monkeypatch):
    found = None if gpu is None else Gpu(0, "NVIDIA Test", gpu)
    monkeypatch.setattr(listing, "choose_device", lambda wanted: (found, "no NVIDIA GPU found"))
    rows = json.loads(run("variants", "--json").stdout)["variants"]
    assert {row["needs"] for row in rows if row["here"]} == here
    assert {row["lacks"] for row in rows if not row["here"]} == lacks
    assert all(row["lacks"] is None for row in rows if row["here"])
    last = " ".join(run("variants").stdout.splitlines()[-1].split())
    assert last.startswith("* runs on this machine: cpu")
    assert all(what in last for what in lacks) and ("the others need" in last) == bool(lacks)


def test_variants_of_a_stage_are_marked(no_gpu):
    lines = run("variants", "conv2").stdout.splitlines()
    assert next(line for line in lines if "winograd.blocked" in line).startswith("* ")
    assert next(line for line in lines if "direct.basic" in line).startswith("  ")
    assert "on this machine: cpu (no NVIDIA GPU found)" in run("variants", "--matrix").stdout


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["infr"], "infer"),
        (["data", "inf"], "info"),
        (["infer", "--plann", "fp32"], "--plan"),
        (["infer", "--plan", "unroled"], "unrolled"),
        (["infer", "--plan", "FFT"], "fft"),
        (["infer", "--device", "cpu", "--conv2", "fft.pocketft"], "fft.pocketfft"),
        (["variants", "con2"], "conv2"),
        (["compare", "con2"], "conv2"),
        (["compare", "--suite", "cours"], "course"),
        (["conv", "--suite", "overfit"], "overfeat"),
    ],
)
def test_a_typo_is_met_with_a_near_name(words, near):
    refused(run(*words), near)
    said = run(*words).stderr.lower()
    assert re.search(rf"did you mean .*{re.escape(near)}", said)


def test_choices_end_with_what_was_meant():
    assert choose("fp61", ["fp16", "int8"]) == "choose from: fp16, int8; did you mean fp16?"
    assert choose("zzz", ["a", "b", "a"]) == "choose from: a, b"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["compare"], ["a stage, plans or --suite NAME"]),
        (["conv"], ["SHAPE", "--suite NAME"]),
        (["completion"], ["'SHELL'", "bash, zsh, fish"]),
        (["completion", "ksh"], ["'ksh'", "'bash', 'zsh', 'fish'"]),
        (["data", "convert"], ["SOURCE"]),
        (["data", "fetch-mnist"], ["FOLDER"]),
        (["weights", "verify"], ["FILE"]),
        (["infer", "--json"], ["--json"]),
        (["infer", "--repeat", "x"], ["--repeat", "'x'"]),
        (["conv", "1,2"], ["SHAPE '1,2'", "64,56,56,64,3,1,1"]),
    ],
)
def test_what_is_missing_or_wrong_is_one_sentence(words, parts):
    refused(run(*words), *parts)
