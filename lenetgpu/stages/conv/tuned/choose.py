"""The fastest fp32 convolution for a shape: the algorithm that was measured so, else a model's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from lenetgpu.gpu import machines
from lenetgpu.gpu.faults import lacks_memory, release
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tuned import direct, measured, winograd
from lenetgpu.stages.conv.tuned.clocks import product_clocks, single_clocks
from lenetgpu.stages.conv.tuned.measured import Measured
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


_PRICED: dict[str, Callable[[Conv, int, Machine], Price]] = {
    "direct.tuned_single": _one_channel,  # before direct.tuned, with which memory ties it
    "direct.tuned": _direct,
    "winograd.f2": partial(_winograd, 2),
    "winograd.f4": partial(_winograd, 4),
}
ALGORITHMS = (*_PRICED, "prefetch.stride_fixed", "texture.split")
"""What `best.fp32` may run; what the model gives no price is taken where it was measured only."""


def possible(algorithm: str, problem: Conv, machine: Machine) -> bool:
    """Whether `best.fp32` may run that algorithm on `problem`, on `machine`."""
    if algorithm not in ALGORITHMS:
        return False
    found = find("conv", algorithm, "cuda")
    able = found.needs.compute_capability <= machine.compute_capability
    return able and found.refusal(problem) is None


def choices(problem: Conv, batch: int, machine: Machine | None = None) -> tuple[Choice, ...]:
    """What could solve `problem` for `batch` images, the fastest by the model first.

    On `machine`, or on the current one.
    """
    return _choices(problem, batch, machine or machines.current())


@cache
def _choices(problem: Conv, batch: int, machine: Machine) -> tuple[Choice, ...]:
    found = [
        Choice(name, *price(problem, batch, machine))
        for name, price in _PRICED.items()
        if possible(name, problem, machine)
    ]
    return tuple(sorted(found, key=lambda choice: choice.clocks))


def taken(problem: Conv, batch: int, machine: Machine | None = None) -> tuple[str, Measured | None]:
    """The algorithm that `best.fp32` runs for up to `batch` images, and what was measured of it.

    None where the model decides: where nothing was measured for about as many images, or what was
    the fastest then is not possible here.
    """
    machine = machine or machines.current()
    for found in measured.near(problem, batch, machine):
        if possible(found.algorithm, problem, machine):
            return found.algorithm, found
    return choices(problem, batch, machine)[0].algorithm, None


def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Why `best.fp32` runs what it runs: (what, figure) for the choice and every algorithm.

    Of each what the model predicts and, where there is one, the time that was measured.
    """
    chosen, found = taken(problem, batch, machine)
    options = choices(problem, batch, machine)
    first = options[0].algorithm
    times: Mapping[str, float] = {} if found is None else found.us
    rows = [("chosen", f"{chosen}, {'by the model' if found is None else 'as measured'}")]
    if found is not None:
        rows.append(("measured on", str(found)))
        rows.append(("the model would take", _beside(first, found)))
    for option in options:
        us = option.clocks / machine.clock_mhz
        figure = f"{us:,.2f} us by the model, {option.clocks:,.0f} clocks"
        figure += _time(times, option.algorithm)
        if option.product is not None:
            figure += f"; {option.product}"
        rows.append((option.algorithm, figure))
    for name in ALGORITHMS[len(_PRICED) :]:
        if name in times or possible(name, problem, machine):
            rows.append((name, f"no model{_time(times, name) or '; not measured'}"))
    return rows


def _time(times: Mapping[str, float], algorithm: str) -> str:
    return f"; measured {times[algorithm]:,.2f} us" if algorithm in times else ""


def _beside(first: str, found: Measured) -> str:
    """The model's choice, and how far it was off what was measured."""
    off = off_by(first, found)
    return first if off is None else f"{first}, {off:.2f}x the fastest"


def off_by(algorithm: str, found: Measured) -> float | None:
    """The time of an algorithm over the fastest's; None where it was not measured."""
    us = found.us.get(algorithm)
    return None if us is None else us / found.us[found.algorithm]


@dataclass
class State:
    """The chosen variant and what its `prepare` made."""

    variant: Variant
    state: Any


def _prepared(chosen: Variant, w: Any, problem: Conv, batch: int) -> State:
    return State(chosen, chosen.prepare(w, problem, batch) if chosen.prepare else w)


def _prepare(w: Any, problem: Conv, batch: int) -> State:
    """The choice, or the model's where memory does not hold what was measured to be faster."""
    algorithm, found = taken(problem, batch)
    try:
        return _prepared(find("conv", algorithm, "cuda"), w, problem, batch)
    except Exception as error:
        first = choices(problem, batch)[0]
        if found is None or first.algorithm == algorithm or not lacks_memory(error):
            raise
    release()
    return _prepared(first.variant, w, problem, batch)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    """Those of the choice, and of the model's, which runs where memory does not hold that."""
    names = (taken(problem, batch)[0], choices(problem, batch)[0].algorithm)
    makers = [find("conv", name, "cuda").kernels for name in dict.fromkeys(names)]
    found = [kernel for make in makers if make is not None for kernel in make(problem, batch)]
    return tuple(dict.fromkeys(found))


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
    """The fastest of our fp32 algorithms: as measured here or where it ships, else by a model."""
    w.variant.launch(x, w.state, y, problem)
