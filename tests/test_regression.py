"""What a run lost since an earlier file: of compare and conv, of old files and damaged ones."""

from __future__ import annotations

import json
import math

import pytest
from click.testing import CliRunner

from lenetgpu.cli import main
from lenetgpu.cli.options import write_json
from lenetgpu.errors import LenetError
from lenetgpu.lab.documents import load_earlier
from lenetgpu.measure.regression import check_earlier, regressions

SHAPE = "1,8,8,4,3,1,0"


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def entry(name, ratio=None, median=1.0, spread=0.01):
    made = {"name": name, "median_ms": median, "p05_ms": median * (1 - spread),
            "p95_ms": median * (1 + spread)}  # fmt: skip
    made["interval_ms"] = {"median": median, "low": made["p05_ms"], "high": made["p95_ms"]}
    if ratio is not None:
        made["ratio"] = {"median": ratio, "low": 0.99 * ratio, "high": 1.01 * ratio}
    return made


def case(shape=SHAPE, **ratios):
    entries = [entry("base", 1.0), *(entry(name, ratio) for name, ratio in ratios.items())]
    return {"shape": shape, "label": shape, "images": 2, "reference": "base", "candidates": entries}


def conv(*cases):
    return {
        "command": "conv",
        "device": {"name": "test"},
        "cases": list(cases),
        "reference": "base",
    }


def test_convolutions_are_compared_shape_by_shape():
    earlier = conv(case(a=2.0, b=1.0), case("1,9,9,4,3,1,0", a=2.0))
    now = conv(case(a=2.5, b=1.0), case("1,9,9,4,3,1,0", a=2.0), case("1,7,7,4,3,1,0", a=9.0))
    (line,) = regressions(now, earlier, 5)
    assert line == f"{SHAPE}: a: +25.0% (at least +22.5% by the interval)"
    assert regressions(now, earlier, 23) == []
    assert regressions(conv(case(b=1.0)), earlier, 5) == [f"{SHAPE}: a: timed then, not now"]


def test_the_baseline_is_compared_by_its_time_also_of_files_without_intervals():
    earlier, now = conv(case(a=2.0)), conv(case(a=2.0))
    now["cases"][0]["candidates"][0] = entry("base", 1.0, median=1.2)
    (line,) = regressions(now, earlier, 5)
    assert line.startswith(f"{SHAPE}: base: +20.0%")
    del earlier["cases"][0]["candidates"][0]["interval_ms"]
    assert len(regressions(now, earlier, 5)) == 1
    earlier["cases"][0]["candidates"][0] |= {"samples_ms": [1.0] * 9}
    assert len(regressions(now, earlier, 5)) == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d["cases"][0]["candidates"][1].update(median_ms="fast"),
        lambda d: d["cases"][0]["candidates"][1].update(median_ms=float("nan")),
        lambda d: d["cases"][0]["candidates"][1].update(p95_ms=float("inf")),
        lambda d: d["cases"][0]["candidates"][1]["ratio"].update(high=0),
        lambda d: d["cases"][0]["candidates"][1]["ratio"].pop("low"),
        lambda d: d["cases"][0]["candidates"][1].update(ratio=[1, 2, 3]),
        lambda d: d["cases"][0]["candidates"][1].update(interval_ms={"median": 1}),
        lambda d: d["cases"][0]["candidates"][1].pop("name"),
        lambda d: d["cases"][0].pop("reference"),
        lambda d: d["cases"][0].update(candidates=3),
        lambda d: d.update(cases={"a": 1}),
        lambda d: d.update(device=None),
        lambda d: d.update(command="compare"),
    ],
)
def test_damaged_files_are_refused_before_anything_runs(tmp_path, damage):
    document = conv(case(a=2.0))
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(document))
    assert load_earlier(path, "conv", None)["cases"] == document["cases"]
    damage(document)
    path.write_text(json.dumps(document))
    with pytest.raises(LenetError, match="expected JSON of conv, found another document"):
        load_earlier(path, "conv", None)


