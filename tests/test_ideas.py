"""docs/old-ideas.md: ideas stand in their texts, name what is measured, are judged by figures."""

from __future__ import annotations

import pytest

from lenetgpu.papers import course
from lenetgpu.papers.contents import SECTION, SLIDE, texts
from lenetgpu.papers.course_ladder import SAME
from lenetgpu.papers.shapes import SUITES
from lenetgpu.stages import variants

STAGES = ("conv1", "conv2", "pool1", "pool2")
NAMES = {"The course report": "course", "cuda-convnet2": "convnet2"}


@pytest.fixture
def ideas(script):
    return script("ideas")


@pytest.fixture
def tables(script):
    return script("ideas")


def listed():
    """(stage, variant) of every row of the course's suite on a GPU."""
    found = {(figure.stage, figure.variant) for figure in course.FIGURES}
    for rows in (course.UNTIMED, course.LINEAR, course.MOVES, course.BEYOND, course.AFTER):
        found |= {(stage, variant) for _, _, stage, variant in rows}
    return found


def test_ideas_stand_where_their_texts_have_them(ideas):
    contents = {text.name: text for text in texts()}
    for title, rows in ideas.TEXTS:
        items = contents[NAMES.get(title, title)].items
        known = {item.number for item in items if item.kind in (SECTION, SLIDE)}
        cited = {number for idea in rows for number in idea.section.split(", ")}
        assert cited <= known, title


def test_cases_name_what_is_measured(ideas):
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


def test_both_sides_of_a_step_are_the_texts_or_both_ours(ideas):
    """A text's kernel is not held against one of ours, which has other blocks; BEYOND is compared
    with the report's last, which is what it would have replaced."""
    own = {(f.stage, f.variant) for f in course.FIGURES}
    own |= {(stage, name) for _, _, stage, name in (*course.UNTIMED, *course.LINEAR, *course.MOVES)}
    beyond = {(stage, name) for _, _, stage, name in course.BEYOND}

    def side(case, names):
        keys = [tuple(n.split(" ", 1)) if n[:5] in STAGES else (case.stage, n) for n in names]
        return {key in own for key in keys}, all(key in beyond for key in keys)

    for idea in ideas.COURSE:
        for case in idea.cases:
            (before, _), (after, new) = side(case, case.before), side(case, case.after)
            assert len(before) == len(after) == 1
            assert before == after or (new and before == {True}), (idea.words, case)


def test_gains_then_are_the_texts(ideas):
    """Ratios of the report's own times, shares that convnet2 saved, the Pascal paper's means."""
    assert ideas._then("pool1", course.MEAN, "layout.quad_looped") == pytest.approx(182 / 14.5701)
    assert ideas._then("conv1", "unrolled.image_untransposed", "unrolled.image_tiled") is None
    rungs = [c for i in ideas.TEXTS[1][1] for c in i.cases if isinstance(c, ideas.Rung)]
    gains = {c.step: c.then for c in rungs}
    assert gains["unrolled"] == pytest.approx(1 / 0.29) and gains["outer product engine"] is None
    assert [i.cases[0].then for i in ideas.TEXTS[2][1][:2]] == [2.6, 1.39]


@pytest.mark.parametrize(
    ("ratios", "word"),
    [((1.01 * SAME,), "holds"), ((1.0,), "gone"), ((0.99 / SAME,), "turned"), ((4.0, 1.0), "holds"),
     ((0.5, 2.0, 2.0, 2.0), "by the shape"), ((0.5, *[2.0] * 4), "holds")],
)  # fmt: skip
def test_verdicts(tables, ratios, word):
    assert tables.Gain(ratios, "").verdict == word


def document(**times):
    rows = [
        {"stage": "pool1", "variant": name, "status": "right", "median_ms": ms, "explanation": name}
        for name, ms in times.items()
    ]
    return {"rows": rows}


