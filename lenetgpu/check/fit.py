"""Is a plan right for these weights? Compared with float64 on a few images, then remembered.

`check/verify.py` asks whether a device runs the kernels right, with the shipped weights. This asks
whether the plan's precision holds the weights at hand: on digits, noise, a white image and a blank
one, each group judged by its own largest score.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import lenetgpu
from lenetgpu import store
from lenetgpu.check.judge import excusable_flips, judge, largest
from lenetgpu.check.truth import reference_scores
from lenetgpu.check.verify import plan_key, verify_once
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan

GROUPS: Mapping[str, slice] = {
    "digits": slice(0, 64),
    "noise": slice(64, 68),
    "a white image": slice(68, 69),
    "a blank image": slice(69, 70),
}
"""What is looked at, and where it lies among the images."""
_COUNT = 70
_LEAST, _MOST = 2.0**-116, 2.0**127
"""Between these the largest score must lie: ten of them then are float32 numbers."""


@dataclass(frozen=True)
class Fit:
    """How a plan does with some weights: its largest error by group, and over all of them.

    An error is over the group's largest score; `error` over the largest of all.
    """

    plan: str
    precision: str
    error: float
    groups: dict[str, float]


def images(dtype: str = "uint8") -> Any:
    """The images (70, 28, 28, 1) of GROUPS, uint8 or float32 in 0..1."""
    import numpy as np

    digits = load_dataset(assets.default_digits()).images[GROUPS["digits"]]
    noise = np.random.default_rng(0).integers(0, 256, (4, *IMAGE_SHAPE), dtype=np.uint8)
    flat = [np.full((1, *IMAGE_SHAPE), value, np.uint8) for value in (255, 0)]
    held = np.concatenate([digits, noise, *flat])
    return held if dtype == "uint8" else held.astype(np.float32) / np.float32(PIXEL_SCALE)


@lru_cache(maxsize=2)
def _truth(weights: Weights, dtype: str) -> tuple[Any, Any]:
    return reference_scores(images(dtype), weights)


def truth(weights: Weights, dtype: str) -> tuple[Any, Any]:
    """Float64 scores (70, 10) and labels (70,) of `images`; LenetError beyond float32's range."""
    scores, labels = _truth(weights, dtype)
    most = largest(scores)
    if most and not _LEAST <= most <= _MOST:
        raise LenetError(
            f"{weights.source}: expected weights whose scores float32 holds, found scores of at "
            f"most {most:.1e}"
        )
    return scores, labels


def judge_scores(plan: Plan, weights: Weights, dtype: str, found: Any, labels: Any) -> Fit:
    """The fit of a plan that gave scores `found` (70, 10) and `labels` (70,) for `images`.

    Raises LenetError where a group is outside the tolerance of the plan's precision.
    """
    import numpy as np

    expected, right = truth(weights, dtype)
    errors = {}
    for name, where in GROUPS.items():
        verdict = judge(found[where], expected[where], plan.precision)
        excused = excusable_flips(expected[where], plan.precision)
        flips = int(np.count_nonzero((labels[where] != right[where]) & ~excused))
        if not verdict.passed or flips:
            raise LenetError(
                f"plan {plan.name} ({plan.precision}) does not fit {weights.source}: expected "
                f"float64's scores within {verdict.tolerance:.0e} of the largest on {name}, found "
                f"{verdict.error:.1e}{verdict.note} and {flips} other labels"
            )
        errors[name] = verdict.error
    overall = judge(found, expected, plan.precision).error
    return Fit(plan.name, plan.precision, overall, errors)


def measure(plan: Plan, weights: Weights, dtype: str, batch: int) -> Fit:
    """Run `images` through a pipeline made for passes of `batch` images, and judge what it gives.

    On a GPU the current one. Raises LenetError where it is outside the tolerance.
    """
    truth(weights, dtype)
    taken = images(dtype)
    pipeline = Pipeline(plan, weights, max(batch, _COUNT), dtype, batch)
    pipeline.poison()
    if plan.device == "cuda":
        import cupy

        labels = pipeline.run(cupy.asarray(taken)).get()
    else:
        labels = pipeline.run(taken).copy()
    return judge_scores(plan, weights, dtype, pipeline.scores(_COUNT), labels)


@cache
def _sources() -> str:
    """What changes with any file of the package: packing and a CPU's kernels are Python."""
    package = Path(lenetgpu.__file__).parent
    facts = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(package.rglob("*.py"))
    ]
    return hashlib.sha256(json.dumps([lenetgpu.__version__, facts]).encode()).hexdigest()


def _path(plan: Plan, weights: Weights, device: str, dtype: str, batch: int) -> Path:
    facts = [plan_key(plan, device, dtype, batch), plan.name, weights.digest, _sources()]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return store.cache_dir() / "fits" / f"{key}.json"


def fit(plan: Plan, weights: Weights, device: str, dtype: str = "uint8", batch: int = 331) -> Fit:
    """How `plan` does with `weights` in passes of up to `batch` images of `dtype` on `device`.

    `device` names it (a GPU's must be the current one, and is verified first). Looked up where the
    same kernels ran with the same weights before. Raises LenetError where the plan is outside its
    tolerance or wrong on the device.
    """
    if plan.device == "cuda":
        verify_once(plan, device, dtype, batch)
    path = _path(plan, weights, device, dtype, batch)
    try:
        return Fit(**json.loads(path.read_text()))
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError):
        path.unlink(missing_ok=True)
    found = measure(plan, weights, dtype, batch)
    store.write_atomically(path, json.dumps(asdict(found)).encode())
    return found
