"""The course's model on real MNIST: every CPU plan finds the published count."""

import json

import numpy as np
import pytest
from limits import LIMITS, excused
from terminal import run

from lenetgpu.check.reference import reference_scores
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve

CORRECT = 8_722
SERIAL_IMAGES = 500  # 15 ms each; seven chunks and a part of one
IN_CACHE = 50  # images whose float64 activations stay in a CPU's cache
CPU_PLANS = [name for name, devices in NAMED.items() if "cpu" in devices]
GPU_PLANS = [name for name, devices in NAMED.items() if "cuda" in devices]


@pytest.fixture(scope="module")
def reference(mnist, course):
    dataset = load_dataset(mnist / "t10k-images-idx3-ubyte.gz")
    weights = load_weights(course / "model.hdf5")
    parts = [
        reference_scores(dataset.images[lo : lo + IN_CACHE], weights)
        for lo in range(0, len(dataset.images), IN_CACHE)
    ]
    scores, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return dataset, weights, scores, labels


@pytest.mark.slow
def test_reference_finds_the_published_count(reference):
    dataset, _, _, labels = reference
    assert (labels == dataset.labels).sum() == CORRECT


def assert_like_reference(pipeline, images, reference):
    scores, labels = (whole[: len(images)] for whole in reference[2:])
    pipeline.poison()
    found = pipeline.run(images)
    found = found.get() if pipeline.plan.device == "cuda" else found
    precision = pipeline.plan.arithmetic
    assert not ((found != labels) & ~excused(scores, precision)).any()
    error = np.abs(pipeline.scores(len(labels)) - scores).max() / np.abs(scores).max()
    assert error <= LIMITS[precision]


@pytest.mark.slow
@pytest.mark.parametrize("plan", CPU_PLANS)
def test_cpu_plans_find_the_published_count(plan, reference):
    dataset, weights, _, _ = reference
    images = dataset.images[: SERIAL_IMAGES if plan == "serial" else None]
    assert_like_reference(Pipeline(resolve(plan, "cpu"), weights, len(images)), images, reference)


@pytest.mark.gpu
@pytest.mark.parametrize("plan", GPU_PLANS)
def test_gpu_plans_find_the_published_count(plan, reference, cupy):
    dataset, weights, _, _ = reference
    pipeline = Pipeline(resolve(plan, "cuda"), weights, 10_000)
    assert_like_reference(pipeline, cupy.asarray(dataset.images), reference)


@pytest.mark.parametrize("batch", [133, 9_973])
def test_infer_finds_the_published_count_at_any_batch(batch, mnist, course):
    data = str(mnist / "t10k-images-idx3-ubyte.gz")
    model = str(course / "model.hdf5")
    arguments = ["infer", data, "--weights", model, "--batch", str(batch), "--json", "-"]
    result = run(*arguments, "--device", "cpu", code=0)
    document = json.loads(result.stdout)
    assert document["correct"] == CORRECT
    assert document["accuracy"] == 0.8722
    assert document["batch"] == batch


@pytest.mark.parametrize("plan", CPU_PLANS)
def test_all_ten_test_images_are_correct(plan, course):
    dataset = load_dataset(course / "test10.hdf5")
    weights = load_weights(course / "model.hdf5")
    labels = Pipeline(resolve(plan, "cpu"), weights, 10, "float32").run(dataset.images)
    assert (labels == dataset.labels).sum() == 10


def test_shipped_weights_classify_mnist(mnist, shipped_weights):
    dataset = load_dataset(mnist / "t10k-images-idx3-ubyte.gz")
    labels = Pipeline(resolve("fp32", "cpu"), shipped_weights, 10_000).run(dataset.images)
    assert (labels == dataset.labels).mean() >= 0.9955
