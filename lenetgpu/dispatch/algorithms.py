"""Algorithms that `best.fp32` may run: their cost by the models, and why one may not run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from lenetgpu.dispatch import rounding
from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import implicit, mma, wgmma
from lenetgpu.stages.conv.tensor.product import Product as TensorProduct
from lenetgpu.stages.conv.tf32 import wgmma as tf32
from lenetgpu.stages.conv.tf32.one_launch import OneLaunch
from lenetgpu.stages.conv.tuned import direct, winograd
from lenetgpu.stages.conv.tuned.product import Product, product_clocks, single_clocks
from lenetgpu.stages.registry import find


@dataclass(frozen=True)
class Choice:
    """An algorithm, the clocks the model gives it, and the product that does its work, if any."""

    algorithm: str
    clocks: float
    product: Product | TensorProduct | OneLaunch | None

    def us(self, machine: Machine) -> float:
        """Estimated microseconds on `machine`, at its highest clock."""
        return self.clocks / machine.clock_mhz


Price = tuple[float, Product | TensorProduct | OneLaunch | None]


_FEW_CHANNELS, _FEW = 4, 1.7
"""With fewer channels `direct.tuned` takes so many times more than the model says.

Of 14 convolutions measured on an H200, with 1 and 3 channels: 1.4 to 3.0, the middle one 1.75.
"""


def _single(problem: Conv, batch: int, machine: Machine) -> Price:
    return single_clocks(problem, batch, machine), None


def _direct(problem: Conv, batch: int, machine: Machine) -> Price:
    product = direct.plan(problem, batch, machine)
    more = _FEW if problem.C < _FEW_CHANNELS else 1.0
    return more * product_clocks(product, problem, batch, 1, machine), product


def _winograd(outputs: int, problem: Conv, batch: int, machine: Machine) -> Price:
    product = winograd.plan(problem, batch, outputs, machine)
    return winograd.clocks(product, problem, batch, outputs, machine), product


def _tensor(kind: implicit.Kind, problem: Conv, batch: int, machine: Machine) -> Price:
    product = kind.plan(problem, batch, machine)
    return kind.clocks(product, batch, machine), product


def _tf32(problem: Conv, batch: int, machine: Machine) -> Price:
    product = tf32.plan(problem, batch, machine)
    return product.clocks(batch, machine), product


KINDS = {"tensor.wgmma_fp16x3": wgmma.FP16X3, "tensor.fp16x3": mma.FP16X3}
"""Those with tilings of which each can be named."""

WINOGRAD = {"winograd.f2": 2, "winograd.f4": 4}
"""Outputs of a tile, each way."""

PRICED: dict[str, Callable[[Conv, int, Machine], Price]] = {
    "direct.tuned_single": _single,  # before direct.tuned, with which memory ties it
    "direct.tuned": _direct,
    **{name: partial(_winograd, outputs) for name, outputs in WINOGRAD.items()},
    **{name: partial(_tensor, kind) for name, kind in KINDS.items()},
    "tensor.wgmma_tf32x3": _tf32,
}
TENSOR = tuple(name for name in PRICED if name.startswith("tensor."))
"""Products on the tensor cores, taken where they err no more than fp32."""

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
    """Return why `best.fp32` may not run an algorithm on `problem`, on `machine`; or None.

    `measured`: its error is known, and no more than that of fp32. If not, Winograd's error is what
    `rounding` predicts for up to `images` images.
    """
    name, _, word = algorithm.partition(TILED)
    if name not in ALGORITHMS or (word and name not in KINDS):
        return "it is none that best.fp32 runs"
    found = find("conv", name, "cuda")
    if not found.needs.met_by(machine):
        return f"it needs {found.needs}"
    refusal = found.refusal(problem)
    if refusal is not None:
        return refusal
    if name in WINOGRAD and not measured:
        product = winograd.plan(problem, images, WINOGRAD[name], machine)
        most = rounding.MARGIN * rounding.of_winograd(product, problem, WINOGRAD[name])
        row = rounding.in_a_row(problem)
        if most > row:
            said = f"by the model it errs up to {most:.2e} (root mean square)"
            return f"{said}, fp32 in a row {row:.2e}"
    if name in TENSOR and problem.depth < EXACT_FROM and not measured and not problem.wants:
        few = f"sums of {problem.depth} products"
        return f"{few}: below {EXACT_FROM} it errs more than fp32"
    if word and not replace(KINDS[name], word=word).products(problem, 1, machine):
        return f"it has no tiling {word}"
    return None


def possible(
    algorithm: str, problem: Conv, machine: Machine, measured: bool = False, images: int = 1
) -> bool:
    """Return whether `best.fp32` may run an algorithm; `why_not` says why not."""
    return why_not(algorithm, problem, machine, measured, images) is None


def no_taker(problem: Conv, machine: Machine) -> str | None:
    """Return a sentence if `best.fp32` may run nothing on `problem`, on `machine`, or None."""
    whys = {name: why_not(name, problem, machine) for name in PRICED}
    if not all(whys.values()):
        return None
    if not problem.wants:
        return whys["direct.tuned"]
    by = "supports a bias, ReLU, fp16 and bf16 by products on tensor cores alone"
    return f"{by}, and {_ANYWHERE} is not taken: {whys[_ANYWHERE]}"
