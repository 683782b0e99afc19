"""Dispatch of the fastest fp32 convolution of a shape: by measured times, else by the cost model.

`decide` is the only dispatch function: `best.fp32`, `conv --explain`, `conv --tune` and `--as` call
it. Candidates come from `algorithms.py`, measured rows from `measured.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lenetgpu.dispatch import algorithms, measured
from lenetgpu.dispatch.algorithms import KINDS, TENSOR, TILED, WINOGRAD, Choice, possible, why_none
from lenetgpu.dispatch.measured import SHIPS, Measured
from lenetgpu.errors import LenetError
from lenetgpu.gpu import machines
from lenetgpu.gpu.faults import lacks_memory, release
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import implicit
from lenetgpu.stages.conv.tuned import direct
from lenetgpu.stages.registry import Rows, Variant, conv_variant, find

_LEAST_MEMORY = ("direct.tuned", "tensor.wgmma_tf32x3")  # almost no workspace
FURTHER = 4  # tilings that `conv --tune` times in addition to the cost model's own
# Predicted speed-up over the fastest measured algorithm from which an untried one is dispatched:
# on the shipped table the model's choices are at most 1.4 times slower, 1.02 times on average.
CLAIM = 1.3


@dataclass(frozen=True)
class Decision:
    """The algorithm that `best.fp32` runs, the row that decides, if any, and the model's choice."""

    algorithm: str
    row: Measured | None
    model: str | None


def decide(problem: Conv, batch: int, machine: Machine) -> Decision:
    """Return what `best.fp32` runs for up to `batch` images on `machine`.

    The nearest measured row whose fastest algorithm is supported decides. An algorithm that no
    near row timed or dropped replaces the choice of a shipped row if the cost model predicts a
    speed-up of CLAIM. In rows measured without the problem's bias, ReLU or dtype, only
    algorithms that support these count. In rows for other images or from a twin GPU, Winograd
    counts only if its predicted error is at most fp32's. Without a row, the cost model decides
    among the algorithms that no row dropped. Raises LenetError if no algorithm is supported.
    """
    near = measured.near(problem, batch, machine)
    rows = [_supported(row, problem, batch, machine) for row in near]
    dropped = {name for row in rows for name in row.dropped}
    names = [choice.algorithm for choice in choices(problem, batch, machine)]
    model = next((name for name in names if name not in dropped), next(iter(names), None))
    tried = {name.partition(TILED)[0] for row in rows for name in (*row.us, *row.dropped)}
    row = next((r for r in rows if _runs(r.algorithm, r, problem, batch, machine)), None)
    if row is not None:
        options = choices(problem, row.images, machine) if row.source == SHIPS else ()
        untried = next((c for c in options if c.algorithm in {*names} - tried), None)
        if untried is not None and CLAIM * untried.us(machine) <= row.us[row.algorithm]:
            return Decision(untried.algorithm, row, model)
        return Decision(row.algorithm, row, model)
    if model is None:
        raise LenetError(f"best.fp32 {why_none(problem, machine)}")
    return Decision(model, None, model)


@cache
def choices(problem: Conv, batch: int, machine: Machine) -> tuple[Choice, ...]:
    """Return the supported algorithms for `batch` images, fastest by the cost model first."""
    found = [
        Choice(name, *cost(problem, batch, machine))
        for name, cost in algorithms.MODELED.items()
        if possible(name, problem, machine, images=batch)
    ]
    return tuple(sorted(found, key=lambda choice: choice.cycles))


def variant_of(algorithm: str) -> Variant:
    """Return the variant that runs an algorithm, with the tiling that follows its name, if any."""
    name, _, word = algorithm.partition(TILED)
    variant = find("conv", name, "cuda")
    if not word:
        return variant
    parts = implicit.parts_of(replace(KINDS[name], word=word))
    return replace(variant, name=algorithm.partition(".")[2], default=False, **parts)


def further(problem: Conv, batch: int, machine: Machine) -> tuple[Variant, ...]:
    """Return variants with the cost model's next best tilings, to be timed too."""
    found = [
        (kind.cycles(product, batch, machine), f"{name}{TILED}{product.word}")
        for name, kind in KINDS.items()
        if possible(name, problem, machine)
        for product in kind.products(problem, batch, machine)[1:]
    ]
    return tuple(variant_of(algorithm) for _, algorithm in sorted(found)[:FURTHER])


def _runs(name: str, row: Measured, problem: Conv, batch: int, machine: Machine) -> bool:
    """Return True if a measured algorithm is supported; Winograd's error is that of its plan."""
    compared = name not in WINOGRAD or row.plans_for(batch)
    return possible(name, problem, machine, compared, batch)


def _supported(row: Measured, problem: Conv, batch: int, machine: Machine) -> Measured:
    """Return a row reduced to supported algorithms if it is of other options, images or GPUs."""
    if not row.lacks and row.plans_for(batch):
        return row
    supported = {
        name: us
        for name, us in row.us.items()
        if _runs(name, row, problem, batch, machine) or not (row.lacks or name in WINOGRAD)
    }
    return replace(row, us=supported or row.us)