def test_another_setting_is_refused():
    earlier = conv(case(a=2.0))
    now = {"device": "test", "reference": "base", "cold_l2": False, "cases": [(SHAPE, 2)]}
    check_earlier(earlier, "e.json", now)
    with pytest.raises(LenetError, match="expected cold_l2 True as in this run, found False"):
        check_earlier(earlier, "e.json", now | {"cold_l2": True})
    with pytest.raises(LenetError, match="expected a shape of this run, as 3,8,8,4,3,1,0 with 1"):
        check_earlier(earlier, "e.json", now | {"cases": [("3,8,8,4,3,1,0", 1)]})


@pytest.mark.parametrize("command", [("conv", "1,8,8,4,3"), ("compare", "fc2", "--batch", "20")])
def test_the_gate_ends_with_1_where_something_was_lost(command, tmp_path):
    out = tmp_path / "first.json"
    base = [*command, "--device", "cpu", "--seconds", 0.2, "--only", "serial,tiled"]
    base += ["--reference", "tiled"]
    first = run(*base, "--json", out)
    assert first.exit_code == 0, first.output
    document = json.loads(out.read_text())
    for part in document.get("cases", [document]):
        for one in part["candidates"]:
            if one["name"] == "serial.loops":
                one["ratio"] = {key: value / 1000 for key, value in one["ratio"].items()}
    out.write_text(json.dumps(document))
    lost = run(*base, "--against", out, "--fail-on-regression", 50)
    assert lost.exit_code == 1, lost.output
    assert "slower: " in lost.stderr
    assert "serial.loops: +" in lost.stderr
    kept = run(*base, "--against", out, "--fail-on-regression", 10_000_000)
    assert kept.exit_code == 0, kept.output
    assert "gate: 2 timed candidates of 20" in kept.stderr
    assert "none lost more than 1e+07 %" in kept.stderr


def test_fewer_candidates_than_before_are_no_loss_where_fewer_were_asked_for():
    earlier, now = conv(case(a=2.0, b=1.0)), conv(case(a=2.0))
    assert regressions(now, earlier, 5, some=True) == []
    assert regressions(now, earlier, 5) == [f"{SHAPE}: b: timed then, not now"]
    now["cases"][0]["candidates"][1].pop("median_ms")
    assert regressions(now, earlier, 5, some=True) == [f"{SHAPE}: a: timed then, not now"]


def test_a_baseline_of_one_sample_is_as_uncertain_as_one_sample():
    earlier, now = conv(case()), conv(case())
    for document, time in ((earlier, 1.0), (now, 1.4)):
        one = document["cases"][0]["candidates"][0]
        one.pop("interval_ms")
        one["samples_ms"] = [time]
    assert regressions(now, earlier, 5) == []
    now["cases"][0]["candidates"][0]["samples_ms"] = [1.7]
    assert len(regressions(now, earlier, 5)) == 1


def test_json_has_no_nan_and_is_read_again(tmp_path):
    path = tmp_path / "e.json"
    document = conv(case(a=2.0))
    document["cases"][0]["candidates"][1] |= {"relative_error": math.nan, "all": (math.inf, 1.0)}
    write_json(path, document)
    assert load_earlier(path, "conv", None)["cases"][0]["candidates"][1]["name"] == "a"
    found = json.loads(path.read_text())["cases"][0]["candidates"][1]
    assert (found["relative_error"], found["all"]) == (None, [None, 1.0])


def test_an_earlier_file_without_a_time_is_refused(tmp_path):
    path = tmp_path / "e.json"
    path.write_text(json.dumps(conv(case(a=2.0) | {"candidates": [{"name": "a"}]})))
    with pytest.raises(LenetError, match="expected candidates with times, found none"):
        load_earlier(path, "conv", None)
