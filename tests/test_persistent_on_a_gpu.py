"""The persistent kernel on a GPU: results, sleep, restart, threads, other work, owner's death."""

import subprocess
import sys
from time import perf_counter_ns

import numpy as np
import pytest
from conftest import ROOT

from lenetgpu import LeNet
from lenetgpu.check.judge import judge
from lenetgpu.check.reference import reference_stages
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.stages.fused.persistent import Once
from lenetgpu.stages.fused.persistent.persistent import DESIGNS, Persistent

pytestmark = pytest.mark.gpu
COUNT = 200


@pytest.fixture(scope="module")
def hopper():
    if driver_gpus()[0].compute_capability != 90:
        pytest.skip("no GPU of compute capability 9.0")


@pytest.fixture(scope="module")
def digits(shipped_weights):
    """Return (COUNT, 28, 28) uint8 images, and their scores (COUNT, 10) in float64."""
    images = load_dataset(assets.default_digits()).images[:COUNT].reshape(COUNT, 28, 28)
    reference = reference_stages(images.reshape(COUNT, 28, 28, 1), shipped_weights)["fc2"]
    return np.ascontiguousarray(images), reference


@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: f"{d.blocks} blocks")
def test_digits_as_bytes_and_floats(design, hopper, digits, shipped_weights):
    images, reference = digits
    found = np.empty((COUNT, 10), np.float32)
    with Persistent(shipped_weights, design=design) as net:
        for n, image in enumerate(images):
            given = (image / 255).astype(np.float32) if n % 2 else image
            assert net.label(given) == reference[n].argmax()
            found[n] = net.scores()
    assert judge(found, reference, "fp32").passed


def test_fp32_net_uses_the_persistent_kernel(hopper, digits):
    images, reference = digits
    with LeNet.load(device="cuda", precision="fp32") as net:
        for n in range(COUNT):
            assert net(images[n]) == reference[n].argmax()
        assert judge(np.stack([net.scores(image) for image in images]), reference, "fp32").passed
        with net._pool("uint8", False).acquire() as runner:
            assert isinstance(runner._one, Once)


def test_images_arriving_as_it_falls_asleep_are_answered(hopper, digits, shipped_weights, rng):
    """Images arrive before, while and after the kernel falls asleep, a hundred times."""
    images, reference = digits
    with Persistent(shipped_weights, idle_ms=0.05) as net:
        for n in range(100_000):
            comes = perf_counter_ns() + int(rng.integers(100_000))
            while perf_counter_ns() < comes:
                pass
            assert net.label(images[n % COUNT]) == reference[n % COUNT].argmax()
            if net._life > 100:
                break
        assert net._life > 100


def test_other_gpu_work_continues(hopper, digits, shipped_weights, cupy):
    """Other kernels run, memory is freed, the device is synchronized; two instances run at once."""
    images, reference = digits
    with (
        Persistent(shipped_weights) as net,
        Persistent(shipped_weights, design=DESIGNS[1]) as second,
    ):
        for n in range(50):
            assert net.label(images[n]) == second.label(images[n]) == reference[n].argmax()
            total = cupy.arange(100_000, dtype=cupy.int64).sum()
            assert int(total) == 4_999_950_000
            del total
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.cuda.runtime.deviceSynchronize()


OWNER = """
import numpy as np
from lenetgpu.files import assets
from lenetgpu.files.weights import load_weights
from lenetgpu.stages.fused.persistent import Persistent

net = Persistent(load_weights(assets.default_weights()), idle_ms=200)
print("alive", flush=True)
while True:
    net.label(np.zeros((28, 28), np.uint8))
"""


def test_kernel_ends_when_its_owner_dies(hopper, digits, shipped_weights):
    """The owner is killed during an image; the next process can use the GPU at once."""
    images, reference = digits
    owner = subprocess.Popen([sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"alive\n"
    owner.kill()
    owner.wait(timeout=30)
    with Persistent(shipped_weights, timeout_s=1) as net:
        assert net.label(images[0]) == reference[0].argmax()
