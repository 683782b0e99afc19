"""Run every GPU variant once on small shapes, for compute-sanitizer to watch: no memory pool.

Prints each case before it runs, so that the last line names the one that died.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from problems import all_problems  # noqa: E402

from lenetgpu.check.judge import check_variant  # noqa: E402
from lenetgpu.check.truth import random_input, reference  # noqa: E402
from lenetgpu.gpu.device import activate, driver_gpus  # noqa: E402
from lenetgpu.network import CLASSIFIER, FEATURES  # noqa: E402
from lenetgpu.stages import Variant, variants  # noqa: E402
from lenetgpu.stages.conv.reference import reference as conv_reference  # noqa: E402


def cases(images: tuple[int, ...], words: tuple[str, ...]) -> list[tuple[Variant, Any, int]]:
    """Variants of this GPU whose `kind-family.name` holds one of `words`, with their problems."""
    gpu = driver_gpus()[0]
    return [
        (variant, problem, n)
        for variant in variants(device="cuda")
        if variant.kind not in (FEATURES, CLASSIFIER) and variant.needs.met_by(gpu)
        and (not words or any(word in f"{variant.kind}-{variant.full_name}" for word in words))
        for problem in all_problems(variant)
        for n in images
    ]  # fmt: skip


def right(variant: Variant, problem: Any, n: int) -> bool:
    """Whether `variant` is right on `n` random images of `problem`."""
    x, w = random_input(variant.kind, problem, n, np.random.default_rng(n))
    if variant.kind == "conv":
        expected = conv_reference(x, w, problem)
    else:
        expected = reference(variant.kind, x, w, problem)
    return check_variant(variant, problem, x, w, expected).passed


@click.command()
@click.argument("words", nargs=-1)
@click.option("--images", "-n", multiple=True, default=(1, 5), show_default=True, type=int,
              help="Images a run; may be given more than once.")  # fmt: skip
@click.option("--part", default="0/1", show_default=True, help="I/N: every Nth case from the Ith.")
def main(words: tuple[str, ...], images: tuple[int, ...], part: str) -> None:
    """Run the variants whose `kind-family.name` holds one of WORDS (all)."""
    import cupy

    activate(driver_gpus()[0])
    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    index, parts = map(int, part.split("/"))
    wrong = 0
    for variant, problem, n in cases(images, words)[index::parts]:
        print(f"{variant.kind}-{variant.full_name} {problem} {n}", flush=True)
        if not right(variant, problem, n):
            print("  WRONG", flush=True)
            wrong += 1
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
