import numpy as np
import pytest
from limits import LIMITS

from lenetgpu.check.reference import reference_scores
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.network import FEATURES
from lenetgpu.network import stage as stage_called
from lenetgpu.pipeline import Pipeline, build_steps
from lenetgpu.plan import NAMED, resolve
from lenetgpu.stages import variants
from lenetgpu.stages.registry import find_span


def names(plan, dtype="uint8"):
    return [step.name for step in build_steps(plan, dtype)]


def gpu_of(compute_capability):
    return Gpu(0, "a test", compute_capability)


def test_named_gpu_plans_need_no_conversions_or_copies():
    for name in (name for name, devices in NAMED.items() if "cuda" in devices):
        assert not [row for row in names(resolve(name, "cuda")) if " to " in row], name


def test_layout_conversion_is_a_row():
    plan = resolve("course", "cuda", {"pool1": "basic"})
    assert "QUAD to NHWC" in names(plan) or "QUAD to NCHW" in names(plan)


def test_cpu_stage_in_a_gpu_plan_shows_its_copies():
    rows = names(resolve("cublas", "cuda", {"conv2": "serial"}))
    at = rows.index("conv2")
    assert rows[at - 1 : at + 2] == ["copy to cpu", "conv2", "copy to cuda"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quick", "cpu"), "plan 'quick' does not exist; choose from: serial"),
        (("course", "cpu"), "plan course requires a GPU and does not run on cpu; choose from: s"),
        (("serial", "cuda"), "plan serial requires a CPU and does not run on cuda"),
        (("auto", "cpu", {"conv3": "fft"}), "stage 'conv3' does not exist"),
        (("auto", "cpu", {}, "fp16"), "precision 'fp16': expected fp32 for plan auto on c"),
    ],
)
def test_refusals_name_the_choices(arguments, message):
    with pytest.raises(LenetError, match=message):
        resolve(*arguments)


def test_variant_for_a_newer_gpu_is_refused():
    with pytest.raises(LenetError, match=r"expected a GPU of compute capability 7.5.*found 6.1"):
        resolve("tiled", "cuda", gpu=gpu_of(61))


@pytest.fixture(scope="module")
def few(shipped_weights):
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (9, 28, 28, 1), dtype=np.uint8)
    return images, *reference_scores(images, shipped_weights)


@pytest.mark.parametrize(
    ("stage", "v"),
    [
        (stage, v.full_name)
        for stage, kind in (("conv1", "conv"), ("conv2", "conv"), ("pool1", "pool"),
                            ("pool2", "pool"), ("fc1", "fc"), ("fc2", "fc"),
                            ("argmax", "argmax"))
        for v in variants(kind, "cpu")
        if v.refusal(stage_called(stage).problem) is None
    ],
)  # fmt: skip
def test_any_stage_can_be_overridden(stage, v, few, shipped_weights):
    images, scores, labels = few
    pipeline = Pipeline(resolve("auto", "cpu", {stage: v}), shipped_weights, 9, chunk=4)
    pipeline.poison()
    np.testing.assert_array_equal(pipeline.run(images), labels)
    limit = LIMITS["fp32"] * np.abs(scores).max()
    assert np.abs(pipeline.scores(9) - scores).max() <= limit


def test_auto_dispatches_fastest_supported_plan():
    hopper = resolve("auto", "cuda", precision="fp16", gpu=gpu_of(90))
    assert hopper.stages[0].variant.full_name == "wgmma_fp16.features"
    ampere = resolve("auto", "cuda", precision="fp16", gpu=gpu_of(86))
    assert [bound.variant.full_name for bound in ampere.stages] == [
        "mma_fp16.features",
        "mma_fp16.classifier",
    ]
    assert resolve("auto", "cuda", precision="fp16", gpu=gpu_of(75)).stages[0].name == "conv1"
    blackwell = resolve("auto", "cuda", precision="fp16x3", gpu=gpu_of(100))
    assert blackwell.stages[0].variant.full_name == "mma_fp16x3.features"
    switched = resolve("auto", "cuda", {"conv1": "cublas"}, "fp16", gpu_of(90))
    assert switched.precision == "fp16"
    assert switched.stages[2].variant.full_name == "cublas.half"
    older = resolve("auto", "cuda", gpu=gpu_of(75))
    assert older.stages[0].variant.full_name == "cuda_cores_fp32.features"
    with pytest.raises(LenetError, match=r"mma_fp16x3.features .*8.0 or later, found 7.5"):
        resolve("auto", "cuda", precision="fp16x3", gpu=gpu_of(75))
    with pytest.raises(LenetError, match="precision 'tf32': expected fp32"):
        resolve("auto", "cuda", precision="tf32")


def test_old_names_of_plans_families_and_precisions_are_accepted():
    assert resolve("report", "cuda") == resolve("course", "cuda")
    assert resolve("report", "cuda").name == "course"
    for plan, old, now in (("fp16_winograd", "fp16w", "fp16"), ("int8_sparse", "int8s", "int8")):
        assert resolve(plan, "cuda", precision=old).precision == now
        assert resolve("auto", "cuda", precision=old) == resolve("auto", "cuda", precision=now)
    assert resolve("fp16_roles", "cuda") == resolve("fp16_winograd", "cuda")
    roles = "wgmma_winograd_roles_fp16"
    for name in ("fused", "fused.features", "wgmma_fp16.features", roles, f"{roles}.features"):
        now = "wgmma_winograd_fp16" if roles in name else "wgmma_fp16"
        assert find_span(FEATURES, name, "cuda").full_name == f"{now}.features"
