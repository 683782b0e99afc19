"""Cases that `scripts/sanitize.py` runs under compute-sanitizer: small shapes, no memory pool.

Every GPU variant on the problems of tests/problems.py, and every fused plan on a few digits, uint8
and float32, with and without scores. Each case is printed at its begin and end, so that the last
line names one that crashed. Kernels carry line numbers.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from problems import all_problems  # noqa: E402

from lenetgpu.check.judge import check_variant, excusable_flips  # noqa: E402
from lenetgpu.check.reference import random_input, reference, reference_scores  # noqa: E402
from lenetgpu.errors import LenetError  # noqa: E402
from lenetgpu.files import assets  # noqa: E402
from lenetgpu.files.source import load_dataset  # noqa: E402
from lenetgpu.files.weights import load_weights  # noqa: E402
from lenetgpu.gpu import nvrtc  # noqa: E402
from lenetgpu.gpu.device import Gpu, activate, require_gpu  # noqa: E402
from lenetgpu.gpu.nvrtc import Kernel  # noqa: E402
from lenetgpu.network import CLASSIFIER, FEATURES, PIXEL_SCALE  # noqa: E402
from lenetgpu.pipeline import Pipeline  # noqa: E402
from lenetgpu.plan import resolve, runnable_plans  # noqa: E402
from lenetgpu.stages import Variant, variants  # noqa: E402
from lenetgpu.stages.reference import conv_reference  # noqa: E402

PLANTED = Path(__file__).with_name("sanitize_planted.cu")
IMAGES, DIGITS, THREADS = (2, 5), 133, 64


@dataclass(frozen=True)
class Case:
    """`of` is the variant or plan, `shape` its problem; `rank` counts the cases of the same."""

    of: str
    shape: str
    rank: int
    right: Callable[[], bool]

    def __str__(self) -> str:
        return f"{self.of} | {self.shape}"


def with_line_numbers() -> None:
    """Compile kernels with line numbers; the cache keeps them apart."""
    nvrtc._OPTIONS = (*nvrtc._OPTIONS, "-lineinfo")  # type: ignore[assignment]


def right(variant: Variant, problem: Any, n: int) -> bool:
    x, w = random_input(variant.kind, problem, n, np.random.default_rng(n))
    if variant.kind == "conv":
        expected = conv_reference(x, w, problem)
    else:
        expected = reference(variant.kind, x, w, problem)
    return check_variant(variant, problem, x, w, expected).passed


def of_variants(gpu: Gpu) -> Iterator[Case]:
    """Yield cases of kinds with their own reference; fused plans are cases of their own."""
    for variant in variants(device="cuda"):
        if variant.kind in (FEATURES, CLASSIFIER) or not variant.needs.met_by(gpu):
            continue
        runs = [(problem, n) for n in IMAGES for problem in all_problems(variant)]
        for rank, (problem, n) in enumerate(runs):
            name = f"{variant.kind}-{variant.full_name}"
            yield Case(name, f"{problem}, {n} images", rank, partial(right, variant, problem, n))


def labels_right(gpu: Gpu, name: str, dtype: str) -> bool:
    """Return True if plan `name` gives float64's labels and finite scores for a few digits."""
    import cupy

    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:DIGITS])
    weights = load_weights(assets.default_weights())
    expected, _ = reference_scores(digits, weights)
    images = digits if dtype == "uint8" else digits.astype(np.float32) / np.float32(PIXEL_SCALE)
    plan = resolve(name, "cuda", gpu=gpu)
    pipeline = Pipeline(plan, weights, len(images), dtype)
    excused = excusable_flips(expected, plan.arithmetic)
    wrong = 0
    for with_scores in (True, False):
        pipeline.with_scores = with_scores
        found = pipeline.run(cupy.asarray(images)).get()
        wrong += int(((found != expected.argmax(1)) & ~excused).sum())
    return wrong == 0 and bool(np.isfinite(pipeline.scores(len(images))).all())


def of_plans(gpu: Gpu) -> Iterator[Case]:
    """Yield cases of plans whose first kernel computes features from images."""
    for name in runnable_plans("cuda", gpu):
        if resolve(name, "cuda").stages[0].variant.kind == FEATURES:
            for rank, dtype in enumerate(("uint8", "float32")):
                run = partial(labels_right, gpu, name, dtype)
                yield Case(f"plan {name}", f"{DIGITS} digits, {dtype}", rank, run)


def of_names(cases: list[Case], only: str) -> list[Case]:
    """Return the cases selected by the comma-separated names in `only`; all for "".

    Raises ClickException for a name without a match.
    """
    names = [name.strip() for name in only.split(",")] if only else []
    for name in names:
        if not name or not any(name in case.of for case in cases):
            said = "expected a part of a plan's or variant's name, found none that has it"
            raise click.ClickException(f"--only {name!r}: {said}")
    return [case for case in cases if not names or any(name in case.of for name in names)]


def in_order(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: case.rank)


def run(cases: list[Case], until: float) -> int:
    """Run `cases` until the clock reaches `until`; return 0, or 3 if one raised an exception."""
    for case in cases:
        if time.monotonic() > until:
            break
        print(f"case {case}", flush=True)
        try:
            print(f"{'done' if case.right() else 'wrong'} {case}", flush=True)
        except Exception as error:  # nothing on this device can be trusted after it
            print(f"failed {case}: {type(error).__name__}: {error}", flush=True)
            return 3
    return 0


def plant(name: str) -> None:
    """Launch a kernel of sanitize_planted.cu on memory without a pool."""
    import cupy

    from lenetgpu.gpu.launch import launch

    x, y = cupy.empty(THREADS, cupy.float32), cupy.empty(THREADS, cupy.float32)
    if name != "initcheck":
        x.set(np.ones(THREADS, np.float32))
    y.set(np.ones(THREADS, np.float32))
    launch(Kernel(PLANTED, f"planted_{name}"), (1, 1, 1), (THREADS, 1, 1), (x, y))
    print(f"launched {name}", flush=True)
    cupy.cuda.runtime.deviceSynchronize()


@click.command()
@click.option("--list", "listed", is_flag=True, help="Only say which cases there are.")
@click.option("--part", default="0/1", help="I/N: every Nth case from the Ith.")
@click.option("--seconds", default=float("inf"), help="No case begins after so many.")
@click.option("--only", default="", help="Cases of what has one of these names in its own.")
@click.option("--planted", help="The one kernel with an error for this tool.")
def main(listed: bool, part: str, seconds: float, only: str, planted: str | None) -> None:
    """Run the cases, the first case of every variant before the others."""
    until = time.monotonic() + seconds
    try:
        gpu = require_gpu(0)
    except LenetError as error:
        click.echo(f"sanitize: error: {error}", err=True)
        sys.exit(2)
    import cupy

    activate(gpu)
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    with_line_numbers()
    if planted is not None:
        plant(planted)
        return
    cases = in_order(of_names([*of_plans(gpu), *of_variants(gpu)], only))
    if listed:
        for case in cases:
            print(f"case {case}")
        return
    index, parts = map(int, part.split("/"))
    sys.exit(run(cases[index::parts], until))


if __name__ == "__main__":
    main()
