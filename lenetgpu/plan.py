"""Plans: which variant runs each stage, on which device, in which layouts."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, choose
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.layouts import PRIVATE, convertible, equivalent
from lenetgpu.network import IMAGE_SHAPE, SPANS, STAGE_NAMES, STAGES
from lenetgpu.stages import Variant, find, variants
from lenetgpu.stages.matrix import FAMILIES
from lenetgpu.stages.registry import KINDS, SPAN_KINDS, find_span, refused


def _uniform(family: str) -> dict[str, str]:
    """Map every kind to `family`, or to `tiled` where the family is refused."""
    return {kind: "tiled" if refused(kind, family) else family for kind in KINDS}


_PLANS = json.loads(Path(__file__).with_suffix(".json").read_text())
# plan -> device -> kind (or stage, or span) -> variant or family; kinds are for overridden stages
NAMED: dict[str, dict[str, dict[str, str]]] = {
    "serial": {"cpu": _uniform("serial")},  # CPU variants only
    **{name: {"cpu": _uniform(name), "cuda": _uniform(name)} for name in FAMILIES[1:]},
    **_PLANS["named"],
}
ALIASES: dict[str, str] = _PLANS["former names"]
AUTO = "auto"
# precision -> device -> plans `auto` chooses from, the likely fastest first. On a GPU they are
# measured, and must keep the precision's promise (dispatch/auto.py, PROMISES in check/judge.py);
# without measurements the first supported plan is used
AUTO_PLANS: dict[str, dict[str, list[str]]] = _PLANS["auto"]
# precision -> device -> plans of other precisions that `auto` may select if no less accurate
STAND_INS: dict[str, dict[str, list[str]]] = _PLANS["stand-ins"]
_CONV_PREFERENCE = 10
_CONVERSION_COST = 1000


@dataclass(frozen=True)
class BoundStage:
    """A variant bound to stages: its problem in the chosen layouts and its weights' names."""

    stages: tuple[str, ...]
    variant: Variant
    problem: Any
    weights: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stages' names joined by +."""
        return "+".join(self.stages)


@dataclass(frozen=True)
class Plan:
    """A named choice of variants for one device ("cpu" or "cuda"), in network order."""

    name: str
    device: str
    stages: tuple[BoundStage, ...]

    @property
    def arithmetic(self) -> str:
        """The `precision` of its least precise variant, whose tolerance its own check has."""
        found = {bound.variant.precision for bound in self.stages}
        return next((p for p in reversed(PRECISIONS) if p in found), PRECISIONS[0])

    @property
    def all_on_gpu(self) -> bool:
        """True if every stage runs on a GPU."""
        return all(bound.variant.needs.device == "cuda" for bound in self.stages)

    @property
    def precision(self) -> str:
        """The precision that a user requests it by."""
        return requested_as(self.arithmetic)


# of variants, the most precise first; a user may request all but those of _REQUESTED_AS
PRECISIONS = ("fp32", "fp16x3", "tf32x3", "tf32", "fp16", "fp16w", "int8", "int8s")
# Winograd in fp16 and sparse int8 have tolerances of their own, and are requested as fp16 and int8
_REQUESTED_AS = {"fp16w": "fp16", "int8s": "int8"}


def requested_as(precision: str) -> str:
    """Return the precision that a user requests a variant of `precision` by; accepts old names."""
    return _REQUESTED_AS.get(precision, precision)


def canonical(name: str) -> str:
    """Return the current name of a renamed plan; other names unchanged."""
    return ALIASES.get(name, name)


def runnable_plans(device: str, gpu: Gpu | None) -> list[str]:
    """Return the names of the plans that this device supports."""
    supported = []
    for name in NAMED:
        with suppress(LenetError):
            resolve(name, device, gpu=gpu)
            supported.append(name)
    return supported


def resolved_name(plan: Plan, gpu: Gpu | None) -> str:
    """Return the name of the plan that `auto` resolved to, or the plan's own name."""
    for name in runnable_plans(plan.device, gpu) if plan.name == AUTO else ():
        if resolve(name, plan.device, gpu=gpu).stages == plan.stages:
            return name
    return plan.name


