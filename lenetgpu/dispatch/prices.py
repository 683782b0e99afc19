"""What the cost models say that each algorithm of `best.fp32` takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import implicit, mma, wgmma
from lenetgpu.stages.conv.tensor.product import Product as TensorProduct
from lenetgpu.stages.conv.tf32 import wgmma as tf32
from lenetgpu.stages.conv.tf32.one_launch import OneLaunch
from lenetgpu.stages.conv.tuned import direct, winograd
from lenetgpu.stages.conv.tuned.clocks import product_clocks, single_clocks
from lenetgpu.stages.conv.tuned.product import Product


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


_FEW_CHANNELS = 4
_FEW = 1.7
"""How much more than the model says `direct.tuned` takes with fewer channels than that.

Of 14 convolutions measured on an H200, with 1 and 3 channels: 1.4 to 3.0, the middle one 1.75.
"""


def _direct(problem: Conv, batch: int, machine: Machine) -> Price:
    product = direct.plan(problem, batch, machine)
    more = _FEW if problem.C < _FEW_CHANNELS else 1.0
    return more * product_clocks(product, problem, batch, 1, machine), product


def _winograd(outputs: int, problem: Conv, batch: int, machine: Machine) -> Price:
    product = winograd.plan(problem, batch, outputs, machine)
    return winograd.clocks(product, problem, batch, outputs, machine), product


def _one_channel(problem: Conv, batch: int, machine: Machine) -> Price:
    return single_clocks(problem, batch, machine), None


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
    "direct.tuned_single": _one_channel,  # before direct.tuned, with which memory ties it
    "direct.tuned": _direct,
    **{name: partial(_winograd, outputs) for name, outputs in WINOGRAD.items()},
    **{name: partial(_tensor, kind) for name, kind in KINDS.items()},
    "tensor.wgmma_tf32x3": _tf32,
}
TENSOR = tuple(name for name in PRICED if name.startswith("tensor."))
"""Products on the tensor cores, taken where they err no more than fp32."""
