"""No plan answers with wrong results silently: NaN, infinity, overflow, denormal numbers."""

import ctypes
import json
from functools import cached_property

import numpy as np
import pytest
from conftest import plan_here
from stored import hdf5
from terminal import run

from lenetgpu import LeNet, LenetError
from lenetgpu.check.fit import looked_at
from lenetgpu.check.judge import excusable_flips, require_finite
from lenetgpu.check.reference import reference_scores
from lenetgpu.cpu import flush
from lenetgpu.files import assets
from lenetgpu.files.reading import FAINTEST, MemorySource
from lenetgpu.files.scaling import reach
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.lab import infer as job
from lenetgpu.measure.outcome import FEW
from lenetgpu.net.runners import CpuRunner
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import NAMED, resolve, runnable_plans
from lenetgpu.stages.prepared import PreparedKernel

CPU_PLANS = runnable_plans("cpu", None)
# a plan of each precision and of each launch method
GPU_PLANS = ["fp32", "course", "fft", "half", "fp16", "fp16x3", "int8", "int8_sparse", "mma_fp16"]
BAD = {"NaN": np.nan, "inf": np.inf, "-inf": -np.inf, "1e38": 1e38, "-1e38": -1e38}
FIRST, SECOND, COUNT = 7, 9, 11
by_plan = pytest.mark.parametrize("plan", CPU_PLANS)


@pytest.fixture(
    params=[("cpu", plan) for plan in CPU_PLANS]
    + [pytest.param(("cuda", plan), marks=pytest.mark.gpu) for plan in GPU_PLANS],
    ids=lambda on: "-".join(on),
)
def on(request):
    """(device, plan) for every CPU plan and for the GPU plans that this GPU supports."""
    device, plan = request.param
    if device == "cuda":
        plan_here(plan)
    return device, plan


def asked_of(on, *words):
    """Return arguments of `infer` for chunks of three images."""
    device, plan = on
    return (*words, "--device", device, "--plan", plan, CHUNKS[device], 3)


CHUNKS = {"cpu": "--batch", "cuda": "--chunk"}


def assert_labels(on, found, reference):
    """Assert float64's labels, except where the two best scores differ less than the tolerance."""
    scores, labels = reference
    largest = np.abs(scores).max(1, keepdims=True)
    differ = np.asarray(found) != labels
    precision = resolve(on[1], on[0]).arithmetic
    assert not (differ & ~excusable_flips(scores / largest, precision)).any()


@pytest.fixture(scope="module")
def digits():
    return load_dataset(assets.default_digits()).images[:COUNT]


def spoiled(digits, value, at=(FIRST, SECOND)):
    images = digits.astype(np.float32) / np.float32(255)
    for number in at:
        images[number] = np.where(images[number] > 0, np.float32(value), images[number])
    return images


def tensors(**factors):
    shipped = load_weights(assets.default_weights()).tensors
    return {
        name: (w.astype(np.float64) * factors.get(name, 1)).astype(np.float32)
        for name, w in shipped.items()
    }


def refused(result):
    """Return the one error message of an `infer` that gave no result."""
    assert result.exit_code == 2 and not result.stdout
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("lenetgpu: error: "), result.stderr
    return lines[-1]


@pytest.mark.parametrize("values", [(np.nan, 1e-40), (np.inf, -np.inf)], ids=["whole", "by parts"])
def test_infer_names_the_first_invalid_image(on, values, digits, tmp_path, monkeypatch):
    """The first bad image is in a later chunk of three, a second one follows, one is skipped."""
    if np.inf in values:
        monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    data, output = tmp_path / "images.npy", tmp_path / "labels.npy"
    asked = asked_of(on, "infer", data, "--skip", 1, "--output", output, "--json", "-")
    for value in values:
        np.save(data, spoiled(digits, value)[..., 0])
        assert f"in image {FIRST} (from 0)" in refused(run(*asked))
        assert not output.exists()


