"""Plan `auto` on a GPU: the fastest right plan, measured once per device and batch range.

Which plan is fastest depends on the GPU and on how many images a pass takes, so it is measured on
the shipped digits where it will be used, and remembered together with the kernels it was of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, nan

from lenetgpu.check.fit import fit, plan_key, verify_once
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import lacks_memory, reason, release, within_memory
from lenetgpu.measure.timing import summarise, time_compute
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, AUTO_PLANS, PRECISIONS, Plan, auto_plans, stand_ins
from lenetgpu.store import entries

# (largest batch of the range, images it is measured with); the last range has no end
RANGES: tuple[tuple[int | None, int], ...] = ((8, 1), (128, 32), (2_048, 512), (None, 10_000))
_ROUNDS, _PASSES = 9, 5


@dataclass(frozen=True)
class Choice:
    """The plan taken for one precision and batch range, and what was measured, in milliseconds.

    `wrong` says of each candidate that failed its check how it did, `lacking` of each that memory
    did not hold why, `load` how many processes beside this one computed on the GPU.
    """

    device: str
    precision: str
    images: int
    plan: str
    medians_ms: dict[str, float]
    wrong: dict[str, str]
    load: float = 0.0
    lacking: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        times = sorted(self.medians_ms.items(), key=lambda item: item[1])
        said = [f"{name} {ms:.3f} ms" for name, ms in times]
        said += [f"{name} wrong" for name in self.wrong]
        said += [f"{name} without memory" for name in self.lacking]
        return f"{self.plan} for {self.images:,} images ({', '.join(said)})"


def measured_with(batch: int) -> int:
    """Images that the range of `batch` is measured with."""
    return next(images for last, images in RANGES if last is None or batch <= last)


def _name(gpu: Gpu, precision: str, images: int, plans: Mapping[str, Plan]) -> str:
    facts = [gpu.name, gpu.index, precision, images, *plans]
    facts += [plan_key(plan, gpu.name, "uint8", images) for plan in plans.values()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:24]


def remembered(gpu: Gpu, precision: str, batch: int) -> Choice | None:
    """What was measured before on `gpu` for the range of `batch`, if it can be."""
    plans, images = auto_plans("cuda", precision, gpu), measured_with(batch)
    found = entries.kept("auto", _name(gpu, precision, images, plans), Choice)
    times = {} if found is None else found.medians_ms
    known = found is not None and times and times.keys() <= plans.keys() and found.load < inf
    return found if known and all(0 < ms < inf for ms in times.values()) else None


def still_holds(gpu: Gpu, precision: str, batch: int) -> Choice | None:
    """`remembered` on `gpu`, which is current, unless it was under a load that is gone."""
    from lenetgpu.measure.roofline import load_on, outlived

    found = remembered(gpu, precision, batch)
    if found is not None and found.load and outlived(found.load, load_on("cuda")):
        return None
    return found


def measure(gpu: Gpu, precision: str, batch: int) -> Choice:
    """Check, then time in interleaved rounds the plans that `auto` may take; `gpu` is current.

    One that memory does not hold is left out and named, and the choice is not remembered then: the
    next process may have more. Where it holds none, passes are of half as many images, and so on.
    Raises LenetError where no plan is right, or none fits with one image.
    """
    images = measured_with(batch)
    plans = auto_plans("cuda", precision, gpu)
    choice, held = within_memory(
        partial(_measured, gpu, precision, plans), images, f"plan auto ({precision})"
    )
    if held == images and not choice.lacking:
        entries.keep("auto", _name(gpu, precision, images, plans), choice)
    return choice


def _measured(gpu: Gpu, precision: str, plans: Mapping[str, Plan], images: int) -> Choice:
    """The choice for passes of `images`; MemoryError where none of `plans` has room for them."""
    import cupy
    import numpy as np

    from lenetgpu.check.warmup import kernels_of
    from lenetgpu.gpu.nvrtc import compile_together
    from lenetgpu.measure.roofline import load_on
    from lenetgpu.measure.rounds import interleave

    size = min(images, default_chunk("cuda"))
    compile_together((k for plan in plans.values() for k in kernels_of(plan, size)), gpu.arch)
    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:images])
    weights = load_weights(assets.default_weights())
    resident = cupy.asarray(digits)
    wrong: dict[str, str] = {}
    lacking: dict[str, str] = {}
    pipelines: dict[str, Pipeline] = {}

    def make(name: str) -> None:
        verify_once(plans[name], gpu.name, "uint8", images)
        made = Pipeline(plans[name], weights, images, "uint8")
        made.with_scores = False
        time_compute(made, resident)
        pipelines[name] = made

    def best_pass(name: str) -> float:
        """Milliseconds, NaN from where memory lacked on."""
        times = [nan]
        if name in pipelines and not _held(
            name, lambda: times.insert(0, time_compute(pipelines[name], resident)), lacking
        ):
            del pipelines[name]
        return times[0]

    for name in plans:
        try:
            _held(name, partial(make, name), lacking)
        except LenetError as error:
            wrong[name] = str(error)
    samples: dict[str, list[float]] = {name: [] for name in pipelines}

    def sample(name: str) -> float:
        return min(best_pass(name) for _ in range(_PASSES))

    if samples:
        interleave([(partial(sample, name), samples[name]) for name in samples], _ROUNDS)
    medians = {name: summarise(samples[name]).median for name in pipelines}
    if not medians and lacking:
        raise MemoryError("; ".join(lacking.values()))
    if not medians:
        raise LenetError("; ".join(wrong.values()))
    best = min(medians, key=lambda name: medians[name])
    return Choice(gpu.name, precision, images, best, medians, wrong, load_on("cuda"), lacking)


def _held(name: str, do: Callable[[], None], lacking: dict[str, str]) -> bool:
    """Whether memory holds what `do` does; if not, why goes under `name`, and it is given back."""
    try:
        do()
        return True
    except Exception as error:
        if not lacks_memory(error):
            raise
        lacking[name] = f"plan {name} is left out of plan auto: no memory for it ({reason(error)})"
    release()  # here, where nothing holds the error's frames any more
    return False


def _ordered(gpu: Gpu | None, precision: str, batch: int, refused: list[str]) -> dict[str, Plan]:
    """The right plans at `precision`, the fastest first; on a CPU as they are listed.

    What is wrong on the device, or has no memory there, is said in `refused`.
    """
    if gpu is None:
        return auto_plans("cpu", precision, None)
    found = still_holds(gpu, precision, batch) or measure(gpu, precision, batch)
    refused += [*found.wrong.values(), *found.lacking.values()]
    plans, medians = auto_plans("cuda", precision, gpu), found.medians_ms
    return {name: plans[name] for name in sorted(medians, key=lambda name: medians[name])}


def choose(
    gpu: Gpu | None,
    precision: str,
    batch: int,
    weights: Weights,
    dtype: str = "uint8",
    notes: list[str] | None = None,
) -> Plan:
    """Plan `auto` for passes of `batch` images of `dtype` with `weights`, at least as precise.

    On `gpu`, which is current, or on the CPU. The fastest plan that fits the weights
    (`check/fit.py`), or that of the next more precise precision; `notes` gets a sentence for each
    that does not fit. Which is fastest is measured on first use. Raises LenetError where none fits.
    """
    device, name = ("cpu", cpu_name()) if gpu is None else ("cuda", gpu.name)
    size = min(batch, default_chunk(device))

    def error_of(plan: Plan) -> float:
        """With the weights; where memory does not suffice, of half as many images, and so on."""
        fitted = partial(fit, plan, weights, name, dtype)
        return within_memory(fitted, size, f"plan {plan.name}")[0].error

    auto_plans(device, precision, gpu)
    refused: list[str] = []
    finer = PRECISIONS[: PRECISIONS.index(precision) + 1]
    for kind in reversed([kind for kind in finer if device in AUTO_PLANS.get(kind, {})]):
        try:
            plan = _fastest(_ordered(gpu, kind, batch, refused), kind, device, error_of, refused)
        except LenetError as error:
            refused.append(str(error))
            continue
        if plan is not None:
            if notes is not None:
                notes.extend(refused)
            return replace(plan, name=AUTO)
    raise LenetError("; ".join(dict.fromkeys(refused)))


def _fastest(
    plans: Mapping[str, Plan],
    precision: str,
    device: str,
    error_of: Callable[[Plan], float],
    refused: list[str],
) -> Plan | None:
    """The first of `plans` that fits, stand-ins where they are as exact; why not into `refused`."""
    for name, plan in plans.items():
        try:
            error = error_of(plan)
        except LenetError as refusal:
            refused.append(str(refusal))
            continue
        if name not in stand_ins(device, precision):
            return plan
        own = next((plans[one] for one in AUTO_PLANS[precision][device] if one in plans), None)
        try:
            if own is None or error <= error_of(own):
                return plan
        except LenetError:  # where the precision's own plan does not fit
            return plan
    return None


def choose_all(gpu: Gpu) -> list[Choice]:
    """The choices for every precision and batch range of `gpu`, which is current."""
    found = []
    for precision in (p for p, devices in AUTO_PLANS.items() if "cuda" in devices):
        try:
            auto_plans("cuda", precision, gpu)
        except LenetError:
            continue
        for last, images in RANGES:
            batch = last or images
            found.append(still_holds(gpu, precision, batch) or measure(gpu, precision, batch))
    return found
