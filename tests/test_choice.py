"""Plan `auto` on a GPU: measured once per device and batch range, cached, shown by doctor."""

from dataclasses import asdict, replace

import pytest

from lenetgpu.check.fit import Fit
from lenetgpu.dispatch import auto as choice
from lenetgpu.dispatch.auto import Choice, choose, measured_with, remembered
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu import faults
from lenetgpu.gpu.device import Gpu, driver_gpus
from lenetgpu.lab import doctor
from lenetgpu.measure import roofline
from lenetgpu.measure.outcome import Request
from lenetgpu.net import engine
from lenetgpu.net.engine import Engine
from lenetgpu.plan import AUTO_PLANS, NAMED, auto_plans, resolve, stand_ins
from lenetgpu.store import entries
from lenetgpu.store.entries import folder

HOPPER = Gpu(0, "Some Hopper", 90)
ON_HOPPER = {
    "fp32": ["fp32", "sgemm", "fp16x3", "fp16x3_winograd", "mma_fp16x3"],
    "fp16x3": ["fp16x3", "fp16x3_winograd", "mma_fp16x3"],
    "fp16": ["fp16", "fp16_winograd", "mma_fp16", "mma_winograd", "half"],
    "int8": ["int8", "int8_sparse"],
}
pytestmark = pytest.mark.usefixtures("own_cache")


def remember(precision, batch, plan, device=HOPPER):
    images = measured_with(batch)
    plans = auto_plans("cuda", precision, device)
    medians = {name: 2.0 - (name == plan) for name in plans}
    made = Choice(device.name, precision, images, plan, medians, {})
    name = choice._name(device, precision, images, plans)
    entries.save("auto", name, made)
    return made, folder("auto") / f"{name}.entry"


@pytest.mark.parametrize("precision", AUTO_PLANS)
def test_auto_candidates_run_on_the_device(precision):
    plans = auto_plans("cuda", precision, HOPPER)
    assert list(plans) == ON_HOPPER[precision]
    for name, plan in plans.items():
        assert plan.name == name
        assert (plan.precision == precision) != (name in stand_ins("cuda", precision))
        assert all(bound.variant.needs.met_by(HOPPER) for bound in plan.stages)
    assert "fp16" not in auto_plans("cuda", "fp16", Gpu(0, "Some Ada", 89))


@pytest.fixture
def fitting(monkeypatch):
    """Replace `fit`; return the errors by plan and the list of calls.

    An error of None means that the plan does not fit; the default is 1e-7.
    """
    errors, asked = {}, []

    def fit(plan, weights, device, dtype, batch, precision):
        assert precision == plan.precision
        if batch > errors.get("capacity", batch):
            raise MemoryError
        asked.append((plan.name, dtype, batch))
        error = errors.get(plan.name, 1e-7)
        if error is None:
            raise LenetError(f"plan {plan.name} does not fit")
        return Fit(plan.name, plan.precision, error, {})

    monkeypatch.setattr(choice, "fit", fit)
    monkeypatch.setattr(choice, "default_chunk", lambda device: 64 if device == "cpu" else 40_000)
    return errors, asked


def test_auto_choice_applies_only_to_its_batch_range(fitting, shipped_weights):
    _, asked = fitting
    made, _ = remember("fp32", 10_000, "sgemm")
    assert remembered(HOPPER, "fp32", 70_000) == made
    assert remembered(HOPPER, "fp32", 100) is None
    assert remembered(Gpu(0, "Another", 90), "fp32", 10_000) is None
    plan = choose(HOPPER, "fp32", 10_000, shipped_weights)
    assert plan.name == "auto"
    assert plan.stages[0].variant.full_name == "cublas.im2col"
    assert asked == [("sgemm", "uint8", 10_000)]


def test_auto_falls_back_if_plan_does_not_fit_weights(fitting, shipped_weights):
    errors, asked = fitting
    remember("int8", 10_000, "int8_sparse")
    remember("fp16", 10_000, "fp16_winograd")
    refused = ("int8_sparse", "int8", "fp16_winograd", "fp16", "mma_fp16", "mma_winograd")
    errors.update(dict.fromkeys(refused))
    notes = []
    plan = choose(HOPPER, "int8", 10_000, shipped_weights, "float32", notes)
    assert plan.name == "auto" and plan.stages == resolve("half", "cuda").stages
    assert notes == [f"plan {name} does not fit" for name in refused]
    assert {dtype for _, dtype, _ in asked} == {"float32"}
    made, path = remember("fp16", 1, "half")
    facts = {"medians_ms": {"half": 1.0}, "wrong": {"fp16": "plan fp16 is wrong"}}
    entries.save("auto", path.stem, asdict(made) | facts)
    assert choose(HOPPER, "fp16", 1, shipped_weights, notes=notes)
    assert notes[-1] == "plan fp16 is wrong"


