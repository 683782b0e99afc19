"""Checks of variants and pipelines against float64 references, with one table of tolerances.

An error is the largest absolute difference divided by the largest absolute reference value. Outputs
are poisoned before the run, and NaN never passes.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import nan
from threading import Event
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.reference import reference_stages, tensors
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.layouts import PRIVATE, to_nhwc, widened
from lenetgpu.pipeline import Pipeline, Step
from lenetgpu.plan import Plan
from lenetgpu.stages import Variant
from lenetgpu.stages.prepared import PreparedKernel

TOLERANCE = {"fp32": 1e-5, "fp16x3": 1e-5, "tf32x3": 1e-5, "fp16": 2e-3, "fp16w": 4e-3}
TOLERANCE |= {"int8": 4e-2, "int8s": 6e-2}
# requested precision -> largest error with the user's weights, and labels of 10,000 that may differ
# (None: any). fp32 promises an error no larger than plan fp32's (dispatch/auto.py)
PROMISES: dict[str, tuple[float, int | None]] = {"fp16": (4e-3, None), "int8": (5e-2, 8)}
PRECISE = ("fp32", "fp16x3", "tf32x3")
# Output dtype (bfloat16 is stored as uint16) -> (significand bits, least exponent of normal numbers
# as frexp counts it). Half a unit in the last place of output or reference is no error.
_NARROW = {"float16": (11, -13), "uint16": (8, -125)}


@dataclass(frozen=True)
class Verdict:
    """Result of a check."""

    passed: bool
    error: float  # smallest tolerance that passes; NaN if an output is NaN, infinite or unwritten
    tolerance: float
    note: str = ""

    def __str__(self) -> str:
        word = "PASS" if self.passed else "WRONG"
        return f"{word} error {self.error:.2e}, tolerance {self.tolerance:.0e}{self.note}"


@dataclass(frozen=True)
class Checked:
    """Error against float64."""

    verdict: Verdict
    largest: float  # absolute difference
    flips: int | None  # labels among `images` that differ from float64's; None without labels
    images: int
    first_bad: str | None = None  # the first wrong stage


@dataclass(frozen=True)
class Errors:
    """Errors against float64, final rounding included, on images shared by all candidates."""

    images: int
    largest: float  # over the largest output
    rms: float  # over that of the outputs


def rough(dtype: str) -> float:
    """Return the largest error at which a library's times count: fp16's tolerance, at least."""
    return TOLERANCE["fp16"] + {"fp16": 2.0**-11, "bf16": 2.0**-8}.get(dtype, 0.0)


def array_module(array: Any) -> Any:
    """Return CuPy for a CuPy array, else NumPy."""
    return sys.modules["cupy"] if type(array).__module__.startswith("cupy") else np


def largest(array: Any) -> float:
    """Return the largest absolute value, 0 for an empty array."""
    return float(abs(array).max()) if array.size else 0.0


def largest_difference(found: Any, expected: Any) -> float:
    """Return the largest absolute difference in float64, less output rounding; NaN propagates."""
    with np.errstate(invalid="ignore", over="ignore"):
        values = widened(found).astype(np.float64)
        if str(found.dtype) not in _NARROW:
            return largest(values - expected)
        module, (bits, least) = array_module(found), _NARROW[str(found.dtype)]
        larger = module.maximum(abs(values), abs(expected))
        exponent = module.maximum(module.frexp(larger)[1], least)
        rounding = module.ldexp(module.ones_like(larger), exponent - (bits + 1))
        return largest(module.maximum(abs(values - expected) - rounding, 0))


def judge(found: Any, expected: Any, precision: str) -> Verdict:
    """Compare float arrays within the precision's tolerance, integer arrays for equality."""
    module = array_module(found)
    found, expected = module.asarray(found), module.asarray(expected)
    if found.shape != expected.shape:
        return Verdict(False, nan, 0.0, f", shape {found.shape} for {expected.shape}")
    return judge_parts([(found, expected)], largest(expected) or 1.0, precision)


