"""2:4 sparse filters of conv2 in the order the kernel reads them; NumPy on the host."""

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError
from lenetgpu.stages.fused.wgmma import fp16_pack, int8_pack

_VEC = 16  # channels per plane, bytes per core-matrix row
_ELEMENTS = 4  # filter elements per step, from one plane except in the last step
_LINES = (*([(r, s) for s in range(4)] for r in range(5)), [(r, 4) for r in range(4)])
_THREADS = 128
# fp16's pixel pairs (3 * row + pair) in the order of K's pairs 4 * m + q; pair 15 has no weight.
# With this order the loads of a warp, four pairs at 2 x 4 pooled positions, have no bank conflicts.
PAIR_ORDER = (1, 4, 9, 12, 2, 7, 10, 13, 5, 8, 11, 14, 0, 3, 6, 15)
STEPS = 2 * len(_LINES) + 1
FILTER_BYTES = STEPS * (64 * 2 * _VEC + 4 * _THREADS)


def steps_of(whole: Array) -> Array:
    """Arrange (5, 5, 32, 64) filters as (13, 64, 64): step, output, K.

    K is core-matrix row, then channel of its plane; the last two rows of the last step are zeros.
    """
    elements = whole.reshape(5, 5, 2, _VEC, 64).transpose(0, 1, 2, 4, 3)
    steps = np.zeros((STEPS, 64, _ELEMENTS, _VEC), whole.dtype)
    for step in range(STEPS - 1):
        plane, line = divmod(step, len(_LINES))
        for vec, (r, s) in enumerate(_LINES[line]):
            steps[step, :, vec] = elements[r, s, plane]
    steps[-1, :, :2] = elements[4, 4].swapaxes(0, 1)
    return steps.reshape(STEPS, 64, _ELEMENTS * _VEC)


def halved(steps: Array) -> tuple[Array, Array]:
    """Compress (..., K) with at most two nonzeros in every four to (..., K / 2) values and indices.

    Indices (..., K / 4, 2) ascend and differ. Raises LenetError if more than two are nonzero.
    """
    fours = steps.reshape(*steps.shape[:-1], -1, 4)
    if ((fours != 0).sum(-1) > 2).any():
        raise LenetError("conv2: expected two of every four channels at most, found more")
    indices = np.sort(np.argsort(fours == 0, axis=-1, kind="stable")[..., :2], axis=-1)
    kept = np.take_along_axis(fours, indices, axis=-1)
    return kept.reshape(*steps.shape[:-1], -1), indices


def by_thread(indices: Array) -> Array:
    """Encode indices (..., 64 rows, 16 fours, 2) as 32 bits per product for each of 128 threads.

    ptx/wgmma_sparse.cuh documents which row and which 8 fours a thread has, lowest bits first.
    """
    thread = np.arange(_THREADS)
    row = thread % 2 * 8 + thread // 4 % 8 + 16 * (thread // 32)
    bits = (indices[..., 0] | indices[..., 1] << 2).astype(np.uint32)
    halves = bits.reshape(*bits.shape[:-1], 2, 8) << (4 * np.arange(8, dtype=np.uint32))
    words: Array = halves.sum(-1, dtype=np.uint32)[..., row, thread // 2 % 2]
    return words


def pack_conv2(whole: Array) -> Array:
    """Pack (5, 5, 32, 64) int8, 2:4 sparse along channels, as FILTER_BYTES bytes.

    [step][thread][4 words] of kept values (A in registers), then [step][thread] metadata.
    """
    kept, indices = halved(steps_of(whole))
    kept = kept.reshape(-1, 4, 2, 8, 2, 4, 4)  # warp, row half, row, K half, quad, bytes
    parts = kept.transpose(0, 1, 3, 5, 4, 2, 6), by_thread(indices).astype("<u4")
    return np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])


def pack(conv1: Array, conv2: Array) -> tuple[Array, Array, Array]:
    """Pack filters (5, 5, 1, 32) and 2:4 sparse (5, 5, 32, 64) in the order that the kernel reads.

    conv1 (2, 2, 2, 64, 8) fp16 with K in PAIR_ORDER, conv2 as `pack_conv2`, scales (64,).
    """
    largest = int8_pack.ranges(conv1)
    whole, scales = int8_pack.quantize(conv2, largest)
    first = fp16_pack.in_pair_order(int8_pack.pack_conv1(conv1, largest), PAIR_ORDER)
    return first, pack_conv2(whole), scales
