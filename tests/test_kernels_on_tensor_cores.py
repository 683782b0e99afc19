"""Tests of tensor core features kernels without a GPU, compiled as C++.

cpu_wgmma.hpp and cpu_mma.hpp emulate wgmma and mma; they add exactly and truncate. The threads'
code runs unchanged: descriptors, layouts, barriers, loops, rounding. Shared memory and features are
poisoned.
"""

import ctypes
import re
import sys
from dataclasses import replace
from functools import cache
from math import ceil
from types import SimpleNamespace

import emulated
import numpy as np
import pytest
from tensor_cores import argument, compiled
from test_kernels_on_a_cpu import built_with, header_folder, version

from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT
from lenetgpu.plan import resolve
from lenetgpu.stages.fused.mma import features as mma
from lenetgpu.stages.fused.mma.pack import feature_order
from lenetgpu.stages.fused.mma_winograd import fp16_features as mma_winograd
from lenetgpu.stages.fused.wgmma import fp16_features as direct
from lenetgpu.stages.fused.wgmma import fp16_pack, int8_pack
from lenetgpu.stages.fused.wgmma import int8_features as int8
from lenetgpu.stages.fused.wgmma_sparse import int8_sparse as sparse
from lenetgpu.stages.fused.wgmma_sparse import pack as sparse_pack
from lenetgpu.stages.fused.wgmma_sparse.prune import pruned
from lenetgpu.stages.fused.wgmma_winograd import fp16_features as winograd
from lenetgpu.stages.fused.wgmma_winograd import fp16_pack as winograd_pack
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
OF_BYTES = ("int8_features", "sparse_features")  # entries that require scales
# arguments of the entry with split operands, which runs in clusters of two
SPLIT = ", scales[2 * UINT8_PIXELS], scales[2 * UINT8_PIXELS + 1]"


def runner(entry):
    split = entry == "split_features"
    return RUN % ("<2>" * split, entry, "scales," * (entry in OF_BYTES), SPLIT * split)


@pytest.fixture(scope="module")
def tensors():
    balanced = load_weights(assets.default_weights()).balanced
    return [balanced[name] for name in emulated.NAMES]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a function that compiles a kernel for this machine."""
    folder = tmp_path_factory.mktemp("tensor_cores")
    header_folder(folder, HEADERS, "cpu_wgmma.hpp", "cpu_cluster.hpp", "cpu_cuda.hpp")
    for header in INCLUDE_ROOT.rglob("stages/fused/wgmma*/*.cuh"):
        to = folder / header.relative_to(INCLUDE_ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(on_a_cpu(header.read_text()))

    @cache
    def function(kernel):
        text = on_a_cpu(kernel.source.read_text()) + runner(kernel.entry)
        run = built_with(folder, kernel, "cpu_wgmma.hpp", text).run
        run.restype = ctypes.c_char_p
        return run

    return function


def on_a_cpu(text):
    memory = "unsigned char* memory = reinterpret_cast<unsigned char*>(cpu::memory());"
    return re.sub(r"extern __shared__ .*? memory\[\];", memory, text)


def launched(run, images, packed, grid, threads, seed, parts):
    """Return the kernel's features, (tiles of 80, 1024) float32 in its own order."""
    given = [np.ascontiguousarray(array) for array in (images, *packed)]
    out = np.full((ceil(len(images) / TILE), 16, parts, TILE, 8, 8), NAN, np.uint16)
    pointers = (ctypes.c_void_p(array.ctypes.data) for array in (*given, out))
    mistake = run(grid, threads, seed, *pointers, ctypes.c_int(len(images)))
    assert mistake is None, mistake.decode()
    vecs, rows = np.arange(8), np.arange(TILE)[:, None]
    at = (vecs ^ rows % 8)[None, None, None, :, :, None]
    straight = np.take_along_axis(out.view(np.float16), at, axis=4).astype(np.float32).sum(2)
    return straight.transpose(0, 2, 1, 3, 4).reshape(-1, 1024)


def in_fp16(pack):
    """Return a function that packs (conv1 for floats and for bytes, conv2, no scales)."""
    nothing = np.zeros(0, np.float32)
    return lambda conv1, conv2, *_: (pack.pack_conv1(conv1), pack.pack_conv2(conv2), nothing)


def in_parts(*tensors):
    packed = winograd_pack.pack(tensors)
    first, second, conv2 = packed.factors.floats, packed.factors.bytes, packed.factors.conv2
    scales = np.array([first, conv2, second, conv2], np.float32)
    return (packed.conv1, packed.conv1), packed.conv2, scales


