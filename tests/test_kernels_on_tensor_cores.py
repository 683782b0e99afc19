"""The features kernels on wgmma without a GPU: compiled as C++, tensor cores by cpu_wgmma.hpp.

What their threads do runs as it stands: descriptors, layouts, barriers, turns, rounding. The kernel
without Winograd, which GPUs have run, is there to hold the stand-in against.
"""

from __future__ import annotations

import ctypes
import re
import shutil
from math import ceil

import numpy as np
import pytest
from conftest import ROOT
from emulated import (
    NAMES,
    fp16_features,
    int8_features,
    roles_features,
    sparse_features,
    split_winograd_features,
)
from test_kernels_on_a_cpu import build, version

from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT
from lenetgpu.stages.fused.wgmma import fp16_features as direct
from lenetgpu.stages.fused.wgmma import fp16_pack, int8_pack
from lenetgpu.stages.fused.wgmma import int8_features as int8
from lenetgpu.stages.fused.wgmma_sparse import int8_sparse as sparse
from lenetgpu.stages.fused.wgmma_sparse import pack as sparse_pack
from lenetgpu.stages.fused.wgmma_sparse.prune import pruned
from lenetgpu.stages.fused.wgmma_winograd import fp16_pack as winograd_pack
from lenetgpu.stages.fused.wgmma_winograd import fp16_roles as roles
from lenetgpu.stages.fused.wgmma_winograd import fp16x3_features as split

pytestmark = pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")
HEADERS = ("async", "barrier", "cluster", "global", "math", "shared", "shared2", "wgmma")
HEADERS += ("registers", "wgmma_shared", "wgmma_sparse")
TILE = direct.TILE_IMAGES
NAN = 0x7FFF
RUN = """
extern "C" const char* run(unsigned grid, unsigned threads, unsigned seed, const Pixel* images,
                           const unsigned char* filters1, const unsigned char* filters2,
                           const float* scales, uint4* out, int n) {
    return cpu::run_grid%s(%s, grid, threads, SHARED_BYTES, seed, images, filters1, filters2, %s
                           out, n%s);
}
"""
OF_BYTES = ("int8_features", "sparse_features")
"""Entries that take scales."""
SPLIT = ", scales[2 * UINT8_PIXELS], scales[2 * UINT8_PIXELS + 1]"
"""What the entry takes whose operands are split, and which runs in clusters of two."""