def test_library_names_the_first_invalid_image(on, digits):
    """Images in host memory raise; bad images on the GPU get label -1 and NaN scores."""
    device, plan = on
    with LeNet.load(device=device, plan=plan, batch=3) as net:
        expected = net(spoiled(digits, 1.0, ()))
        for value in (*BAD.values(), 1e-40):
            images = spoiled(digits, value)
            for call in (net, net.scores, net.top):
                with pytest.raises(LenetError, match=rf"^images: .* in image {FIRST} \(from 0\)"):
                    call(images)
            with pytest.raises(LenetError, match=r"^images: expected [^;]* found "):
                net(images[FIRST])
            if device == "cuda":
                import cupy

                there = cupy.asarray(images)
                labels, scores = net(there).get(), net.scores(there).get()
                bad = np.isin(np.arange(COUNT), (FIRST, SECOND))
                assert (labels[bad] == -1).all() and np.isnan(scores[bad]).all()
                np.testing.assert_array_equal(labels[~bad], expected[~bad])
                assert np.isfinite(scores[~bad]).all()
        assert len(net(spoiled(digits, np.float32(FAINTEST)))) == COUNT


@by_plan
@pytest.mark.parametrize("value", list(BAD.values()), ids=list(BAD))
def test_nan_scores_end_a_run(plan, value, digits, shipped_weights):
    """The images bypass validation, and no ReLU on the way hides their values."""
    images, batch = spoiled(digits, value), 3
    pipeline = Pipeline(resolve(plan, "cpu"), shipped_weights, batch, "float32")
    pipeline.with_scores = False
    with np.errstate(all="ignore"):
        runner = CpuRunner(pipeline)
        words = rf"plan {plan} \(fp32\): expected finite scores .* image {{}} \(from 0\)"
        labels = np.full(COUNT, -1, np.int32)
        with pytest.raises(LenetError, match=words.format(FIRST)):
            runner.run(images, labels)
        assert runner.done == FIRST and (labels[:FIRST] >= 0).all() and (labels[FIRST:] == -1).all()
        require_finite(None, pipeline.plan)
        with pytest.raises(LenetError, match=words.format(20 + FIRST)):
            require_finite(10 * images.reshape(COUNT, -1), pipeline.plan, 20)
        runner.first = 20
        with pytest.raises(LenetError, match=words.format(20 + FIRST)):
            runner.run(images, labels)
        shifted = np.concatenate([np.zeros((100, 28, 28, 1), np.float32), images])
        source, given = MemorySource(shifted, None, "memory"), []
        source.selection = range(100, 100 + COUNT)
        with pytest.raises(LenetError, match=words.format(100 + FIRST)):
            runner.run_source(source, lambda labels, scores: given.extend(labels))
        assert len(given) == runner.done == FIRST
        good = np.delete(images, (FIRST, SECOND), axis=0)
        runner.run(good, labels)
        assert runner.done == len(good)


HUGE = {
    "all of 1e38": {name: np.full_like(w, 1e38) for name, w in tensors().items()},
    "all of -1e38 at the end": tensors() | {"fc2": np.full((128, 10), -1e38, np.float32)},
    "fc2 times 1e38": tensors(fc2=1e38),
}
BEYOND = "expected weights whose scores fit float32 with a margin, the largest from"


@by_plan
@pytest.mark.parametrize("name", HUGE)
def test_weights_with_overflowing_scores_are_refused(plan, name, tmp_path):
    path = hdf5(tmp_path / "weights.h5", **HUGE[name])
    asked = ("--weights", path, "--plan", plan, "--device", "cpu", "--limit", 5)
    assert BEYOND in refused(run("infer", *asked))
    assert BEYOND in refused(run("weights", "verify", path))
    with pytest.raises(LenetError, match=BEYOND):
        LeNet.load(path, device="cpu", plan=plan)


MIDDLE = {
    "conv1": {"conv1": 1e38, "fc2": 1e-36},
    "conv2": {"conv2": 1e38, "fc1": 1e-37},
    "fc1, where ReLU swallows -inf": {"fc1": 1e38, "fc2": 1e-38},
}


