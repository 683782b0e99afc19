"""What decides whether a command ends with 0, 1 or 2, and what it then says."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.lab.compare import CompareOutcome
from lenetgpu.measure.outcome import Outcome, Request

COMPARE = ["compare", "argmax", "--device", "cpu", "--batch", "64", "--seconds", "0.2"]
FASTER = 1e-3  # of the times of a run that never was


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def faster(value):
    """Every time and ratio of a document a thousand times smaller."""
    if isinstance(value, dict):
        timed = ("median_ms", "p05_ms", "p95_ms", "samples_ms", "interval_ms", "ratio")
        return {k: scaled(v) if k in timed else faster(v) for k, v in value.items()}
    return [faster(item) for item in value] if isinstance(value, list) else value


def scaled(value):
    if isinstance(value, dict):
        return {key: scaled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [scaled(item) for item in value]
    return value * FASTER if isinstance(value, float | int) else value


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    path = tmp_path_factory.mktemp("compare") / "then.json"
    result = run(*COMPARE, "--json", path)
    assert result.exit_code == 0, result.output
    return path


def test_what_was_a_thousand_times_faster_is_a_regression(measured, tmp_path):
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(faster(json.loads(measured.read_text()))))
    result = run(*COMPARE, "--fail-on-regression", "50", "--against", earlier)
    assert result.exit_code == 1, result.output
    assert "slower: " in result.output


def test_what_was_a_thousand_times_slower_is_none(measured, tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "FASTER", 1e3)
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(faster(json.loads(measured.read_text()))))
    result = run(*COMPARE, "--fail-on-regression", "0", "--against", earlier)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("wrong", "lost", "failed"), [([], [], False), (["x"], [], True), ([], ["x"], True)]
)
def test_a_comparison_fails_where_something_is_wrong_or_lost(wrong, lost, failed):
    outcome = CompareOutcome({}, wrong, lost)
    assert outcome.failed == failed
    assert len(outcome.sentences()) == len(wrong) + len(lost)


@pytest.mark.parametrize(
    ("least", "correct", "low"),
    [(None, 0, False), (0.5, 5, False), (0.5, 4, True), (1.0, 10, False), (0.0, 0, False)],
)
def test_an_accuracy_that_is_just_met_is_enough(least, correct, low, monkeypatch):
    outcome = Outcome.__new__(Outcome)
    outcome.request, outcome.labels = Request(min_accuracy=least), range(10)
    monkeypatch.setattr(Outcome, "correct", correct)
    assert outcome.too_low == low
