"""Convolution as a matrix product over unrolled inputs: the report's section 2.2."""

from dataclasses import dataclass
from functools import cache, partial
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.cpu.blas import matmul
from lenetgpu.cpu.memory import aligned_empty, require_free
from lenetgpu.gpu.launch import blocks_for, launch, load_module
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.gpu.workspace import CONSTANT_BYTES, copy_to_constant
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course.counts import flat_counts, image_counts
from lenetgpu.stages.conv.windows import Epilogue, Padded, epilogue, padding, windows
from lenetgpu.stages.defines import MAPS, conv_kernel, launch_each, odd_outputs
from lenetgpu.stages.registry import Rows, conv_variant, of_shape, variant
from lenetgpu.stages.sectors import conv_moves, efficiency_rows, reuse

_CPU_WORKSPACE_BYTES = 8 << 20
_NAIVE_THREADS = 256
TILE = 32


@dataclass
class _Unrolled:
    """Filters, epilogue, and workspace for `chunk` images' rows, or products without BLAS."""

    matrix: Any  # (groups, K_SIZE, M / groups)
    epilogue: Epilogue
    padded: Padded | None
    # (groups, chunk, OH, OW, R, S, C / groups); products if C = groups: (chunk, OH, OW, C, M / C)
    rows: Any
    chunk: int