@pytest.mark.parametrize("name", MIDDLE)
def test_weights_with_large_intermediates_give_labels(on, name, digits, tmp_path):
    """Tests an array, single images, and a file that is streamed."""
    held = tensors(**MIDDLE[name])
    output, data = tmp_path / "labels.npy", tmp_path / "images.npy"
    path = hdf5(tmp_path / "weights.h5", **held)
    reference = reference_scores(digits, Weights(held, name))
    np.save(data, digits[..., 0])
    run(*asked_of(on, "infer", data, "--weights", path, "--output", output), code=0)
    assert_labels(on, np.load(output), reference)
    with LeNet.load(path, device=on[0], plan=on[1], batch=3) as net:
        assert_labels(on, net(digits), reference)
        assert_labels(on, [int(net(image[..., 0])) for image in digits], reference)


@pytest.fixture(scope="module")
def brim(shipped_weights):
    """Weights whose scores fit float32 for all validation images, and an image that overflows.

    The image shows waves and no digit.
    """
    down, right = np.mgrid[:28, :28]
    waves = 255 * (np.sin(down * 7 / 4) + np.sin(right * 2) > 0).astype(np.uint8)
    judged = np.abs(reference_scores(looked_at(), shipped_weights)[0][:, 0]).max()
    held = dict(shipped_weights.tensors)
    factors = np.full(10, 0.9 * 2.0**117 / judged)
    factors[0] *= 2.0**10
    held["fc2"] = (held["fc2"] * factors).astype(np.float32)
    return held, waves[..., None]


