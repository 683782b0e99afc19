"""Regressions of compare and conv since an earlier file, also since old and damaged files."""

import json
import math

import pytest
from terminal import refused, run

from lenetgpu.cli.ending import write_json
from lenetgpu.errors import LenetError
from lenetgpu.lab.documents import current, load_earlier
from lenetgpu.measure.regression import check_earlier, regressions

SHAPE, OTHER = "1,8,8,4,3,1,0", "1,9,9,4,3,1,0"


def entry(name, ratio=None, median=1.0, spread=0.01):
    made = {"name": name, "median_ms": median, "p05_ms": median * (1 - spread),
            "p95_ms": median * (1 + spread)}  # fmt: skip
    made["interval_ms"] = {"median": median, "low": made["p05_ms"], "high": made["p95_ms"]}
    if ratio is not None:
        made["ratio"] = {"median": ratio, "low": 0.99 * ratio, "high": 1.01 * ratio}
    return made


def case(shape=SHAPE, **ratios):
    entries = [entry("base", 1.0), *(entry(name, ratio) for name, ratio in ratios.items())]
    return {"shape": shape, "label": shape, "images": 2, "baseline": "base", "candidates": entries}


def conv(*cases):
    return {"command": "conv", "device": {"name": "test"}, "cases": list(cases),
            "baseline": "base", "cold_l2": False, "date": "2026-11-23"}  # fmt: skip


