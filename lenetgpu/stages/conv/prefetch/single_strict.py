"""Convolution of single-channel maps to the letter: the Pascal paper's section 3.1."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch.plan import (
    StrictParts,
    explain_machine,
    parts_rows,
    strict_single,
)
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import Rows, cuda, variant

_SOURCE = Path(__file__).with_suffix(".cu").resolve()


def _parts(problem: Conv, both: bool) -> StrictParts:
    found = strict_single(problem, machines.current(), both)
    assert found is not None, "refused by _supports"
    return found.parts


@cache
def parts_kernel(problem: Conv, parts: StrictParts) -> Kernel:
    """The kernel of one division."""
    return conv_kernel(
        _SOURCE,
        "conv_single_strict",
        problem,
        SMS=parts.multiprocessors,
        EACH=parts.each,
        THREADS=parts.threads,
        ROW_PARTS=parts.row_parts,
        FILTER_PARTS=parts.filter_parts,
        PART_LINES=parts.part_lines(problem),
        PART_FILTERS=parts.part_filters(problem),
        PIECES=parts.pieces,
        STREAMS_LINES=int(parts.streams == "lines"),
        SHARED_BYTES=parts.shared(problem),
    )


def _kernels(problem: Conv, batch: int, both: bool = False) -> tuple[Kernel, ...]:
    return (parts_kernel(problem, _parts(problem, both)),)


def _supports(problem: Conv, both: bool = False) -> str | None:
    if problem.C != 1:
        return f"supports one input channel, found {problem.C}"
    if problem.stride != 1:
        return f"supports stride 1, as the paper's equation (2), found {problem.stride}"
    if strict_single(problem, machines.current(), both) is None:
        found = f"{problem.R}x{problem.S} filters on lines of {problem.W + 2 * problem.pad} pixels"
        return f"supports parts that two blocks hold in registers and shared memory, found {found}"
    return None


def _explain(problem: Conv, batch: int, machine: Machine, both: bool = False) -> Rows:
    found = strict_single(problem, machine, both)
    if found is None:
        return [*explain_machine(machine), ("blocks", "two do not fit a multiprocessor")]
    return [*explain_machine(machine), *parts_rows(found, problem, machine)]


def prepare(w: Any, problem: Conv, batch: int) -> Any:
    """float32 w (R, S, 1, M) as (M, 1, R, S): filters one after the other (Fig. 1(a))."""
    return cupy.asarray(np.ascontiguousarray(np.asarray(w, np.float32).transpose(3, 2, 0, 1)))


def launch_parts(x: Any, w: Any, y: Any, problem: Conv, parts: StrictParts) -> None:
    """Launch the kernel of `parts` on x (n, 1, H, W), w (M, 1, R, S) and y (n, M, OH, OW)."""
    blocks, shared = parts.multiprocessors * parts.each, parts.shared(problem)
    args = (x, w, y, np.int32(len(x)))
    launch(parts_kernel(problem, parts), (blocks,), (parts.threads,), args, shared=shared)


strict_variant = partial(
    variant, kind="conv", family="prefetch", reads="NCHW", writes="NCHW", needs=cuda()
)


@strict_variant(
    prepare=prepare,
    kernels=_kernels,
    supports=_supports,
    explain=_explain,
    paper="Pascal 3.1",
)
def single_strict(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One channel by the paper's P and Q: filters or map divided among 2 x N_SM blocks of 512."""
    launch_parts(x, w, y, problem, _parts(problem, both=False))


@strict_variant(
    prepare=prepare,
    kernels=partial(_kernels, both=True),
    supports=partial(_supports, both=True),
    explain=partial(_explain, both=True),
    paper="Pascal 2.3, both divided",
)
def single_strict_both(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """prefetch.single_strict, map and filters divided until every multiprocessor has a part."""
    launch_parts(x, w, y, problem, _parts(problem, both=True))