def test_a_row_says_gain_counter_and_verdict(tables, ideas, monkeypatch):
    step = ideas.Step("pool1", ("old",), ("new",), 12.5, (ideas.LOADS, ideas.STALL))
    idea = ideas.Idea("3.2.4", "the pool's layout", (step,))
    monkeypatch.setattr(tables, "_document", lambda *parts: document(old=2.0, new=1.0))
    counters = {
        ("pool1", "old"): {ideas.LOADS: 0.125, "top_stall": "long_scoreboard",
                           "top_stall_share": 0.9},
        ("pool1", "new"): {ideas.LOADS: 1.0, "top_stall": "lg_throttle", "top_stall_share": 0.5},
    }  # fmt: skip
    monkeypatch.setattr(tables, "_counters", lambda: counters)
    assert tables._row(idea) == (
        "| 3.2.4 | the pool's layout | 12.50x | 2.00x | loads used 12 % -> 100 %, stalled by "
        "long_scoreboard 90 % -> lg_throttle 50 % | holds |"
    )
    monkeypatch.setattr(tables, "_counters", dict)
    assert "| 2.00x | old -> new | holds |" in tables._row(idea)
    monkeypatch.setattr(tables, "_document", lambda *parts: None)
    assert tables._row(idea).endswith("| 12.50x | not measured | - | not measured |")


def test_stages_that_run_behind_each_other_are_added(tables, ideas, monkeypatch):
    monkeypatch.setattr(tables, "_counters", dict)
    monkeypatch.setattr(tables, "_document", lambda *parts: document(old=3.0, rest=1.0, new=2.0))
    both = ideas.Step("pool1", ("pool1 old", "pool1 rest"), ("new",))
    assert tables.gain(both).ratio == pytest.approx(2.0)
    assert tables.gain(ideas.Step("pool1", ("pool1 old", "gone"), ("new",))) is None


def test_cases_that_differ_are_named(tables, ideas, monkeypatch):
    monkeypatch.setattr(tables, "_counters", dict)
    monkeypatch.setattr(tables, "_document", lambda *parts: document(a=1.0, b=2.0, c=0.5))
    cases = tuple(ideas.Step("pool1", ("a",), (name,)) for name in "bc")
    assert tables.verdict(ideas.Idea("1", "", cases)) == "b turned, c holds"
    assert tables.verdict(ideas.Idea("1", "", cases[1:])) == "holds"


def test_a_suite_is_judged_by_its_mean_and_says_where(tables, ideas, monkeypatch):
    cases = [
        {"label": str(n), "candidates": [{"name": "p", "median_ms": 1.0, "roofline": 0.1},
                                         {"name": "q", "median_ms": ms, "roofline": 0.3}]}
        for n, ms in enumerate((0.5, 2.0, 0.5))
    ]  # fmt: skip
    cases.append({"label": "3", "candidates": [{"name": "p", "median_ms": 1.0}]})
    monkeypatch.setattr(tables, "_document", lambda *parts: {"cases": cases})
    found = tables.gain(ideas.Over("pascal-multi", "p", "q"))
    assert str(found) == "1.26x (0.50x to 2.00x; gains on 2, loses on 1 of 3 shapes)"
    assert found.why == "of the roof 10% -> 30%"


def test_a_tile_over_another_by_the_sweep(tables, ideas, monkeypatch):
    def tile(figure, each, pixels, us, status="right"):
        return {"figure": figure, "images_per_thread": each, "filters_per_thread": each,
                "cached_pixels": pixels, "status": status, "median_us": us, "shared_bytes": us,
                "registers": 32, "blocks": 8}  # fmt: skip

    tiles = [tile("5", 1, 9, 1.0), tile("5", 1, 25, 2.0), tile("6", 1, 16, 4.0),
             tile("6", 1, 4, 1.0, "wrong")]  # fmt: skip
    cases = [{"label": "a", "tiles": tiles}, {"label": "b, as printed", "tiles": tiles}]
    monkeypatch.setattr(tables, "_document", lambda *parts: {"cases": cases})
    found = tables.gain(ideas.Tile(("5", 1, 1, None), ("6", 1, 1, 16)))
    assert found.ratios == (0.5,) and found.why == "shared bytes 2 -> 4"
    assert tables.gain(ideas.Tile(("5", 1, 1, None), ("6", 1, 1, 4))) is None


def test_what_is_ours_has_no_verdict(tables, ideas, monkeypatch):
    monkeypatch.setattr(tables, "_document", lambda *parts: document(a=2.0, b=1.0))
    idea = ideas.Idea("3.2", "ours", (ideas.Step("pool1", ("a",), ("b",)),), ours=True)
    assert tables._row(idea).startswith("| 3.2 | ours | ours | 2.00x |")
    assert tables._row(idea).endswith("| - |")
