"""All GPU plans with weights of any scale: correct, or refused in one sentence."""

import numpy as np
import pytest
from conftest import module_of

from lenetgpu.check.reference import reference_scores
from lenetgpu.dispatch.auto import choose
from lenetgpu.files import assets
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import auto_plans, resolve, runnable_plans

pytestmark = pytest.mark.gpu
DIGITS = 1_000


@pytest.fixture(scope="module")
def script():
    return module_of("any_weights")


@pytest.fixture(scope="module")
def gpu(cupy):
    cupy.zeros(1)
    return driver_gpus()[0]


@pytest.fixture(scope="module")
def sets(script):
    shipped = load_weights(assets.default_weights()).tensors
    return {name: Weights(tensors, name) for name, tensors in script.sets(shipped)}


def test_plans_are_correct_or_refused_for_any_weights(script, gpu, sets):
    images, parts = script.all_groups(DIGITS)
    plans = [resolve(name, "cuda", gpu=gpu) for name in runnable_plans("cuda", gpu)]
    wrong = {}
    for name, weights in sets.items():
        given = images, parts, reference_scores(images, weights)[0]
        for plan in plans:
            entry = script.tried(plan, weights, gpu, given)
            beyond = "float32's" in name
            if ("refused" in entry) != beyond or not (beyond or entry["right"]):
                wrong[name, plan.name] = entry
    assert wrong == {}


@pytest.mark.parametrize("name", ["fp16", "mma_fp16", "int8", "fp16x3", "fp32"])
def test_graph_replay_rescales_on_every_launch(name, gpu, script, sets, cupy):
    """Once per launch, for whole batches and chunks, for scores as well as labels."""
    from lenetgpu.gpu.graph import Graph

    if name not in runnable_plans("cuda", gpu):
        pytest.skip(f"{gpu.name} does not run {name}")
    weights = sets["times 1e-6"]
    images, _ = script.all_groups(300)
    pipeline = Pipeline(resolve(name, "cuda", gpu=gpu), weights, len(images), chunk=128)
    assert pipeline.exponent
    resident = cupy.asarray(images)
    graph = Graph(lambda: pipeline.run(resident), 1)
    pipeline.run(resident)
    cupy.cuda.runtime.deviceSynchronize()
    once, labels = pipeline.scores(len(images)), pipeline.labels.get()
    pipeline.poison()
    for _ in range(3):
        graph.launch()
    cupy.cuda.runtime.deviceSynchronize()
    np.testing.assert_array_equal(pipeline.scores(len(images)), once)
    np.testing.assert_array_equal(pipeline.labels.get(), labels)
    expected = reference_scores(images, weights)[0]
    assert np.abs(once - expected).max() <= 4e-2 * np.abs(expected).max()


def test_default_fp32_plan_has_fp32_accuracy(gpu, sets):
    """Holds for any dispatched plan; on Hopper with the shipped weights it uses split fp16."""
    from lenetgpu.check.fit import fit

    for name in ("as they ship", "channels times 2^-6 to 2^2", "random"):
        plan = choose(gpu, "fp32", 10_000, sets[name])
        same = [n for n, p in auto_plans("cuda", "fp32", gpu).items() if p.stages == plan.stages]
        own = fit(resolve("fp32", "cuda"), sets[name], gpu.name, "uint8", 10_000)
        found = fit(resolve(same[0], "cuda"), sets[name], gpu.name, "uint8", 10_000)
        assert found.error <= own.error or same[0] == "sgemm"
        if gpu.compute_capability == 90 and name == "as they ship":
            assert same[0] in ("fp16x3", "fp16x3_winograd")
