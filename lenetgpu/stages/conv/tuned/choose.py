"""The fastest fp32 convolution for a shape: which of our algorithms, by a cost model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from lenetgpu.gpu import machines
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import direct, winograd
from lenetgpu.stages.conv.tuned.clocks import product_clocks, single_clocks
from lenetgpu.stages.conv.tuned.product import Product
from lenetgpu.stages.registry import Rows, Variant, cuda, find, variant


@dataclass(frozen=True)
class Choice:
    """An algorithm, the clocks the model gives it, and the product that does its work, if any."""

    algorithm: str
    clocks: float
    product: Product | None

    @property
    def variant(self) -> Variant:
        """The variant that runs it."""
        return find("conv", self.algorithm, "cuda")


Price = tuple[float, Product | None]


def _direct(problem: Conv, batch: int, machine: Machine) -> Price:
    product = direct.plan(problem, batch, machine)
    return product_clocks(product, problem, batch, 1, machine), product


def _winograd(outputs: int, problem: Conv, batch: int, machine: Machine) -> Price:
    product = winograd.plan(problem, batch, outputs, machine)
    return winograd.clocks(product, problem, batch, outputs, machine), product


def _one_channel(problem: Conv, batch: int, machine: Machine) -> Price:
    return single_clocks(problem, batch, machine), None


_ALGORITHMS: dict[str, Callable[[Conv, int, Machine], Price]] = {
    "direct.tuned": _direct,
    "direct.tuned_single": _one_channel,
    "winograd.f2": partial(_winograd, 2),
    "winograd.f4": partial(_winograd, 4),
}


def choices(problem: Conv, batch: int, machine: Machine | None = None) -> tuple[Choice, ...]:
    """What could solve `problem` for `batch` images, the fastest by the model first.

    On `machine`, or on the current one.
    """
    return _choices(problem, batch, machine or machines.current())


@cache
def _choices(problem: Conv, batch: int, machine: Machine) -> tuple[Choice, ...]:
    found = [
        Choice(name, *price(problem, batch, machine))
        for name, price in _ALGORITHMS.items()
        if find("conv", name, "cuda").refusal(problem) is None
    ]
    return tuple(sorted(found, key=lambda choice: choice.clocks))


def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Why `best.fp32` runs what it runs: (what, figure) for the choice and every algorithm."""
    options = choices(problem, batch, machine)
    rows = [("chosen", options[0].algorithm)]
    for option in options:
        figure = f"{option.clocks:,.0f} clocks by the model"
        if option.product is not None:
            figure += f"; {option.product}"
        rows.append((option.algorithm, figure))
    return rows


@dataclass
class State:
    """The chosen variant and what its `prepare` made."""

    variant: Variant
    state: Any


def _prepare(w: Any, problem: Conv, batch: int) -> State:
    chosen = choices(problem, batch)[0].variant
    return State(chosen, chosen.prepare(w, problem, batch) if chosen.prepare else w)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    kernels = choices(problem, batch)[0].variant.kernels
    return kernels(problem, batch) if kernels is not None else ()


@variant(
    kind="conv",
    family="best",
    reads="NCHW",
    writes="NCHW",
    needs=cuda(),
    prepare=_prepare,
    kernels=_kernels,
    supports=direct.refusal,
    explain=explain,
    default=True,
)
def fp32(x: Any, w: State, y: Any, problem: Conv) -> None:
    """One of direct.tuned, direct.tuned_single, winograd.f2 and winograd.f4, by a cost model."""
    w.variant.launch(x, w.state, y, problem)
