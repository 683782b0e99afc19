"""Tables: figures that keep what counts, intervals with both ends or none, words under them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lenetgpu.lab.show.compare import COMPARE_COLUMNS
from lenetgpu.lab.show.tables import fitting, legend, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0051, "0.00510"), (0.0049, "0.00490"), (1.234, "1.23"), (51.26, "51.3"), (1234.5, "1,234"),
     (0, "0.00"), (-2.5, "-2.50"), (99.96, "100.0")],
)  # fmt: skip
def test_three_digits_count_whatever_the_size(value, text):
    assert significant(3)(value) == text


def test_an_interval_has_both_its_ends_or_none():
    row = {column.key: 1.0 for column in COMPARE_COLUMNS if column.numeric}
    row |= {"name": "fused.rows, again", "check": "PASS", "verdict": "undecided"}
    row |= {"grid": [1, 1, 1], "block": [1, 1, 1], "label_flips": 0}
    seen = set()
    for width in range(40, 260):
        shown = {column.key for column in fitting(COMPARE_COLUMNS, [row], width)}
        assert ("low" in shown) == ("high" in shown)
        seen.add("low" in shown)
    assert seen == {True, False}


def test_single_samples_claim_no_interval():
    assert legend("base", 1) == "ratio: time over base, of single samples: no verdict"
    words = legend("base", 40)
    assert "base's of the same round, median of 40 rounds (not one median over the other)" in words
    assert "within 2% of 1" in words
    assert "holds 1 and reaches further, or one of the two has fewer than 5 samples" in words


@pytest.mark.parametrize("command", [["variants"], ["doctor"], ["infer", "--limit", "10"]])
def test_a_closed_stdout_is_one_sentence(command):
    code = f"exec {sys.executable} -m lenetgpu {' '.join(command)} >&-"
    done = subprocess.run(["sh", "-c", code], stderr=subprocess.PIPE, text=True, env=os.environ)
    assert done.returncode == 2
    assert done.stderr == (
        "lenetgpu: error: stdout: expected a place for the results, found it closed\n"
    )
