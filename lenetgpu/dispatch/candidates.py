"""Candidates of a comparison: the variants of a stage or a span, and the plans."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from lenetgpu.check.reference import Reference
from lenetgpu.errors import LenetError, choose
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.bench import Bench, PlanBench, StageBench, stage_of
from lenetgpu.measure.rounds import BREAKS, Candidate, never
from lenetgpu.network import CONV_POOL, SPANS, STAGE_NAMES
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import AUTO, AUTO_PLANS, NAMED, Plan, canonical, requested_as, resolve
from lenetgpu.stages import find, variants
from lenetgpu.stages.registry import find_span

PLANS = "plans"


def comparable() -> list[str]:
    """Return the names that can be compared: stages, spans of convolution and pool, and "plans"."""
    return [*STAGE_NAMES, *(span.name for span in SPANS if span.kind == CONV_POOL), PLANS]


def check_comparable(what: str) -> None:
    """Raise LenetError unless `what` is one of `comparable`."""
    names = comparable()
    if what not in names:
        raise LenetError(f"{what!r} cannot be compared; {choose(what, [*names, '--suite NAME'])}")


def stage_candidates(
    stage: str, device: str, n: int, facts: Reference, gpu: Gpu | None
) -> list[Candidate]:
    """Return a stage's variants on this device, waiting or refused; raise LenetError if none."""
    check_comparable(stage)
    unit = stage_of(stage)
    found = []
    for variant in variants(unit.kind, device):
        if gpu is not None and not variant.needs.met_by(gpu):
            continue
        build = partial(StageBench, variant, unit, n, facts)
        candidate = Candidate(variant.full_name, build, requested_as(variant.precision))
        with suppress(*BREAKS):  # reported when the candidate is built
            if isinstance(refusal := variant.laid_out(unit.problem), str):
                candidate = replace(candidate, build=never, status="refused", note=refusal)
        found.append(candidate)
    if all(candidate.status == "refused" for candidate in found):
        raise LenetError(f"stage {stage} has no variant on {device}")
    return found


def plan_candidates(
    device: str,
    images: Any,
    facts: Reference,
    weights: Weights,
    gpu: Gpu | None,
    say: Callable[[str], None],
) -> list[Candidate]:
    """Return every named plan that runs on this device."""

    def build(plan: Plan) -> Bench:
        return PlanBench(Pipeline(plan, weights, len(images), str(images.dtype)), images, facts)

    found = []
    for name in (name for name, devices in NAMED.items() if device in devices):
        try:
            plan = resolve(name, device, gpu=gpu)
        except LenetError as error:
            say(f"{name} left out: {error}")
        else:
            found.append(Candidate(name, partial(build, plan), plan.precision))
    return found


def only(wanted: str, candidates: list[Candidate], always: Iterable[str]) -> list[Candidate]:
    """Return `always` and the candidates that `wanted` names; raise LenetError for others."""
    names = [candidate.name for candidate in candidates]
    selected = set(always)
    for word in (part.strip() for part in wanted.split(",")):
        found = {canonical(word)}.intersection(names)
        found = found or {name for name in names if name.partition(".")[0] == word}
        if not found:
            raise LenetError(f"--only {word!r}: expected names from {', '.join(names)}")
        selected |= found
    return [candidate for candidate in candidates if candidate.name in selected]


def default_baseline(what: str, device: str, candidates: list[Candidate]) -> str:
    """Return the plan that `auto` runs, or its variant of the stage, else the first candidate."""
    names = [candidate.name for candidate in candidates]
    if what == PLANS:
        same = list(AUTO_PLANS["fp32"][device])
    else:
        plans = [AUTO, *AUTO_PLANS["fp32"]["cpu"]] if device == "cpu" else [AUTO]
        same = [bound.variant.full_name for plan in plans for bound in resolve(plan, device).stages
                if bound.name == what]  # fmt: skip
    return next((name for name in same if name in names), names[0])


def check_plan_baseline(wanted: str, device: str) -> None:
    """Raise LenetError if the baseline `wanted` is a plan that does not run on `device`."""
    if canonical(wanted) in NAMED:
        resolve(canonical(wanted), device)


def resolve_baseline(what: str, device: str, wanted: str, candidates: list[Candidate]) -> str:
    """Return the candidate that `wanted` names, also by family; raise LenetError if none."""
    names = [candidate.name for candidate in candidates]
    wanted = canonical(wanted) if what == PLANS else wanted
    if wanted not in names and what != PLANS:
        kind, span = stage_of(what).kind, "+" in what
        variant = find_span(kind, wanted, device) if span else find(kind, wanted, device, what)
        wanted = wanted if variant is None else variant.full_name
    if wanted not in names:
        raise LenetError(f"--baseline {wanted} is no candidate; {choose(wanted, names)}")
    return wanted
