"""The unrolled product with the report's launch: one block per image (section 2.2)."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.course.counts import image_counts, naive_counts
from lenetgpu.stages.conv.course.grid import Filters, hold, refusal
from lenetgpu.stages.defines import MAPS, conv_kernel, odd_outputs
from lenetgpu.stages.registry import Rows, of_shape, variant
from lenetgpu.stages.sectors import efficiency_rows, reuse

_TILE = 32
_BLOCK = (_TILE, _TILE)

unrolled = partial(variant, kind="conv", family="unrolled", reads=MAPS, writes=MAPS)


def _each(problem: Conv) -> int:
    """Return the sub-masks and sub-images per step: 2 if W' is higher than a tile, as for conv2."""
    return 2 if problem.M > _TILE else 1


@cache
def _kernel(problem: Conv, name: str, **sizes: int) -> Kernel:
    if name != "naive":
        plain = problem.stride == 1 and problem.pad == 0  # else 32 registers do not suffice
        sizes |= {"EACH": _each(problem), "MIN_BLOCKS": 1 + plain}
    return conv_kernel(__file__, f"conv_image_{name}", problem, **sizes)


_naive = partial(_kernel, name="naive")
_untransposed = partial(_kernel, name="tiled", TRANSPOSED=0)
_tiled = partial(_kernel, name="tiled", TRANSPOSED=1)
_constant = partial(_kernel, name="constant")


def _explained(transposed: bool | None) -> Callable[[Conv, int, Machine], Rows]:
    def rows(problem: Conv, batch: int, machine: Machine) -> Rows:
        each = _each(problem)
        counts = image_counts(problem, (each, each), transposed)
        return [*efficiency_rows(*counts), *reuse(_TILE * each)]

    return rows


@unrolled(
    kernels=of_shape(_naive),
    explain=lambda problem, batch, machine: efficiency_rows(*naive_counts(problem)) + reuse(1),
    paper="report 2.2.1, table 7",
)
def image_naive(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One 32x32 block per image, one output per thread at a time, no shared memory."""
    launch(_naive(problem), (len(x),), _BLOCK, (x, w, y))


@unrolled(
    kernels=of_shape(_untransposed),
    explain=_explained(False),
    paper="report 2.2.2 before its second optimisation",
)
def image_untransposed(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One block per image loops over the product's tiles; loads of W' are not coalesced."""
    launch(_untransposed(problem), (len(x),), _BLOCK, (x, w, y))


@unrolled(kernels=of_shape(_tiled), explain=_explained(True), paper="report 2.2.2, table 5, fig. 4")
def image_tiled(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """One block per image loops over the product's tiles; W' is transposed as it is loaded."""
    launch(_tiled(problem), (len(x),), _BLOCK, (x, w, y))


constant = partial(
    unrolled,
    prepare=lambda w, problem, batch: hold(w, _constant(problem), problem),
    kernels=of_shape(_constant),
    explain=_explained(None),
)


@constant(
    name="constant_layout",
    summary="The report's last conv1: W' in constant memory, one block per image, QUAD output.",
    reads="NCHW",
    writes="QUAD",
    supports=lambda problem: refusal(problem) or odd_outputs(problem),
    paper="report 2.2.4, tables 7 and 13, fig. 6: ConvUnroll1Const",
)
@constant(supports=refusal, paper="report 2.2.3, table 7")
def image_constant(x: Any, w: Filters, y: Any, problem: Conv) -> None:
    """One block per image loops over the product's tiles; all of W' in constant memory."""
    launch(_constant(problem), (len(x),), _BLOCK, (x, y), loaded=w.function)


@unrolled(
    reads="NCHW",
    writes="QUAD",
    kernels=of_shape(_tiled),
    explain=_explained(True),
    supports=odd_outputs,
    paper="report 2.2.4, tables 6 and 13, fig. 6: ConvUnrollMemCoalDoubleHyp",
)
def image_layout(x: Any, w: Any, y: Any, problem: Conv) -> None:
    """The report's last conv2: one block per image, NCHW input, QUAD output."""
    image_tiled(x, w, y, problem)
