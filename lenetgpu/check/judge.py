"""Is it right? Every variant and pipeline against float64 references, one table of tolerances.

An error is the largest absolute difference over the largest absolute reference value. Outputs are
poisoned before the run, and NaN never passes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from threading import Event
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.truth import reference_stages, tensors
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.layouts import PRIVATE, to_nhwc, widened
from lenetgpu.pipeline import Pipeline, Step
from lenetgpu.plan import Plan
from lenetgpu.stages import Variant
from lenetgpu.stages.mounted import Mounted

TOLERANCE = {"fp32": 1e-5, "fp16x3": 1e-5, "tf32x3": 1e-5, "fp16": 2e-3, "fp16w": 4e-3}
TOLERANCE |= {"int8": 4e-2, "int8s": 6e-2}
PRECISE = ("fp32", "fp16x3", "tf32x3")
_HALVES = {"float16": (11, -13), "uint16": (8, -125)}
"""An output of fp16, or of bfloat16's bits, is a sum rounded once more: half a unit in the last
place of any value, its own or the truth's, whichever is larger, is no error, and a tolerance is of
what lies beyond. Here: a significand's bits, and the least exponent of numbers that have them all
(2 to it is twice the least of these)."""


@dataclass(frozen=True)
class Verdict:
    """`error` is what the tolerance would have to be; NaN where an output is NaN or unwritten."""

    passed: bool
    error: float
    tolerance: float
    note: str = ""

    def __str__(self) -> str:
        word = "PASS" if self.passed else "WRONG"
        return f"{word} error {self.error:.2e}, tolerance {self.tolerance:.0e}{self.note}"


@dataclass(frozen=True)
class Checked:
    """Error against float64 on real digits and on fresh random input.

    `largest` is the largest absolute difference, `flips` the labels that differ from float64's
    among `images` (None where there are no labels), `first_bad` the first wrong stage where one is.
    """

    verdict: Verdict
    largest: float
    flips: int | None
    images: int
    first_bad: str | None = None


@dataclass(frozen=True)
class Errors:
    """What a candidate errs on the same images as every other, against float64.

    `largest` is the largest error over the largest output, `rms` the root mean square of all errors
    over that of all outputs; of halves one rounding is in both.
    """

    images: int
    largest: float
    rms: float


def rough(dtype: str) -> float:
    """The error up to which a library's times count that rounds more than the variants may.

    fp16's tolerance, and of halves that of one more rounding: of sums before a bias is added.
    """
    once_more = {"fp16": "float16", "bf16": "uint16"}.get(dtype)
    return TOLERANCE["fp16"] + (2.0 ** -_HALVES[once_more][0] if once_more else 0.0)


def array_module(array: Any) -> Any:
    """CuPy for an array of CuPy's, else NumPy."""
    return sys.modules["cupy"] if type(array).__module__.startswith("cupy") else np


def largest(array: Any) -> float:
    """Largest absolute value, 0 of an empty array."""
    return float(abs(array).max()) if array.size else 0.0


def largest_difference(found: Any, expected: Any) -> float:
    """Largest absolute difference in float64, of halves beyond rounding; NaN where there is one."""
    with np.errstate(invalid="ignore", over="ignore"):
        values = widened(found).astype(np.float64)
        if str(found.dtype) not in _HALVES:
            return largest(values - expected)
        module, (bits, least) = array_module(found), _HALVES[str(found.dtype)]
        larger = module.maximum(abs(values), abs(expected))
        exponent = module.maximum(module.frexp(larger)[1], least)
        rounding = module.ldexp(module.ones_like(larger), exponent - (bits + 1))
        return largest(module.maximum(abs(values - expected) - rounding, 0))


def judge(found: Any, expected: Any, precision: str) -> Verdict:
    """Compare float arrays by the precision's tolerance, integer arrays for equality.

    Both are arrays of NumPy, or both of CuPy.
    """
    module = array_module(found)
    found, expected = module.asarray(found), module.asarray(expected)
    if found.shape != expected.shape:
        return Verdict(False, float("nan"), 0.0, f", shape {found.shape} for {expected.shape}")
    return judge_parts([(found, expected)], largest(expected) or 1.0, precision)


