"""The checker rejects wrong kernels, and accepts a right one."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from broken.fc import GPU_NAMES, cpu_variants, gpu_variant
from limits import LIMITS, excused

import lenetgpu
from lenetgpu.check import verify
from lenetgpu.check.judge import TOLERANCE, check_variant, excusable_flips, first_bad_stage, judge
from lenetgpu.check.truth import random_input, reference
from lenetgpu.check.verify import verify_once
from lenetgpu.errors import LenetError
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve
from lenetgpu.problems import Fc
from lenetgpu.stages import find
from lenetgpu.store import entries
from lenetgpu.store.entries import sources

PROBLEM = Fc(512, 33, relu=False)


@pytest.mark.parametrize("variant", cpu_variants(), ids=lambda v: v.name)
def test_rejects_broken_cpu_variants(variant, rng):
    x, w = random_input("fc", PROBLEM, 9, rng)
    verdict = check_variant(variant, PROBLEM, x, w, reference("fc", x, w, PROBLEM))
    assert not verdict.passed


def test_accepts_a_right_variant(rng):
    x, w = random_input("fc", PROBLEM, 9, rng)
    right = find("fc", "serial", "cpu")
    assert check_variant(right, PROBLEM, x, w, reference("fc", x, w, PROBLEM)).passed


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_NAMES)
def test_rejects_broken_kernels(name, rng):
    x, w = random_input("fc", PROBLEM, 9, rng)
    verdict = check_variant(gpu_variant(name), PROBLEM, x, w, reference("fc", x, w, PROBLEM))
    assert not verdict.passed


def test_nan_never_passes():
    expected = np.ones((2, 3))
    found = expected.copy()
    found[1, 2] = np.nan
    assert not judge(found, expected, "fp32").passed
    assert not judge(np.full((2, 3), np.nan), np.full((2, 3), np.nan), "fp32").passed


def test_the_tolerance_is_where_it_is_said_to_be():
    assert LIMITS.keys() == TOLERANCE.keys()
    expected = np.array([[1.0, -2.0]])  # the largest is 2: a limit is of that
    for precision, limit in LIMITS.items():
        assert judge(expected + 0.99 * 2 * limit, expected, precision).passed
        assert judge(expected - 0.99 * 2 * limit, expected, precision).passed
        assert not judge(expected + 1.01 * 2 * limit, expected, precision).passed
        assert not judge(expected - 1.01 * 2 * limit, expected, precision).passed


def test_a_wrong_shape_is_wrong():
    assert not judge(np.ones((2, 2)), np.ones((2, 3)), "fp32").passed


def test_labels_must_be_equal():
    assert judge(np.array([1, 2]), np.array([1, 2]), "fp32").passed
    verdict = judge(np.array([1, 3]), np.array([1, 2]), "fp32")
    assert not verdict.passed
    assert verdict.error == 1


def test_only_low_precision_excuses_a_flip_and_only_where_scores_are_near():
    # of the largest, 10: two scores may be off by 0.02 each at fp16 and by 0.4 each at int8
    scores = np.array([[10.0, 9.97, 0.0], [9.0, 5.0, 8.95], [3.0, 2.25, 0.0], [0.0, 3.0, 2.1]])
    for precision, near in (
        ("fp16", [True, False, False, False]), ("int8", [True, True, True, False]),
        ("fp32", [False] * 4), ("fp16x3", [False] * 4),
    ):  # fmt: skip
        assert excusable_flips(scores, precision).tolist() == near
        assert excused(scores, precision).tolist() == near


def test_the_first_bad_stage_is_named(shipped_weights, rng):
    images = rng.integers(0, 256, (8, 28, 28, 1), dtype=np.uint8)
    pipeline = Pipeline(resolve("unrolled", "cpu"), shipped_weights, 8)
    assert first_bad_stage(pipeline, images, shipped_weights) is None
    step = next(step for step in pipeline.steps if step.stages == ("fc1",))
    step.mounted.state = step.mounted.state * np.float32(1.001)
    name, verdict = first_bad_stage(pipeline, images, shipped_weights)
    assert name == "fc1"
    assert not verdict.passed


def test_a_plan_is_verified_once_per_device_and_source(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    plan = resolve("tiled", "cpu")
    assert verify_once(plan, "this one")
    assert not verify_once(plan, "this one")
    assert verify_once(plan, "another")


def test_an_empty_record_verifies_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    plan = resolve("tiled", "cpu")
    assert verify_once(plan, "this one")
    (record,) = (tmp_path / "verified").iterdir()
    for facts in ({}, {"images": 331}, entries.facts_of("verified", record.stem) | {"images": 0}):
        entries.keep("verified", record.stem, facts)
        assert verify_once(plan, "this one")
    record.write_bytes(b"")
    assert verify_once(plan, "this one") and not verify_once(plan, "this one")


@pytest.mark.parametrize("file", ["stages/a/pack.py", "gpu/launch.py", "layouts.py"])
def test_a_plan_is_verified_again_where_what_packs_for_it_changed(file, tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("")
    for name in ("stages/a/pack.py", "gpu/launch.py", "cpu/tile.py", *verify.PACKERS[3:]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("ORDER = 1\n")
    monkeypatch.setattr(lenetgpu, "__file__", str(tmp_path / "__init__.py"))
    keys = []
    for text in ("ORDER = 1\n", "ORDER = 2\n"):
        (tmp_path / file).write_text(text)
        os.utime(tmp_path / file, (1, 1))
        sources.cache_clear()
        keys.append(verify.plan_key(resolve("tiled", "cpu"), "this one", "uint8", 1))
    sources.cache_clear()
    assert keys[0] != keys[1]


def test_a_wrong_plan_is_refused_and_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path))
    plan = resolve("tiled", "cpu")
    broken = replace(find("argmax", "serial", "cpu"), run=lambda x, y, problem: y.fill(3))
    slots = (*plan.slots[:-1], replace(plan.slots[-1], variant=broken))
    with pytest.raises(LenetError, match=r"plan tiled is wrong on this device.*found 2\d\d others"):
        verify_once(replace(plan, slots=slots), "this one")
    with pytest.raises(LenetError, match="is wrong on this device"):
        verify_once(replace(plan, slots=slots), "this one")
