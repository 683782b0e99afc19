"""Arrays of PyTorch and JAX in host memory: taken as they are, answered as they came."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from lenetgpu import LeNet, LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset

pytestmark = pytest.mark.peers
with_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no JAX")


@pytest.fixture(scope="module")
def net():
    with LeNet.load(device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def digits():
    return np.ascontiguousarray(load_dataset(assets.default_digits()).images[:24, :, :, 0])


def test_a_tensor_is_answered_with_a_tensor(net, digits):
    import torch

    expected, images = net(digits), torch.from_numpy(digits)
    for given in (images, images[:, None], images.flip(0).flip(0), images.float() / 255,
                  (images.double() / 255).requires_grad_(), images.half() / 255):  # fmt: skip
        labels, scores = net(given), net.scores(given)
        assert isinstance(labels, torch.Tensor) and labels.dtype == torch.int32
        assert scores.dtype == torch.float32 and not scores.requires_grad
        np.testing.assert_array_equal(labels.numpy(), expected)
    one = net(images[0])
    assert one.shape == () and one == expected[0]
    assert net(images[:0]).shape == (0,)
    best, likely = net.top(images, 2)
    assert best.shape == likely.shape == (24, 2) and isinstance(likely, torch.Tensor)


def test_tensors_that_do_not_fit(net):
    import torch

    for images, words in (
        (torch.zeros(2, 28, 28, dtype=torch.bfloat16), "found bfloat16"),
        (torch.zeros(2, 28, 28, dtype=torch.int64), "found int64"),
        (torch.zeros(28, 28, device="meta"), "found a tensor on meta"),
        (torch.zeros(28, 28).to_sparse(), "array that can be read, found Tensor"),
        (torch.full((28, 28), float("nan")), "found NaN"),
    ):
        with pytest.raises(LenetError, match=words):
            net(images)


@with_jax
def test_an_array_of_jax_is_answered_with_one(net, digits):
    import jax
    import jax.numpy as jnp

    expected, images = net(digits), jnp.asarray(digits)
    for given in (images, images[..., None], images.astype(jnp.float32) / 255):
        labels = net(given)
        assert isinstance(labels, jax.Array) and labels.dtype == jnp.int32
        assert labels.devices() == images.devices()
        np.testing.assert_array_equal(np.asarray(labels), expected)
    assert net(images[0]).shape == () and net.probabilities(images).shape == (24, 10)
    with pytest.raises(LenetError, match="found one that jax.jit is tracing"):
        jax.jit(net)(images)
    with pytest.raises(LenetError, match="found bfloat16"):
        net(images.astype(jnp.bfloat16))


def test_a_stream_of_mixed_arrays_is_answered_each_in_its_own(net, digits):
    import torch

    expected = net(digits)
    batches = [digits, torch.from_numpy(digits), digits.tolist()]
    kinds = [np.ndarray, torch.Tensor, np.ndarray]
    for labels, kind in zip(net.stream(batches), kinds, strict=True):
        assert isinstance(labels, kind) and (np.asarray(labels) == expected).all()
