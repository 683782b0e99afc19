"""Is a plan right for these weights? Compared with float64 on a few images, then remembered.

`check/verify.py` asks whether a device runs the kernels right, with the shipped weights. This asks
whether the plan's precision holds the weights at hand: on digits, noise, a white image and a blank
one, each group judged by its own largest score.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from lenetgpu.check.judge import Verdict, excusable_flips, judge, largest
from lenetgpu.check.truth import reference_scores
from lenetgpu.check.verify import plan_key, verify_once
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights
from lenetgpu.network import CLASSES, IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan
from lenetgpu.store import entries
from lenetgpu.store.entries import sources

DIGITS, NOISE = 64, 4
_LEAST, _MOST = 2.0**-116, 2.0**127
"""Between these the largest score must lie: ten of them then are float32 numbers."""

Group = tuple[str, slice]


@dataclass(frozen=True)
class Fit:
    """How a plan does with some weights: its largest error by group, and over all of them.

    An error in `groups` is over the group's largest score, `error` over the largest of all.
    """

    plan: str
    precision: str
    error: float
    groups: dict[str, float]


def groups(digits: Any, noise: int) -> tuple[Any, list[Group]]:
    """`digits` (N, 28, 28, 1) uint8 with more images behind them, and which are judged together."""
    import numpy as np

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
    """A verdict on each group's scores `found` (N, 10) and `labels` (N,); `expected` is float64's.

    A label may differ where the scores lie within the tolerance, or are a tie.
    """
    import numpy as np

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
    """Which of `labels` (N,) float64 scores like the best, to within twice `error` or a float32."""
    import numpy as np

    known = (labels >= 0) & (labels < CLASSES)
    best = scores.max(1)
    named = scores[np.arange(len(scores)), np.where(known, labels, 0)]
    near = (best - named <= 2 * error) | (best.astype(np.float32) == named.astype(np.float32))
    return known & near


@cache
def _images() -> tuple[Any, list[Group]]:
    return groups(load_dataset(assets.default_digits()).images[:DIGITS], NOISE)


def _taken(dtype: str) -> Any:
    import numpy as np

    held, _ = _images()
    return held if dtype == "uint8" else held.astype(np.float32) / np.float32(PIXEL_SCALE)


def looked_at() -> Any:
    """The images (70, 28, 28, 1) uint8 that a plan is judged by."""
    return _taken("uint8")


@lru_cache(maxsize=2)
def _truth(weights: Weights, dtype: str) -> Any:
    scores, _ = reference_scores(_taken(dtype), weights)
    return scores


def truth(weights: Weights, dtype: str) -> Any:
    """Float64's scores (70, 10) of the images; LenetError where float32 does not hold them."""
    scores = _truth(weights, dtype)
    most = largest(scores)
    if most and not _LEAST <= most <= _MOST:
        raise LenetError(
            f"{weights.source}: expected weights whose scores float32 holds with a margin, the "
            f"largest from {_LEAST:.1e} to {_MOST:.1e}, found scores of {most:.1e} at most"
        )
    return scores


def judged(plan: Plan, weights: Weights, dtype: str, found: Any, labels: Any) -> Fit:
    """The fit of a plan that gave scores `found` (70, 10) and `labels` (70,).

    Raises LenetError where a group is outside the tolerance of the plan's precision.
    """
    expected = truth(weights, dtype)
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
    """Run the images through a pipeline made for passes of `batch`, and judge what it gives.

    On a GPU the current one. Raises LenetError where it is outside the tolerance.
    """
    truth(weights, dtype)
    taken = _taken(dtype)
    pipeline = Pipeline(plan, weights, max(batch, len(taken)), dtype, batch)
    pipeline.poison()
    if plan.device == "cuda":
        import cupy

        labels = pipeline.run(cupy.asarray(taken)).get()
    else:
        labels = pipeline.run(taken).copy()
    return judged(plan, weights, dtype, pipeline.scores(len(taken)), labels)


def _name(plan: Plan, weights: Weights, device: str, dtype: str, batch: int) -> str:
    facts = [plan_key(plan, device, dtype, batch), plan.name, weights.digest, sources()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def fit(plan: Plan, weights: Weights, device: str, dtype: str = "uint8", batch: int = 331) -> Fit:
    """How `plan` does with `weights` in passes of up to `batch` images of `dtype` on `device`.

    `device` names it (a GPU's must be the current one, and is verified first). Looked up where the
    same kernels ran with the same weights before. Raises LenetError where the plan is outside its
    tolerance or wrong on the device.
    """
    if plan.device == "cuda":
        verify_once(plan, device, dtype, batch)
    name = _name(plan, weights, device, dtype, batch)
    found = entries.kept("fits", name, Fit)
    if found is None:
        found = measure(plan, weights, dtype, batch)
        entries.keep("fits", name, found)
    return found
