"""Plans checked against float64 with the user's weights: passed, refused, cached."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

from lenetgpu.check import fit as module
from lenetgpu.check.fit import fit, judge_groups
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.plan import resolve
from lenetgpu.stages import find

PLAN = resolve("unrolled", "cpu")
pytestmark = pytest.mark.usefixtures("own_cache")


def times(weights, factor):
    tensors = {name: w * np.float32(factor) for name, w in weights.tensors.items()}
    return Weights(tensors, f"weights times {factor}")


def changed(run, precision="fp32"):
    """Return the plan with fc2 computed by `run`."""
    variant = replace(find("fc", "blas.numpy", "cpu"), run=run, precision=precision)
    stages = [replace(s, variant=variant) if s.name == "fc2" else s for s in PLAN.stages]
    return replace(PLAN, stages=tuple(stages))


def test_fit_reports_errors_by_group(shipped_weights):
    found = fit(PLAN, shipped_weights, "this one")
    assert (found.plan, found.precision) == ("unrolled", "fp32")
    assert set(found.groups) == {"digits", "noise", "a white image", "a blank image"}
    assert 0 < found.error <= max(found.groups.values()) <= 1e-5
    assert found.groups["a blank image"] == 0


def test_fit_is_measured_once_per_device_weights_and_dtype(shipped_weights, monkeypatch):
    ran = []
    real = module.measure
    monkeypatch.setattr(module, "measure", lambda *a: ran.append(a) or real(*a))
    first = fit(PLAN, shipped_weights, "this one")
    assert fit(PLAN, shipped_weights, "this one") == first
    same = Weights({n: w.copy() for n, w in shipped_weights.tensors.items()}, "elsewhere")
    assert fit(PLAN, same, "this one") == first and len(ran) == 1
    fit(PLAN, shipped_weights, "another")
    fit(PLAN, times(shipped_weights, 2), "this one")
    fit(PLAN, shipped_weights, "this one", "float32")
    monkeypatch.setattr(module, "sources", lambda *parts: "others")
    fit(PLAN, shipped_weights, "this one")
    assert len(ran) == 5


@pytest.mark.parametrize(
    ("what", "where"),
    [(slice(0, 64), "digits"), (slice(64, 68), "noise"), (slice(68, 69), "a white image"),
     (slice(69, 70), "a blank image")],
)  # fmt: skip
def test_fit_checks_each_group_separately(what, where, shipped_weights, own_cache):
    def run(x, w, y, problem):
        np.matmul(x, w, out=y)
        if len(y) > 6:
            y[what.start : what.stop] += np.float32(1e-3)
        else:  # the images after the first chunk of 64
            y[max(what.start - 64, 0) : what.stop - 64] += np.float32(1e-3) * (what.start >= 64)

    with pytest.raises(LenetError, match=rf"unrolled \(fp32\) does not fit.*1e-05.*on {where}, f"):
        fit(changed(run), shipped_weights, "this one")
    assert not list(own_cache.glob("fits/*"))


@pytest.mark.parametrize(
    ("factors", "broken"),
    [(np.full(10, 1.045), ""), (np.full(10, 1.055), r"within 5e-02 .*found 5\.5e-02"),
     (1 + 0.04 * np.eye(10)[1], ""), (1 + 0.044 * np.eye(10)[1], "at most 8 .*found 9$")],
)  # fmt: skip
def test_int8_promises_five_percent_and_eight_labels(factors, broken, shipped_weights, monkeypatch):
    """They are checked if int8 is requested; a plan's own tolerance may be larger."""

    def run(x, w, y, problem):
        y[:] = (x @ w) * np.float32(factors)

    plan = changed(run, "int8s")
    assert plan.precision == "int8" and fit(plan, shipped_weights, "this one").error < 6e-2
    for _ in range(2):
        with pytest.raises(LenetError, match=broken) if broken else nullcontext():
            fit(plan, shipped_weights, "this one", precision="int8")
        monkeypatch.setattr(module, "_run", lambda *_: pytest.fail("measured again"))


def test_nan_scores_do_not_fit(shipped_weights):
    def run(x, w, y, problem):
        np.matmul(x, w, out=y)
        y[3, 3] = np.nan

    with pytest.raises(LenetError, match="on digits, found nan, 1 outputs NaN, infinite"):
        fit(changed(run), shipped_weights, "this one")


@pytest.mark.parametrize(("factor", "found"), [(1e-12, r"\de-4\d"), (1e11, r"\de\+4\d")])
def test_scores_beyond_float32_are_refused(factor, found, shipped_weights):
    weights = times(shipped_weights, factor)
    said = f"fit float32 with a margin.* to 1.7e.38, found scores of .*{found} at most"
    with pytest.raises(LenetError, match=said):
        fit(PLAN, weights, "this one")


def test_labels_may_differ_only_near_ties():
    expected = np.tile(np.arange(10.0), (2, 1))
    expected[1, 8] = 8.999

    def judged(labels, precision):
        parts = [("these", slice(0, 2))]
        return judge_groups(parts, expected, np.array(labels), expected, precision)["these"]

    assert judged([9, 8], "fp16").passed and not judged([9, 8], "fp32").passed
    assert "1 labels differ" in str(judged([8, 9], "fp16"))


def test_weights_with_tied_classes_fit(shipped_weights):
    assert fit(PLAN, times(shipped_weights, 0), "this one").error == 0
    columns = dict(shipped_weights.tensors)
    columns["fc2"] = np.repeat(columns["fc2"][:, :1], 10, axis=1)
    for name in ("tiled", "auto"):
        assert fit(resolve(name, "cpu"), Weights(columns, "equal columns"), "this one").error < 1e-5


@pytest.mark.parametrize(
    ("gap", "error", "label", "passes"),
    [(1e-15, 0.0, 8, True), (1e-5, 1e-5, 8, True), (3e-5, 1e-5, 8, False), (1e-5, 0.0, 8, False),
     (1e-5, 1e-5, 7, False), (0.0, 0.0, -1, False), (0.0, 0.0, 10, False)],
)  # fmt: skip
def test_tie_limit_is_the_plans_own_error(gap, error, label, passes):
    expected = np.arange(10.0)[None]
    expected[0, 8] = 9 - gap
    found, parts = expected + error, [("these", slice(0, 1))]
    verdict = judge_groups(parts, found, np.array([label], np.int32), expected, "fp32")["these"]
    assert verdict.passed == passes