def in_sparse_bytes(conv1, conv2, *_):
    return sparse_pack.pack(conv1, pruned(conv1, conv2))


# Module, pack function, reference for the packed operands
KERNELS = {
    "direct": (direct, in_fp16(fp16_pack), emulated.fp16_features),
    "winograd": (winograd, in_fp16(winograd_pack), emulated.winograd_features),
    "int8": (int8, lambda conv1, conv2, *_: int8_pack.pack(conv1, conv2), emulated.int8_features),
    "sparse": (sparse, in_sparse_bytes, emulated.sparse_features),
    "split": (split, in_parts, emulated.split_winograd_features),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "uint8", "n", "grid"),
    [("direct", True, 5, 1),
     ("winograd", True, 45, 1), ("winograd", True, 9, 4),
     ("winograd", False, 3, 1), ("split", True, 45, 2), ("split", True, 9, 4),
     ("split", False, 3, 2), ("int8", True, 5, 1), ("int8", True, 21, 1),
     ("sparse", True, 21, 1), ("sparse", True, 9, 4), ("sparse", False, 9, 1)],
)  # fmt: skip
def test_features_match_emulated_operands(library, name, uint8, n, grid, tensors, rng):
    module, pack, features = KERNELS[name]
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
    expected = features(images, tensors).reshape(n, 1024)[:, fp16_pack.feature_order()]
    assert not found[n:].any()
    near = 3e-6 if parts == 2 else 2e-3
    np.testing.assert_allclose(found[:n], expected, rtol=0, atol=near * expected.max())


ON_MMA = [
    mma_winograd.kernel(False),
    mma_winograd.kernel(True),
    mma.kernel(True, 1, mma.TILINGS[1][0]),
]


@pytest.fixture(scope="module")
def on_mma(tmp_path_factory):
    return compiled(ON_MMA, tmp_path_factory.mktemp("mma"))


@pytest.fixture
def features_of(on_mma, tensors, monkeypatch):
    """Return a function that runs the launcher and returns its features, (n, 1024) float32.

    It checks that nothing is written after them.
    """
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(asarray=np.ascontiguousarray))

    def launch(kernel, grid, block, args, shared):
        held = [argument(value) for value in args]
        addresses = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        run, _ = on_mma[kernel]
        mistake = run(grid[0], block[0], ctypes.c_ulong(shared), len(args[0]), addresses)
        assert mistake is None, mistake.decode()

    def found(images, blocks, plan="mma_winograd"):
        for module in (mma_winograd, mma):
            monkeypatch.setattr(module, "launch", launch)
        monkeypatch.setattr(mma_winograd, "multiprocessors", lambda: blocks)
        monkeypatch.setattr(mma, "current", lambda: replace(H200, multiprocessors=blocks))
        variant, n = resolve(plan, "cuda").stages[0].variant, len(images)
        out = np.full((n + 8, 1024), NAN, np.uint16)
        variant.launch(images, variant.prepare(tensors, None, n), out, None)
        assert (out[n:] == NAN).all()
        return out[:n].view(np.float16).astype(np.float32)

    return found


@pytest.mark.parametrize(("uint8", "n", "blocks"), [(True, 21, 1), (True, 11, 2), (False, 9, 1)])
def test_mma_features_match_emulated_operands(features_of, tensors, uint8, n, blocks, rng):
    images = load_dataset(assets.default_digits()).images[:n]
    if not uint8:
        images = rng.random((n, 28, 28, 1), np.float32)
    found = features_of(images, blocks)
    expected = emulated.winograd_features(images, tensors).reshape(n, 1024)[:, feature_order()]
    np.testing.assert_allclose(found, expected, atol=5e-4 * expected.max())


def test_mma_fp16_writes_only_its_images_features(features_of, tensors):
    """Run nine images in blocks of four; the last block has one image, its other places poison."""
    images = load_dataset(assets.default_digits()).images[:9]
    found = features_of(images, 1, "mma_fp16")
    expected = emulated.mma_fp16_features(images, tensors)[:, feature_order()]
    np.testing.assert_allclose(found, expected, atol=5e-4 * expected.max())


def test_features_do_not_depend_on_image_position(features_of):
    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:9])
    many = features_of(digits, 1)
    for image in (3, 8):
        (alone,) = features_of(digits[image : image + 1], 132)
        np.testing.assert_array_equal(alone, many[image])
