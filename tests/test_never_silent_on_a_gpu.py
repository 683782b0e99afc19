"""No plan of a GPU gives an answer that is none: NaN, infinity, overflow, faint images.

What is asked of them is what is asked of a CPU's plans: test_never_silent.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from test_never_silent import (
    BAD,
    COUNT,
    FIRST,
    MIDDLE,
    SECOND,
    brim,  # noqa: F401
    digits,  # noqa: F401
    refused,
    run,
    spoiled,
    tensors,
    write,
)

from lenetgpu import LeNet, LenetError
from lenetgpu.check.judge import excusable_flips
from lenetgpu.check.truth import reference_scores
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.lab import infer as job
from lenetgpu.measure.outcome import FEW
from lenetgpu.plan import resolve

pytestmark = pytest.mark.gpu
# a plan of each precision and of each way to launch
PLANS = ["fp32", "course", "fft", "half", "fp16", "fp16x3", "int8", "int8_sparse", "mma_fp16"]


@pytest.fixture(params=PLANS)
def plan(request):
    """A plan that this GPU has."""
    try:
        resolve(request.param, "cuda", gpu=driver_gpus()[0])
    except LenetError as error:
        pytest.skip(str(error))
    return request.param


def assert_labels(plan, found, truth):
    """Float64's labels, but where its two best scores are as near as the plan may err."""
    scores, labels = truth
    largest = np.abs(scores).max(1, keepdims=True)
    differ = np.asarray(found) != labels
    excused = excusable_flips(scores / largest, resolve(plan, "cuda").precision)
    assert not (differ & ~excused).any()


@pytest.mark.parametrize("whole", [True, False], ids=["read whole", "streamed"])
def test_infer_names_the_first_image_that_is_no_image(plan, whole, digits, tmp_path, monkeypatch):  # noqa: F811
    if not whole:
        monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    data, output = tmp_path / "images.npy", tmp_path / "labels.npy"
    asked = ("infer", data, "--plan", plan, "--device", "cuda", "--skip", 1, "--chunk", 3)
    for value in (*BAD.values(), 1e-40):
        np.save(data, spoiled(digits, value)[..., 0])
        sentence = refused(run(*asked, "--output", output))
        assert f"in image {FIRST} (from 0)" in sentence and not output.exists()


def test_the_library_names_the_first_image_in_host_memory_and_marks_those_on_the_gpu(plan, digits):  # noqa: F811
    import cupy

    with LeNet.load(device="cuda", plan=plan, batch=3) as net:
        expected = net(spoiled(digits, 1.0, ()))
        for value in (*BAD.values(), 1e-40):
            images = spoiled(digits, value)
            for call in (net, net.scores):
                with pytest.raises(LenetError, match=rf"^images: .* in image {FIRST} \(from 0\)"):
                    call(images)
            labels, scores = net(cupy.asarray(images)).get(), net.scores(cupy.asarray(images)).get()
            bad = np.isin(np.arange(COUNT), (FIRST, SECOND))
            assert (labels[bad] == -1).all() and np.isnan(scores[bad]).all()
            np.testing.assert_array_equal(labels[~bad], expected[~bad])
            assert np.isfinite(scores[~bad]).all()


@pytest.mark.parametrize("name", MIDDLE)
def test_weights_that_overflow_in_the_middle_only_give_the_labels(plan, name, digits, tmp_path):  # noqa: F811
    """Of an array, and of a file that is read meanwhile."""
    held = tensors(**MIDDLE[name])
    path, data = write(tmp_path, held), tmp_path / "images.npy"
    truth = reference_scores(digits, Weights(held, name))
    np.save(data, digits[..., 0])
    output = tmp_path / "labels.npy"
    asked = ("--weights", path, "--plan", plan, "--device", "cuda", "--chunk", 3)
    assert run("infer", data, *asked, "--output", output).exit_code == 0
    assert_labels(plan, np.load(output), truth)
    with LeNet.load(path, device="cuda", plan=plan, batch=3) as net:
        assert_labels(plan, net(digits), truth)
        assert_labels(plan, [int(net(image[..., 0])) for image in digits], truth)


@pytest.mark.parametrize("whole", [True, False], ids=["read whole", "streamed"])
def test_scores_beyond_float32_of_one_image_name_it(
    plan,
    whole,
    brim,  # noqa: F811
    digits,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    """Labels alone need no such score, and are right; on the GPU it is waited for and refused."""
    import cupy

    if not whole:
        monkeypatch.setattr(job, "WHOLE_BYTES", 0)
    held, waves = brim
    images = digits.copy()
    images[FIRST] = waves
    truth = reference_scores(images, Weights(held, "brim"))
    path, data, output = write(tmp_path, held), tmp_path / "x.npy", tmp_path / "labels.json"
    many = np.concatenate([images, *[digits] * -(-FEW // len(digits))])  # no table, so no scores
    np.save(data, many[..., 0])
    asked = ("infer", data, "--weights", path, "--plan", plan, "--device", "cuda", "--chunk", 3)
    sentence = refused(run(*asked, "--skip", 1, "--output", output, "--scores"))
    assert not output.exists()
    if "does not fit" in sentence:  # the plan's precision does not suffice for such weights
        return
    assert f"infinity in those of image {FIRST} (from 0)" in sentence
    assert run(*asked, "--output", output).exit_code == 0
    assert_labels(plan, json.loads(output.read_text())["labels"][: len(images)], truth)
    with LeNet.load(path, device="cuda", plan=plan, batch=3) as net:
        assert_labels(plan, net(images), truth)
        for given in (images, cupy.asarray(images)):
            with pytest.raises(LenetError, match=rf"image {FIRST} \(from 0\)"):
                net.scores(given)
        with pytest.raises(LenetError, match=r"image 0 \(from 0\)|what float32 holds"):
            net.scores(images[FIRST, ..., 0])


def test_the_resident_kernel_refuses_what_is_no_image_and_scores_beyond_float32(
    brim,  # noqa: F811
    digits,  # noqa: F811
    tmp_path,
):
    if driver_gpus()[0].compute_capability != 90:
        pytest.skip("no GPU of compute capability 9.0")
    held, waves = brim
    with LeNet.load(write(tmp_path, held), device="cuda", plan="fp32", latency=True) as net:
        for value in BAD.values():
            with pytest.raises(LenetError, match="^images: expected floats from 0 to 1, found"):
                net(spoiled(digits, value)[FIRST, ..., 0])
        with pytest.raises(LenetError, match="expected what float32 holds"):
            net.scores(waves.reshape(28, 28))
