"""Plan `auto` on a GPU: the fastest correct plan, measured once per device and batch range.

The fastest plan depends on the GPU and on the number of images per pass. It is measured with the
shipped digits on the GPU in use, and cached for the kernels that were measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf, nan

from lenetgpu.arrays import cupy, np
from lenetgpu.check.fit import fit, plan_key, verify_once
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError, first_line
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import NO_MEMORY, lacks_memory, release, within_memory
from lenetgpu.gpu.nvrtc import compile_together
from lenetgpu.measure.timing import summarise, time_compute
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, AUTO_PLANS, PRECISIONS, Plan, auto_plans, stand_ins
from lenetgpu.store import entries

# (largest batch of the range, images it is measured with); the last range has no end
RANGES: tuple[tuple[int | None, int], ...] = ((8, 1), (128, 32), (2_048, 512), (None, 10_000))
_ROUNDS, _PASSES = 9, 5


@dataclass(frozen=True)
class Choice:
    """The fastest plan of one precision and batch range, the times, and plans that did not fit."""

    device: str
    precision: str
    images: int
    plan: str
    medians_ms: dict[str, float]
    wrong: dict[str, str]  # plans that failed their check, with the reason
    load: float = 0.0  # other processes that computed on the GPU
    lacking: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        times = sorted(self.medians_ms.items(), key=lambda item: item[1])
        results = [f"{name} {ms:.3f} ms" for name, ms in times]
        results += [f"{name} wrong" for name in self.wrong]
        results += [f"{name} without memory" for name in self.lacking]
        return f"{self.plan} for {self.images:,} images ({', '.join(results)})"


def measured_with(batch: int) -> int:
    """Return the images per pass that the range of `batch` is measured with."""
    return next(images for last, images in RANGES if last is None or batch <= last)


def _name(gpu: Gpu, precision: str, images: int, plans: Mapping[str, Plan]) -> str:
    facts = [gpu.name, gpu.index, precision, images, *plans]
    facts += [plan_key(plan, gpu.name, "uint8", images) for plan in plans.values()]
    return entries.name_of(facts)


def remembered(gpu: Gpu, precision: str, batch: int) -> Choice | None:
    """Return the cached choice on `gpu` for the range of `batch`, or None if none is valid."""
    plans, images = auto_plans("cuda", precision, gpu), measured_with(batch)
    choice = entries.load("auto", _name(gpu, precision, images, plans), Choice)
    if choice is None or not choice.medians_ms or not choice.load < inf:
        return None
    valid = all(name in plans and 0 < ms < inf for name, ms in choice.medians_ms.items())
    return choice if valid else None


def still_holds(gpu: Gpu, precision: str, batch: int) -> Choice | None:
    """Return `remembered` on the current `gpu`, or None if it was measured under a past load."""
    choice = remembered(gpu, precision, batch)
    if choice is None or not choice.load:
        return choice
    from lenetgpu.measure.roofline import load_on, outlived

    return None if outlived(choice.load, load_on("cuda")) else choice


def measure(gpu: Gpu, precision: str, batch: int) -> Choice:
    """Check the plans of `auto`, then time them in interleaved rounds; `gpu` is current.

    A plan that does not fit in memory is left out, and the choice is not cached: the next
    process may have more memory. If no plan fits, the images are halved until one does. Raises
    LenetError if no plan is correct, or if none fits with one image.
    """
    images = measured_with(batch)
    plans = auto_plans("cuda", precision, gpu)
    choice, fitting = within_memory(
        partial(_measured, gpu, precision, plans), images, f"plan auto ({precision})"
    )
    if fitting == images and not choice.lacking:
        entries.save("auto", _name(gpu, precision, images, plans), choice)
    return choice


def _measured(gpu: Gpu, precision: str, plans: Mapping[str, Plan], images: int) -> Choice:
    """Return the choice for passes of `images`; raise MemoryError if none of `plans` fits."""
    from lenetgpu.check.warmup import kernels_of
    from lenetgpu.measure.roofline import load_on
    from lenetgpu.measure.rounds import interleave

    size = min(images, default_chunk("cuda"))
    compile_together((k for plan in plans.values() for k in kernels_of(plan, size)), gpu.arch)
    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:images])
    weights = load_weights(assets.default_weights())
    resident = cupy.asarray(digits)
    wrong, lacking = dict[str, str](), dict[str, str]()
    pipelines: dict[str, Pipeline] = {}

    def make(name: str) -> None:
        verify_once(plans[name], gpu.name, "uint8", images)
        pipeline = Pipeline(plans[name], weights, images, "uint8")
        pipeline.with_scores = False
        time_compute(pipeline, resident)
        pipelines[name] = pipeline

    def sample(name: str) -> float:
        """Return the shortest pass in milliseconds, or NaN once memory has run out."""
        times = [nan]

        def run_passes() -> None:
            times[0] = min(time_compute(pipelines[name], resident) for _ in range(_PASSES))

        if name in pipelines and not _fits(name, run_passes, lacking):
            del pipelines[name]
        return times[0]

    for name in plans:
        try:
            _fits(name, partial(make, name), lacking)
        except LenetError as error:
            wrong[name] = str(error)
    samples: dict[str, list[float]] = {name: [] for name in pipelines}
    if samples:
        interleave([(partial(sample, name), samples[name]) for name in samples], _ROUNDS)
    medians = {name: summarise(samples[name]).median for name in pipelines}
    if not medians and lacking:
        raise MemoryError("; ".join(lacking.values()))
    if not medians:
        raise LenetError("; ".join(wrong.values()))
    best = min(medians, key=lambda name: medians[name])
    return Choice(gpu.name, precision, images, best, medians, wrong, load_on("cuda"), lacking)


def _fits(name: str, do: Callable[[], None], lacking: dict[str, str]) -> bool:
    """Run `do` and return True; if memory runs out, free it, record the reason, return False."""
    try:
        do()
        return True
    except Exception as error:
        if not lacks_memory(error):
            raise
        reason = first_line(error, NO_MEMORY)
        lacking[name] = f"plan {name} is left out of plan auto: no memory for it ({reason})"
    release()  # outside the handler, where nothing refers to the error's frames
    return False


def _ordered(gpu: Gpu | None, precision: str, batch: int, refused: list[str]) -> dict[str, Plan]:
    """Return the correct plans, fastest first, and append sentences on others to `refused`."""
    if gpu is None:
        return auto_plans("cpu", precision, None)
    choice = still_holds(gpu, precision, batch) or measure(gpu, precision, batch)
    refused += [*choice.wrong.values(), *choice.lacking.values()]
    plans, medians = auto_plans("cuda", precision, gpu), choice.medians_ms
    return {name: plans[name] for name in sorted(medians, key=lambda name: medians[name])}


def choose(
    gpu: Gpu | None,
    precision: str,
    batch: int,
    weights: Weights,
    dtype: str = "uint8",
    notes: list[str] | None = None,
) -> Plan:
    """Return plan `auto` for passes of `batch` images of `dtype`, accurate enough for `weights`.

    It is the fastest plan on `gpu` (current; None: the CPU) that keeps the promise of `precision`
    with the weights, or else of the next more precise one. `notes` receives a sentence for each
    plan that does not. Plans are timed on first use. Raises LenetError if no plan fits.
    """
    device, name = ("cpu", cpu_name()) if gpu is None else ("cuda", gpu.name)
    size = min(batch, default_chunk(device))

    def error_of(plan: Plan) -> float:
        """Return the error with the weights; if memory runs out, halve the images and retry."""
        fitted = partial(fit, plan, weights, name, dtype, precision=plan.precision)
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
    """Return the first of `plans` that fits, or None; append the reasons to `refused`."""
    for name, plan in plans.items():
        try:
            error = error_of(plan)
        except LenetError as refusal:
            refused.append(str(refusal))
            continue
        if name not in stand_ins(device, precision):
            return plan
        # a plan of another precision: its error must be at most the own plan's
        own = next((plans[n] for n in AUTO_PLANS[precision][device] if n in plans), None)
        try:
            if own is None or error <= error_of(own):
                return plan
        except LenetError:  # the precision's own plan does not fit
            return plan
    return None


def choose_all(gpu: Gpu) -> list[Choice]:
    """Return the choices for every precision and batch range of `gpu`, which is current."""
    found = []
    for precision in (p for p, devices in AUTO_PLANS.items() if "cuda" in devices):
        try:
            auto_plans("cuda", precision, gpu)
        except LenetError:
            continue
        for batch in (last or images for last, images in RANGES):
            found.append(still_holds(gpu, precision, batch) or measure(gpu, precision, batch))
    return found
