"""The library API on a GPU: device arrays, streams, and the range of floats."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_kernels_on_a_cpu import compiled, folder, started, version  # noqa: F401

from lenetgpu import LeNet, LenetError
from lenetgpu.check.reference import reference_scores
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.net import outside
from lenetgpu.net.runners import _STAGES
from lenetgpu.network import CLASSES

N = 300
LONG = 1 << 28
ROUNDING = 2e-3  # plan fp16's


@pytest.fixture(scope="module")
def net():
    with LeNet.load(device="cuda", plan="fp16", batch=128) as made:
        yield made


@pytest.fixture(scope="module")
def digits():
    return np.ascontiguousarray(load_dataset(assets.default_digits()).images[:N, :, :, 0])


@pytest.fixture(scope="module")
def reference(digits):
    return reference_scores(digits[..., None], load_weights(assets.default_weights()))


def installed(framework):
    return pytest.mark.skipif(importlib.util.find_spec(framework) is None, reason=f"no {framework}")


@pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")
@pytest.mark.parametrize("with_scores", [True, False])
def test_out_of_range_floats_are_marked(monkeypatch, folder, with_scores):  # noqa: F811
    """The kernel is compiled for a CPU; one float of an image suffices, at any position."""

    def launch(kernel, grid, block, args):
        started(*compiled(kernel, folder), grid, block, args)

    monkeypatch.setattr(outside, "launch", launch)
    images = np.random.default_rng(1).random((13, 28, 28, 1), np.float32)
    images[0].flat[:2] = -0.0009, 1.0009
    images[1].flat[783], images[3].flat[0], images[4].flat[500] = np.nan, 1.01, -0.01
    images[6].flat[127], images[7].flat[128] = np.inf, -np.inf
    images[8:] = 0
    images[9].flat[700], images[10].flat[1], images[11].flat[5] = 1e-40, 2.0**-100, 7e-31
    images[12].flat[[3, 600]] = 1e-40, 0.5
    labels = np.arange(13, dtype=np.int32)
    scores = np.ones((13, CLASSES), np.float32) if with_scores else None
    outside.mark_outside(images, labels, scores)
    bad = [1, 3, 4, 6, 7, 9, 11]
    assert [k for k in range(13) if labels[k] != k] == bad and (labels[bad] == -1).all()
    if with_scores:
        assert np.isnan(scores[bad]).all() and (np.delete(scores, bad, axis=0) == 1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, 1, 129, N])
@pytest.mark.parametrize("kind", ["uint8", "float16", "float32", "float64"])
def test_cupy_input_gives_cupy_output(net, digits, reference, n, kind, cupy):
    images = cupy.asarray(digits[:n])
    images = images if kind == "uint8" else (images / 255).astype(kind)
    labels, scores = net(images), net.scores(images[:, None])
    if kind == "uint8" and n:  # kernels read 16 bytes at a time; a view may begin anywhere
        held = cupy.zeros(15 + images.size, cupy.uint8)
        view = held[15:].reshape(images.shape)
        view[...] = images
        assert (net(view) == labels).all()
    assert isinstance(labels, cupy.ndarray) and labels.dtype == np.int32
    np.testing.assert_array_equal(labels.get(), reference[1][:n])
    if n:
        rounding = 4e-3 if kind == "float16" else ROUNDING
        assert abs(scores.get() - reference[0][:n]).max() <= rounding * abs(reference[0]).max()
        assert net(images[0]).shape == ()


@pytest.mark.gpu
def test_result_is_ordered_in_callers_stream(net, digits, reference, cupy):
    """The caller's stream writes the images late; nothing blocks until the result is read."""
    ready, late = cupy.asarray(digits), cupy.zeros((N, 28, 28), np.uint8)
    work, stream = cupy.zeros(LONG, np.float32), cupy.cuda.Stream(non_blocking=True)
    for _ in range(2):  # every kernel is compiled and loaded, CuPy's own too
        with stream:
            work += 1
            late[...] = ready
            net(late), net.scores(late)
            late[...] = 0
    cupy.cuda.runtime.deviceSynchronize()
    with stream:
        for _ in range(100):
            work += 1
        late[...] = ready
        labels, scores = net(late), net.scores(late)
        late[...] = 0
        assert not stream.done, "the call waited"
        np.testing.assert_array_equal(labels.get(), reference[1])
        assert abs(scores.get() - reference[0]).max() <= ROUNDING * abs(reference[0]).max()


