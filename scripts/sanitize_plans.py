"""Run fused plans on a few digits, for `scripts/sanitize.sh` to watch: no memory pool, no poison.

Each plan takes uint8 and float32 images, packed ones where its kernels do, with scores and without,
and must give float64's labels.
"""

from __future__ import annotations

import sys
from typing import Any

import click
import numpy as np

from lenetgpu.check.judge import excusable_flips
from lenetgpu.check.truth import reference_scores
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.packed.records import pack
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.device import driver_gpus, require_gpu
from lenetgpu.network import FEATURES, PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve, runnable_plans
from lenetgpu.stages.support.unpack import Records


def fused_plans() -> list[str]:
    """Plans that this GPU can run whose first kernel takes images to features."""
    found = runnable_plans("cuda", driver_gpus()[0])
    return [name for name in found if resolve(name, "cuda").slots[0].variant.kind == FEATURES]


def on_device(images: np.ndarray, packed: bool) -> Any:
    """`images` on the GPU as a pipeline takes them."""
    import cupy

    if not packed:
        return cupy.asarray(images)
    payload, lengths = pack(images)
    offsets = np.append(0, lengths.cumsum(dtype=np.int64)).astype(np.uint32)
    return Records(cupy.asarray(payload), cupy.asarray(offsets))


def wrong_labels(plan_name: str, images: np.ndarray, expected: np.ndarray) -> int:
    """Labels of `images` that differ from float64's and may not, over all runs."""
    plan = resolve(plan_name, "cuda", gpu=driver_gpus()[0])
    pipeline = Pipeline(
        plan, load_weights(assets.default_weights()), len(images), str(images.dtype)
    )
    excused = excusable_flips(expected, plan.precision)
    wrong = 0
    for packed in (False, True)[: 1 + pipeline.takes_packed]:
        for with_scores in (True, False):
            pipeline.with_scores = with_scores
            found = pipeline.run(on_device(images, packed)).get()
            wrong += int(((found != expected.argmax(1)) & ~excused).sum())
    scores_wrong = not np.isfinite(pipeline.scores(len(images))).all()
    return wrong + int(scores_wrong)


@click.command()
@click.argument("plans", nargs=-1)
@click.option("--images", "-n", type=click.IntRange(min=1), default=133, show_default=True,
              help="Digits a run.")  # fmt: skip
def main(plans: tuple[str, ...], images: int) -> None:
    """Run PLANS (all fused ones that this GPU can) on a few shipped digits."""
    try:
        require_gpu(0)
    except LenetError as error:
        click.echo(f"sanitize_plans: error: {error}", err=True)
        sys.exit(2)
    import cupy

    cupy.cuda.set_allocator(None)
    cupy.cuda.set_pinned_memory_allocator(None)
    digits = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:images])
    expected, _ = reference_scores(digits, load_weights(assets.default_weights()))
    failed = False
    for plan in plans or fused_plans():
        for batch in (digits, digits.astype(np.float32) / np.float32(PIXEL_SCALE)):
            try:
                wrong = wrong_labels(plan, batch, expected)
            except LenetError as error:
                click.echo(f"sanitize_plans: error: {error}", err=True)
                sys.exit(2)
            failed |= wrong > 0
            print(f"{plan} {batch.dtype} {images} images: {wrong} wrong", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
