"""The fastest fp32 convolution for a shape: the algorithm that was measured so, else a model's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lenetgpu.dispatch import measured
from lenetgpu.dispatch.measured import SHIPS, Measured
from lenetgpu.dispatch.possible import (
    EXACT_FROM,
    FEW_ERR,
    MEASURED_ONLY,
    TILED,
    no_taker,
    possible,
    why_not,
)
from lenetgpu.dispatch.prices import KINDS, PRICED, TENSOR, WINOGRAD, Choice
from lenetgpu.errors import LenetError
from lenetgpu.gpu import machines
from lenetgpu.gpu.faults import lacks_memory, release
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import implicit
from lenetgpu.stages.conv.tuned import direct
from lenetgpu.stages.registry import Rows, Variant, cuda, find, variant

_NEXT_TO_NONE = ("direct.tuned", "tensor.wgmma_tf32x3")  # of memory beside images and filters
FURTHER = 4
"""Tilings that `conv --tune` tries beside the model's own."""
CLAIM = 1.3
"""How many times faster than what was measured the model must promise an algorithm to be.

By choosing with it the model loses 1.4 times on the table that ships at most, 1.02 on average.
"""


def variant_of(algorithm: str) -> Variant:
    """The variant that runs an algorithm, by the tiling that stands behind its name."""
    name, _, word = algorithm.partition(TILED)
    found = find("conv", name, "cuda")
    if not word:
        return found
    own = implicit.parts_of(replace(KINDS[name], word=word))
    return replace(found, name=algorithm.partition(".")[2], default=False, **own)


def further(problem: Conv, batch: int, machine: Machine | None = None) -> tuple[Variant, ...]:
    """The tilings that the model finds next after those that variants take, to be measured too."""
    machine = machine or machines.current()
    found = [
        (kind.clocks(product, batch, machine), f"{name}{TILED}{product.word}")
        for name, kind in KINDS.items()
        if possible(name, problem, machine)
        for product in kind.products(problem, batch, machine)[1:]
    ]
    return tuple(variant_of(algorithm) for _, algorithm in sorted(found)[:FURTHER])


def choices(problem: Conv, batch: int, machine: Machine | None = None) -> tuple[Choice, ...]:
    """What could solve `problem` for `batch` images, the fastest by the model first.

    On `machine`, or on the current one. Empty where `no_taker` says why.
    """
    return _choices(problem, batch, machine or machines.current())


@cache
def _choices(problem: Conv, batch: int, machine: Machine) -> tuple[Choice, ...]:
    found = [
        Choice(name, *price(problem, batch, machine))
        for name, price in PRICED.items()
        if possible(name, problem, machine, images=batch)
    ]
    return tuple(sorted(found, key=lambda choice: choice.clocks))


def taken(problem: Conv, batch: int, machine: Machine | None = None) -> tuple[str, Measured | None]:
    """The algorithm that `best.fp32` runs for up to `batch` images, and what was measured of it.

    None where the model decides: where nothing was measured for about as many images, or what was
    the fastest then is not possible here. The algorithm is another than was measured to be the
    fastest where the table that ships has no time of it, nor another run of about as many images,
    and the model promises CLAIM. What such a run dropped is not taken. Of what was measured without
    the problem's bias, ReLU or dtype, algorithms that take these count; of what was measured for
    other images or on a twin, Winograd that errs no more by the model. LenetError where none does.
    """
    machine = machine or machines.current()
    near = measured.near(problem, batch, machine)
    rows = [_taking(found, problem, batch, machine) for found in near]
    for found in rows:
        if _runs(found.algorithm, found, problem, batch, machine):
            tried = {n.partition(TILED)[0] for row in rows for n in (*row.us, *row.dropped)}
            first = _promising(problem, batch, found, machine, tried)
            return found.algorithm if first is None else first.algorithm, found
    return _by_model(problem, batch, machine, rows), None


def _as_it_runs(found: Measured, batch: int) -> bool:
    """Whether it was measured on this GPU's name and as many images: plans, and errors, are its."""
    return found.images == batch and not found.twin