def _negotiate(chosen: list[BoundStage]) -> list[BoundStage]:
    """Choose the stages' layouts so that the fewest conversions are needed."""
    best: dict[str, tuple[int, list[BoundStage]]] = {"NHWC": (0, [])}
    shape: tuple[int, ...] = IMAGE_SHAPE
    for bound in chosen:
        following: dict[str, tuple[int, list[BoundStage]]] = {}
        variant = bound.variant
        weight = _CONV_PREFERENCE if variant.kind in ("conv", *SPAN_KINDS) else 1
        for (at, (cost, before)), (i, reads), (j, writes) in product(
            best.items(), enumerate(variant.reads), enumerate(variant.writes)
        ):
            problem = replace(bound.problem, reads=reads, writes=writes)
            if variant.refusal(problem) is not None:
                continue
            same = equivalent(at, reads, shape)
            if not same and not convertible(at, reads):
                continue
            convert = 0 if same else _CONVERSION_COST
            total = cost + convert + weight * (i + j)
            if writes not in following or total < following[writes][0]:
                following[writes] = (total, [*before, replace(bound, problem=problem)])
        if not following:
            refused = variant.refusal(bound.problem) or (
                f"reads {' or '.join(variant.reads)}, which the previous stage does not write"
            )
            raise LenetError(f"variant {variant.full_name} of stage {bound.name} {refused}")
        best, shape = following, bound.problem.out_shape
    return min(best.values(), key=lambda entry: entry[0])[1]


def _bound_span(
    index: int, mapping: Mapping[str, str], overrides: Mapping[str, str], device: str
) -> BoundStage | None:
    """Return the span that starts at stage `index` if the plan or the user chose one."""
    first = STAGES[index].name
    for span in SPANS:
        name = overrides.get(first, mapping.get(span.name))
        if span.stages[0] != first or name is None:
            continue
        variant = find_span(span.kind, name, device)
        if variant is None:
            continue
        # an override in one fused span splits both, because they share a private layout
        private = {*variant.reads, *variant.writes} & {*PRIVATE}
        if first in overrides:
            inside = [name for name in span.stages[1:] if name in overrides]
            if inside:
                raise LenetError(
                    f"stage {inside[0]}: variant {variant.full_name} of {first} includes it; "
                    f"give only one of --{first} and --{inside[0]}"
                )
        elif any(name in overrides for name in (STAGE_NAMES if private else span.stages)):
            continue
        return BoundStage(span.stages, variant, span.problem, span.weights)
    return None


def _bind(names: Mapping[str, str], overrides: Mapping[str, str], device: str) -> list[BoundStage]:
    chosen: list[BoundStage] = []
    index = 0
    while index < len(STAGES):
        bound = _bound_span(index, names, overrides, device)
        if bound is None:
            stage = STAGES[index]
            choice = overrides.get(stage.name, names.get(stage.name) or names[stage.kind])
            variant = find(stage.kind, choice, device, stage.name)
            bound = BoundStage((stage.name,), variant, stage.problem, stage.weights)
        chosen.append(bound)
        index += len(bound.stages)
    return chosen


def _resolve_auto(
    device: str, overrides: Mapping[str, str], precision: str | None, gpu: Gpu | None
) -> Plan:
    """Return the first of AUTO_PLANS that the device supports, named `auto`."""
    *names, last = _auto_names(device, precision or PRECISIONS[0])
    for name in names:
        with suppress(LenetError):
            return replace(resolve(name, device, overrides, precision, gpu), name=AUTO)
    return replace(resolve(last, device, overrides, precision, gpu), name=AUTO)


def _auto_names(device: str, precision: str) -> list[str]:
    names = AUTO_PLANS.get(precision, {}).get(device, [])
    if not names:
        have = [p for p, devices in AUTO_PLANS.items() if device in devices]
        raise LenetError(
            f"precision {precision!r}: expected {', '.join(have)} for plan auto on {device}"
        )
    return names


def stand_ins(device: str, precision: str) -> list[str]:
    """Return plans of another precision that `auto` uses where they are as accurate (STAND_INS)."""
    return STAND_INS.get(precision, {}).get(device, [])


