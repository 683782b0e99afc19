"""Tests of fused kernels' grids without a GPU: a recorder replaces `launch`, NumPy replaces CuPy.

Blocks must cover all outputs, and no block may be entirely idle. The outputs of plain kernels in
test_kernels_on_a_cpu.py cover their grids.
"""

import sys
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from test_kernels_on_a_cpu import launch_by

from lenetgpu import stages
from lenetgpu.gpu.machines import H200
from lenetgpu.gpu.occupancy import PROCESSORS
from lenetgpu.layouts import dtype_of, physical_shape
from lenetgpu.network import CLASSIFIER, FEATURES, SPANS
from lenetgpu.stages.fused.cuda_cores import tuning
from lenetgpu.stages.registry import REGISTRY


@pytest.fixture
def launches(monkeypatch):
    """Record the launches of the package's modules instead of executing them."""
    found = []

    def record(kernel, grid, block, args, shared=0, loaded=None, overlap=False):
        found.append((kernel, grid, block, args, shared))

    launch_by(record, monkeypatch)
    for name, module in list(sys.modules.items()):
        if name.startswith(stages.__name__) and "multiprocessors" in vars(module):
            monkeypatch.setattr(module, "multiprocessors", lambda: 132)
    return found


def arrays(problem, n, dtype=None):
    shape = physical_shape(problem.reads, n, problem.in_shape)
    x = np.empty(shape, dtype or dtype_of(problem.reads))
    y = np.empty(physical_shape(problem.writes, n, problem.out_shape), dtype_of(problem.writes))
    return x, y


def run(kind, name, problem, n, w=None, dtype=None):
    variant = REGISTRY[kind, name]
    problem = replace(problem, reads=variant.reads[0], writes=variant.writes[0])
    x, y = arrays(problem, n, dtype)
    variant.launch(x, w, y, problem)
    return x, y


def fused(kind, name, n, w, launches, dtype="uint8"):
    problem = next(span.problem for span in SPANS if span.kind == kind)
    variant = REGISTRY[kind, name]
    if kind == FEATURES:
        x = np.empty((n, 28, 28, 1), dtype)
        y = np.empty(0, np.float16)
    else:
        x = np.empty(0, np.float16)
        y = (np.empty(n, np.int32), None)
    variant.launch(x, w, y, problem)
    return launches


class Anything:
    """Weights of any family, with every field."""

    conv1 = conv2 = (1, 2)
    fc1 = fc2 = scales = scale1 = scale2 = scores = tiles = None

    def args(self, x, y):
        return (x, y, np.int32(len(x)))


@pytest.mark.parametrize("n", [1, 79, 80, 81, 160, 161, 10_000])
def test_classifier_grids_cover_every_tile(launches, monkeypatch, n):
    monkeypatch.setattr(tuning, "current", lambda: H200)
    expected = {
        "wgmma_fp16.classifier": (2 * ceil(n / 160), 288),  # clusters of two tiles of 80
        "wgmma_fp16x3.classifier": (ceil(n / 80), 256),
        "mma_fp16.classifier": (ceil(n / 80), 256),
        "mma_fp16x3.classifier": (ceil(n / 80), 256),
        "cuda_cores_fp32.classifier": (ceil(n / 40), 128),
    }
    for name, (blocks, threads) in expected.items():
        fused(CLASSIFIER, name, n, Anything(), launches)
        _, grid, block, args, _ = launches.pop()
        assert (grid, block) == ((blocks,), (threads,)), name
        assert n in [int(arg) for arg in args if isinstance(arg, np.int32)]


@pytest.mark.parametrize("n", [1, 2, 5, 79, 81, 264, 10_000])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_feature_grids_fill_the_gpu(launches, monkeypatch, n, dtype):
    from lenetgpu.stages.fused.mma import features as mma

    monkeypatch.setattr(mma, "current", lambda: H200)
    padded = 80 * ceil(n / 80)
    expected = {
        "wgmma_fp16.features": (min(132, padded // 2), 384),
        "wgmma_winograd_fp16.features": (min(132, padded // 4), 512),
        "wgmma_int8.features": (min(132, padded // 2), 512),
        "wgmma_sparse_int8.features": (min(132, padded // 2), 512),
        "wgmma_winograd_fp16x3.features": (min(132, 2 * ceil(n / 8)), 512),  # clusters of two
        "wgmma_fp16x3.features": (min(132, ceil(n / 4)), 384),
        "mma_winograd_fp16.features": (min(132, ceil(n / 8)), 256),
        "mma_fp16.features": (min(2 * 132, ceil(n / 4)), 128),
        "mma_fp16x3.features": (min(2 * 132, ceil(n / 2)), 128),
    }
    for name, (blocks, threads) in expected.items():
        fused(FEATURES, name, n, Anything(), launches, dtype)
        kernel, grid, block, _, shared = launches.pop()
        assert (grid, block) == ((blocks,), (threads,)), name
        assert dict(kernel.defines)["UINT8_PIXELS"] == int(dtype == "uint8")
        assert dict(kernel.defines)["SHARED_BYTES"] == shared <= H200.block_bytes


@pytest.mark.parametrize("n", [1, 8, 9, 1_056, 1_057, 10_000])
def test_fp32_kernels_use_groups_of_eight_images(launches, monkeypatch, n):
    monkeypatch.setattr(tuning, "current", lambda: H200)
    weights = Anything()
    weights.conv1 = {"uint8": None, "float32": None}
    first, second = fused(FEATURES, "cuda_cores_fp32.features", n, weights, launches)
    assert first[1:3] == ((8 * ceil(n / 8),), (128,))
    assert second[1:3] == ((min(132, ceil(n / 8)),), (256,))
    assert int(first[3][-1]) == int(second[3][-1]) == n


def test_shared_memory_of_tunings_fits_every_gpu():
    """Check the limit of a block: a multiprocessor's shared memory less 1 KiB."""
    limits = {75: 64, 80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
    for size in tuning.TUNINGS:
        for arch in size.only:
            capability = int(arch[3:].rstrip("a"))
            assert size.conv2_bytes <= limits[capability] << 10, arch
            assert limits[capability] << 10 <= PROCESSORS[capability].shared_bytes
