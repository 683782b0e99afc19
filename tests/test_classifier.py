"""The library API on a CPU: inputs, results, refusals."""

import copy
import importlib.util
import pickle
import threading
from itertools import pairwise

import numpy as np
import pytest
from terminal import run

import lenetgpu
from lenetgpu import LeNet, LenetError
from lenetgpu.check.reference import reference_scores
from lenetgpu.cpu.threads import core_count, set_threads, thread_count
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.net.engine import Engine
from lenetgpu.net.runners import CpuRunner

N = 40


@pytest.fixture(scope="module")
def net():
    with LeNet.load(device="cpu") as made:
        yield made


@pytest.fixture(scope="module")
def digits():
    return np.ascontiguousarray(load_dataset(assets.default_digits()).images[:N, :, :, 0])


@pytest.fixture(scope="module")
def reference(digits):
    """Return (scores, labels) in float64."""
    scores, labels = reference_scores(digits[..., None], load_weights(assets.default_weights()))
    return scores, labels


LAYOUTS = {
    "(N, 28, 28)": lambda x: x,
    "(N, 28, 28, 1)": lambda x: x[..., None],
    "(N, 1, 28, 28)": lambda x: x[:, None],
    "every second": lambda x: np.repeat(x, 2, axis=0)[::2],
    "read-only": lambda x: np.broadcast_to(x, (1, *x.shape))[0],
    "lists": lambda x: x.tolist(),
    "DLPack": lambda x: Speaks(x.copy()),
}
TYPES = {
    "uint8": lambda x: x,
    "float16": lambda x: (x / 255).astype(np.float16),
    "float32": lambda x: x.astype(np.float32) / np.float32(255),
    "float64": lambda x: x / 255,
    "big-endian": lambda x: (x / 255).astype(">f4"),
    "just outside": lambda x: np.where(x == 255, 1.0009, x / 255),
}


@pytest.mark.parametrize(
    ("layout", "kind"),
    [*((layout, "uint8") for layout in LAYOUTS), *(("(N, 28, 28)", kind) for kind in TYPES)],
)
def test_scores_match_reference_for_every_layout_and_dtype(net, digits, reference, layout, kind):
    images = LAYOUTS[layout](TYPES[kind](digits))
    labels, scores = net(images), net.scores(images)
    assert (labels.dtype, scores.dtype) == (np.int32, np.float32)
    np.testing.assert_array_equal(labels, reference[1])
    rounding = 2e-3 if kind in ("float16", "just outside") else 5e-6
    assert abs(scores - reference[0]).max() <= rounding * abs(reference[0]).max()


def test_single_image_gives_scalar_label(net, digits, reference):
    label = net(digits[3])
    assert isinstance(label, np.int32) and label == reference[1][3]
    assert net.scores(digits[3]).shape == (10,)
    labels, likely = net.top(digits[3].tolist(), 2)
    assert labels.shape == likely.shape == (2,) and labels[0] == label
    assert net(digits[3:4]).shape == (1,)


@pytest.mark.parametrize("empty", [np.empty((0, 28, 28), np.uint8), np.empty((0, 1, 28, 28)), []])
def test_empty_input_gives_empty_output(net, empty):
    assert net(empty).shape == (0,) and net(empty).dtype == np.int32
    assert net.scores(empty).shape == net.probabilities(empty).shape == (0, 10)
    assert [part.shape for part in net.top(empty, 3)] == [(0, 3), (0, 3)]


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_net_cannot_be_copied_or_pickled(net, take):
    with pytest.raises(TypeError, match="a LeNet cannot be pickled or copied; load one in each"):
        take(net)


def test_probabilities_are_softmax_and_top_is_sorted(net, digits, reference):
    raised = np.exp(reference[0] - reference[0].max(axis=1, keepdims=True))
    expected = raised / raised.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(net.probabilities(digits), expected, rtol=1e-3, atol=1e-7)
    labels, likely = net.top(digits, 10)
    assert (labels.dtype, likely.dtype) == (np.int32, np.float32)
    assert (np.sort(labels, axis=1) == np.arange(10)).all()
    assert (np.diff(likely, axis=1) <= 0).all()
    np.testing.assert_array_equal(labels[:, 0], reference[1])
    np.testing.assert_array_equal(net.top(digits, 3)[1], likely[:, :3])
    blank, _ = net.top(np.zeros((28, 28), np.uint8), 10)
    np.testing.assert_array_equal(blank, np.arange(10))
    np.testing.assert_array_equal(net.top(digits, np.int64(3))[0], labels[:, :3])
    for k in (0, 11, 2.5, True, "a", None):
        with pytest.raises(LenetError, match=f"k: expected 1 to 10 labels, found {k!r}"):
            net.top(digits, k)


class Speaks:
    """An array to be viewed by DLPack, on a device given by type and number."""

    def __init__(self, array, device=(1, 0)):
        self._array, self.dtype, self._device = array, array.dtype, device
        self.__array__ = None  # a path that copies

    def __dlpack_device__(self):
        return self._device

    def __dlpack__(self, **words):
        return self._array.__dlpack__(**words)


