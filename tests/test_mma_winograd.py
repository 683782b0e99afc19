"""`mma_winograd` and `mma_fp16` without a GPU: packed filters, and the kernels compiled as C++.

What its threads do runs as it stands, launched by the package's own launcher; tensor cores are
those of cpu_mma.hpp, which add exactly and cut. Shared memory and features are poisoned.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import ROOT
from emulated import NAMES, mma_fp16_features, roles_features
from tensor_cores import argument, in_a_namespace
from test_kernels_on_a_cpu import build, version

from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.nvrtc import compile_kernel, supported
from lenetgpu.gpu.occupancy import PROCESSORS
from lenetgpu.plan import resolve
from lenetgpu.stages.fused.mma import features as mma
from lenetgpu.stages.fused.mma.pack import feature_order
from lenetgpu.stages.fused.mma_winograd import fp16_features as winograd
from lenetgpu.stages.fused.mma_winograd.fp16_features import pack_conv1, pack_conv2
from lenetgpu.stages.fused.wgmma_winograd import fp16_pack

compiled_here = pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")
NAN = 0x7FFF
KERNELS = [winograd.kernel(False), winograd.kernel(True), mma.kernel(True, 1, mma.TILINGS[1][0])]


@pytest.fixture(scope="module")
def weights():
    balanced = load_weights(assets.default_weights()).balanced
    return [balanced[name] for name in NAMES]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The kernels for floats and for bytes, and that of `mma_fp16` for bytes, on this machine."""
    folder = tmp_path_factory.mktemp("mma_winograd")
    for name in ("cpu_mma.hpp", "cpu_wgmma.hpp", "cpu_cluster.hpp", "cpu_cuda.hpp"):
        shutil.copy(ROOT / "tests" / name, folder)
    source, to = folder / "kernels.cpp", folder / "kernels.so"
    texts = [in_a_namespace(i, kernel) for i, kernel in enumerate(KERNELS)]
    source.write_text("\n".join(['#include "cpu_mma.hpp"', *texts]))
    build("-shared", f"-I{folder}", source, "-o", to)
    made = ctypes.CDLL(str(to))
    found = {kernel: getattr(made, f"run{i}") for i, kernel in enumerate(KERNELS)}
    for run in found.values():
        run.restype = ctypes.c_char_p
    return found


@pytest.fixture
def launched(library, weights, monkeypatch):
    """(n, 1024) float32 as the package's launcher leaves them; nothing beyond them is written."""
    stand_in = SimpleNamespace(asarray=np.ascontiguousarray)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)

    def launch(kernel, grid, block, args, shared):
        held = [argument(value) for value in args]
        addresses = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        mistake = library[kernel](
            grid[0], block[0], ctypes.c_ulong(shared), len(args[0]), addresses
        )
        assert mistake is None, mistake.decode()

    def features_of(images, blocks, plan="mma_winograd"):
        for module in (winograd, mma):
            monkeypatch.setattr(module, "launch", launch)
        monkeypatch.setattr(winograd, "multiprocessors", lambda: blocks)
        monkeypatch.setattr(mma, "current", lambda: replace(H200, multiprocessors=blocks))
        variant, n = resolve(plan, "cuda").slots[0].variant, len(images)
        out = np.full((n + 8, 1024), NAN, np.uint16)
        variant.launch(images, variant.prepare(weights, None, n), out, None)
        assert (out[n:] == NAN).all()
        return out[:n].view(np.float16).astype(np.float32)

    return features_of


@compiled_here
@pytest.mark.parametrize(("uint8", "n", "blocks"), [(True, 21, 1), (True, 11, 2), (False, 9, 1)])
def test_features_are_those_of_the_packed_operands(launched, weights, uint8, n, blocks, rng):
    images = load_dataset(assets.default_digits()).images[:n]
    if not uint8:
        images = rng.random((n, 28, 28, 1), np.float32)
    found = launched(images, blocks)
    expected = roles_features(images, weights).reshape(n, 1024)[:, feature_order()]
    np.testing.assert_allclose(found, expected, atol=5e-4 * expected.max())


@compiled_here
def test_mma_fp16_writes_the_features_of_its_images_and_nothing_behind_them(launched, weights):
    """Nine images in blocks of four: the last has one, whose neighbours' places are poisoned."""
    images = load_dataset(assets.default_digits()).images[:9]
    found = launched(images, 1, "mma_fp16")
    expected = mma_fp16_features(images, weights)[:, feature_order()]
    np.testing.assert_allclose(found, expected, atol=5e-4 * expected.max())


@compiled_here
def test_an_image_has_the_same_features_wherever_it_is(launched):
    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:9])
    many = launched(digits, 1)
    for image in (3, 8):
        (alone,) = launched(digits[image : image + 1], 132)
        np.testing.assert_array_equal(alone, many[image])


def words(packed, *at):
    """A lane's B of 16 x 8 in two words: its column and the rows of K that it has, by hand."""
    for lane in range(32):
        for item in range(4):
            k = 8 * (item // 2) + 2 * (lane % 4) + item % 2
            yield k, lane // 4, packed[(*at, lane, slice(None), item)]


def test_packed_filters_of_conv2_are_the_filters_at_the_points(weights):
    packed, points = pack_conv2(weights[1]), fp16_pack.in_halves(weights[1])
    for slot, point in enumerate((1, 0, 2, 3, 4, 5, 6, 7)):
        for warp in range(8):
            for k, column, steps in words(packed, slot, slice(None), warp):
                for step in range(2):
                    cell, item = 2 * step + k // 8, k % 8
                    channel = 8 * (item // 2) + 2 * cell + item % 2
                    output = 32 * (warp // 4) + 8 * (column // 2) + 2 * (warp % 4) + column % 2
                    expected = points[point, :, channel, output]
                    np.testing.assert_array_equal(steps[:, step], expected)


def test_packed_filters_of_conv1_are_those_on_wgmma_lane_by_lane(weights):
    packed, columns = pack_conv1(weights[0]), fp16_pack.pack_conv1(weights[0])
    for form in range(2):
        for plane in range(4):
            for dx in range(2):
                own = np.ascontiguousarray(packed[form, plane][:, dx])
                for k, column, steps in words(own):
                    expected = columns[form, :, k // 8, 16 * plane + 8 * dx + column, k % 8]
                    np.testing.assert_array_equal(steps, expected)


def test_every_gpu_from_80_on_holds_a_block():
    room = [p.shared_bytes - p.reserved_bytes for c, p in PROCESSORS.items() if c >= 80]
    assert winograd.SHARED_BYTES == 8 * (8 * 12 * 2 * 64 + 16) <= min(room)


@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90", "sm_100"])
def test_nothing_spills(arch):
    if not supported(arch):
        pytest.skip(f"this NVRTC does not know {arch}")
    for uint8 in (True, False):
        used = compile_kernel(winograd.kernel(uint8), arch).resources
        assert used.spill_bytes == used.stack_bytes == 0 and used.registers <= 255


def test_its_plan_has_the_classifier_of_mma_fp16():
    features, classifier = resolve("mma_winograd", "cuda").slots
    assert features.variant.full_name == "mma_winograd_fp16.features"
    assert classifier.variant.full_name == "mma_fp16.classifier"