def judge_parts(parts: Iterable[tuple[Any, Any]], scale: float, precision: str) -> Verdict:
    """`judge` of (found, expected) in parts, whose largest expected absolute value is `scale`."""
    error, bad, flips, labels = 0.0, 0, 0, False
    for found, expected in parts:
        module = array_module(found)
        labels = labels or expected.dtype.kind in "iu"
        if labels:
            flips += int(module.count_nonzero(found != expected))
            continue
        error = max(error, largest_difference(found, expected) / scale)
        bad += int(module.count_nonzero(~module.isfinite(widened(found))))
    if labels:
        return Verdict(flips == 0, float(flips), 0.0, f", {flips} labels differ")
    tolerance = TOLERANCE[precision]
    if bad:
        note = f", {bad} outputs NaN, infinite or unwritten"
        return Verdict(False, float("nan"), tolerance, note)
    return Verdict(error <= tolerance, error, tolerance)


def excusable_flips(scores: Any, precision: str) -> Any:
    """Which images (N,) may get another label: float64's two best `scores` (N, 10) lie too near.

    Each may be off by the precision's tolerance; at fp32 no label may differ.
    """
    if precision in PRECISE:
        return np.zeros(len(scores), bool)
    best = np.sort(scores, axis=1)
    allowed = 2 * TOLERANCE[precision] * float(np.abs(scores).max(initial=0.0))
    near: Any = best[:, -1] - best[:, -2] <= allowed
    return near


def check_variant(variant: Variant, problem: Any, x: Any, w: Any, expected: Any) -> Verdict:
    """Run `variant` on x (NHWC or (N, K), host) into a poisoned output and judge it.

    It must leave x, w and what lies beside its output as they were, and its output from when it
    returned (a GPU: from when the current stream was through) on.
    """
    held = tensors(w)
    kept = [one.copy() for one in held]
    mounted = Mounted(variant, problem, held, len(x))
    fed, out = mounted.input(x.copy()), mounted.output(len(x))
    before = fed.copy()
    mounted.run(fed, out)
    early = out.copy()
    verdict = judge(mounted.found(early), expected, variant.precision)
    settle(mounted)
    misdeeds = {
        "writes its output after it has returned": same_bytes(early, out),
        "writes outside its output": not mounted.trespassed(),
        "changes its input": same_bytes(before, fed),
        "changes its weights": all(map(same_bytes, kept, held)),
    }
    caught = next((what for what, innocent in misdeeds.items() if not innocent), None)
    return replace(verdict, passed=False, note=f", {caught}") if caught else verdict


PAUSE_S = 0.01


def settle(mounted: Mounted) -> None:
    """Let what still runs come to its end: on a GPU all of its streams, else a pause."""
    if mounted.on_gpu:
        mounted.arrays.cuda.runtime.deviceSynchronize()
    else:
        Event().wait(PAUSE_S)


def same_bytes(a: Any, b: Any) -> bool:
    """Whether two contiguous arrays of one device hold the same bits."""
    return bool((a.reshape(-1).view("uint8") == b.reshape(-1).view("uint8")).all())


def first_bad_stage(
    pipeline: Pipeline, images: Any, weights: Weights
) -> tuple[str, Verdict] | None:
    """The first stage of `pipeline` that is wrong on the first chunk of host `images`, or None."""
    images = images[: pipeline.chunk]
    expected = reference_stages(images, weights.balanced)
    found: dict[str, Any] = {}

    def keep(step: Step, output: Any) -> None:
        layout, shape = step.writes
        if step.stages and layout not in PRIVATE and not isinstance(output, tuple):
            held = output.get() if step.device == "cuda" else output.copy()
            found[step.stages[-1]] = held if layout in ("NC", "N") else to_nhwc(held, layout, shape)

    pipeline.run(cupy.asarray(images) if pipeline.plan.device == "cuda" else images, keep)
    for name, output in found.items():
        verdict = judge(output, expected[name], pipeline.plan.precision)
        if not verdict.passed:
            return name, verdict
    return None


def first_not_finite(scores: Any) -> int | None:
    """The first row of `scores` (n, 10), a NumPy array, with NaN or infinity in it, or None."""
    finite = np.isfinite(scores)
    return None if finite.all() else int(np.argmin(finite.all(1)))


def refused(plan: Plan, image: int) -> LenetError:
    """What is raised for the scores of image number `image`, which are no numbers."""
    return LenetError(
        f"plan {plan.name} ({plan.precision}): expected finite scores of every image, found NaN or "
        f"infinity in those of image {image:,} (from 0)"
    )


def require_finite(scores: Any, plan: Plan, first: int = 0) -> None:
    """LenetError unless `scores` (n, 10) of `plan` are; `first` is the number of their first image.

    None, of a run without scores, is accepted.
    """
    bad = None if scores is None else first_not_finite(scores)
    if bad is not None:
        raise refused(plan, first + bad)
