"""Tests of every GPU variant and plan against the float64 reference output, on a GPU."""

from dataclasses import fields
from functools import lru_cache

import numpy as np
import pytest
from conftest import plan_here
from limits import LIMITS, excused
from problems import ODD, in_layouts

from lenetgpu.check.judge import check_variant
from lenetgpu.check.reference import random_input, reference, reference_scores
from lenetgpu.check.warmup import network_problems
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.launch import record
from lenetgpu.network import CLASSIFIER, FEATURES, IMAGE_SHAPE, SPANS, STAGES
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve
from lenetgpu.problems import Relayout, Scale
from lenetgpu.stages import variants
from lenetgpu.stages.reference import conv_reference

pytestmark = pytest.mark.gpu
BATCHES = (1, 3, 133)
FULL = 10_000
# the two kernels of a fused family share a private layout, so whole plans check them
GPU = [v for v in variants(device="cuda") if v.kind not in (FEATURES, CLASSIFIER)]
PLANS = [name for name, devices in NAMED.items() if "cuda" in devices]


def needs(variant):
    gpu = driver_gpus()[0]
    if not variant.needs.met_by(gpu):
        pytest.skip(f"{variant.full_name} needs {variant.needs}, this is {gpu.name}")


def plain(problem):
    """Return the problem without its layouts, which the reference does not support."""
    names = [field.name for field in fields(problem) if field.name not in ("reads", "writes")]
    return tuple((name, getattr(problem, name)) for name in names)


@lru_cache(maxsize=32)
def case(kind, problem_type, known, n):
    seed = int.from_bytes(np.random.default_rng().bytes(4), "little")
    print(f"seed {seed}")
    extra = {"reads": "", "writes": ""} if problem_type is Relayout else {}
    problem = problem_type(**dict(known), **extra)
    x, w = random_input(kind, problem, n, np.random.default_rng(seed))
    if kind == "conv":
        import cupy

        return x, w, conv_reference(x, w, problem, cupy).get()
    return x, w, reference(kind, x, w, problem)


@pytest.mark.parametrize("problem", ODD["conv"], ids=str)
def test_gpu_reference_equals_cpu_reference(problem, rng, cupy):
    x, w = random_input("conv", problem, 3, rng)
    there = conv_reference(x, w, problem, cupy).get()
    np.testing.assert_allclose(there, conv_reference(x, w, problem), rtol=1e-12, atol=1e-12)


def assert_right(variant, problem, n):
    x, w, expected = case(variant.kind, type(problem), plain(problem), n)
    with record() as launches:
        verdict = check_variant(variant, problem, x, w, expected)
    assert verdict.passed, f"{verdict} for {problem}"
    listed = variant.kernels(problem, n) if variant.kernels is not None else ()
    assert {launched.kernel for launched in launches} <= set(listed), f"unlisted for {problem}"


@pytest.mark.parametrize("variant", GPU, ids=lambda v: f"{v.kind}-{v.full_name}")
def test_variants_are_correct_on_network_shapes(variant):
    needs(variant)
    for problem in network_problems(variant):
        for n in BATCHES:
            assert_right(variant, problem, n)


@pytest.mark.parametrize("variant", GPU, ids=lambda v: f"{v.kind}-{v.full_name}")
def test_variants_are_correct_on_odd_shapes(variant):
    needs(variant)
    for base in ODD[variant.kind]:
        for problem in in_layouts(variant, base):
            for n in (1, 5):
                assert_right(variant, problem, n)


def bases(kind):
    if kind == "scale":
        return [Scale(*IMAGE_SHAPE, dtype="uint8")]
    if kind == "relayout":
        return [Relayout(8, 8, 64, "", "")]
    return [unit.problem for unit in (*STAGES, *SPANS) if unit.kind == kind]


FULL_CASES = [
    pytest.param(variant, base, id=f"{variant.kind}{index}-{variant.full_name}")
    for kind in ("conv", "pool", "conv_pool", "fc", "argmax", "scale", "relayout")
    for index, base in enumerate(bases(kind))
    for variant in variants(kind, "cuda")
]


@pytest.mark.parametrize(("variant", "base"), FULL_CASES)
def test_variants_are_correct_on_a_full_batch(variant, base):
    needs(variant)
    problems = in_layouts(variant, base)
    if problems:
        assert_right(variant, problems[0], FULL)


@pytest.fixture(scope="module")
def digits():
    dataset = load_dataset(assets.default_digits())
    weights = load_weights(assets.default_weights())
    scores, labels = reference_scores(dataset.images, weights)
    return dataset, weights, scores, labels


