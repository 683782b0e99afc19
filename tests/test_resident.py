"""The resident kernel and its host side: arithmetic and protocol without a GPU, and with one.

The kernel is compiled as C++ with fibers for threads (cpu_cluster.hpp) and runs in a thread
of its own over the memory that the package's host side writes and watches.
"""

from __future__ import annotations

import ctypes
import shutil
import threading

import numpy as np
import pytest
from conftest import ROOT
from test_kernels_on_a_cpu import build, version

from lenetgpu.check.judge import judge
from lenetgpu.check.truth import reference_stages
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT
from lenetgpu.stages.fused.resident import mailbox, resident
from lenetgpu.stages.fused.resident.resident import DESIGNS, Resident

needs_a_compiler = pytest.mark.skipif(version() < 11, reason="no g++ 11")
HEADERS = ("barrier", "cluster", "global", "host", "registers", "shared")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """The kernel of a design as a function of this machine."""
    folder = tmp_path_factory.mktemp("resident")
    (folder / "gpu" / "ptx").mkdir(parents=True)
    for name in HEADERS:
        (folder / "gpu" / "ptx" / f"{name}.cuh").write_text('#include "cpu_cluster.hpp"\n')
    for name in ("cpu_cluster.hpp", "cpu_cuda.hpp"):
        shutil.copy(ROOT / "tests" / name, folder)
    libraries = {}

    def library(design):
        if design not in libraries:
            kernel = design.kernel
            text = kernel.source.read_text()
            assert "extern __shared__ float4 memory[];" in text
            text = text.replace(
                "extern __shared__ float4 memory[];", "float4* memory = cpu::memory();"
            )
            lines = ['#include "cpu_cluster.hpp"', *(f"#define {k} {v}" for k, v in kernel.defines)]
            lines += [text, RUN]
            source = folder / f"resident{design.blocks}.cpp"
            source.write_text("\n".join(lines))
            build(
                "-shared",
                f"-I{folder}",
                f"-I{INCLUDE_ROOT}",
                source,
                "-o",
                source.with_suffix(".so"),
            )
            libraries[design] = ctypes.CDLL(str(source.with_suffix(".so")))
        return libraries[design]

    return library


RUN = """
extern "C" bool run(unsigned char* host, const float* weights, unsigned last, unsigned life,
                    unsigned long long idle, unsigned seed) {
    return cpu::run(BLOCKS, THREADS, SHARED_BYTES, seed,
                    [=] { resident(host, weights, last, life, idle); });
}
"""


class OnACpu:
    """What `resident.Cluster` is on a GPU; lives come one after the other, as on a stream."""

    library = None
    seed = 0

    def __init__(self, design, weights):
        self.weights = weights
        self.memory = np.full(mailbox.BYTES + 64, 255, np.uint8)
        self.address = -(-self.memory.ctypes.data // 64) * 64
        self.call = self.library(design).run
        self.call.restype = ctypes.c_bool
        self.lives, self.ends = [], []

    def start(self, last, life, idle_ns):
        before = self.lives[-1] if self.lives else None
        arguments = (
            ctypes.c_void_p(self.address),
            ctypes.c_void_p(self.weights.ctypes.data),
            ctypes.c_uint32(last),
            ctypes.c_uint32(life),
            ctypes.c_uint64(idle_ns),
            ctypes.c_uint32(self.seed + life),
        )

        def live():
            if before is not None:
                before.join()
            self.ends.append(self.call(*arguments))

        self.lives.append(threading.Thread(target=live))
        self.lives[-1].start()

    def over(self):
        return not any(life.is_alive() for life in self.lives)

    def close(self, timeout_s):
        for life in self.lives:
            life.join()
        assert all(self.ends), "threads of the kernel wait for each other"


@pytest.fixture
def on_a_cpu(compiled, monkeypatch, rng):
    monkeypatch.setattr(OnACpu, "library", staticmethod(compiled))
    monkeypatch.setattr(OnACpu, "seed", int(rng.integers(1 << 30)))
    monkeypatch.setattr(resident, "Cluster", OnACpu)


def truth(images, weights):
    return reference_stages(images.reshape(-1, 28, 28, 1), weights)["fc2"]


@needs_a_compiler
@pytest.mark.parametrize("design", DESIGNS, ids=lambda d: f"{d.blocks} blocks")
def test_labels_and_scores(design, on_a_cpu, shipped_weights, rng):
    """Digits' strokes, noise, a blank and a white image; float pixels between and after bytes."""
    images = rng.integers(0, 256, (4, 28, 28)).astype(np.uint8)
    images[1], images[2] = 0, 255
    with Resident(shipped_weights, idle_ms=500, timeout_s=60, design=design) as net:
        for image in images:
            for given in (image, (image / 255).astype(np.float32)):
                expected = truth(given, shipped_weights)[0]
                label = net.label(given)
                assert judge(net.scores(), expected, "fp32").passed
                assert label == expected.argmax()