REFUSED = {
    "int64": (np.zeros((2, 28, 28), np.int64), "expected uint8 pixels or floats .*, found int64"),
    "no array": (object(), "found object"),
    "flat": (np.zeros((2, 784), np.uint8), r"expected shape \(28, 28\), .*, found \(2, 784\)"),
    "colours": (np.zeros((2, 28, 28, 3), np.uint8), r"found \(2, 28, 28, 3\)"),
    "a number": (np.uint8(3), r"found \(\)"),
    "pixels as floats": (np.full((28, 28), 255.0), "floats from 0 to 1, found 255 to 255; whole"),
    "NaN": (np.where(np.eye(28) > 0, np.nan, 0.5), "expected floats from 0 to 1, found NaN"),
    "ragged lists": ([[1, 2], [3]], "with rows of equal length, found others"),
    "lists of large numbers": ([[256] * 28] * 28, "in lists from 0 to 255, found 256 to 256"),
    "a mask": (np.ma.masked_equal(np.zeros((28, 28), np.uint8), 0), "mask, found a masked array"),
    "a list of masks": ([np.ma.array(np.zeros((28, 28), np.uint8))], "found a masked array"),
    "another device": (Speaks(np.zeros((28, 28), np.uint8), (2, 1)),
                       "host memory or the net's device, cpu, found cuda:1"),
    "no GPU": (Speaks(np.zeros((28, 28), np.uint8), (99, 0)),
               "host memory or on an NVIDIA GPU, found DLPack device 99"),
}  # fmt: skip


@pytest.mark.parametrize(("images", "words"), REFUSED.values(), ids=REFUSED)
def test_unsupported_images_are_refused(net, images, words):
    with pytest.raises(LenetError, match=words) as found:
        net(images)
    assert str(found.value).startswith("images: expected ") and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "cpu", "weights": "none.h5"}, "none.h5"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"device": "cpu", "batch": "a"}, "batch: expected a whole number of images, found 'a'"),
        ({"device": "cpu", "threads": 1.5}, "threads: expected a whole number, found 1.5"),
        ({"weights": 3}, r"weights: expected the path of a file, or .*\(\), found 3"),
        ({"weights": [1] * 999}, r"model.state_dict\(\), found \[1, 1, 1, 1, 1, 1, ...\]$"),
        ({"weights": {"conv1": 3}}, "weights: expected .*, found int under conv1; save"),
        ({"plan": None}, "plan: expected a plan's name, found None"),
        ({"device": "cpu", "threads": 1_025}, "--threads: expected at most 1,024, found 1,025"),
    ],
)
def test_invalid_load_arguments_are_refused(options, words):
    with pytest.raises(LenetError, match=words):
        LeNet.load(**options)


def test_net_is_made_by_load_only():
    with pytest.raises(LenetError, match=r"call LeNet.load\(\) instead"):
        LeNet()
    assert {"LeNet", "LenetError"} <= set(dir(lenetgpu))


def test_weights_may_be_arrays(shipped_weights, digits, reference):
    """Copies are taken, so that later changes of the arrays have no effect."""
    arrays = {f"{name}.weight": np.array(w) for name, w in shipped_weights.tensors.items()}
    with LeNet.load(arrays, device="cpu") as net:
        for array in arrays.values():
            array[...] = 0
        np.testing.assert_array_equal(net(digits), reference[1])


def test_labels_of_a_batch_are_ignored(net, digits, reference):
    labels = np.arange(N)
    for batch in ([digits, labels], (digits, labels.astype(np.uint8))):
        np.testing.assert_array_equal(net(batch), reference[1])
        np.testing.assert_array_equal(next(net.stream([batch])), reference[1])
    for batch in ([digits, labels[:3]], [digits, labels / 1], [digits, digits[:2]]):
        with pytest.raises(LenetError, match="rows of equal length"):
            net(batch)


def test_last_load_sets_number_of_threads(monkeypatch):
    """None restores all threads; a refused load changes nothing."""

    def refuse(*_):
        raise LenetError("refused")

    try:
        LeNet.load(device="cpu", threads=1)
        with monkeypatch.context() as broken, pytest.raises(LenetError, match="refused"):
            broken.setattr(Engine, "start", refuse)
            LeNet.load(device="cpu", threads=2)
        assert thread_count() == 1
        LeNet.load(device="cpu")
        assert thread_count() == core_count()
    finally:
        set_threads(None)


def test_fallback_to_another_plan_is_reported(monkeypatch, tmp_path):
    """The library warns and infer prints a line; a plan requested by name is refused instead."""

    from lenetgpu.net import engine
    from lenetgpu.plan import resolve

    def gave_way(gpu, precision, batch, weights, dtype, notes):
        notes.append("plan quick (fp16) does not fit these weights")
        return resolve("tiled", "cpu")

    monkeypatch.setattr(engine, "choose", gave_way)
    with pytest.warns(UserWarning, match="plan quick .* does not fit these weights"):
        assert LeNet.load(device="cpu").plan.name == "tiled"
    said = run("infer", "--device", "cpu", "--limit", "5").output
    assert "\nnote     plan quick (fp16) does not fit these weights\n" in said