def _reason(decision: Decision, problem: Conv, batch: int, machine: Machine) -> tuple[str, str]:
    """Return why an algorithm is dispatched, and its time with that of the next fastest."""
    algorithm, row = decision.algorithm, decision.row
    images = batch if row is None else row.images
    model = {c.algorithm: c.us(machine) for c in choices(problem, images, machine)}
    if row is None:
        words, how, times = "by the model", "predicted", model
    else:
        words, how, times = f"as measured{row.on}", "measured", dict(row.us)
        how += row.on + row.without
        if algorithm != row.algorithm:
            time = f"{times[row.algorithm]:,.2f} us {how} of {row.algorithm}"
            why = f"{model[algorithm]:,.2f} us predicted, not measured yet; {time}"
            return "by the model over what was measured", why
    why = f"{times.pop(algorithm):,.2f} us {how}"
    if times:
        second = min(times, key=times.__getitem__)
        why += f"; {times[second]:,.2f} us of {second}, which is next"
    return words, why


def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
    """Return (name, text) rows on the choice, and the predicted and measured time of each."""
    if why := why_none(problem, machine):
        return [("dispatched", f"none: it {why}")]
    decision, options = decide(problem, batch, machine), choices(problem, batch, machine)
    algorithm, row = decision.algorithm, decision.row
    times: Mapping[str, float] = {} if row is None else row.us

    def time(name: str) -> str:
        return f"; measured {times[name]:,.2f} us" if name in times else ""

    words, because = _reason(decision, problem, batch, machine)
    rows = [("dispatched", f"{algorithm}, {words}"), ("because", because)]
    if row is not None:
        first = options[0].algorithm
        off = row.off(first)
        factor = "" if off is None else f", {off:.2f}x the fastest"
        rows += [("measured on", str(row)), ("the model's choice", first + factor)]
    if algorithm.partition(TILED)[0] in TENSOR:
        compared = algorithm in times and (not problem.requires or bool(row and row.lacks))
        sums = f"that of fp32 sums of {problem.gemm_k:,} products"
        if compared:
            error = f"at most {sums}, as measured"
        elif problem.gemm_k < algorithms.EXACT_FROM:
            error = f"up to {algorithms.FEW_ERROR} times {sums}"
        else:
            error = f"at most {sums}, as from {algorithms.EXACT_FROM} on"
        rows.append(("its error", error))
    for option in options:
        figure = f"{option.us(machine):,.2f} us by the model, {option.cycles:,.0f} cycles"
        product = "" if option.product is None else f"; {option.product}"
        rows.append((option.algorithm, figure + time(option.algorithm) + product))
    rows += [(name, f"a tiling of it{time(name)}") for name in times if TILED in name]
    for name in algorithms.MEASURED_ONLY:
        if name in times or possible(name, problem, machine):
            rows.append((name, f"no model{time(name) or '; not measured'}"))
    for name in (*TENSOR, *WINOGRAD):
        if name in times and name not in {option.algorithm for option in options}:
            no = "no model of so few products"
            if name in WINOGRAD:
                no = algorithms.why_not(name, problem, machine, images=batch) or ""
            rows.append((name, no + time(name)))
    fits = (n for n in WINOGRAD if find("conv", n, "cuda").refusal(problem) is None)
    requested = algorithms.MODELED if problem.requires else (*TENSOR, *fits)
    refused = {
        name: algorithms.why_not(name, problem, machine, name in times, batch) for name in requested
    }
    return rows + [(name, f"refused, {why}") for name, why in refused.items() if why]


@dataclass
class State:
    """The dispatched variant, its prepared state, and a sentence on the choice and its reason."""

    variant: Variant
    state: Any
    says: str


def _in_turn(decision: Decision, problem: Conv) -> tuple[str, ...]:
    """Return the dispatched algorithm, and others to try in turn if memory runs out."""
    names = [decision.algorithm]
    if decision.row is not None:
        names += [decision.row.algorithm, *filter(None, [decision.model])]
    if any(name.partition(TILED)[0] in KINDS for name in names):
        machine = machines.current()
        names += [name for name in _LEAST_MEMORY if possible(name, problem, machine)][:1]
    return tuple(dict.fromkeys(names))


def _prepare(w: Any, problem: Conv, batch: int) -> State:
    """Prepare the dispatched algorithm, or its first fallback that fits in memory."""
    machine = machines.current()
    decision = decide(problem, batch, machine)
    *others, last = _in_turn(decision, problem)

    def prepared(algorithm: str) -> State:
        variant = variant_of(algorithm)
        state = variant.prepare(w, problem, batch) if variant.prepare else w
        why = "memory holds no other"
        if algorithm == decision.algorithm:
            _, why = _reason(decision, problem, batch, machine)
        return State(variant, state, f"runs {algorithm}, {why}")

    for algorithm in others:
        try:
            return prepared(algorithm)
        except Exception as error:
            if not lacks_memory(error):
                raise
        release()
    return prepared(last)


def _kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    """Return the kernels of the dispatched algorithm and of its fallbacks."""
    decision = decide(problem, batch, machines.current())
    makers = [variant_of(name).kernels for name in _in_turn(decision, problem)]
    kernels = [kernel for make in makers if make is not None for kernel in make(problem, batch)]
    return tuple(dict.fromkeys(kernels))


def refusal(problem: Conv) -> str | None:
    """Return why no algorithm supports the problem (on the current GPU, with options), or None."""
    if problem.requires or (problem.reads, problem.writes) != ("NCHW", "NCHW"):
        return why_none(problem, machines.current())
    return direct.refusal(problem)


@conv_variant(
    family="best",
    reads=("NCHW", "NHWC"),
    writes=("NCHW", "NHWC"),
    prepare=_prepare,
    kernels=_kernels,
    options="bias relu fp16 bf16",
    supports=refusal,
    explain=explain,
    default=True,
)
def fp32(x: Any, w: State, y: Any, problem: Conv) -> None:
    """The fastest of our algorithms of fp32 accuracy: as measured, else by a model."""
    w.variant.launch(x, w.state, y, problem)
