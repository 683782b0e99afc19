"""The persistent kernel and its host side: arithmetic and protocol with and without a GPU.

The kernel is compiled as C++ with fibers for threads (cpu_cluster.hpp) and runs in its own thread
on the memory that the package's host side writes and polls.
"""

import ctypes
import re
import threading
from functools import cache
from threading import Event
from types import SimpleNamespace

import numpy as np
import pytest
from test_kernels_on_a_cpu import built_with, header_folder, version

from lenetgpu.check.judge import judge
from lenetgpu.check.reference import reference_stages
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.stages.fused.persistent import Once, mailbox, once, persistent
from lenetgpu.stages.fused.persistent.mailbox import ANSWERED, ASLEEP
from lenetgpu.stages.fused.persistent.persistent import DESIGNS, Persistent

needs_a_compiler = pytest.mark.skipif(version() < 11, reason="no g++ 11")
HEADERS = ("barrier", "cluster", "global", "host", "registers", "send", "shared")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the kernel of a design as a native function."""
    folder = tmp_path_factory.mktemp("persistent")
    header_folder(folder, HEADERS, "cpu_cluster.hpp", "cpu_cuda.hpp", "run_persistent.hpp")

    @cache
    def library(design):
        memory = "extern __shared__ float4 memory[];"
        text = design.kernel.source.read_text().replace(memory, "float4* memory = cpu::memory();")
        text += '\n#include "run_persistent.hpp"\n'
        return built_with(folder, design.kernel, "cpu_cluster.hpp", text)

    return library


class OnACpu:
    """CPU stand-in for `persistent.Cluster`; launches run one after the other, as on a stream."""

    library = None
    seed = 0

    def __init__(self, design, weights):
        self.weights = weights
        self.memory = np.full(mailbox.BYTES + 64, 255, np.uint8)
        self.address = -(-self.memory.ctypes.data // 64) * 64
        self.call = self.library(design).run
        self.call.restype = ctypes.c_bool
        self.lives, self.ends = [], []

    def queue(self, last, life, idle_ns, most=0):
        before = self.lives[-1] if self.lives else None
        pointers = map(ctypes.c_void_p, (self.address, self.weights.ctypes.data))
        small = map(ctypes.c_uint32, (most, self.seed + life))
        first = ctypes.c_uint32(last), ctypes.c_uint32(life), ctypes.c_uint64(idle_ns)
        arguments = (*pointers, *first, *small)

        def live():
            if before is not None:
                before.join()
            self.ends.append(self.call(*arguments))

        self.lives.append(threading.Thread(target=live))
        self.lives[-1].start()

    start = queue

    def over(self):
        assert all(self.ends), "threads of the kernel wait for each other"
        return not any(life.is_alive() for life in self.lives)

    def close(self, timeout_s):
        for life in self.lives:
            life.join()
        self.over()


@pytest.fixture
def on_a_cpu(compiled, monkeypatch, rng):
    monkeypatch.setattr(OnACpu, "library", staticmethod(compiled))
    monkeypatch.setattr(OnACpu, "seed", int(rng.integers(1 << 30)))
    monkeypatch.setattr(persistent, "Cluster", OnACpu)


def reference(image, weights):
    return reference_stages(image.reshape(1, 28, 28, 1), weights)["fc2"][0]


@pytest.mark.slow
@needs_a_compiler
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: f"{d.blocks} blocks")
def test_labels_and_scores_match_the_reference(design, on_a_cpu, weight_file, rng):
    """Noise as bytes and as floats, with random weights, and a sleep in between."""
    weights = load_weights(weight_file)
    image = rng.integers(0, 256, (28, 28)).astype(np.uint8)
    noise = rng.random(784, np.float32)
    with Persistent(weights, idle_ms=200, timeout_s=120, design=design) as net:
        for given in (image, noise, noise[::-1], image[::-1]):
            expected = reference(given, weights)
            label = net.label(given)
            assert judge(net.scores(), expected, "fp32").passed
            assert label == expected.argmax()
        Event().wait(0.5)
        assert net.label(image) == reference(image, weights).argmax()
        assert net._life > 1


@needs_a_compiler
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: f"{d.blocks} blocks")
def test_single_launch_answers_one_image_and_ends(design, on_a_cpu, weight_file, monkeypatch, rng):
    """Bytes and floats, any tag; no launch stays running, in spite of an idle limit of days."""
    weights, made = load_weights(weight_file), []

    class Kept(OnACpu):
        def __init__(self, *given):
            super().__init__(*given)
            made.append(self)

    def synchronize():
        for life in made[0].lives:
            life.join(timeout=40)
            assert not life.is_alive()

    def replayed(work, calls):
        return SimpleNamespace(launch_alone=work, stream=SimpleNamespace(synchronize=synchronize))

    monkeypatch.setattr(persistent, "Cluster", Kept)
    monkeypatch.setattr(once, "Graph", replayed)
    monkeypatch.setattr(once, "_IDLE_NS", 10**15)
    net = Once(weights, design)
    image = rng.integers(0, 256, (28, 28)).astype(np.uint8)
    noise = rng.random(784, np.float32)
    for given in (image, noise, image[::-1, :, None], noise[::-1].copy()):
        expected = reference(given, weights)
        label = net.label(given)
        assert judge(net.scores(), expected, "fp32").passed
        assert label == expected.argmax()
        net._tag = once._LAST_TAG  # the next image is of the other kind, so it has another tag
    assert len(made[0].lives) == 5


@needs_a_compiler
def test_weights_of_any_scale_give_scores_or_an_error(on_a_cpu, shipped_weights, rng):
    """Weights are scaled far beyond fp32's products, some per channel; one map is zero."""
    image = rng.integers(0, 256, (28, 28)).astype(np.uint8)
    tensors = {name: tensor.copy() for name, tensor in shipped_weights.tensors.items()}
    tensors["conv1"] *= np.float32(1e-30)
    tensors["conv2"] *= np.exp2(rng.integers(-6, 3, 64)).astype(np.float32)
    tensors["conv2"][..., 5] = 0
    tensors["fc2"] *= np.float32(1e30)
    weights = Weights(tensors, "scaled")
    expected = reference(image, weights)
    with Persistent(weights, idle_ms=10, timeout_s=120, design=DESIGNS[0]) as net:
        assert net.label(image) == expected.argmax()
        assert judge(net.scores(), expected, "fp32").passed
        net._scale = (net._scale[0], net._scale[1] + 200)
        with pytest.raises(LenetError, match="expected values within float32.*too large"):
            net.scores()