def _runs(name: str, found: Measured, problem: Conv, batch: int, machine: Machine) -> bool:
    """Whether what was measured may run for `batch` images; Winograd's errors hold for its plan."""
    compared = name not in WINOGRAD or _as_it_runs(found, batch)
    return possible(name, problem, machine, compared, batch)


def _taking(found: Measured, problem: Conv, batch: int, machine: Machine) -> Measured:
    """What was measured of those that may run, where it was of other wants, images or GPUs."""
    if not found.lacks and _as_it_runs(found, batch):
        return found
    held = {
        name: us
        for name, us in found.us.items()
        if _runs(name, found, problem, batch, machine) or not (found.lacks or name in WINOGRAD)
    }
    return replace(found, us=held or found.us)


def _by_model(problem: Conv, batch: int, machine: Machine, rows: Iterable[Measured]) -> str:
    """The fastest by the model of those that no row dropped; where each was, of all."""
    names = [choice.algorithm for choice in choices(problem, batch, machine)]
    if not names:
        raise LenetError(f"best.fp32 {no_taker(problem, machine)}")
    dropped = {name for row in rows for name in row.dropped}
    return next((name for name in names if name not in dropped), names[0])


def _promising(
    problem: Conv, batch: int, found: Measured, machine: Machine, tried: Collection[str]
) -> Choice | None:
    """What is not among those `tried` and should be faster than all the table that ships has."""
    if found.source != SHIPS:
        return None
    rest = {option.algorithm for option in choices(problem, batch, machine)}.difference(tried)
    options = choices(problem, found.images, machine)
    first = next((option for option in options if option.algorithm in rest), None)
    if first is None or CLAIM * first.us(machine) > found.us[found.algorithm]:
        return None
    return first


