"""The checker rejects wrong kernels, and accepts a correct one."""

import os
from dataclasses import replace

import numpy as np
import pytest
from broken.fc import GPU_NAMES, cpu_variants, gpu_variant
from limits import LIMITS, excused

import lenetgpu
from lenetgpu.check import fit as fits
from lenetgpu.check import judge as judging
from lenetgpu.check.fit import verify_once
from lenetgpu.check.judge import TOLERANCE, check_variant, excusable_flips, first_bad_stage, judge
from lenetgpu.check.mistakes import probabilities
from lenetgpu.check.reference import random_input, reference
from lenetgpu.errors import LenetError
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve
from lenetgpu.problems import Fc
from lenetgpu.stages import find
from lenetgpu.store import entries
from lenetgpu.store.entries import _source_sums, sources

PROBLEM = Fc(512, 33, relu=False)


@pytest.mark.parametrize(
    "variant", [*cpu_variants(), find("fc", "serial", "cpu")], ids=lambda v: v.name
)
def test_broken_cpu_variants_are_rejected(variant, rng):
    x, w = random_input("fc", PROBLEM, 9, rng)
    verdict = check_variant(variant, PROBLEM, x, w, reference("fc", x, w, PROBLEM))
    assert verdict.passed == (variant.family == "serial")


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_NAMES)
def test_broken_kernels_are_rejected(name, rng):
    x, w = random_input("fc", PROBLEM, 9, rng)
    verdict = check_variant(gpu_variant(name), PROBLEM, x, w, reference("fc", x, w, PROBLEM))
    assert not verdict.passed


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", LIMITS)
def test_one_nan_output_is_wrong(precision, value):
    expected = np.ones((3, 4))
    found = expected.copy()
    found[2, 3] = value
    verdict = judge(found, expected, precision)
    assert not verdict.passed and "1 outputs NaN" in str(verdict)
    assert not judge(found, found, precision).passed


def test_tolerance_limits_are_exact():
    assert LIMITS.keys() == TOLERANCE.keys()
    # the largest is 4: the tolerance is relative to it
    expected, last = np.array([[1.0, -4.0, 0.0]]), np.array([[0, 0, 1]])
    for precision, limit in LIMITS.items():
        for off in (4 * limit, -4 * limit):
            assert judge(expected + 0.9 * off * last, expected, precision).passed
            verdict = judge(expected + 1.1 * off * last, expected, precision)
            assert not verdict.passed
            assert verdict.error == pytest.approx(1.1 * limit) and verdict.tolerance == limit
    assert judge(np.array([0.5]), np.array([0.0]), "fp32").error == 0.5
    assert judge(np.array([1, 2]), np.array([1, 2]), "int8").passed
    assert str(judge(np.array([1, 4]), np.array([1, 2]), "int8")).endswith(", 1 labels differ")
    libraries = [judging.rough(dtype) for dtype in ("fp32", "fp16", "bf16")]
    assert libraries == [2e-3, 2e-3 + 2**-11, 2e-3 + 2**-8]


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (2, 3), (5,)])
def test_broadcastable_shape_is_wrong(shape):
    assert not judge(np.zeros(shape), np.zeros(6), "fp32").passed
    assert not judge(np.zeros(shape, int), np.zeros(6, int), "fp32").passed


def test_flips_are_excused_only_at_low_precision_near_ties():
    # the largest is 10: each of two scores may be off by 0.02 at fp16 and by 0.4 at int8
    scores = np.array([[10.0, 9.97, 0.0], [9.0, 5.0, 8.95], [3.0, 2.25, 0.0], [0.0, 3.0, 2.1]])
    for precision, near in (
        ("fp16", [True, False, False, False]), ("fp16w", [True, True, False, False]),
        ("int8", [True, True, True, False]), ("int8s", [True, True, True, True]),
        ("fp32", [False] * 4), ("fp16x3", [False] * 4),
    ):  # fmt: skip
        assert excusable_flips(scores, precision).tolist() == near
        assert excused(scores, precision).tolist() == near


def test_probabilities_do_not_overflow():
    scores = np.array([[1e4] + [0.0] * 9, [-1e4] * 10, [3e38] + [-3e38] * 9], np.float32)
    found = probabilities(scores)
    assert found.sum(axis=1) == pytest.approx(1.0)
    assert found[:, 0] == pytest.approx([1.0, 0.1, 1.0])
    assert probabilities(np.log([[11.0] + [1.0] * 9]))[0, 0] == pytest.approx(11 / 20)


def test_first_wrong_stage_is_named(shipped_weights, rng):
    images = rng.integers(0, 256, (8, 28, 28, 1), dtype=np.uint8)
    pipeline = Pipeline(resolve("unrolled", "cpu"), shipped_weights, 8)
    assert first_bad_stage(pipeline, images, shipped_weights) is None
    step = next(step for step in pipeline.steps if step.stages == ("fc1",))
    step.prepared.state = step.prepared.state * np.float32(1.001)
    assert first_bad_stage(pipeline, images, shipped_weights) == "fc1"


def test_plan_is_verified_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    plan = resolve("tiled", "cpu")
    assert verify_once(plan, "this one") and not verify_once(plan, "this one")
    (record,) = (tmp_path / "verified").iterdir()
    for facts in ({}, {"images": 331}, entries.facts_of("verified", record.stem) | {"images": 0}):
        entries.save("verified", record.stem, facts)
        assert verify_once(plan, "this one")
    record.write_bytes(b"")
    assert verify_once(plan, "this one") and verify_once(plan, "another")


@pytest.mark.parametrize("file", ["stages/a/pack.py", "gpu/launch.py", "layouts.py"])
def test_plan_is_verified_again_if_packing_code_changed(file, tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("")
    for name in ("stages/a/pack.py", "gpu/launch.py", "cpu/tile.py", *fits.PACKERS[3:]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("ORDER = 1\n")
    monkeypatch.setattr(lenetgpu, "__file__", str(tmp_path / "__init__.py"))
    keys = []
    for text in ("ORDER = 1\n", "ORDER = 2\n"):
        (tmp_path / file).write_text(text)
        os.utime(tmp_path / file, (1, 1))
        _source_sums.cache_clear()
        sources.cache_clear()
        keys.append(fits.plan_key(resolve("tiled", "cpu"), "this one", "uint8", 1))
    _source_sums.cache_clear()
    sources.cache_clear()
    assert keys[0] != keys[1]


def test_wrong_plan_is_refused_and_not_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    plan = resolve("tiled", "cpu")
    broken = replace(find("argmax", "serial", "cpu"), run=lambda x, y, problem: y.fill(3))
    stages = (*plan.stages[:-1], replace(plan.stages[-1], variant=broken))
    for _ in range(2):
        with pytest.raises(LenetError, match=r"plan tiled is wrong on this.*found 2\d\d others"):
            verify_once(replace(plan, stages=stages), "this one")