def compare(**ratios):
    about = {"command": "compare", "what": "fc2", "device": {"name": "test"}, "cold_l2": False}
    return case(**ratios) | about | {"images": 64}


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a document to a file and returns its path."""

    def write(document):
        path = tmp_path / "earlier.json"
        path.write_text(json.dumps(document))
        return path

    return write


def test_regressions_are_found_shape_by_shape():
    earlier = conv(case(a=2.0, b=1.0), case(OTHER, a=2.0))
    now = conv(case(a=2.5, b=1.0), case(OTHER, a=2.0), case("1,7,7,4,3,1,0", a=9.0))
    (line,) = regressions(now, earlier, 5)
    assert line == f"{SHAPE}: a: +25.0% (at least +22.5% by the interval)"
    assert regressions(now, earlier, 23) == []
    assert regressions(conv(case(b=1.0)), earlier, 5) == [f"{SHAPE}: a: timed then, not now"]
    assert regressions(conv(case(b=1.0)), earlier, 5, some=True) == []
    now["cases"][0]["candidates"][1].pop("median_ms")
    assert regressions(now, earlier, 5, some=True) == [f"{SHAPE}: a: timed then, not now"]


def test_baseline_regression_needs_no_interval():
    earlier, now = conv(case(a=2.0)), conv(case(a=2.0))
    now["cases"][0]["candidates"][0] = entry("base", 1.0, median=1.2)
    (line,) = regressions(now, earlier, 5)
    assert line.startswith(f"{SHAPE}: base: +20.0%")
    del earlier["cases"][0]["candidates"][0]["interval_ms"]
    assert len(regressions(now, earlier, 5)) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d, e: e.update(median_ms="fast"), "median_ms: expected a number"),
        (lambda d, e: e.update(median_ms=math.nan), "NaN is not a JSON number"),
        (lambda d, e: e.update(name="base"), "two candidates of one name"),
        (lambda d, e: d["cases"][0].pop("baseline"), "baseline: expected a text"),
        (lambda d, e: d.update(cases={"a": 1}), "cases: expected a list, found an object"),
        (lambda d, e: d.update(cold_l2="no"), "cold_l2: expected true or false"),
        (lambda d, e: d.update(command="compare"), "command: expected 'conv'"),
    ],
)  # fmt: skip
def test_damaged_earlier_files_are_refused_before_timing(written, damage, words):
    document = conv(case(a=2.0))
    damage(document, document["cases"][0]["candidates"][1])
    with pytest.raises(
        LenetError, match="expected JSON written by conv, found another doc"
    ) as caught:
        load_earlier(written(document), "conv", None)
    assert words in str(caught.value)


def test_different_settings_are_refused(written):
    now = {"device": "test", "baseline": "base", "cold_l2": False}
    convs, stage = conv(case(a=2.0)), compare(a=2.0)
    check_earlier(convs, "e.json", now | {"cases": [(SHAPE, 2)]})
    with pytest.raises(LenetError, match="expected a shape of this run, as 3,8,8,4,3,1,0 with 1"):
        check_earlier(convs, "e.json", now | {"cases": [("3,8,8,4,3,1,0", 1)]})
    check_earlier(stage, "e.json", now | {"images": 64})
    others = {"device": "another", "baseline": "other", "images": 20, "cold_l2": True}
    for key, value in others.items():
        with pytest.raises(LenetError, match=f"e.json: expected {key}"):
            check_earlier(stage, "e.json", now | {"images": 64} | {key: value})
    with pytest.raises(LenetError, match="expected results of compare conv1, found 'fc2'"):
        load_earlier(written(stage), "compare", "conv1")
    stage["candidates"] = [{"name": "a"}]
    with pytest.raises(LenetError, match="expected candidates with times, found none"):
        load_earlier(written(stage), "compare", "fc2")


def test_earlier_files_may_use_old_plan_names(written):
    earlier = compare(mma=2.0) | {"what": "plans", "baseline": "fast"}
    earlier["candidates"][0]["name"] = "fast"
    found = load_earlier(written(earlier), "compare", "plans")
    assert found["baseline"] == "fp16"
    assert [entry["name"] for entry in found["candidates"]] == ["fp16", "mma_fp16"]


@pytest.mark.parametrize("command", [("conv", "1,8,8,4,3"), ("compare", "fc2", "--batch", "20")])
def test_regression_or_loss_exits_with_1(command, tmp_path):
    out = tmp_path / "first.json"
    base = [*command, "--device", "cpu", "--seconds", 0.1, "--only", "serial,tiled"]
    base += ["--baseline", "tiled"]
    run(*base, "--json", out, code=0)
    document = json.loads(out.read_text())
    for part in document.get("cases", [document]):
        for one in part["candidates"]:
            if one["name"] == "serial.loops":
                one["ratio"] = {key: value / 1000 for key, value in one["ratio"].items()}
    out.write_text(json.dumps(document))
    lost = run(*base, "--against", out, "--fail-on-regression", 50, code=1)
    assert "slower: " in lost.stderr and "serial.loops: +" in lost.stderr
    kept = run(*base, "--against", out, "--fail-on-regression", 10_000_000, code=0)
    assert "none is more than 1e+07 % slower" in kept.stderr


def test_json_has_no_nan_and_reads_back(tmp_path):
    path = tmp_path / "e.json"
    document = conv(case(a=2.0))
    document["cases"][0]["candidates"][1] |= {"relative_error": math.nan, "all": (math.inf, 1.0)}
    write_json(path, document)
    assert load_earlier(path, "conv", None)["cases"][0]["candidates"][1]["name"] == "a"
    found = json.loads(path.read_text())["cases"][0]["candidates"][1]
    assert (found["relative_error"], found["all"]) == (None, [None, 1.0])


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b'{"command": "conv", "command": "a"}', b'"\xff"'],
    ids=["deep list", "key twice", "not UTF-8"],
)  # fmt: skip
def test_invalid_earlier_file_is_refused_by_the_command(data, tmp_path):
    path = tmp_path / "earlier.json"
    path.write_bytes(data)
    result = run("conv", "1,8,8,4,3", "--fail-on-regression", 5, "--against", path)
    refused(result, f"error: {path}: expected JSON written by conv, found another document (")


def test_earlier_files_may_use_old_keys_of_the_baseline(written):
    earlier = compare(a=2.0)
    earlier["candidates"][0]["verdict"] = "baseline"
    old = json.loads(json.dumps(earlier).replace('"baseline"', '"reference"'))
    assert "reference" in old and "baseline" not in old
    new = load_earlier(written(earlier), "compare", "fc2")
    assert load_earlier(written(old), "compare", "fc2") == new


def test_old_keys_of_networks_are_read():
    old = json.loads('{"taken": 4, "not_taken": "groups"}', object_pairs_hook=current)
    assert old == {"supported": 4, "unsupported": "groups"}
