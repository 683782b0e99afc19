"""docs/old-ideas.md: ideas exist in their texts, name measured rows, and have verdicts."""

import pytest

from lenetgpu.lab.conv.document import summary_json
from lenetgpu.papers import course
from lenetgpu.papers.course_ladder import SAME
from lenetgpu.papers.shapes import SUITES
from lenetgpu.stages import find, variants

STAGES = ("conv1", "conv2", "pool1", "pool2")
NAMES = {"The course report": "course", "cuda-convnet2": "convnet2"}


@pytest.fixture
def ideas(script):
    return script("ideas")


def listed():
    """Return (stage, variant) of every row of the course suite on a GPU."""
    found = {(figure.stage, figure.variant) for figure in course.FIGURES}
    for rows in (course.UNTIMED, course.LINEAR, course.MOVES, course.BEYOND, course.AFTER):
        found |= {(stage, variant) for _, _, stage, variant in rows}
    return found


def test_ideas_exist_in_their_texts(ideas, script):
    contents = {text.name: text for text in script("source_texts").TEXTS}
    for title, rows in ideas.TEXTS:
        items = contents[NAMES.get(title, title)].items
        known = {item.number for item in items if item.kind in ("section", "slide")}
        cited = {number for idea in rows for number in idea.section.split(", ")}
        assert cited <= known, title


def test_cases_name_measured_rows(ideas):
    rows, convs = listed(), {v.full_name for v in variants("conv", "cuda")} | {ideas.PEER}
    steps = {step.name for step in ideas.STEPS}
    for _, every in ideas.TEXTS:
        for case in (case for idea in every for case in idea.cases):
            if isinstance(case, ideas.Step):
                for name in (*case.before, *case.after):
                    own, _, rest = name.partition(" ")
                    key = (own, rest) if own in STAGES else None
                    assert (key or (case.stage, name)) in rows, name
            elif isinstance(case, ideas.Rung):
                assert case.step in steps
            elif isinstance(case, ideas.Over):
                assert case.suite in SUITES and {case.before, case.after} <= convs
            else:
                assert {case.before[0], case.after[0]} <= {"4", "5", "6", "7"}


@pytest.mark.parametrize(
    ("ratios", "word"),
    [((1.01 * SAME,), "holds"), ((1.0,), "gone"), ((0.99 / SAME,), "turned"), ((4.0, 1.0), "holds"),
     ((0.5, 2.0, 2.0, 2.0), "by the shape"), ((0.5, *[2.0] * 4), "holds")],
)  # fmt: skip
def test_verdict_of_ratios(ideas, ratios, word):
    assert ideas.Gain(ratios, "").verdict == word


def test_unmeasured_side_is_reported(ideas, monkeypatch):
    """The page has only measured sides; test_narrow compares them."""
    step = ideas.Step("pool1", ("old",), ("new",), 12.5)
    monkeypatch.setattr(ideas, "_document", lambda *parts: {"rows": [], "cases": []})
    ideas._rows.cache_clear()
    found = ideas.row(ideas.Idea("3.2.4", "the pool's layout", (step,)))
    assert found == ("3.2.4", "the pool's layout", "12.50x", "not measured", "-", "not measured")
    assert ideas.row(ideas.Idea("3", "x", (step,), ours=True))[-1] == "-"
    ideas._rows.cache_clear()


# A paper's claim is for its own kernel; our later variants have none


@pytest.mark.parametrize("name", [name for name in SUITES if SUITES[name].literal])
def test_strict_and_improved_kernels_are_kept_apart(name):
    suite = SUITES[name]
    assert not set(suite.literal) & set(suite.after)
    for one in suite.literal:
        assert not (find("conv", one, "cuda").paper or "after").startswith("after")
    for one in suite.after if name != "convnet2" else ():
        assert (find("conv", one, "cuda").paper or "").startswith("after")


def test_summary_compares_claim_only_with_paper_kernels():
    names = ("prefetch.strict", "prefetch.stride_fixed")
    timed = [{"name": name, "median_ms": 1.0, "speedup": 2.0} for name in names]
    found = summary_json([{"best": "", "candidates": timed}], SUITES["pascal-multi"])
    said = {row["name"]: row["paper"] for row in found}
    assert said["prefetch.strict"] and said["prefetch.stride_fixed"] is None
