"""Charts show the figures of their tables, and an impossible chart is refused before the run."""

import json

import pytest
from terminal import refused, run

from lenetgpu.errors import LenetError
from lenetgpu.lab import charts
from lenetgpu.lab import compare as command

pytest.importorskip("vl_convert", reason="needs vl-convert-python: extra report")
LIMITS = {"copy_gbs": 100, "fma_tflops": 1, "tensor_tflops": 8}


@pytest.fixture
def drawn(monkeypatch):
    """Return the list of charts that are saved."""
    kept, real = [], charts.save

    def save(path, title, found, **how):
        kept.extend(found.values())
        real(path, title, found, **how)

    monkeypatch.setattr(charts, "save", save)
    return kept


def test_plan_bars_match_the_table(tmp_path, drawn):
    out = tmp_path / "c.json"
    result = run("compare", "plans", "--batch", 8, "--device", "cpu", "--seconds", 1,
                 "--json", out, "--plot", tmp_path / "p.png", code=0)  # fmt: skip
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    (chart,) = drawn
    bars, labels = chart["data"]["values"], chart["layer"][1]["data"]["values"]
    said = {label["plan"]: label["label"] for label in labels}
    for entry in json.loads(out.read_text())["candidates"]:
        ms, name = entry["median_ms"], entry["name"]
        assert f"{ms:,.3f}" in result.output and said[name].startswith(f"{ms:,.3f} ms")
        if not said[name].endswith("(bar cut)"):
            assert sum(b["ms"] for b in bars if b["plan"] == name) == pytest.approx(ms)


def test_scaled_plan_bars_use_the_measured_pass():
    """Regression: bars came from a separate cold profile, 6,576 ms where the table said 87."""
    rows = {"a": [{"stages": ["conv1"], "median_ms": 9000.0, "share": 0.75},
                  {"stages": ["fc1"], "median_ms": 3000.0, "share": 0.25}]}  # fmt: skip
    chart = charts.plan_bars(rows, {"a": 87.0, "untimed": None})
    assert chart["layer"][1]["data"]["values"][0]["label"] == "87.000 ms"
    assert [bar["ms"] for bar in chart["data"]["values"]] == pytest.approx([65.25, 21.75])


def test_roofline_points_are_at_measured_rates(tmp_path):
    rows = [{"name": "a", "precision": "fp32", "gflop": 2.0, "mbytes": 4.0, "median_ms": 10.0,
             "tflops": 0.2}]  # fmt: skip
    chart = charts.candidates(rows, LIMITS)
    (point,) = chart["data"]["values"]
    assert (point["intensity"], point["tflops"]) == (500.0, 0.2)
    roofs = {row["roof"] for row in chart["layer"][0]["data"]["values"]}
    assert roofs == {"fp32 multiply-adds: 1 TFLOP/s"}
    charts.save(tmp_path / "r.svg", "t", {"": chart})
    assert "a  0.2 TFLOP/s" in (tmp_path / "r.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fc1", "--plot", "a.gif"], "expected a name ending in .png or .svg"),
        (["fc1", "--plot", "nowhere/a.png"], "nowhere"),
    ],
)
def test_impossible_charts_are_refused_before_the_run(arguments, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_setting", lambda *a: pytest.fail("ran"))
    refused(run("compare", *arguments), words)


def test_results_are_printed_before_a_chart_fails(tmp_path, monkeypatch):
    def fail(*given, **how):
        raise LenetError("expected something timed, found none")

    monkeypatch.setattr(charts, "save", fail)
    result = run("compare", "fc2", "--batch", 8, "--device", "cpu", "--seconds", 0.2,
                 "--only", "blas", "--plot", tmp_path / "a.png", code=2)  # fmt: skip
    assert "blas.numpy" in result.stdout and "found none" in result.stderr