def runner(entry):
    split = entry == "split_features"
    return RUN % ("<2>" * split, entry, "scales," * (entry in OF_BYTES), SPLIT * split)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A kernel as a function of this machine."""
    folder = tmp_path_factory.mktemp("tensor_cores")
    (folder / "gpu" / "ptx").mkdir(parents=True)
    for name in HEADERS:
        (folder / "gpu" / "ptx" / f"{name}.cuh").write_text('#include "cpu_wgmma.hpp"\n')
    for name in ("cpu_wgmma.hpp", "cpu_cluster.hpp", "cpu_cuda.hpp"):
        shutil.copy(ROOT / "tests" / name, folder)
    for header in INCLUDE_ROOT.rglob("stages/fused/wgmma*/*.cuh"):
        to = folder / header.relative_to(INCLUDE_ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(on_a_cpu(header.read_text()))
    made = {}

    def compiled(kernel):
        if kernel not in made:
            source = folder / f"{kernel.entry}{len(made)}.cpp"
            lines = ['#include "cpu_wgmma.hpp"', *(f"#define {k} {v}" for k, v in kernel.defines)]
            lines += [on_a_cpu(kernel.source.read_text())]
            lines += [runner(kernel.entry)]
            source.write_text("\n".join(lines))
            to = source.with_suffix(".so")
            build("-shared", f"-I{folder}", f"-I{INCLUDE_ROOT}", source, "-o", to)
            run = ctypes.CDLL(str(to)).run
            run.restype = ctypes.c_char_p
            made[kernel] = run
        return made[kernel]

    return compiled


def on_a_cpu(text):
    memory = "unsigned char* memory = reinterpret_cast<unsigned char*>(cpu::memory());"
    return re.sub(r"extern __shared__ .*? memory\[\];", memory, text)


def launched(run, images, packed, grid, threads, seed, parts):
    """The features as the kernel leaves them, (tiles of 80, 1024) float32 in its own order."""
    given = [np.ascontiguousarray(array) for array in (images, *packed)]
    out = np.full((ceil(len(images) / TILE), 16, parts, TILE, 8, 8), NAN, np.uint16)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (*given, out))
    mistake = run(grid, threads, seed, *pointers, ctypes.c_int(len(images)))
    assert mistake is None, mistake.decode()
    cells, rows = np.arange(8), np.arange(TILE)[:, None]
    at = (cells ^ rows % 8)[None, None, None, :, :, None]
    straight = np.take_along_axis(out.view(np.float16), at, axis=4).astype(np.float32).sum(2)
    return straight.transpose(0, 2, 1, 3, 4).reshape(-1, 1024)


def in_halves(pack):
    """Packs (conv1, conv2) as (conv1 for floats and for bytes, conv2, no scales)."""
    nothing = np.zeros(0, np.float32)
    return lambda conv1, conv2, *_: (pack.pack_conv1(conv1), pack.pack_conv2(conv2), nothing)


def in_parts(*tensors):
    packed = winograd_pack.pack(tensors)
    first, second, conv2 = packed.factors.floats, packed.factors.bytes, packed.factors.conv2
    scales = np.array([first, conv2, second, conv2], np.float32)
    return (packed.conv1, packed.conv1), packed.conv2, scales


def in_bytes(conv1, conv2, *_):
    largest = int8_pack.ranges(conv1)
    whole, scales = int8_pack.quantize(conv2, largest)
    return int8_pack.pack_conv1(conv1, largest), int8_pack.pack_conv2(whole), scales


def in_sparse_bytes(conv1, conv2, *_):
    return sparse_pack.pack(conv1, pruned(conv1, conv2))


KERNELS = {
    "direct": (direct, in_halves(fp16_pack), fp16_features),
    "roles": (roles, in_halves(winograd_pack), roles_features),
    "int8": (int8, in_bytes, int8_features),
    "sparse": (sparse, in_sparse_bytes, sparse_features),
    "split": (split, in_parts, split_winograd_features),
}
"""Module, what packs for it, what it computes from that."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "uint8", "n", "grid"),
    [("direct", True, 5, 1),
     ("roles", True, 45, 1), ("roles", True, 9, 4),
     ("roles", False, 3, 1), ("split", True, 45, 2), ("split", True, 9, 4),
     ("split", False, 3, 2), ("int8", True, 5, 1), ("int8", True, 21, 1),
     ("sparse", True, 21, 1), ("sparse", True, 9, 4), ("sparse", False, 9, 1)],
)  # fmt: skip
def test_features_are_those_of_the_packed_operands(library, name, uint8, n, grid, rng):
    module, pack, emulated = KERNELS[name]
    weights = load_weights(assets.default_weights()).balanced
    tensors = [weights[each] for each in NAMES]
    images = load_dataset(assets.default_digits()).images[:n]
    if not uint8:
        images = rng.random((n, 28, 28, 1), np.float32)
    tiled = hasattr(module, "TILING")
    parts = 2 if module is split else 1
    threads = module.TILING.threads if tiled else module.THREADS
    run = library(module.kernel(uint8))
    conv1, *others = pack(*tensors)
    packed = (conv1[int(uint8)], *others)
    found = launched(run, images, packed, grid, threads, int(rng.integers(1 << 30)), parts)
    expected = emulated(images, tensors).reshape(n, 1024)[:, fp16_pack.feature_order()]
    assert not found[n:].any()
    near = 3e-6 if parts == 2 else 2e-3
    np.testing.assert_allclose(found[:n], expected, rtol=0, atol=near * expected.max())
