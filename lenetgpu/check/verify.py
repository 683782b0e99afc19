"""Is a GPU plan right on this GPU? Checked once per device and kernel sources, then remembered.

Kernels are tested on the GPUs the project has; a user's may be another. So the first time a plan
runs on a device, a few of the shipped digits go through it and are compared with float64.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from lenetgpu.check.judge import excusable_flips, judge
from lenetgpu.check.truth import reference_scores
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import nvrtc
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan
from lenetgpu.store import entries
from lenetgpu.store.entries import sources

IMAGES = 331
PACKERS = ("stages", "gpu", "cpu", "layouts.py", "problems.py", "pipeline.py")
"""What packs weights for kernels, and launches them."""


def plan_key(plan: Plan, device: str, dtype: str, batch: int) -> str:
    """A name for `plan` on `device` with this input, in passes of up to `batch` images.

    It changes with any source of the kernels that such passes launch, with the Python that packs
    weights for them and launches them, and with the driver's and the libraries' versions.
    """
    facts: list[object] = [device, dtype, sources(*PACKERS)]
    for slot in plan.slots:
        facts += [slot.name, slot.variant.full_name, str(slot.problem)]
        if slot.variant.kernels is not None:
            for kernel in slot.variant.kernels(slot.problem, batch):
                facts += [nvrtc.source_hash(kernel.source), *map(str, kernel.defines)]
    if plan.device == "cuda":
        facts.append(nvrtc.environment())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


@cache
def _shipped(dtype: str) -> tuple[Any, Weights, Any, Any]:
    """IMAGES digits as `dtype`, the shipped weights, float64's scores and labels."""
    import numpy as np

    images = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:IMAGES])
    if dtype == "float32":
        images = images.astype(np.float32) / np.float32(PIXEL_SCALE)
    weights = load_weights(assets.default_weights())
    return images, weights, *reference_scores(images, weights)


def verify(plan: Plan, dtype: str, batch: int) -> None:
    """Compare `plan` with float64 on IMAGES shipped digits, taken as `dtype` ("uint8", "float32").

    They go through a pipeline made for passes of `batch` images: what a variant chooses when it is
    prepared is what such a pass takes; what it chooses by the images of a launch is for IMAGES.
    Raises LenetError where it is wrong.
    """
    images, weights, expected, labels = _shipped(dtype)
    pipeline = Pipeline(plan, weights, max(batch, IMAGES), dtype, batch)
    pipeline.poison()
    if plan.device == "cuda":
        import cupy

        found = pipeline.run(cupy.asarray(images)).get()
    else:
        found = pipeline.run(images).copy()
    verdict = judge(pipeline.scores(IMAGES), expected, plan.precision)
    flips = (found != labels) & ~excusable_flips(expected, plan.precision)
    if not verdict.passed or flips.any():
        raise LenetError(
            f"plan {plan.name} is wrong on this device: expected float64's labels of {IMAGES} "
            f"digits, found {int(flips.sum())} others ({verdict}); choose another --plan"
        )


def verify_once(plan: Plan, device: str, dtype: str = "uint8", batch: int = IMAGES) -> bool:
    """`verify`, unless the same kernels passed on `device` before; whether it had to run.

    Raises LenetError where the plan is wrong.
    """
    name = plan_key(plan, device, dtype, batch)
    facts = {"device": device, "dtype": dtype, "batch": batch, "images": IMAGES}
    said = entries.facts_of("verified", name)
    if said is not None and {fact: said.get(fact) for fact in facts} == facts:
        return False
    verify(plan, dtype, batch)
    entries.keep("verified", name, facts | {"plan": plan.name})
    return True
