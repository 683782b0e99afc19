"""The cases that `scripts/sanitize.py` has compute-sanitizer watch: no memory pool, small shapes.

Every GPU variant on the problems of tests/problems.py, and every fused plan on a few digits, uint8
and float32, with scores and without. Each case is printed as it
begins and as it ends, so that the last line names one that died. Kernels carry line numbers.
"""

from __future__ import annotations

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
from lenetgpu.check.truth import random_input, reference, reference_scores  # noqa: E402
from lenetgpu.errors import LenetError  # noqa: E402
from lenetgpu.files import assets  # noqa: E402
from lenetgpu.files.dataset import load_dataset  # noqa: E402
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
    """`of` is the variant or plan, `shape` what it runs on; `rank` counts the cases of the same."""

    of: str
    shape: str
    rank: int
    right: Callable[[], bool]

    def __str__(self) -> str:
        return f"{self.of} | {self.shape}"


def with_line_numbers() -> None:
    """Compile kernels so that a tool can name a line; the cache keeps them apart from others."""
    nvrtc._OPTIONS = (*nvrtc._OPTIONS, "-lineinfo")  # type: ignore[assignment]


def right(variant: Variant, problem: Any, n: int) -> bool:
    x, w = random_input(variant.kind, problem, n, np.random.default_rng(n))
    if variant.kind == "conv":
        expected = conv_reference(x, w, problem)
    else:
        expected = reference(variant.kind, x, w, problem)
    return check_variant(variant, problem, x, w, expected).passed


def of_variants(gpu: Gpu) -> Iterator[Case]:
    """Of kinds with a reference of their own: what a fused plan is made of runs in the plan."""
    for variant in variants(device="cuda"):
        if variant.kind in (FEATURES, CLASSIFIER) or not variant.needs.met_by(gpu):
            continue
        runs = [(problem, n) for n in IMAGES for problem in all_problems(variant)]
        for rank, (problem, n) in enumerate(runs):
            name = f"{variant.kind}-{variant.full_name}"
            yield Case(name, f"{problem}, {n} images", rank, partial(right, variant, problem, n))


def labels_right(gpu: Gpu, name: str, dtype: str) -> bool:
    """Return whether plan `name` gives float64's labels, and finite scores, of a few digits."""
    import cupy

    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:DIGITS])
    weights = load_weights(assets.default_weights())
    expected, _ = reference_scores(digits, weights)
    images = digits if dtype == "uint8" else digits.astype(np.float32) / np.float32(PIXEL_SCALE)
    plan = resolve(name, "cuda", gpu=gpu)
    pipeline = Pipeline(plan, weights, len(images), dtype)
    excused = excusable_flips(expected, plan.precision)
    wrong = 0
    for with_scores in (True, False):
        pipeline.with_scores = with_scores
        found = pipeline.run(cupy.asarray(images)).get()
        wrong += int(((found != expected.argmax(1)) & ~excused).sum())
    return wrong == 0 and bool(np.isfinite(pipeline.scores(len(images))).all())


def of_plans(gpu: Gpu) -> Iterator[Case]:
    """Plans whose first kernel takes images to features."""
    for name in runnable_plans("cuda", gpu):
        if resolve(name, "cuda").slots[0].variant.kind == FEATURES:
            for rank, dtype in enumerate(("uint8", "float32")):
                run = partial(labels_right, gpu, name, dtype)
                yield Case(f"plan {name}", f"{DIGITS} digits, {dtype}", rank, run)


def of_names(cases: list[Case], only: str) -> list[Case]:
    """Those of what has one of the names, with commas between, in its own; all where `only` is "".

    ClickException for a name that nothing has.
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
    """Run `cases` while the clock is before `until`; the exit code: 0, or 3 where one raised."""
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
    """Launch one of sanitize_planted.cu's kernels on memory that no pool gave."""
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
    """Run the cases, in an order in which everybody's first come first."""
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