@pytest.mark.gpu
def test_out_of_range_device_floats_have_no_label(net, digits, reference, cupy):
    images = cupy.asarray(digits / 255, dtype=np.float32)
    images[5, 3, 3], images[130, 27, 27] = np.nan, 255.0
    labels, scores = net(images).get(), net.scores(images).get()
    expected = reference[1].copy()
    expected[[5, 130]] = -1
    np.testing.assert_array_equal(labels, expected)
    assert [k for k in range(N) if np.isnan(scores[k]).any()] == [5, 130]
    best, likely = net.top(images, 2)
    assert isinstance(best, cupy.ndarray) and (best.dtype, best.shape) == ("i4", (N, 2))
    np.testing.assert_array_equal(best.get()[:, 0], expected)
    assert (best[5] == -1).all() and not (cupy.diff(likely, axis=1) > 0).any()


@pytest.mark.gpu
@installed("torch")
def test_tensors_are_classified_in_their_stream(net, digits, reference, torch):
    ready = torch.from_numpy(digits).cuda()
    late, work = torch.zeros_like(ready), torch.zeros(LONG, device="cuda")
    for _ in range(2):  # every kernel is loaded
        work += net(late.copy_(ready)).mul(2).sum()
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        late.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(100):
                work += 1
            late.copy_(ready)
            labels = net(late)
            doubled = labels.mul(2)
            late.zero_()
            assert not stream.query(), "the call waited"
            assert labels.device == late.device and labels.dtype == torch.int32
            np.testing.assert_array_equal(doubled.cpu().numpy(), 2 * reference[1])
    floats = (ready[:, None].float() / 255).requires_grad_()
    np.testing.assert_array_equal(net(floats).cpu().numpy(), reference[1])
    np.testing.assert_array_equal(net(ready.flip(2).flip(2)).cpu().numpy(), reference[1])
    assert net(ready[0]).shape == () and net(ready[:0]).shape == (0,)
    assert net(torch.from_numpy(digits)).device.type == "cpu"
    with LeNet.load(device="cpu") as elsewhere, pytest.raises(LenetError, match="found cuda"):
        elsewhere(ready)


@pytest.mark.gpu
@installed("jax")
def test_jax_arrays_are_classified_on_their_device(net, digits, reference):
    import jax

    try:
        (gpu, *_) = jax.devices("gpu")
    except RuntimeError:
        pytest.skip("JAX without a GPU")
    for _ in range(5):
        images = jax.device_put(digits, gpu)
        labels = net(images * 1)
        assert labels.devices() == {gpu}
        np.testing.assert_array_equal(np.asarray(labels + 1), reference[1] + 1)
    assert net(images[0]).shape == ()


@pytest.mark.gpu
@pytest.mark.parametrize("n", [0, 1, 5, N, 4 * _STAGES[0], 2 * _STAGES[1]])
def test_host_images_give_host_results(net, digits, reference, n):
    many = np.resize(digits, (n, 28, 28))
    expected, sums = np.resize(reference[1], n), np.resize(reference[0], (n, CLASSES))
    for _ in range(4):  # launched, recorded, replayed
        labels, scores = net(many), net.scores(many)
        np.testing.assert_array_equal(labels, expected)
        assert not n or abs(scores - sums).max() <= ROUNDING * abs(sums).max()
        assert net(many[:1]).tolist() == expected[:1].tolist()
        assert [net(image) for image in many[:3]] == expected[:3].tolist()


@pytest.mark.gpu
def test_persistent_kernel_classifies_single_images(digits, reference):
    with LeNet.load(device="cuda", plan="fp16", batch=128, latency=True) as net:
        for k in range(N):
            assert net(digits[k]) == reference[1][k]
        sums = np.stack([net.scores(digits[k]) for k in range(20)])
        assert abs(sums - reference[0][:20]).max() <= 1e-5 * abs(reference[0]).max()
        assert net((digits[0] / 255).tolist()) == reference[1][0]
        assert net(np.where(digits[0] == 255, 1.0005, digits[0] / 255)) == reference[1][0]
        np.testing.assert_array_equal(net(digits), reference[1])
        with ThreadPoolExecutor(4) as callers:
            assert list(callers.map(net, digits)) == reference[1].tolist()
    with pytest.raises(LenetError, match="closed"):
        net(digits[0])


@pytest.mark.gpu
def test_threads_share_a_net_on_a_gpu(net, digits, reference, cupy):
    def call(k):
        part = slice(k % 90, k % 90 + 1 + 7 * (k % 30))
        if k % 3:
            return (net(digits[part]) == reference[1][part]).all()
        with cupy.cuda.Stream(non_blocking=True):
            return bool((net(cupy.asarray(digits[part])).get() == reference[1][part]).all())

    with ThreadPoolExecutor(6) as callers:
        assert all(callers.map(call, range(120)))
    batches = [digits[lo : lo + 9] for lo in range(0, N, 9)]
    np.testing.assert_array_equal(np.concatenate(list(net.stream(batches))), reference[1])
    on_gpu = [cupy.asarray(batch) for batch in batches]
    found = [labels.get() for labels in net.stream(on_gpu)]
    np.testing.assert_array_equal(np.concatenate(found), reference[1])