@needs_a_compiler
def test_half_written_image_is_waited_for(on_a_cpu, shipped_weights, rng):
    """Rows with the new tag arrive one by one; the kernel answers after the last row.

    The kernel ignores an old tag.
    """
    image = rng.integers(0, 256, (28, 28)).astype(np.uint8)
    with Persistent(shipped_weights, idle_ms=1000, timeout_s=120, design=DESIGNS[0]) as net:
        words, box = net._words, net._box
        net._tag = tag = net._tag + 2
        for row in (0, *rng.permutation(27) + 1):
            assert words[ANSWERED] != tag
            box.pixels[row] = image[row]
            box.tags[row] = tag
            Event().wait(0.02)
        expected = reference(image, shipped_weights)
        assert net._wait(tag) == expected.argmax()
        assert judge(net.scores(), expected, "fp32").passed
        box.tags.fill(tag - 2)
        while words[ASLEEP] != net._life:
            Event().wait(0.01)
        assert words[ANSWERED] == tag


class Still(OnACpu):
    """Memory without a kernel that answers."""

    def __init__(self, design, weights):
        self.memory = np.zeros(mailbox.BYTES, np.uint8)
        self.address = self.memory.ctypes.data
        self.lives, self.ends = [], []

    def start(self, last, life, idle_ns):
        words = self.memory.view(np.uint32)
        words[ANSWERED], words[mailbox.LABEL] = words[mailbox.ROW_BYTES // 4 - 1], 7


@pytest.fixture
def net(monkeypatch, shipped_weights):
    """A Persistent that answers 7 on its only launch."""
    monkeypatch.setattr(persistent, "Cluster", Still)
    return Persistent(shipped_weights, timeout_s=0.01)


BAD = {
    "float64": (np.zeros((28, 28)), "found float64 of shape (28, 28)"),
    "a batch": (np.zeros((2, 28, 28), np.uint8), "found uint8 of shape (2, 28, 28)"),
    "negative": (np.full(784, -0.5, np.float32), "expected floats in 0..1, found -0.5 to -0.5"),
    "NaN": (np.full(784, np.nan, np.float32), "expected floats in 0..1, found nan to nan"),
}


@pytest.mark.parametrize(("image", "said"), BAD.values(), ids=BAD)
def test_invalid_image_is_refused(image, said, net):
    with pytest.raises(LenetError, match=re.escape(said)):
        net.label(image)


def test_closed_net_is_refused_and_close_is_idempotent(net):
    net.close()
    net.close()
    with pytest.raises(LenetError, match="expected an open one, found a closed"):
        net.label(np.zeros((28, 28), np.uint8))
    with pytest.raises(LenetError, match="expected a labelled image"):
        net.scores()


@pytest.mark.parametrize("idle_ms", [0, 1e4, float("nan")])
def test_idle_time_out_of_range_is_refused(idle_ms, shipped_weights):
    with pytest.raises(LenetError, match=r"idle_ms: expected 0\.01 to 1000, found"):
        Persistent(shipped_weights, idle_ms=idle_ms)


def test_falls_back_to_eight_blocks_or_is_refused(monkeypatch, shipped_weights):
    used = []

    def cluster(design, weights):
        if design.blocks not in used:
            raise RuntimeError(f"no room for {design.blocks}")
        return Still(design, weights)

    monkeypatch.setattr(persistent, "Cluster", cluster)
    with pytest.raises(LenetError, match="the GPU cannot run it: no room for 8"):
        Persistent(shipped_weights)
    used.append(8)
    assert Persistent(shipped_weights).design.blocks == 8
    with pytest.raises(LenetError, match="cannot run it: no room for 16"):
        Persistent(shipped_weights, design=DESIGNS[0])


@pytest.mark.parametrize(
    ("status", "said", "freed_later"),
    [(600, "expected it to end within 0.01 s", [2]), (700, r"\(700\)", [])],
)
def test_memory_in_use_or_of_a_lost_gpu_is_not_freed(status, said, freed_later):
    cluster, answers, freed = object.__new__(persistent.Cluster), [status], []
    cluster._runtime = SimpleNamespace(streamQuery=lambda _: answers[0], freeHost=freed.append)
    cluster._stream, cluster.address = SimpleNamespace(ptr=1), 2
    with pytest.raises(LenetError, match=said):
        cluster.close(0.01)
    assert freed == []
    answers[0] = 0
    cluster.close(0.01)
    assert freed == freed_later


def test_unsupported_gpu_or_host_is_refused(monkeypatch, shipped_weights):
    if not driver_gpus():
        with pytest.raises(LenetError, match="expected an NVIDIA GPU and its driver, found none"):
            Persistent(shipped_weights)
    monkeypatch.setattr(persistent, "require_gpu", lambda: None)
    monkeypatch.setattr(persistent, "current_arch", lambda: "sm_89")
    with pytest.raises(LenetError, match=r"capability 9\.0, found one for sm_89"):
        Persistent(shipped_weights)
    monkeypatch.setattr(persistent.platform, "machine", lambda: "aarch64")
    with pytest.raises(LenetError, match="expected an x86-64 host, found aarch64"):
        Persistent(shipped_weights)
