"""Plan `auto` on a GPU: the fastest right plan, measured once per device and batch range.

Which plan is fastest depends on the GPU and on how many images a pass takes, so it is measured on
the shipped digits where it will be used, and remembered together with the kernels it was of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from lenetgpu.check.verify import plan_key, verify_once
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import summarise, time_compute
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import AUTO, AUTO_PLANS, Plan, auto_plans, resolve
from lenetgpu.store import cache_dir, write_atomically

# (largest batch of the range, images it is measured with); the last range has no end
RANGES: tuple[tuple[int | None, int], ...] = ((8, 1), (128, 32), (2_048, 512), (None, 10_000))
_ROUNDS, _PASSES = 9, 5


@dataclass(frozen=True)
class Choice:
    """The plan taken for one precision and batch range, and what was measured, in milliseconds.

    `wrong` says of each candidate that failed its check how it did.
    """

    device: str
    precision: str
    images: int
    plan: str
    medians_ms: dict[str, float]
    wrong: dict[str, str]

    def __str__(self) -> str:
        times = sorted(self.medians_ms.items(), key=lambda item: item[1])
        return f"{self.plan} for {self.images:,} images (" + ", ".join(
            [f"{name} {ms:.3f} ms" for name, ms in times] + [f"{name} wrong" for name in self.wrong]
        ) + ")"  # fmt: skip


def measured_with(batch: int) -> int:
    """Images that the range of `batch` is measured with."""
    return next(images for last, images in RANGES if last is None or batch <= last)


def _path(gpu: Gpu, precision: str, images: int, plans: Mapping[str, Plan]) -> Path:
    facts = [gpu.name, gpu.index, precision, images]
    facts += [plan_key(plan, gpu.name, "uint8", images) for plan in plans.values()]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]
    return cache_dir() / "auto" / f"{key}.json"


def remembered(gpu: Gpu, precision: str, batch: int) -> Choice | None:
    """What was measured before on `gpu` for the range of `batch`, or None."""
    plans = auto_plans("cuda", precision, gpu)
    path = _path(gpu, precision, measured_with(batch), plans)
    try:
        return Choice(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError):
        path.unlink(missing_ok=True)
        return None


def measure(gpu: Gpu, precision: str, batch: int) -> Choice:
    """Check, then time in interleaved rounds the plans that `auto` may take; `gpu` is current.

    Raises LenetError where none is right.
    """
    import cupy
    import numpy as np

    images = measured_with(batch)
    plans = auto_plans("cuda", precision, gpu)
    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:images])
    weights = load_weights(assets.default_weights())
    resident = cupy.asarray(digits)
    wrong: dict[str, str] = {}
    pipelines: dict[str, Pipeline] = {}
    for name, plan in plans.items():
        try:
            verify_once(plan, gpu.name, "uint8", images)
        except LenetError as error:
            wrong[name] = str(error)
            continue
        pipelines[name] = Pipeline(plan, weights, images, "uint8")
        pipelines[name].with_scores = False
        time_compute(pipelines[name], resident)
    if not pipelines:
        raise LenetError("; ".join(wrong.values()))
    samples: dict[str, list[float]] = {name: [] for name in pipelines}

    def best_pass(pipeline: Pipeline) -> float:
        return min(time_compute(pipeline, resident) for _ in range(_PASSES))

    entries = [(partial(best_pass, pipelines[name]), samples[name]) for name in pipelines]
    interleave(entries, _ROUNDS)
    medians = {name: summarise(times).median for name, times in samples.items()}
    best = min(medians, key=lambda name: medians[name])
    choice = Choice(gpu.name, precision, images, best, medians, wrong)
    target = _path(gpu, precision, images, plans)
    write_atomically(target, json.dumps(asdict(choice), indent=1).encode())
    return choice


def choose(gpu: Gpu, precision: str, batch: int) -> Plan:
    """Plan `auto` for passes of `batch` images on `gpu`, which is current; measured on first use.

    Raises LenetError where no plan is right there.
    """
    found = remembered(gpu, precision, batch) or measure(gpu, precision, batch)
    plan = resolve(found.plan, "cuda", None, precision, gpu)
    return replace(plan, name=AUTO)


def choose_all(gpu: Gpu) -> list[Choice]:
    """The choices for every precision and batch range of `gpu`, which is current."""
    found = []
    for precision, devices in AUTO_PLANS.items():
        if "cuda" not in devices:
            continue
        try:
            auto_plans("cuda", precision, gpu)
        except LenetError:
            continue
        for last, images in RANGES:
            batch = last or images
            found.append(remembered(gpu, precision, batch) or measure(gpu, precision, batch))
    return found
