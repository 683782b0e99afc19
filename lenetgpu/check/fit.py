"""Checks of a plan against float64 on a few images, with cached results.

`verify_once` checks once per device that its kernels are correct there, on shipped digits with the
shipped weights. `fit` checks that the plan's precision suffices for the user's weights: on digits,
noise, a white image and a blank one, each group relative to its own largest score.
"""

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import PROMISES, Verdict, excusable_flips, judge, largest
from lenetgpu.check.reference import reference_scores
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import nvrtc
from lenetgpu.network import CLASSES, IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan, resolve
from lenetgpu.store import entries
from lenetgpu.store.entries import sources

IMAGES = 331
# Sources that pack weights for kernels and launch them.
PACKERS = ("stages", "gpu", "cpu", "layouts.py", "problems.py", "pipeline.py")


def plan_key(plan: Plan, device: str, dtype: str, batch: int) -> str:
    """Return the cache key of `plan` on a device: input, sources, driver and library versions."""
    facts: list[Any] = [device, dtype, sources(*PACKERS)]
    for bound in plan.stages:
        facts += [bound.name, bound.variant.full_name, str(bound.problem)]
        if bound.variant.kernels is not None:
            for kernel in bound.variant.kernels(bound.problem, batch):
                facts += [nvrtc.source_hash(kernel.source), *map(str, kernel.defines)]
    if plan.device == "cuda":
        facts.append(nvrtc.environment())
    return entries.name_of(facts)


def _as(images: Any, dtype: str) -> Any:
    """Return pixels (N, 28, 28, 1) uint8 as `dtype`, uint8 or float32."""
    return images if dtype == "uint8" else images.astype(np.float32) / np.float32(PIXEL_SCALE)


def _run(plan: Plan, weights: Weights, images: Any, dtype: str, batch: int) -> tuple[Any, Any]:
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


def verify_once(plan: Plan, device: str, dtype: str = "uint8", batch: int = IMAGES) -> bool:
    """Check `plan` on shipped digits unless `device` passed before; raise LenetError if wrong."""
    name = plan_key(plan, device, dtype, batch)
    facts = {"device": device, "dtype": dtype, "batch": batch, "images": IMAGES}
    if facts.items() <= (entries.facts_of("verified", name) or {}).items():
        return False
    images, weights, expected, expected_labels = _shipped(dtype)
    scores, labels = _run(plan, weights, images, dtype, batch)
    verdict = judge(scores, expected, plan.arithmetic)
    flips = (labels != expected_labels) & ~excusable_flips(expected, plan.arithmetic)
    if not verdict.passed or flips.any():
        raise LenetError(
            f"plan {plan.name} is wrong on this device: expected float64's labels of {IMAGES} "
            f"digits, found {int(flips.sum())} others ({verdict}); choose another --plan"
        )
    entries.save("verified", name, facts | {"plan": plan.name})
    return True


DIGITS, NOISE = 64, 4
# Range of the largest score: ten of them are then float32 numbers.
_LEAST, _MOST = 2.0**-116, 2.0**127
Group = tuple[str, slice]


@dataclass(frozen=True)
class Fit:
    """Largest errors of a plan by group and overall, over the largest score of the same images."""

    plan: str
    precision: str
    error: float
    groups: dict[str, float]


def groups(digits: Any, noise: int) -> tuple[Any, list[Group]]:
    """Return `digits` (N, 28, 28, 1) uint8 with more images appended, and the groups to judge."""
    random = np.random.default_rng(0).integers(0, 256, (noise, *IMAGE_SHAPE), dtype=np.uint8)
    white, blank = (np.full((1, *IMAGE_SHAPE), value, np.uint8) for value in (255, 0))
    named = {"digits": digits, "noise": random, "a white image": white, "a blank image": blank}
    ends = np.cumsum([0, *map(len, named.values())]).tolist()
    parts = [(name, slice(*span)) for name, span in zip(named, pairwise(ends), strict=True)]
    return np.concatenate(list(named.values())), parts


def judge_groups(
    parts: list[Group], found: Any, labels: Any, expected: Any, precision: str
) -> dict[str, Verdict]:
    """Judge each group's scores (N, 10) and labels (N,); labels may differ if scores are close."""
    verdicts = {}
    for name, group in parts:
        scores, named = expected[group], labels[group]
        verdict = judge(found[group], scores, precision)
        excused = excusable_flips(scores, precision)
        excused |= _tied(scores, named, verdict.error * (largest(scores) or 1.0))
        flips = int(np.count_nonzero((named != scores.argmax(1)) & ~excused))
        if flips:
            verdict = replace(verdict, passed=False, note=f"{verdict.note}, {flips} labels differ")
        verdicts[name] = verdict
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
def expected_scores(weights: Weights, dtype: str) -> Any:
    """Return float64's scores (70, 10); raise LenetError if they are outside float32's range."""
    scores, _ = reference_scores(looked_at(dtype), weights)
    most = largest(scores)
    if most and not _LEAST <= most <= _MOST:
        limits = f"the largest from {_LEAST:.1e} to {_MOST:.1e}"
        expected = f"weights whose scores fit float32 with a margin, {limits}"
        raise unexpected(weights.source, expected, f"scores of {most:.1e} at most")
    return scores