def judge_parts(parts: Iterable[tuple[Any, Any]], scale: float, precision: str) -> Verdict:
    """Judge (found, expected) parts; `scale` is the largest absolute expected value overall."""
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
        return Verdict(False, nan, tolerance, f", {bad} outputs NaN, infinite or unwritten")
    return Verdict(error <= tolerance, error, tolerance)


def excusable_flips(scores: Any, precision: str) -> Any:
    """Mark images (N,) whose two best `scores` (N, 10) are too close at this precision."""
    if precision in PRECISE:
        return np.zeros(len(scores), bool)
    best = np.sort(scores, axis=1)
    allowed = 2 * TOLERANCE[precision] * float(np.abs(scores).max(initial=0.0))
    return best[:, -1] - best[:, -2] <= allowed


def check_variant(variant: Variant, problem: Any, x: Any, w: Any, expected: Any) -> Verdict:
    """Judge a run of `variant` on host x, NHWC or (N, K): its poisoned output, and other writes."""
    weights = tensors(w)
    copies = [array.copy() for array in weights]
    prepared = PreparedKernel(variant, problem, weights, len(x))
    images, out = prepared.input(x.copy()), prepared.output(len(x))
    before = images.copy()
    prepared.run(images, out)
    early = out.copy()
    verdict = judge(prepared.found(early), expected, variant.precision)
    settle(prepared)
    rules = {
        "writes its output after it has returned": same_bytes(early, out),
        "writes outside its output": not prepared.wrote_outside(),
        "changes its input": same_bytes(before, images),
        "changes its weights": all(map(same_bytes, copies, weights)),
    }
    broken = next((rule for rule, obeyed in rules.items() if not obeyed), None)
    return replace(verdict, passed=False, note=f", {broken}") if broken else verdict


def settle(prepared: PreparedKernel) -> None:
    """Wait until work in flight has finished: on a GPU all of its streams, else a short pause."""
    if prepared.on_gpu:
        prepared.arrays.cuda.runtime.deviceSynchronize()
    else:
        Event().wait(0.01)


def same_bytes(a: Any, b: Any) -> bool:
    """Return True if two contiguous arrays on one device hold the same bits."""
    return bool((a.reshape(-1).view("uint8") == b.reshape(-1).view("uint8")).all())


def first_bad_stage(pipeline: Pipeline, images: Any, weights: Weights) -> str | None:
    """Return the first stage that is wrong on the first chunk of host `images`, or None."""
    images = images[: pipeline.chunk]
    expected = reference_stages(images, weights.balanced)
    found: dict[str, Any] = {}

    def copy_output(step: Step, output: Any) -> None:
        layout, shape = step.writes
        if step.stages and layout not in PRIVATE and not isinstance(output, tuple):
            y = output.get() if step.device == "cuda" else output.copy()
            found[step.stages[-1]] = y if layout in ("NC", "N") else to_nhwc(y, layout, shape)

    pipeline.run(cupy.asarray(images) if pipeline.plan.device == "cuda" else images, copy_output)
    arithmetic = pipeline.plan.arithmetic
    judged = ((name, judge(y, expected[name], arithmetic)) for name, y in found.items())
    return next((name for name, verdict in judged if not verdict.passed), None)


def first_not_finite(scores: Any) -> int | None:
    """Return the first row of `scores` (n, 10), a NumPy array, with NaN or infinity, or None."""
    finite = np.isfinite(scores)
    return None if finite.all() else int(np.argmin(finite.all(1)))


def refused(plan: Plan, image: int) -> LenetError:
    """Return the error for non-finite scores of image number `image`."""
    return LenetError(
        f"plan {plan.name} ({plan.precision}): expected finite scores of every image, found NaN or "
        f"infinity in those of image {image:,} (from 0)"
    )


def require_finite(scores: Any, plan: Plan, first: int = 0) -> None:
    """Raise LenetError unless all `scores` (n, 10), if any, are finite; `first` is their number."""
    bad = None if scores is None else first_not_finite(scores)
    if bad is not None:
        raise refused(plan, first + bad)