def may_settle(device: str, precision: str) -> set[str]:
    """Return the plans that `auto` may settle on if `precision` is requested; more precise too."""
    known = device in AUTO_PLANS.get(precision := requested_as(precision), {})
    finer = PRECISIONS[: PRECISIONS.index(precision) + 1] if known else ()
    tables = [table.get(kind, {}) for table in (AUTO_PLANS, STAND_INS) for kind in finer]
    return {name for table in tables for name in table.get(device, ())}


def auto_plans(device: str, precision: str, gpu: Gpu | None) -> dict[str, Plan]:
    """Return the supported plans for `auto`, STAND_INS last; raise LenetError if there are none."""
    plans: dict[str, Plan] = {}
    refusal = None
    for name in _auto_names(device, precision) + stand_ins(device, precision):
        try:
            plans[name] = resolve(name, device, gpu=gpu)
        except LenetError as error:
            refusal = error
    if not plans and refusal is not None:
        raise refusal
    return plans


def resolve(
    name: str,
    device: str,
    overrides: Mapping[str, str] | None = None,
    precision: str | None = None,
    gpu: Gpu | None = None,
) -> Plan:
    """Return the plan called `name` (current or old name) for `device`.

    `overrides` maps stage names to variants or families. Raises LenetError with the valid choices
    if a plan, stage, variant or precision does not exist there or a variant needs a newer GPU.
    """
    name, overrides = canonical(name), dict(overrides or {})
    precision = precision and requested_as(precision)
    if name != AUTO and name not in NAMED:
        raise LenetError(f"plan {name!r} does not exist; {choose(name, [*NAMED, AUTO])}")
    for stage in overrides:
        if stage not in STAGE_NAMES:
            raise LenetError(f"stage {stage!r} does not exist; {choose(stage, STAGE_NAMES)}")
    if name == AUTO:
        return _resolve_auto(device, overrides, precision, gpu)
    mapping = NAMED[name].get(device)
    if mapping is None:
        supported = [plan for plan, devices in NAMED.items() if device in devices]
        raise LenetError(
            f"plan {name} requires a {'GPU' if device == 'cpu' else 'CPU'} and does not run on "
            f"{device}; choose from: {', '.join([*supported, AUTO])}"
        )
    chosen = _bind(mapping, overrides, device)
    for bound in chosen:
        needs = bound.variant.needs
        if gpu is not None and needs.device == "cuda" and not needs.met_by(gpu):
            later = "" if needs.exact else " or later"
            raise LenetError(
                f"variant {bound.variant.full_name} of stage {bound.name}: expected a GPU of "
                f"compute capability {needs.compute_capability / 10:.1f}{later}, "
                f"found {gpu.compute_capability / 10:.1f}"
            )
    plan = Plan(name, device, tuple(_negotiate(chosen)))
    if precision not in (None, plan.precision):
        available = {requested_as(variant.precision) for variant in variants(device=device)}
        raise LenetError(
            f"precision {precision}: plan {name} on {device} computes in {plan.precision}; "
            f"available there: {', '.join(p for p in PRECISIONS if p in available)}"
        )
    return plan


def choose_device(wanted: str, plan: str = AUTO) -> tuple[Gpu | None, str]:
    """Return the GPU for auto, cpu, cuda or cuda:K (None: the CPU) and the reason as text."""
    if wanted == "cpu":
        return None, "requested"
    if wanted == "auto":
        devices = NAMED.get(canonical(plan))
        if devices is not None and "cuda" not in devices:
            return None, f"plan {plan} runs on the CPU"
        gpus = gpu_device.driver_gpus()
        if not gpus:
            return None, "no NVIDIA GPU found"
        if not gpu_device.cupy_installed():
            return None, f"{gpus[0].name} found, but CuPy is missing: {gpu_device.INSTALL_HINT}"
        return gpus[0], "NVIDIA GPU found"
    match = re.fullmatch("cuda(?::([0-9]{1,9}))?", wanted)
    if match is None:
        raise LenetError(f"device {wanted!r}: expected auto, cpu, cuda or cuda:K")
    return gpu_device.require_gpu(int(match[1] or 0)), "requested"
