"""Sparse wgmma by itself and plan int8_sparse on a GPU: where places lie, labels of three sets."""

from __future__ import annotations

import numpy as np
import pytest
from compiling import compiles
from test_gpu_variants import fused_plan

from lenetgpu.check.truth import reference_scores
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel
from lenetgpu.pipeline import Pipeline
from lenetgpu.stages.fused.wgmma_sparse import pack

ONE = """
// A block multiplies one sparse A [64][64] by B [64][128]: kept [2][64][16], b's cells of 16 bytes
// from START on as its descriptor says.
#include "gpu/ptx/barrier.cuh"
#include "gpu/ptx/cluster.cuh"
#include "gpu/ptx/async.cuh"
#include "gpu/ptx/shared.cuh"
#include "gpu/ptx/wgmma_sparse.cuh"
using ptx::u32;
using ptx::u64;
constexpr int A_BYTES = 64 * 32;

extern "C" __global__ void __launch_bounds__(128, 1)
    multiply(const u32* __restrict__ kept, const u32* __restrict__ b,
             const u32* __restrict__ places, int* __restrict__ out) {
    __shared__ __align__(128) unsigned char memory[A_BYTES + B_BYTES];
    const u32 at = ptx::shared(memory);
    const int tid = threadIdx.x, block = blockIdx.x;
    for (int i = tid; i < A_BYTES / 4; i += 128)
        ptx::store_shared(at + 4 * i, kept[block * (A_BYTES / 4) + i]);
    for (int i = tid; i < B_BYTES / 4; i += 128)
        ptx::store_shared(at + A_BYTES + 4 * i, b[block * (B_BYTES / 4) + i]);
    ptx::async_fence();
    __syncthreads();
    int d[64];
    ptx::wgmma_fence();
#if FROM_REGISTERS
    const u32* own = kept + (block * 128 + tid) * 4;
    const uint4 a = {own[0], own[1], own[2], own[3]};
#else
    const u64 a = ptx::operand(at, 64 * 16, 8 * 16);
#endif
    ptx::wgmma_sparse<false>(d, a,
                             ptx::operand(at + A_BYTES + START, K_STEP, ROW_STEP),
                             places[block * 128 + tid]);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::settle(d);
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int row = tid / 32 * 16 + tid % 32 / 4 + i / 2 % 2 * 8;
        const int column = i / 4 * 8 + tid % 4 * 2 + i % 2;
        out[(block * 64 + row) * 128 + column] = d[i];
    }
}
"""


CELL, ROW, PLANE = 16, 24 * 16, 292 * 16
"""Bytes of a cell of int8_sparse's maps, from one of their rows to the next, of a plane."""
APART = (128 * CELL, 8 * CELL, 0)
STRIDES = {
    "apart": APART,
    "row": (CELL, 12 * CELL, ROW),
    "column": (ROW, 12 * CELL, 4 * CELL),
    "planes": (PLANE, 12 * CELL, 4 * ROW + 4 * CELL),
}
"""How B lies: from K's 16 to the next, from 8 rows to the next, where it starts."""


def cells_of(strides):
    """Where the bytes of B (64, 128) lie."""
    k_step, row_step, start = strides
    k, n = np.indices((64, 128))
    return start + k // 16 * k_step + n // 8 * row_step + n % 8 * CELL + k % 16


@pytest.fixture
def kernel(tmp_path):
    (tmp_path / "multiply.cu").write_text(ONE)

    def of(strides, from_registers=False):
        k_step, row_step, start = strides
        held = ("B_BYTES", int(cells_of(strides).max()) + 1)
        lies = (held, ("K_STEP", k_step), ("ROW_STEP", row_step), ("START", start))
        own = ("FROM_REGISTERS", int(from_registers))
        return Kernel(tmp_path / "multiply.cu", "multiply", (*lies, own))

    return of


@compiles
@pytest.mark.parametrize("from_registers", [False, True])
@pytest.mark.parametrize("lies", STRIDES)
def test_the_one_sparse_product_compiles(kernel, lies, from_registers):
    used = compile_kernel(kernel(STRIDES[lies], from_registers), "sm_90a").resources
    assert used.spill_bytes == used.stack_bytes == 0
    assert used.shared_bytes == 64 * 32 + cells_of(STRIDES[lies]).max() + 1