def test_weights_that_fit_no_plan_are_refused_with_reasons(fitting, shipped_weights):
    errors, _ = fitting
    for precision in ("fp16", "fp16x3", "fp32"):
        remember(precision, 1, "none")
    errors.update(dict.fromkeys(NAMED))
    with pytest.raises(LenetError, match="plan fp16 does not.*plan fp16x3 does not.*plan sgemm"):
        choose(HOPPER, "fp16", 1, shipped_weights)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({"fp16x3": 8e-7, "fp32": 8e-7}, "fp16x3"),
        ({"fp16x3": 9e-7, "fp32": 8e-7}, "mma_fp16x3"),
        ({"fp16x3": 9e-7, "mma_fp16x3": 9e-7, "fp32": 8e-7}, "sgemm"),
        ({"fp16x3": 9e-6, "fp32": None}, "fp16x3"),
        ({"fp16x3": None, "mma_fp16x3": None, "sgemm": None, "fp32": 8e-7}, "fp32"),
    ],
)
def test_fp32_dispatches_faster_plan_of_equal_accuracy(errors, expected, fitting, shipped_weights):
    fitting[0].update(errors)
    made, path = remember("fp32", 1, "fp16x3")
    times = {"fp16x3": 1.0, "mma_fp16x3": 2.0, "sgemm": 3.0, "fp32": 4.0}
    entries.save("auto", path.stem, {**asdict(made), "medians_ms": times})
    plan = choose(HOPPER, "fp32", 1, shipped_weights)
    assert plan.stages == resolve(expected, "cuda").stages


def test_fit_is_checked_in_smaller_chunks_if_memory_is_short(fitting, shipped_weights, monkeypatch):
    given_back = []  # the real one calls gc.collect, which is slow in a full test run
    monkeypatch.setattr(faults, "release", lambda: given_back.append(1))
    errors, asked = fitting
    remember("fp32", 10_000, "sgemm")
    errors["capacity"] = 3_000
    plan = choose(HOPPER, "fp32", 10_000, shipped_weights)
    assert plan.stages == resolve("sgemm", "cuda").stages
    assert asked == [("sgemm", "uint8", 2_500)]
    assert len(given_back) == 2
    errors["capacity"] = 0
    with pytest.raises(LenetError, match="plan sgemm: expected memory for one image"):
        choose(HOPPER, "fp32", 10_000, shipped_weights)


def test_cpu_plan_fit_is_checked(fitting, shipped_weights):
    errors, asked = fitting
    assert choose(None, "fp32", 100, shipped_weights).stages == resolve("fp32", "cpu").stages
    assert asked == [("fp32", "uint8", 64)]
    errors["fp32"] = None
    assert choose(None, "fp32", 100, shipped_weights).stages == resolve("tiled", "cpu").stages
    errors["tiled"] = None
    with pytest.raises(LenetError, match="plan tiled does not fit"):
        choose(None, "fp32", 100, shipped_weights)


def test_auto_choice_under_load_is_remeasured_when_idle(monkeypatch):
    others = []
    monkeypatch.setattr(roofline, "load_on", lambda device: others.pop())
    made, path = remember("fp32", 1, "fp32")
    assert choice.still_holds(HOPPER, "fp32", 1) == made  # the load is not read
    entries.save("auto", path.stem, replace(made, load=2.0))
    others[:] = [1.0, 2.0]
    assert choice.still_holds(HOPPER, "fp32", 1).load == 2.0
    assert choice.still_holds(HOPPER, "fp32", 1) is None
    assert remembered(HOPPER, "fp32", 1) is not None


@pytest.mark.parametrize(
    "change",
    [{"medians_ms": {}}, {"medians_ms": {"fp32": float("nan")}},
     {"medians_ms": {"unknown": 1.0}}],
    ids=str,
)  # fmt: skip
def test_impossible_cached_auto_choice_is_ignored(change):
    made, path = remember("fp32", 1, "fp32")
    entries.save("auto", path.stem, asdict(made) | change)
    assert remembered(HOPPER, "fp32", 1) is None


def test_auto_choice_is_invalid_after_kernel_changes(monkeypatch):
    remember("fp16", 1, "half")
    assert remembered(HOPPER, "fp16", 1) is not None
    monkeypatch.setattr(choice, "plan_key", lambda *_: "other sources")
    assert remembered(HOPPER, "fp16", 1) is None


def test_doctor_shows_auto_choice_and_times():
    remember("fp32", 1, "sgemm")
    line = doctor._auto_line(HOPPER, "fp32")
    assert "sgemm for 1 images (sgemm 1.000 ms, fp32 2.000 ms, " in line
    assert "other batches not measured yet" in line


@pytest.mark.gpu
@pytest.mark.parametrize("precision", AUTO_PLANS)
def test_auto_dispatches_and_caches_fastest_plan(precision, monkeypatch, cupy):
    cupy.zeros(1)
    gpu = driver_gpus()[0]
    if not auto_plans("cuda", precision, gpu):
        pytest.skip(f"{gpu.name} has no plan at {precision}")
    found = choice.measure(gpu, precision, 2_000)
    assert found.plan == min(found.medians_ms, key=found.medians_ms.get)
    assert not found.wrong
    monkeypatch.setattr(choice, "measure", lambda *_: pytest.fail("measured again"))
    plan = choose(gpu, precision, 2_000, load_weights(assets.default_weights()))
    assert plan.stages in [found.stages for found in auto_plans("cuda", precision, gpu).values()]


def test_auto_with_stage_override_does_not_fall_back(monkeypatch):
    """A requested plan that does not fit is refused, and no other is run (docs/weights.md)."""

    def unfit(plan, *asked):
        raise LenetError(f"plan {plan.name} does not fit at {asked[-1]}")

    monkeypatch.setattr(engine, "fit", unfit)
    monkeypatch.setattr(engine, "choose", None)
    asked = Engine(Request(device="cpu", precision="fp32", overrides={"conv2": "fft"}))
    with pytest.raises(LenetError, match="plan auto.* does not fit at fp32"):
        asked.start("uint8", 9)