def test_stream_yields_labels_in_order(net, digits, reference):
    """All batches may use the same memory."""
    sizes, held = [3, 0, 20, 1, 16], np.empty((N, 28, 28), np.uint8)

    def batches():
        for lo, hi in pairwise(np.cumsum([0, *sizes])):
            held[: hi - lo] = digits[lo:hi]
            yield held[: hi - lo]

    found = list(net.stream(batches()))
    assert [len(labels) for labels in found] == sizes
    np.testing.assert_array_equal(np.concatenate(found), reference[1])
    assert list(net.stream([])) == []
    assert list(net.stream(digits[:2])) == reference[1][:2].tolist()


def test_stream_prefetches_few_batches_and_closes_its_threads(net, digits):
    asked = []

    def batches():
        for lo in range(0, N, 4):
            asked.append(lo)
            yield digits[lo : lo + 4]

    stream = net.stream(batches())
    next(stream)
    assert asked == [0, 4, 8]
    stream.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("lenetgpu-stream")]


def test_stream_yields_earlier_results_before_an_error(net, digits, reference):
    def broken():
        yield digits[:4]
        yield digits[4:8]
        raise OSError("the disk is gone")

    for batches, error in (
        (broken(), OSError),
        ([digits[:4], digits[4:8], digits.astype(int), digits[:4]], LenetError),
    ):
        found = []
        with pytest.raises(error):
            found.extend(net.stream(batches))
        np.testing.assert_array_equal(np.concatenate(found), reference[1][:8])


def test_net_is_usable_after_a_failed_call(digits, reference, monkeypatch):
    """The next call gets a new runner, since the state of the first is unknown."""
    made, plain = [], Engine.runner

    def runner(self, *asked, **words):
        made.append(plain(self, *asked, **words))
        return made[-1]

    monkeypatch.setattr(Engine, "runner", runner)
    with LeNet.load(device="cpu") as net:
        assert net(digits[0]) == reference[1][0]
        with monkeypatch.context() as patch:
            patch.setattr(CpuRunner, "run", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                net(digits)
        for _ in range(2):
            np.testing.assert_array_equal(net(digits), reference[1])
    assert len(made) == 2


def test_closed_net_is_refused(digits):
    with LeNet.load(device="cpu") as net:
        assert repr(net) == "<LeNet plan auto (fp32) on cpu>"
    with pytest.raises(LenetError, match="expected an open net, found a closed one"):
        net(digits)
    with pytest.raises(LenetError, match="expected an open net"), net:
        pass


@pytest.mark.peers
def test_torch_input_gives_torch_output(net, digits, torch):
    expected, images = net(digits), torch.from_numpy(digits)
    for given in (images, images[:, None], images.flip(0).flip(0), images.float() / 255,
                  (images.double() / 255).requires_grad_(), images.half() / 255,
                  (images / 255).bfloat16(), [images, torch.arange(N)]):  # fmt: skip
        labels, scores = net(given), net.scores(given)
        assert isinstance(labels, torch.Tensor) and labels.dtype == torch.int32
        assert scores.dtype == torch.float32 and not scores.requires_grad
        np.testing.assert_array_equal(labels.numpy(), expected)
    one = net(images[0])
    assert one.shape == () and one == expected[0]
    assert net(images[:0]).shape == (0,)
    best, likely = net.top(images, 2)
    assert best.shape == likely.shape == (N, 2) and isinstance(likely, torch.Tensor)


@pytest.mark.peers
def test_unsupported_tensors_are_refused(net, torch):
    for images, words in (
        (torch.zeros(2, 28, 28, dtype=torch.int64), "found int64"),
        (torch.zeros(28, 28, device="meta"), "found a tensor on meta"),
        (torch.zeros(28, 28).to_sparse(), "array that can be read, found Tensor"),
        (torch.full((28, 28), float("nan")), "found NaN"),
    ):
        with pytest.raises(LenetError, match=words):
            net(images)


@pytest.mark.peers
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no JAX")
def test_jax_input_gives_jax_output(net, digits):
    import jax
    import jax.numpy as jnp

    expected, images = net(digits), jnp.asarray(digits)
    for given in (images, images[..., None], images.astype(jnp.float32) / 255):
        labels = net(given)
        assert isinstance(labels, jax.Array) and labels.dtype == jnp.int32
        assert labels.devices() == images.devices()
        np.testing.assert_array_equal(np.asarray(labels), expected)
    assert net(images[0]).shape == () and net.probabilities(images).shape == (N, 10)
    with pytest.raises(LenetError, match="found one that jax.jit is tracing"):
        jax.jit(net)(images)
    given = (images / 255).astype(jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(net(given)), expected)


@pytest.mark.peers
def test_stream_of_mixed_arrays_keeps_each_type(net, digits, torch):
    expected = net(digits)
    batches = [digits, torch.from_numpy(digits), digits.tolist()]
    kinds = [np.ndarray, torch.Tensor, np.ndarray]
    for labels, kind in zip(net.stream(batches), kinds, strict=True):
        assert isinstance(labels, kind) and (np.asarray(labels) == expected).all()