def digits_read(weights: Weights) -> tuple[int, int]:
    """Return how many shipped digits get their label in fp32 on the CPU, and how many there are."""
    digits = load_dataset(assets.default_digits())
    pipeline = Pipeline(resolve("fp32", "cpu"), weights, len(digits), "uint8")
    return int((pipeline.run(digits.images) == digits.labels).sum()), len(digits)


def judged(plan: Plan, weights: Weights, dtype: str, found: Any, labels: Any) -> Fit:
    """Return the fit of a plan with scores `found` (70, 10); raise LenetError unless it fits."""
    expected = expected_scores(weights, dtype)
    verdicts = judge_groups(_images()[1], found, labels, expected, plan.arithmetic)
    for name, verdict in verdicts.items():
        if not verdict.passed:
            raise LenetError(
                f"plan {plan.name} ({plan.precision}) does not fit {weights.source}: expected "
                f"float64's scores within {verdict.tolerance:.0e} of the largest on {name}, found "
                f"{verdict.error:.1e}{verdict.note}"
            )
    errors = {name: verdict.error for name, verdict in verdicts.items()}
    error = judge(found, expected, plan.arithmetic).error
    return Fit(plan.name, plan.precision, error, errors)


def measure(plan: Plan, weights: Weights, dtype: str, batch: int) -> Fit:
    """Run the images through a pipeline made for passes of `batch`, and judge its output."""
    expected_scores(weights, dtype)
    scores, labels = _run(plan, weights, looked_at(dtype), dtype, batch)
    return judged(plan, weights, dtype, scores, labels)


def fit(
    plan: Plan,
    weights: Weights,
    device: str,
    dtype: str = "uint8",
    batch: int = IMAGES,
    precision: str | None = None,
) -> Fit:
    """Return the fit of `plan` with `weights` in passes of up to `batch` images of `dtype`.

    `device` is the name of the device; a GPU must be current, and is verified first. The result
    is cached. Raises LenetError if the plan is outside its tolerance or wrong on the device, or
    breaks the promise of `precision`, which was requested.
    """
    if plan.device == "cuda":
        verify_once(plan, device, dtype, batch)
    key = plan_key(plan, device, dtype, batch)
    name = entries.name_of([key, plan.name, weights.digest, sources()])
    cached = entries.load("fits", name, Fit)
    if cached is None:
        cached = measure(plan, weights, dtype, batch)
        entries.save("fits", name, cached)
    if precision in PROMISES:
        _require_promise(plan, weights, device, batch, precision, max(cached.groups.values()))
    return cached


def _require_promise(
    plan: Plan, weights: Weights, device: str, batch: int, precision: str, error: float
) -> None:
    """Raise LenetError if `error`, or labels of the shipped digits, break the promise."""
    most, labels = PROMISES[precision]
    broken = f"plan {plan.name} breaks the promise of {precision} with {weights.source}: expected"
    if not error <= most:
        expected = f"float64's scores within {most:.0e} of the largest"
        raise LenetError(f"{broken} {expected}, found {error:.1e}")
    if labels is not None and (found := _differing(plan, weights, device, batch)) > labels:
        expected = f"at most {labels} of the shipped digits labelled unlike plan fp32 does"
        raise LenetError(f"{broken} {expected}, found {found}")


def _differing(plan: Plan, weights: Weights, device: str, batch: int) -> int:
    """Return how many of the 10,000 shipped digits plan fp32, which must fit, labels otherwise.

    float64 would take half a minute. Cached by device, weights and kernels.
    """
    key = plan_key(plan, device, "uint8", 10_000)
    name = entries.name_of([key, plan.name, weights.digest, sources(), "labels"])
    cached = entries.facts_of("fits", name)
    if cached is None:
        exact = resolve("fp32", plan.device)
        fit(exact, weights, device, "uint8", batch)
        digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images)
        passes = digits, "uint8", min(batch, len(digits))
        expected, found = (_run(each, weights, *passes)[1] for each in (exact, plan))
        cached = {"plan": plan.name, "labels": int(np.count_nonzero(found != expected))}
        entries.save("fits", name, cached)
    return int(cached["labels"])