def _prepare_blas(w: Any, problem: Conv, batch: int) -> _Unrolled:
    groups, (channels, maps) = problem.groups, problem.each
    pixels, alone = problem.OH * problem.OW, problem.C == groups > 1
    each = problem.M if alone else problem.gemm_k * groups
    chunk = max(1, min(batch, _CPU_WORKSPACE_BYTES // (4 * pixels * each)))
    window = (problem.OH, problem.OW, problem.R, problem.S, channels)
    shape = (chunk, *window[:2], groups, maps) if alone else (groups, chunk, *window)
    require_free(4 * prod(shape))
    both = epilogue(w, problem, chunk)
    by_group = both.filters.reshape(problem.gemm_k, groups, maps).transpose(1, 0, 2)
    return _Unrolled(
        np.ascontiguousarray(by_group), both, padding(problem, chunk),
        aligned_empty(shape, np.float32), chunk,
    )  # fmt: skip


def _by_elements(seen: Any, matrix: Any, workspace: Any, y: Any) -> None:
    """Compute y (n, OH, OW, M) from seen (n, OH, OW, R, S, C), one channel per group."""
    *pixels, rows, columns, _ = seen.shape
    out = y.reshape(*pixels, *workspace.shape[-2:])
    for rs in range(rows * columns):
        product = workspace[: len(seen)] if rs else out
        np.multiply(seen[..., rs // columns, rs % columns, :, None], matrix[:, rs], out=product)
        if rs:
            out += product


@conv_variant(
    family="unrolled",
    options="strides pads dilation groups bias relu fp16 bf16",
    also="cublas.blas",
    prepare=_prepare_blas,
    default=True,
    paper="report 2.2 on a CPU",
)
def blas(x: Any, w: _Unrolled, y: Any, problem: Conv) -> None:
    """Windows copied to rows in cache-sized chunks, then one BLAS matrix product per group."""
    groups, k, maps = w.matrix.shape
    for lo in range(0, len(x), w.chunk):
        part, target = w.epilogue.read(x[lo : lo + w.chunk]), y[lo : lo + w.chunk]
        n, out = len(part), w.epilogue.accumulator(target)
        seen = windows(part if w.padded is None else w.padded.around(part), problem)
        if problem.C == groups > 1:
            _by_elements(seen, w.matrix, w.rows, out)
        else:
            by_group = seen.reshape(*seen.shape[:-1], groups, -1)
            np.copyto(w.rows[:, :n], np.moveaxis(by_group, -2, 0))
            rows = w.rows[:, :n].reshape(groups, -1, k)
            matmul(rows, w.matrix, out.reshape(-1, groups, maps).transpose(1, 0, 2))
        w.epilogue.write(out, target)


@cache
def naive_kernel(problem: Conv) -> Kernel:
    """Return the kernel of `naive`."""
    return conv_kernel(__file__, "conv_naive", problem, THREADS=_NAIVE_THREADS, MAPS_EACH=1)


unrolled = partial(variant, kind="conv", family="unrolled", reads=MAPS, writes=MAPS)
channels_first = partial(unrolled, reads=MAPS[::-1], writes=MAPS[::-1])


@unrolled(
    kernels=of_shape(naive_kernel),
    explain=lambda problem, batch, machine: efficiency_rows(*flat_counts(problem)) + reuse(1),
    paper="after report 2.2.1: outputs in a row over all images",
)
def naive(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One output per thread of the unrolled product, nothing shared."""
    launch_each(naive_kernel(problem), y.size, x, w, y)


def maps_each(problem: Conv) -> int:
    """Return the output maps per thread of the tiled product."""
    return 2 if problem.M > TILE else 1


def tile_reuse(problem: Conv) -> Rows:
    """Return the uses of an input value in the tiled product: the maps of a block."""
    return reuse(TILE * maps_each(problem))


def _explain_tiled(problem: Conv, *_: Any, transposed: bool | None = True) -> Rows:
    counts = image_counts(problem, (maps_each(problem), 2), transposed)
    return efficiency_rows(*counts) + tile_reuse(problem)


def product_grid(x: Any, problem: Conv) -> tuple[int]:
    """Return the blocks of the tiled product for the images `x`."""
    pixels = blocks_for(problem.OH * problem.OW, 2 * TILE)
    return (len(x) * blocks_for(problem.M, TILE * maps_each(problem)) * pixels,)


@cache
def _tiled(problem: Conv) -> Kernel:
    return conv_kernel(__file__, "conv_tiled", problem, MAPS_EACH=maps_each(problem))


@channels_first(
    kernels=of_shape(_tiled),
    explain=_explain_tiled,
    default=True,
    paper="after report 2.2.2: one block per tile of an image",
)
def tiled(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """Shared-memory tiles of the unrolled product, 2x2 outputs per thread."""
    launch(_tiled(problem), product_grid(x, problem), (TILE, TILE), (x, w, y))


def _part_rows(problem: Conv) -> int:
    """Return the rows of W' that fit into constant memory."""
    return min(problem.gemm_k, CONSTANT_BYTES // (4 * problem.M))


@cache
def _constant(problem: Conv) -> Kernel:
    tile = {"MAPS_EACH": maps_each(problem), "PART_ROWS": _part_rows(problem)}
    return conv_kernel(__file__, "conv_constant", problem, **tile)


@dataclass
class _Rolled:
    """Filters (K_SIZE, M), the kernel of its own module, and the address of its constant memory."""

    matrix: Any
    function: Any
    part: int


def _explain_constant(problem: Conv, batch: int, machine: Machine) -> Rows:
    if _part_rows(problem) < problem.gemm_k:
        return conv_moves(problem) + tile_reuse(problem)
    return _explain_tiled(problem, transposed=None)


def _prepare_constant(w: Any, problem: Conv, batch: int) -> _Rolled:
    kernel = _constant(problem)
    module = load_module(kernel)
    matrix = cupy.asarray(w).reshape(problem.gemm_k, problem.M)
    rolled = _Rolled(matrix, module.get_function(kernel.entry), module.get_global_var("part"))
    if _part_rows(problem) == problem.gemm_k:
        copy_to_constant(rolled.part, matrix)
        cupy.cuda.get_current_stream().synchronize()
    return rolled


@channels_first(
    prepare=_prepare_constant,
    kernels=of_shape(_constant),
    explain=_explain_constant,
    supports=lambda problem: None if problem.M <= 16384 else "supports at most 16384 maps",
    paper="after report 2.2.3: one block per tile, filters in parts, which it left unbuilt",
)
def constant(x: Any, w: _Rolled, y: Any, problem: Conv) -> None:
    """Filters in constant memory, copied there in parts if they do not fit."""
    step = _part_rows(problem)
    for first in range(0, problem.gemm_k, step):
        rows = min(step, problem.gemm_k - first)
        if step < problem.gemm_k:
            copy_to_constant(w.part, w.matrix[first : first + rows])
        args = (x, y, np.int32(first), np.int32(rows))
        launch(_constant(problem), product_grid(x, problem), (TILE, TILE), args, loaded=w.function)


@unrolled(
    reads="NCHW",
    writes="QUAD",
    kernels=of_shape(_tiled),
    explain=_explain_tiled,
    supports=odd_outputs,
    paper="after report 2.2.4: one block per tile, the layouts of table 10",
)
def layout(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """The tiled product from NCHW into QUAD, so that reads, writes and the pool coalesce."""
    tiled(x, w, y, problem)
