"""Checks of a plan against float64 on a few images, with cached results.

`verify_once` checks that a GPU runs the kernels correctly: the project tests them on its own GPUs,
and a user may have another model. The first time a plan runs on a device, a few of the shipped
digits pass through it with the shipped weights. `fit` checks that the plan's precision is
sufficient for the user's weights: on digits, noise, a white image and a blank one. Each group of
images is judged relative to its own largest score.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import Verdict, excusable_flips, judge, largest
from lenetgpu.check.reference import reference_scores
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import nvrtc
from lenetgpu.network import CLASSES, IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan
from lenetgpu.store import entries
from lenetgpu.store.entries import sources

IMAGES = 331
# Sources that pack weights for kernels and launch them.
PACKERS = ("stages", "gpu", "cpu", "layouts.py", "problems.py", "pipeline.py")


def _hash(facts: list[object]) -> str:
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def plan_key(plan: Plan, device: str, dtype: str, batch: int) -> str:
    """Return the cache key of `plan` on `device` with this input, in passes of up to `batch`.

    The key changes with the source of any kernel that such passes launch, with the Python code
    that packs weights and launches kernels, and with the versions of the driver and the
    libraries.
    """
    facts: list[object] = [device, dtype, sources(*PACKERS)]
    for bound in plan.stages:
        facts += [bound.name, bound.variant.full_name, str(bound.problem)]
        if bound.variant.kernels is not None:
            for kernel in bound.variant.kernels(bound.problem, batch):
                facts += [nvrtc.source_hash(kernel.source), *map(str, kernel.defines)]
    if plan.device == "cuda":
        facts.append(nvrtc.environment())
    return _hash(facts)


def _as(images: Any, dtype: str) -> Any:
    """Return pixels (N, 28, 28, 1) uint8 as `dtype`, uint8 or float32."""
    return images if dtype == "uint8" else images.astype(np.float32) / np.float32(PIXEL_SCALE)


def _ran(plan: Plan, weights: Weights, images: Any, dtype: str, batch: int) -> tuple[Any, Any]:
    """Return (scores, labels) of `images` from a poisoned pipeline made for passes of `batch`."""
    pipeline = Pipeline(plan, weights, max(batch, len(images)), dtype, batch)
    pipeline.poison()
    on_gpu = plan.device == "cuda"
    labels = pipeline.run(cupy.asarray(images)).get() if on_gpu else pipeline.run(images).copy()
    return pipeline.scores(len(images)), labels


@cache
def _shipped(dtype: str) -> tuple[Any, Weights, Any, Any]:
    """Return IMAGES digits as `dtype`, the shipped weights, and float64's scores and labels."""
    images = _as(np.ascontiguousarray(load_dataset(assets.default_digits()).images[:IMAGES]), dtype)
    weights = load_weights(assets.default_weights())
    return images, weights, *reference_scores(images, weights)


def verify(plan: Plan, dtype: str, batch: int) -> None:
    """Compare `plan` with float64 on IMAGES shipped digits as `dtype` ("uint8" or "float32").

    The digits pass through a pipeline made for passes of `batch` images. Choices that a variant
    makes when it is prepared are those of such a pass; choices that depend on the images of a
    launch are those for IMAGES. Raises LenetError if the plan is wrong.
    """
    images, weights, expected, labels = _shipped(dtype)
    scores, found = _ran(plan, weights, images, dtype, batch)
    verdict = judge(scores, expected, plan.precision)
    flips = (found != labels) & ~excusable_flips(expected, plan.precision)
    if not verdict.passed or flips.any():
        raise LenetError(
            f"plan {plan.name} is wrong on this device: expected float64's labels of {IMAGES} "
            f"digits, found {int(flips.sum())} others ({verdict}); choose another --plan"
        )


def verify_once(plan: Plan, device: str, dtype: str = "uint8", batch: int = IMAGES) -> bool:
    """Run `verify` unless the same kernels passed on `device` before; return True if it ran.

    Raises LenetError if the plan is wrong.
    """
    name = plan_key(plan, device, dtype, batch)
    facts = {"device": device, "dtype": dtype, "batch": batch, "images": IMAGES}
    said = entries.facts_of("verified", name)
    if said is not None and {fact: said.get(fact) for fact in facts} == facts:
        return False
    verify(plan, dtype, batch)
    entries.save("verified", name, facts | {"plan": plan.name})
    return True


DIGITS, NOISE = 64, 4
# Range of the largest score: ten of them are then float32 numbers.
_LEAST, _MOST = 2.0**-116, 2.0**127

Group = tuple[str, slice]


@dataclass(frozen=True)
class Fit:
    """Errors of a plan with given weights: the largest by group, and the largest overall.

    An error in `groups` is relative to the group's largest score, `error` to the largest score
    overall.
    """

    plan: str
    precision: str
    error: float
    groups: dict[str, float]