@pytest.mark.parametrize("whole", [True, False], ids=["read whole", "streamed"])
def test_image_with_scores_beyond_float32_is_named(on, whole, brim, digits, tmp_path, monkeypatch):
    """Labels alone do not require the score and are right; `scores` raises, also on the GPU."""
    if not whole:
        monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    held, waves = brim
    images = digits.copy()
    images[FIRST] = waves
    reference = reference_scores(images, Weights(held, "brim"))
    beyond = np.abs(reference[0]).max(1) > np.finfo(np.float32).max
    assert np.flatnonzero(beyond).tolist() == [FIRST]
    data, output = tmp_path / "x.npy", tmp_path / "labels.json"
    path = hdf5(tmp_path / "weights.h5", **held)
    # more than FEW images: no table of images, which would require scores
    many = np.concatenate([images, *[digits] * -(-FEW // len(digits))])
    np.save(data, many[..., 0])
    asked = asked_of(on, "infer", data, "--weights", path, "--output", output)
    sentence = refused(run(*asked, "--skip", 1, "--scores"))
    assert not output.exists()
    if "does not fit" in sentence:  # the plan's precision is too low for these weights
        return
    assert f"infinity in those of image {FIRST} (from 0)" in sentence
    assert run(*asked).exit_code == 0
    assert_labels(on, json.loads(output.read_text())["labels"][: len(images)], reference)
    with LeNet.load(path, device=on[0], plan=on[1], batch=3) as net:
        assert_labels(on, net(images), reference)
        given = [images]
        if on[0] == "cuda":
            import cupy

            given.append(cupy.asarray(images))
        for each in given:
            with pytest.raises(LenetError, match=rf"image {FIRST} \(from 0\)"):
                net.scores(each)
        assert np.isfinite(net.scores(digits)).all()


def test_score_bound_holds(brim, shipped_weights):
    held, waves = brim
    assert not Weights(held, "brim").balanced.bounded and shipped_weights.balanced.bounded
    for given in (shipped_weights, Weights(held, "brim")):
        images = np.concatenate([looked_at(), waves[None]])
        most = np.abs(reference_scores(images, given)[0]).max()
        balanced = given.balanced
        assert most <= balanced.reach["fc2"] * 2.0**balanced.exponent <= 1000 * most


class Uneven(Weights):
    """Weights that balancing leaves as they are."""

    @cached_property
    def balanced(self):
        return self


@pytest.mark.parametrize(
    ("plan", "device"), [(name, device) for name, devices in NAMED.items() for device in devices]
)
def test_pipeline_whose_stage_could_overflow_is_refused(plan, device, monkeypatch):
    """Weights that skipped balancing are refused before anything is allocated."""
    resolved = resolve(plan, device)
    monkeypatch.setattr(Pipeline, "_allocate", lambda self: pytest.fail("allocates"))
    low = resolved.precision in ("fp16", "fp16x3", "int8")
    for stage, held in {"conv1": tensors(conv1=1e38), "fc1": tensors(fc1=1e34)}.items():
        with pytest.raises(
            LenetError, match=f"plan {plan} with huge: .* that {stage} stays .*e[+]"
        ):
            Pipeline(resolved, Uneven(held, "huge"), 1)
    if low:
        with pytest.raises(LenetError, match="such that conv1 stays within (fp16|fp16x3|int8)'s"):
            Pipeline(resolved, Uneven(tensors(conv1=1e6), "huge"), 1)


@pytest.mark.parametrize("name", ["conv1", "conv2", "fc1", "fc2"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nonfinite_weights_are_refused(name, value, tmp_path):
    """Weights in a file are refused on reading, those in memory when a plan is made (also int8)."""
    held = tensors()
    held[name].flat[3] = value
    path = hdf5(tmp_path / "weights.h5", **held)
    words = f"{name} to hold finite float32 numbers, found 1 that"
    for command in (("infer", "--weights", path), ("weights", "verify", path)):
        assert words in refused(run(*command))
    with pytest.raises(LenetError, match=words):
        LeNet.load(path, device="cpu")
    with pytest.raises(LenetError, match=f"finite numbers in {name}, found NaN or infinity"):
        Pipeline(resolve("int8", "cuda"), Weights(held, "memory"), 1)
    with np.errstate(invalid="ignore"):
        assert value < 0 or not np.isfinite(reach(held)[name])


def state():
    """Return this thread's rounding, masks and flushing, without the exception flags."""
    held = (ctypes.c_uint32 * 64)()
    read, _, word, _ = flush._access()
    read(held)
    return held[word] & ~0x3F


here = pytest.mark.skipif(flush._access() is None, reason="no fegetenv of a known layout")


@here
@by_plan
def test_denormals_are_flushed_only_while_a_plan_computes(plan, digits, rng):
    """Every kernel on every thread treats 1e-40 as 0; the caller's state is restored."""
    weights = load_weights(assets.default_weights())
    pipeline = Pipeline(resolve(plan, "cpu"), weights, 64, "float32", 64)
    images = np.full((64, 28, 28, 1), 1e-40, np.float32)
    pipeline.run(images)
    before, seen = state(), []
    bits = flush._access()[3]
    pipeline.run(images, lambda step, output: seen.append(state() & bits == bits))
    assert seen and all(seen) and state() == before and before & bits != bits
    assert not pipeline.scores(64).any()

    def fail(step, output):
        raise ValueError

    with pytest.raises(ValueError):
        pipeline.run(images, fail)
    assert state() == before
    bright = digits.astype(np.float32) / np.float32(255)
    flooded = np.where(bright > 0, bright, np.float32(1e-40))
    np.testing.assert_array_equal(pipeline.run(flooded), reference_scores(flooded, weights)[1])


def test_nan_from_a_kernel_raises(digits, shipped_weights, monkeypatch):
    """A NaN from a kernel raises for one image and for many."""
    real = PreparedKernel.run

    def broken(self, x, y):
        real(self, x, y)
        if self.variant.kind == "fc":
            y[-1, 0] = np.nan

    runner = CpuRunner(Pipeline(resolve("fp32", "cpu"), shipped_weights, 4))
    monkeypatch.setattr(PreparedKernel, "run", broken)
    with pytest.raises(LenetError, match=r"image 0 \(from 0\)"):
        runner.label(digits[0, :, :, 0])
    with pytest.raises(LenetError, match=r"image 3 \(from 0\)"):
        runner.answer(digits, True)


@pytest.mark.gpu
def test_persistent_kernel_refuses_bad_images_and_scores(brim, digits, tmp_path):
    if driver_gpus()[0].compute_capability != 90:
        pytest.skip("no GPU of compute capability 9.0")
    held, waves = brim
    path = hdf5(tmp_path / "weights.h5", **held)
    with LeNet.load(path, device="cuda", plan="fp32", latency=True) as net:
        for value in BAD.values():
            with pytest.raises(LenetError, match="^images: expected floats from 0 to 1, found"):
                net(spoiled(digits, value)[FIRST, ..., 0])
        with pytest.raises(LenetError, match="expected values within float32.s range"):
            net.scores(waves.reshape(28, 28))