FUSED = ["fp16", "fp16_winograd", "fp16x3", "int8", "int8_sparse"]
FUSED += ["fp16x3_winograd", "mma_fp16", "mma_winograd", "mma_fp16x3", "fp32"]


def assert_labelled(pipeline, images, exact, part=slice(None)):
    """Check labels and scores of a poisoned pass over `part`; near a tie any label is accepted."""
    import cupy

    precision = pipeline.plan.arithmetic
    expected, near = exact[part], excused(exact, precision)[part]
    limit = LIMITS[precision] * np.abs(exact).max()
    pipeline.poison()
    found = pipeline.run(cupy.asarray(images)).get()
    assert not ((found != expected.argmax(1)) & ~near).any(), len(images)
    assert np.abs(pipeline.scores(len(images)) - expected).max() <= limit, len(images)
    return found


@pytest.mark.parametrize("plan", [name for name in PLANS if name not in FUSED])
def test_plans_are_correct_on_digits(plan, digits):
    dataset, weights, expected, _ = digits
    pipeline = Pipeline(plan_here(plan), weights, FULL)
    for n in (FULL, 1, 7, 133, 9_973):
        assert_labelled(pipeline, dataset.images[:n], expected, slice(n))


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("plan", FUSED)
def test_fused_plans_are_correct_at_any_batch(plan, dtype, digits, cupy):
    dataset, weights, expected, _ = digits
    images = dataset.images if dtype == "uint8" else dataset.images.astype(np.float32) / 255
    pipeline = Pipeline(plan_here(plan), weights, FULL, dtype)
    for n in (1, 2, 3, 131, 133, 9_973, FULL):
        found = assert_labelled(pipeline, images[-n:], expected, slice(-n, None))
        pipeline.labels.fill(-1)
        pipeline.with_scores = False
        again = pipeline.run(cupy.asarray(images[-n:])).get()
        pipeline.with_scores = True
        np.testing.assert_array_equal(again, found)


@pytest.mark.parametrize("plan", FUSED)
def test_fused_plans_are_correct_on_random_images(plan, digits, rng):
    _, weights, _, _ = digits
    images = rng.integers(0, 256, (400, 28, 28, 1), dtype=np.uint8)
    expected, _ = reference_scores(images, weights)
    assert_labelled(Pipeline(plan_here(plan), weights, 400), images, expected)


@pytest.mark.alone
@pytest.mark.parametrize("plan", FUSED)
def test_plans_classify_a_million_images(plan, digits, cupy):
    dataset, weights, expected, labels = digits
    pipeline = Pipeline(plan_here(plan), weights, 1_000_000)
    pipeline.with_scores = False
    images = cupy.concatenate([cupy.asarray(dataset.images)] * 100)
    pipeline.labels.fill(-1)
    found = pipeline.run(images).get().reshape(100, FULL)
    near = excused(expected, pipeline.plan.arithmetic)
    assert not ((found != labels) & ~near).any()


@pytest.mark.parametrize("plan", FUSED)
def test_stage_override_splits_a_fused_plan(plan, digits, cupy):
    dataset, weights, _, labels = digits
    gpu = driver_gpus()[0]
    chosen = resolve(plan, "cuda", {"fc1": "tiled"}, gpu=gpu)
    assert [bound.name for bound in chosen.stages] == [stage.name for stage in STAGES]
    found = Pipeline(chosen, weights, 200).run(cupy.asarray(dataset.images[:200])).get()
    np.testing.assert_array_equal(found, labels[:200])


def test_cpu_stage_inside_a_gpu_plan(digits):
    dataset, weights, expected, _ = digits
    plan = resolve("course", "cuda", {"conv1": "serial", "fc2": "serial"})
    pipeline = Pipeline(plan, weights, 64)
    assert_labelled(pipeline, dataset.images[:64], expected, slice(64))
    names = [step.name for step in pipeline.steps]
    assert names.count("copy to cpu") == names.count("copy to cuda") == 2


def test_pipelines_do_not_share_constant_filters(digits, cupy):
    dataset, weights, _, expected = digits
    other = Weights({k: v + np.float32(0.3) for k, v in weights.tensors.items()}, "other")
    plan = resolve("tiled", "cuda")
    first, second = Pipeline(plan, weights, 100), Pipeline(plan, other, 100)
    images = cupy.asarray(dataset.images[:100])
    second.run(images)
    np.testing.assert_array_equal(first.run(images).get(), expected[:100])