def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Why `best.fp32` runs what it runs: (what, figure) for the choice and every algorithm.

    Of each what the model predicts and, where there is one, the time that was measured.
    """
    why = no_taker(problem, machine)
    if why is not None:
        return [("chosen", f"none: it {why}")]
    chosen, found = taken(problem, batch, machine)
    options = choices(problem, batch, machine)
    times: Mapping[str, float] = {} if found is None else found.us
    rows = _chosen(problem, batch, machine)
    if found is not None:
        rows.append(("measured on", str(found)))
        rows.append(("the model would take", _beside(options[0].algorithm, found)))
    if chosen.partition(TILED)[0] in TENSOR:
        compared = chosen in times and (not problem.wants or bool(found and found.lacks))
        rows.append(("its error", _error(problem, compared)))
    for option in options:
        figure = f"{option.us(machine):,.2f} us by the model, {option.clocks:,.0f} clocks"
        figure += _time(times, option.algorithm)
        if option.product is not None:
            figure += f"; {option.product}"
        rows.append((option.algorithm, figure))
    rows += [(name, f"a tiling of it{_time(times, name)}") for name in times if TILED in name]
    for name in MEASURED_ONLY:
        if name in times or possible(name, problem, machine):
            rows.append((name, f"no model{_time(times, name) or '; not measured'}"))
    priced = {option.algorithm for option in options}
    rows += _unpriced(times, priced, problem, batch, machine)
    fits = (n for n in WINOGRAD if find("conv", n, "cuda").refusal(problem) is None)
    asked = PRICED if problem.wants else (*TENSOR, *fits)
    refused = {name: why_not(name, problem, machine, name in times, batch) for name in asked}
    return rows + [(name, f"not taken, {why}") for name, why in refused.items() if why]


def _error(problem: Conv, measured: bool) -> str:
    """What a product on the tensor cores may err, and how that is known."""
    sums = f"fp32 sums of {problem.depth:,} products"
    if measured:
        return f"at most that of {sums}, as measured"
    if problem.depth < EXACT_FROM:
        return f"up to {FEW_ERR} times that of {sums}"
    return f"at most that of {sums}, as from {EXACT_FROM} on"


def _chosen(problem: Conv, batch: int, machine: Machine) -> Rows:
    """What is taken and why: its time, and that of what comes next."""
    algorithm, found = taken(problem, batch, machine)
    images = batch if found is None else found.images
    model = {c.algorithm: c.us(machine) for c in choices(problem, images, machine)}
    if found is None:
        words, times, how = "by the model", model, "predicted"
    elif algorithm == found.algorithm:
        words, times, how = f"as measured{found.on}", dict(found.us), f"measured{found.how}"
    else:
        first = f"{model[algorithm]:,.2f} us predicted, not measured yet"
        time = f"{found.us[found.algorithm]:,.2f} us measured{found.how}"
        why = f"{first}; {time} of {found.algorithm}"
        return [("chosen", f"{algorithm}, by the model over what was measured"), ("because", why)]
    why = f"{times.pop(algorithm):,.2f} us {how}"
    if times:
        second = min(times, key=times.__getitem__)
        why += f"; {times[second]:,.2f} us of {second}, which is next"
    return [("chosen", f"{algorithm}, {words}"), ("because", why)]


def _unpriced(
    times: Mapping[str, float], priced: Collection[str], problem: Conv, batch: int, machine: Machine
) -> Rows:
    """What was measured and has a model, but not of this problem: why not, and its time."""
    rows = []
    for name in (*TENSOR, *WINOGRAD):
        if name in times and name not in priced:
            why = "no model of so few products"
            if name in WINOGRAD:
                why = why_not(name, problem, machine, images=batch) or ""
            rows.append((name, why + _time(times, name)))
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
    """The chosen variant, what its `prepare` made, and in words what was taken and why."""

    variant: Variant
    state: Any
    says: str


def _prepared(algorithm: str, w: Any, problem: Conv, batch: int) -> State:
    chosen = variant_of(algorithm)
    state = chosen.prepare(w, problem, batch) if chosen.prepare else w
    told = dict(_chosen(problem, batch, machines.current()))
    why = told["because"] if algorithm == taken(problem, batch)[0] else "memory holds no other"
    return State(chosen, state, f"takes {algorithm}, {why}")


def _in_turn(problem: Conv, batch: int) -> tuple[str, ...]:
    """The choice, and what stands in where memory does not hold it: measured, then the model's.

    Last, in place of split images for tensor cores, what needs next to no memory beside its own,
    where that takes the problem.
    """
    machine = machines.current()
    algorithm, found = taken(problem, batch)
    names = [algorithm]
    if found is not None:
        rows = measured.near(problem, batch, machine)
        names += [found.algorithm, _by_model(problem, batch, machine, rows)]
    if any(name.partition(TILED)[0] in KINDS for name in names):
        names += [name for name in _NEXT_TO_NONE if possible(name, problem, machine)][:1]
    return tuple(dict.fromkeys(names))


def _prepare(w: Any, problem: Conv, batch: int) -> State:
    """The choice, or the first after it that memory holds."""
    *others, last = _in_turn(problem, batch)
    for algorithm in others:
        try:
            return _prepared(algorithm, w, problem, batch)
        except Exception as error:
            if not lacks_memory(error):
                raise
        release()
    return _prepared(last, w, problem, batch)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    """Those of the choice, and of what runs where memory does not hold that."""
    makers = [variant_of(name).kernels for name in _in_turn(problem, batch)]
    found = [kernel for make in makers if make is not None for kernel in make(problem, batch)]
    return tuple(dict.fromkeys(found))


def refusal(problem: Conv) -> str | None:
    """Why nothing takes the problem, on the current GPU where it is no plain one; or None."""
    return no_taker(problem, machines.current()) if problem.wants else direct.refusal(problem)


@variant(
    kind="conv",
    family="best",
    reads="NCHW",
    writes="NCHW",
    needs=cuda(),
    prepare=_prepare,
    kernels=_kernels,
    takes="bias relu fp16 bf16",
    supports=refusal,
    explain=explain,
    default=True,
)
def fp32(x: Any, w: State, y: Any, problem: Conv) -> None:
    """The fastest of our algorithms of fp32 accuracy: as measured, else by a model."""
    w.variant.launch(x, w.state, y, problem)