def products(kernel, kept, places, memory):
    """A's (blocks, 64, 32) kept bytes and (blocks, 64, 16, 2) places, times B in `memory`."""
    import cupy

    gpu = driver_gpus()[0]
    if gpu.compute_capability != 90:
        pytest.skip(f"{gpu.name} has no wgmma")
    blocks = len(kept)
    cores = kept.reshape(blocks, 64, 2, 16).transpose(0, 2, 1, 3)
    if dict(kernel.defines)["FROM_REGISTERS"]:
        cores = pack.by_register(kept)
    out = cupy.full((blocks, 64, 128), -1, cupy.int32)
    given = (cores.astype(np.int8), memory, pack.by_thread(places))
    held = [cupy.asarray(np.ascontiguousarray(array)) for array in given]
    launch(kernel, (blocks,), (128,), (*held, out))
    return out.get()


def dense(kept, places):
    made = np.zeros((*places.shape[:-1], 4), int)
    np.put_along_axis(made, places, kept.reshape(places.shape).astype(int), axis=-1)
    return made.reshape(*kept.shape[:-1], 64)


@pytest.mark.gpu
def test_sparse_metadata_lies_where_the_packer_puts_it(kernel):
    """One four of A moved at a time; what came out says where the GPU took it from."""
    blocks = np.arange(64 * 16)
    rows, fours = blocks // 16, blocks % 16
    places = np.broadcast_to([0, 1], (len(blocks), 64, 16, 2)).copy()
    kept = np.ones((len(blocks), 64, 32), np.int8)
    one = np.zeros(cells_of(APART).max() + 1, np.uint8)
    one[cells_of(APART)] = np.eye(64, 128)
    base = dense(kept[0], places[0])
    places[blocks, rows, fours] = [2, 3]
    found = products(kernel(APART), kept, places, np.tile(one, (len(blocks), 1)))[:, :, :64]
    wrong = []
    for block in blocks:
        moved = np.argwhere((found[block] != base).reshape(64, 16, 4).any(-1)).tolist()
        if moved != [[rows[block], fours[block]]]:
            wrong.append(f"row {rows[block]} four {fours[block]} came out at {moved[:4]}")
    assert not wrong, f"{len(wrong)} of 1024: " + "; ".join(wrong[:40])
    np.testing.assert_array_equal(found, dense(kept, places))


@pytest.mark.gpu
@pytest.mark.parametrize("from_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("lies", STRIDES)
def test_sparse_metadata_of_random_filters_multiplies_exactly(kernel, lies, from_registers, rng):
    """Where B lies as maps do its cells of 16 overlap or lie far apart, and start anywhere."""
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    places = pairs[rng.integers(0, 6, (40, 64, 16))]
    kept = rng.integers(-128, 128, (40, 64, 32))
    at = cells_of(STRIDES[lies])
    memory = rng.integers(0, 256, (40, at.max() + 1), dtype=np.uint8)
    found = products(kernel(STRIDES[lies], from_registers), kept, places, memory)
    np.testing.assert_array_equal(found, dense(kept, places) @ memory[:, at].astype(int))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("model", "images"), [("shipped", "shipped"), ("shipped", "mnist"), ("course", "mnist")]
)
def test_int8_sparse_loses_at_most_eight_labels_of_ten_thousand(model, images, request):
    import cupy

    path = assets.default_weights()
    if model == "course":
        path = request.getfixturevalue("course") / "model.hdf5"
    weights = load_weights(path)
    source = assets.default_digits()
    if images == "mnist":
        source = request.getfixturevalue("mnist") / "t10k-images-idx3-ubyte.gz"
    taken = load_dataset(source)
    pipeline = Pipeline(fused_plan("int8_sparse"), weights, len(taken.images))
    found = pipeline.run(cupy.asarray(taken.images)).get()
    exact = (reference_scores(taken.images, weights)[1] == taken.labels).sum()
    assert (found == taken.labels).sum() >= exact - 8
