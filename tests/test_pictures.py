"""Pictures show the figures of their tables, and what cannot be drawn is refused before the run."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.errors import LenetError
from lenetgpu.lab import compare as command
from lenetgpu.lab.show import plots
from lenetgpu.measure.roofline import Ceilings

GUEST = """
from lenetgpu.stages.registry import cpu, variant


@variant(kind="fc", family="mine", reads="NC", writes="NC", needs=cpu())
def nothing(x, w, y, problem):
    '''Writes nothing.'''
"""
LIMITS = Ceilings("x", copy_gbs=100, fma_tflops=1, tensor_tflops=8)


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be saved."""
    pytest.importorskip("matplotlib")
    kept = []
    real = plots.save
    monkeypatch.setattr(
        plots, "save", lambda figure, path: (kept.append(figure), real(figure, path))
    )
    return kept


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_bars_of_plans_are_as_long_as_their_table_says(tmp_path, drawn):
    out = tmp_path / "c.json"
    result = run("compare", "plans", "--batch", 8, "--device", "cpu", "--seconds", 1,
                 "--json", out, "--plot", tmp_path / "p.png")  # fmt: skip
    assert result.exit_code == 0, result.output
    entries = json.loads(out.read_text())["candidates"]
    labels = texts(drawn[0])
    assert len(labels) == len(entries)
    (axes,) = drawn[0].axes
    ends: dict[float, float] = {}
    for bar in axes.patches:
        ends[bar.get_y()] = max(ends.get(bar.get_y(), 0.0), bar.get_x() + bar.get_width())
    for entry in entries:
        wanted = plots.bar_label(entry["median_ms"])
        drawn_so = [text for text in labels if text.removesuffix(" (bar cut)") == wanted]
        assert drawn_so  # two plans may take the same time
        if wanted in drawn_so:
            assert any(end == pytest.approx(entry["median_ms"]) for end in ends.values())
        assert f"{entry['median_ms']:,.3f}" in result.output


def test_a_scaled_plan_is_not_drawn_by_another_pass(tmp_path, drawn):
    """6,576 ms in the picture where the table said 87: a profile of its own, cold, and scaled."""
    rows = {"a": [{"stages": ["conv1"], "median_ms": 9000.0, "share": 0.75},
                  {"stages": ["fc1"], "median_ms": 3000.0, "share": 0.25}]}  # fmt: skip
    plots.plot_plans(tmp_path / "p.svg", rows, {"a": 87.0, "untimed": None}, "t")
    (axes,) = drawn[0].axes
    assert texts(drawn[0]) == ["87.000 ms"]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([65.25, 21.75])


def test_points_under_the_roofline_are_at_their_rates(tmp_path, drawn):
    rows = [{"name": "a", "precision": "fp32", "gflop": 2.0, "mbytes": 4.0, "median_ms": 10.0,
             "tflops": 0.2}]  # fmt: skip
    plots.plot_roofline(tmp_path / "r.svg", rows, LIMITS, "t")
    (axes,) = drawn[0].axes
    point = axes.lines[-1]
    assert (point.get_xdata()[0], point.get_ydata()[0]) == (500.0, 0.2)
    assert "a  0.2 TFLOP/s" in texts(drawn[0])


def test_the_ladders_labels_are_its_rows(tmp_path, drawn):
    rows = [
        {"stage": stage, "variant": name, "median_ms": ms}
        for stage in ("conv1", "conv2")
        for name, ms in (("slow", 1234.5), ("fast", 12.25))
    ]
    plots.plot_ladder(tmp_path / "l.png", rows, "t")
    assert texts(drawn[0]) == ["1,234.50 ms, 1x", "12.25 ms, 101x"] * 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fc1", "--plot", "a.gif"], "expected a name ending in .png or .svg"),
        (["fc1", "--plot", "nowhere/a.png"], "nowhere"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_the_run(arguments, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_setting", lambda *a: pytest.fail("ran"))
    result = run("compare", *arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_nothing_timed_is_no_picture(tmp_path):
    pytest.importorskip("matplotlib")
    for draw in (
        lambda: plots.plot_roofline(tmp_path / "a.png", [], LIMITS, "t"),
        lambda: plots.plot_ladder(tmp_path / "a.png", [{"stage": "conv1", "variant": "x"}], "t"),
    ):
        with pytest.raises(LenetError, match="found none"):
            draw()
    assert list(tmp_path.iterdir()) == []


def test_results_come_before_the_picture(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def broken(*arguments):
        raise LenetError("no picture today")

    monkeypatch.setattr(plots, "plot_roofline", broken)
    result = run("compare", "fc2", "--batch", 8, "--device", "cpu", "--seconds", 0.2,
                 "--plot", tmp_path / "a.png")  # fmt: skip
    assert result.exit_code == 2
    assert "tiled.blocked" in result.stdout
    assert "no picture today" in result.stderr


def test_no_picture_hides_what_was_wrong(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    guest = tmp_path / "mine.py"
    guest.write_text(GUEST)
    real = command.only

    def alone(*arguments):
        return [c for c in real(*arguments) if c.name == "mine.nothing"]

    monkeypatch.setattr(command, "only", alone)
    result = run("compare", "fc2", "--batch", 8, "--device", "cpu", "--seconds", 0.2,
                 "--only", "mine", "--with", guest, "--plot", tmp_path / "a.png")  # fmt: skip
    assert result.exit_code == 1, result.output
    assert "WRONG: mine.nothing" in result.stderr
    assert "found none" in result.stderr
