"""What `best.fp32` may run, and why not."""

from __future__ import annotations

from dataclasses import replace

from lenetgpu.dispatch import rounding
from lenetgpu.dispatch.prices import KINDS, PRICED, TENSOR, WINOGRAD
from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import winograd
from lenetgpu.stages.registry import find

_ANYWHERE = "tensor.fp16x3"  # from sm_80 on, any dtype
MEASURED_ONLY = ("prefetch.stride_fixed", "texture.split")
ALGORITHMS = (*PRICED, *MEASURED_ONLY)
"""What `best.fp32` may run; what the model gives no price is taken where it was measured only."""
TILED = "@"
"""Between an algorithm and the word of its tiling, where another than the model's was measured."""
EXACT_FROM = 64
"""Products of a sum from which on three fp16 products err no more than fp32 adding in a row.

Emulated: 1.3 to 3.6 times as much up to 48, 0.7 to 1.0 of it from 64 to 96, 0.2 to 0.3 at 2,304.
cuDNN's fp32 adds in a row or in parts; on an H200 it erred as much or up to five times more.
"""
FEW_ERR = 3.6
"""How many times as much of fewer, at most: taken where a problem wants what no other takes."""


def why_not(
    algorithm: str, problem: Conv, machine: Machine, measured: bool = False, images: int = 1
) -> str | None:
    """Why `best.fp32` may not run that algorithm on `problem`, on `machine`; None where it may.

    `measured`: what it errs is known, and no more than fp32. If not, Winograd's error is that which
    `rounding` predicts for up to `images` images.
    """
    name, _, word = algorithm.partition(TILED)
    if name not in ALGORITHMS or (word and name not in KINDS):
        return "it is none that best.fp32 runs"
    found = find("conv", name, "cuda")
    if not found.needs.met_by(machine):
        return f"it needs {found.needs}"
    refusal = found.refusal(problem)
    if refusal is None and name in WINOGRAD and not measured:
        return errs_more(name, problem, machine, images)
    if refusal is not None or name not in TENSOR:
        return refusal
    if problem.depth < EXACT_FROM and not measured and not problem.wants:
        few = f"sums of {problem.depth} products"
        return f"{few}: below {EXACT_FROM} it errs more than fp32"
    if word and not replace(KINDS[name], word=word).products(problem, 1, machine):
        return f"it has no tiling {word}"
    return None


def errs_more(algorithm: str, problem: Conv, machine: Machine, images: int) -> str | None:
    """That one of WINOGRAD errs more than fp32 by the model, and both figures; or None."""
    product = winograd.plan(problem, images, WINOGRAD[algorithm], machine)
    found = rounding.of_winograd(product, problem, WINOGRAD[algorithm])
    most, row = rounding.MARGIN * found, rounding.in_a_row(problem)
    if most <= row:
        return None
    return f"by the model it errs up to {most:.2e} (root mean square), fp32 in a row {row:.2e}"


def possible(
    algorithm: str, problem: Conv, machine: Machine, measured: bool = False, images: int = 1
) -> bool:
    """Whether `best.fp32` may run that algorithm on `problem`, on `machine`; `why_not` says why."""
    return why_not(algorithm, problem, machine, measured, images) is None


def no_taker(problem: Conv, machine: Machine) -> str | None:
    """A sentence where `best.fp32` may run nothing on `problem`, on `machine`, or None."""
    whys = {name: why_not(name, problem, machine) for name in PRICED}
    if not all(whys.values()):
        return None
    if not problem.wants:
        return whys["direct.tuned"]
    by = "supports a bias, ReLU, fp16 and bf16 by products on tensor cores alone"
    return f"{by}, and {_ANYWHERE} is not taken: {whys[_ANYWHERE]}"
