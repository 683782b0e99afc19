"""Run every plan with unusual weights: each must match float64 or be refused in a sentence.

Each set of weights goes through each plan of this device, on shipped digits, noise, a blank and a
white image; each group is judged by its own largest score. The exit code is 1 if a plan is neither
right nor refused.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from lenetgpu.check.fit import Group, fit, groups, judge_groups
from lenetgpu.check.reference import reference_scores
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.document import head
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import Plan, choose_device, resolve, runnable_plans
from lenetgpu.store import write_atomically

SEED, NOISE = 20_261_122, 64
SLOW = {"serial": 70}  # images that a plan gets at most
Tensors = dict[str, np.ndarray]


def sets(shipped: Tensors) -> Iterator[tuple[str, Tensors]]:
    """Yield (description, tensors) of every set of weights; the same in every run."""
    rng = np.random.default_rng(SEED)

    def times(factor: float, *names: str) -> Tensors:
        return {
            name: (w * np.float64(factor)).astype(np.float32) if name in names or not names else w
            for name, w in shipped.items()
        }

    def mixed(low: float, high: float) -> Tensors:
        return {
            name: (w * np.exp2(rng.uniform(low, high, w.shape[-1]))).astype(np.float32)
            for name, w in shipped.items()
        }

    def drawn(spread: float) -> Tensors:
        return {
            name: (rng.standard_normal(w.shape) * np.exp2(rng.uniform(-spread, spread)))
            .astype(np.float32)
            for name, w in shipped.items()
        }  # fmt: skip

    yield "as they ship", shipped
    for factor in ("1e-6", "1e-3", "30", "1e4"):
        yield f"times {factor}", times(float(factor))
    yield "channels times 2^-6 to 2^2", mixed(-6, 2)
    yield "channels times 2^-30 to 2^30", mixed(-30, 30)
    yield "random", drawn(0)
    yield "random, tensors times 2^-8 to 2^8", drawn(8)
    tiny = times(1e-39, "conv1")
    yield "conv1 denormal, fc2 times 1e30", tiny | {"fc2": times(1e30, "fc2")["fc2"]}
    yield "fc1 times 1e30", times(1e30, "fc1")
    dead = {name: w.copy() for name, w in shipped.items()}
    dead["conv1"][..., 3], dead["conv2"][..., 5], dead["fc1"][:, 7], dead["fc2"][:, 9] = 0, 0, 0, 0
    dead["conv1"][..., 4] = -1
    yield "some filters zero or never awake", dead
    yield "all zero", times(0)
    yield "times 1e-12: scores below float32's", times(1e-12)
    yield "times 1e11: scores beyond float32's", times(1e11)


def all_groups(count: int) -> tuple[Any, list[Group]]:
    """Return images (N, 28, 28, 1) uint8 and their groups: `count` digits, then the others."""
    return groups(load_dataset(assets.default_digits()).images[:count], NOISE)


def run(plan: Plan, weights: Weights, images: Any, gpu: Gpu | None) -> tuple[Any, Any]:
    chunk = min(len(images), default_chunk(plan.device))
    pipeline = Pipeline(plan, weights, len(images), "uint8", chunk)
    pipeline.poison()
    if gpu is None:
        labels = pipeline.run(images).copy()
    else:
        import cupy

        labels = pipeline.run(cupy.asarray(images)).get()
    return pipeline.scores(len(images)), labels


def tried(
    plan: Plan, weights: Weights, gpu: Gpu | None, references: tuple[Any, list[Group], Any]
) -> dict[str, Any]:
    """Return the result of `plan` on (images, groups, float64 scores), or why it is refused."""
    images, parts, expected = references
    count = SLOW.get(plan.name, len(images))
    if count < len(images):
        images, parts = all_groups(count)
        expected = reference_scores(images, weights)[0]
    batch = min(len(images), default_chunk(plan.device))
    try:
        fit(plan, weights, gpu.name if gpu else cpu_name(), "uint8", batch)
    except LenetError as error:
        return {"refused": str(error)}
    scores, labels = run(plan, weights, images, gpu)
    verdicts = judge_groups(parts, scores, labels, expected, plan.arithmetic)
    return {
        "right": all(v.passed for v in verdicts.values()),
        "error": _short(max((v.error for v in verdicts.values()), key=lambda e: (e != e, e))),
        "flips": int(np.count_nonzero(labels != expected.argmax(1))),
        "groups": {name: _short(verdict.error) for name, verdict in verdicts.items()},
    }


def tried_all(
    plans: list[Plan], weights: Weights, gpu: Gpu | None, references: tuple[Any, list[Group], Any]
) -> dict[str, dict[str, Any]]:
    """Return the result of each plan by name; plans with the same variants run once."""
    results: dict[str, dict[str, Any]] = {}
    for plan in plans:
        same = next((p.name for p in plans if p.name in results and p.stages == plan.stages), None)
        results[plan.name] = results[same] if same else tried(plan, weights, gpu, references)
    return results


def _short(error: float) -> float:
    return float(f"{error:.2e}")


def _said(entry: dict[str, Any]) -> str:
    if "refused" in entry:
        return "refused"
    flips = f", {entry['flips']} flips" if entry["flips"] else ""
    return f"{entry['error']:.1e}{flips}" + ("" if entry["right"] else " WRONG")


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:K")
@click.option("--images", default=10_000, show_default=True, help="shipped digits to take")
@click.option("--plans", "wanted", help="a comma list; default: every plan that the device runs")
@click.option("--json", "target", type=click.Path(path_type=Path))
def main(device: str, images: int, plan_names: str | None, target: Path | None) -> None:
    """Run every set of weights with every plan and print a line each."""
    try:
        gpu, _ = choose_device(device)
        if gpu is not None:
            gpu_device.activate(gpu)
        kind = "cpu" if gpu is None else "cuda"
        names = plan_names.split(",") if plan_names else runnable_plans(kind, gpu)
        plans = [resolve(name, kind, gpu=gpu) for name in names]
    except LenetError as error:
        click.echo(f"any_weights: error: {error}", err=True)
        sys.exit(2)
    inputs, parts = all_groups(images)
    rows, wrong = [], 0
    for words, tensors in sets(load_weights(assets.default_weights()).tensors):
        weights = Weights(tensors, f"weights {words}")
        references = inputs, parts, reference_scores(inputs, weights)[0]
        entries = tried_all(plans, weights, gpu, references)
        click.echo(f"{words}: " + "; ".join(f"{n} {_said(e)}" for n, e in entries.items()))
        wrong += sum("refused" not in entry and not entry["right"] for entry in entries.values())
        rows.append({"weights": words, "plans": entries})
    if target is not None:
        document = head("weights", gpu) | {"images": len(inputs), "slow": SLOW, "rows": rows}
        write_atomically(target, (json.dumps(document, indent=1) + "\n").encode())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