def groups(digits: Any, noise: int) -> tuple[Any, list[Group]]:
    """Return `digits` (N, 28, 28, 1) uint8 with more images appended, and the groups to judge."""
    random = np.random.default_rng(0).integers(0, 256, (noise, *IMAGE_SHAPE), dtype=np.uint8)
    flat = [np.full((1, *IMAGE_SHAPE), value, np.uint8) for value in (255, 0)]
    named = {"digits": digits, "noise": random, "a white image": flat[0], "a blank image": flat[1]}
    parts, at = [], 0
    for name, part in named.items():
        parts.append((name, slice(at, at + len(part))))
        at += len(part)
    return np.concatenate(list(named.values())), parts


def judge_groups(
    parts: list[Group], found: Any, labels: Any, expected: Any, precision: str
) -> dict[str, Verdict]:
    """Judge each group's scores `found` (N, 10) and `labels` (N,) against float64's `expected`.

    A label may differ where the scores lie within the tolerance or tie.
    """
    verdicts = {}
    for name, where in parts:
        verdict = judge(found[where], expected[where], precision)
        scores, named = expected[where], labels[where]
        excused = excusable_flips(scores, precision)
        excused |= _tied(scores, named, verdict.error * (largest(scores) or 1.0))
        flips = (named != scores.argmax(1)) & ~excused
        count = int(np.count_nonzero(flips))
        note = verdict.note + (f", {count} labels differ" if count else "")
        passed = verdict.passed and not count
        verdicts[name] = Verdict(passed, verdict.error, verdict.tolerance, note)
    return verdicts


def _tied(scores: Any, labels: Any, error: float) -> Any:
    """Mark `labels` (N,) whose float64 score ties with the best (2 * `error`, or as float32)."""
    known = (labels >= 0) & (labels < CLASSES)
    best = scores.max(1)
    named = scores[np.arange(len(scores)), np.where(known, labels, 0)]
    near = (best - named <= 2 * error) | (best.astype(np.float32) == named.astype(np.float32))
    return known & near


@cache
def _images() -> tuple[Any, list[Group]]:
    return groups(load_dataset(assets.default_digits()).images[:DIGITS], NOISE)


def looked_at(dtype: str = "uint8") -> Any:
    """Return the images (70, 28, 28, 1) that a plan is judged on."""
    return _as(_images()[0], dtype)


@lru_cache(maxsize=2)
def _scores(weights: Weights, dtype: str) -> Any:
    scores, _ = reference_scores(looked_at(dtype), weights)
    return scores


def expected_scores(weights: Weights, dtype: str) -> Any:
    """Return float64's scores (70, 10); raise LenetError if they are outside float32's range."""
    scores = _scores(weights, dtype)
    most = largest(scores)
    if most and not _LEAST <= most <= _MOST:
        raise LenetError(
            f"{weights.source}: expected weights whose scores float32 holds with a margin, the "
            f"largest from {_LEAST:.1e} to {_MOST:.1e}, found scores of {most:.1e} at most"
        )
    return scores


def judged(plan: Plan, weights: Weights, dtype: str, found: Any, labels: Any) -> Fit:
    """Return the fit of a plan that produced scores `found` (70, 10) and `labels` (70,).

    Raises LenetError if a group is outside the tolerance of the plan's precision.
    """
    expected = expected_scores(weights, dtype)
    verdicts = judge_groups(_images()[1], found, labels, expected, plan.precision)
    for name, verdict in verdicts.items():
        if not verdict.passed:
            raise LenetError(
                f"plan {plan.name} ({plan.precision}) does not fit {weights.source}: expected "
                f"float64's scores within {verdict.tolerance:.0e} of the largest on {name}, found "
                f"{verdict.error:.1e}{verdict.note}"
            )
    overall = judge(found, expected, plan.precision).error
    errors = {name: verdict.error for name, verdict in verdicts.items()}
    return Fit(plan.name, plan.precision, overall, errors)


def measure(plan: Plan, weights: Weights, dtype: str, batch: int) -> Fit:
    """Run the images through a pipeline made for passes of `batch`, and judge its output.

    On a GPU, it runs on the current one. Raises LenetError if a group is outside the tolerance.
    """
    expected_scores(weights, dtype)
    scores, labels = _ran(plan, weights, looked_at(dtype), dtype, batch)
    return judged(plan, weights, dtype, scores, labels)


def fit(plan: Plan, weights: Weights, device: str, dtype: str = "uint8", batch: int = 331) -> Fit:
    """Return the fit of `plan` with `weights` in passes of up to `batch` images of `dtype`.

    `device` is the device's name; a GPU must be the current one, and is verified first. The
    result is cached per kernels and weights. Raises LenetError if the plan is outside its
    tolerance or wrong on the device.
    """
    if plan.device == "cuda":
        verify_once(plan, device, dtype, batch)
    name = _hash([plan_key(plan, device, dtype, batch), plan.name, weights.digest, sources()])
    found = entries.load("fits", name, Fit)
    if found is None:
        found = measure(plan, weights, dtype, batch)
        entries.save("fits", name, found)
    return found
