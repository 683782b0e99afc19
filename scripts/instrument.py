"""The instrument pointed at itself: one plan under two names, a planted slow-down, second runs.

Every run is a process of its own that compares, in the rounds of `lenetgpu compare`, a plan with
itself under another name, with itself held up by 3 %, and with other plans. Counted are the runs
that call the same plan faster or slower, those that find the slow-down, and of successive pairs of
runs the ratios of the second that lie in the first's interval.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from lenetgpu.check.truth import Truth, truth
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.compare import open_device
from lenetgpu.measure.comparison import Candidate
from lenetgpu.measure.document import candidate_json, head
from lenetgpu.measure.plan_bench import PlanBench
from lenetgpu.measure.rounds import AGAIN, Effort, compare
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

PLANTED = 0.03
SAME, SLOWED = "same plan, other name", "same plan, 3 % slower"
BASE = "fp32"
OTHERS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "cpu": {"serial pool2": ("fp32", {"pool2": "serial"}), "unrolled": ("unrolled", {})},
    "cuda": {"fp16x3": ("fp16x3", {}), "mma_fp16x3": ("mma_fp16x3", {})},
}
BATCH = {"cpu": 64, "cuda": 10_000}
CALIBRATIONS, PAIRS = 4, 150


def gpu_hold(nanoseconds: int) -> Any:
    import cupy

    kernel = cupy.RawKernel(
        """extern "C" __global__ void hold(unsigned long long wait) {
            unsigned long long now, start;
            asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
            do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
            while (now - start < wait);
        }""",
        "hold",
    )
    return lambda: kernel((1,), (1,), (np.uint64(nanoseconds),))


class HeldUp(Pipeline):
    """A plan that is held up in every pass: on a CPU by a share of this very pass."""

    share = 0.0
    hold: Callable[[], Any] | None = None

    def run(self, images: Any, observe: Any = None) -> Any:
        start = time.perf_counter()
        labels = super().run(images, observe)
        if self.hold is not None:
            self.hold()
        elif self.share:
            now = time.perf_counter()
            end = now + self.share * (now - start)
            while time.perf_counter() < end:
                pass
        return labels


class Slowed(PlanBench):
    """A plan that is held up by PLANTED of its own time."""

    def check(self) -> Any:
        checked = super().check()
        assert isinstance(self.pipeline, HeldUp)
        if self._gpu:
            self._calibrate(self.pipeline)
        else:
            self.pipeline.share = PLANTED
        return checked

    def _calibrate(self, pipeline: HeldUp) -> None:
        """Find how long a kernel must wait for a recorded pass to take PLANTED more."""
        self.sample()
        plain, wait_ms = self._replays, 0.0
        assert plain is not None
        for _ in range(CALIBRATIONS):
            pipeline.hold = gpu_hold(int(1e6 * max(0.0, wait_ms)))
            self._probed = False
            self.sample()
            held = self._replays
            assert held is not None
            pairs = np.array([(plain.sample(), held.sample()) for _ in range(PAIRS)])
            took = float(np.median(pairs[:, 0]))
            wait_ms += (1 + PLANTED - float(np.median(pairs[:, 1] / pairs[:, 0]))) * took


def opened(device: str, batch: int) -> tuple[Gpu | None, Any, Truth]:
    """The device, images and their float64 truth."""
    gpu, _ = open_device(device, lambda line: None)
    images = np.ascontiguousarray(load_dataset(assets.default_digits()).images[:batch])
    return gpu, images, truth(images, load_weights(assets.default_weights()))


def one_run(device: str, setting: tuple[Gpu | None, Any, Truth], effort: Effort) -> dict[str, Any]:
    """One comparison: its verdicts, ratios and the head of its document."""
    gpu, images, facts = setting
    weights = facts.weights

    def candidate(
        name: str, bench: type[PlanBench] = PlanBench, plan: str = BASE,
        overrides: dict[str, str] | None = None,
    ) -> Candidate:  # fmt: skip
        resolved = resolve(plan, device, overrides, gpu=gpu)

        def build() -> PlanBench:
            made = HeldUp(resolved, weights, len(images), str(images.dtype))
            return bench(made, images, facts)

        return Candidate(name, build, resolved.precision)

    candidates = [candidate(BASE), candidate(SAME), candidate(SLOWED, Slowed)]
    candidates += [
        candidate(name, PlanBench, plan, changed)
        for name, (plan, changed) in OTHERS[device].items()
    ]
    start = time.perf_counter()
    done = compare("plans", candidates, BASE, effort)
    took = time.perf_counter() - start
    rows = [candidate_json(done, c, None) for c in (*candidates[1:], done.again) if c is not None]
    keep = ("name", "verdict", "ratio", "median_ms", "warnings")
    for row in rows:
        if row.get("ratio") is None:
            raise LenetError(
                f"{row['name']}: expected a time, found it {row['status']}, {row['note']}"
            )
    return head("instrument", gpu) | {
        "seconds": took,
        "rounds": done.rounds,
        "rows": [{key: row.get(key) for key in keep} for row in rows],
    }


def counts(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What the runs show of false calls, the slow-down, and second runs."""
    rows = [{row["name"]: row for row in run["rows"]} for run in runs]
    called = ("faster", "slower")
    base = next(name for name in rows[0] if name.endswith(AGAIN))
    inside, pairs = 0, 0
    for first, second in zip(rows[0::2], rows[1::2], strict=False):
        for name, row in first.items():
            pairs += 1
            ratio = row["ratio"]
            inside += ratio["low"] <= second[name]["ratio"]["median"] <= ratio["high"]
    lowest = min(row["ratio"]["low"] for by_name in rows for row in by_name.values())
    return {
        "runs": len(runs),
        "same_called_different": sum(r[SAME]["verdict"] in called for r in rows),
        "same_called_same": sum(r[SAME]["verdict"] == "same" for r in rows),
        "control_called_different": sum(r[base]["verdict"] in called for r in rows),
        "slow_down_found": sum(r[SLOWED]["verdict"] == "slower" for r in rows),
        "pairs": pairs,
        "second_run_inside": inside,
        "lowest_end_of_an_interval": lowest,
        "longest_run_seconds": max(run["seconds"] for run in runs),
    }


@contextmanager
def load(processes: int) -> Any:
    """`processes` other processes that keep a core busy each."""
    spin = [sys.executable, "-c", "while True: sum(range(100000))"]
    busy = [subprocess.Popen(spin) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--runs", default=40, show_default=True, type=click.IntRange(2))
@click.option(
    "--seconds", default=12.0, show_default=True, type=click.FloatRange(0.1),
    help="of rounds in a run",
)  # fmt: skip
@click.option("--batch", type=int, help="images; default: 64 on a CPU, 10,000 on a GPU")
@click.option("--load", "busy", default=0, help="other processes that keep a core busy each")
@click.option("--json", "target", type=click.Path(path_type=Path))
@click.option(
    "--each", default=1, show_default=True, type=click.IntRange(1), help="comparisons of a process"
)
@click.option("--one", is_flag=True, hidden=True)
def main(
    device: str, runs: int, seconds: float, batch: int | None, busy: int, target: Path | None,
    each: int, one: bool,
) -> None:  # fmt: skip
    """Count false calls, found slow-downs and second runs inside the first's interval."""
    batch = batch or BATCH[device]
    if one:
        setting, effort = opened(device, batch), Effort(seconds, noise=0.0)
        click.echo(json.dumps([one_run(device, setting, effort) for _ in range(each)]))
        return
    words = ["--one", "--device", device, "--seconds", str(seconds), "--batch", str(batch),
             "--each", str(each)]  # fmt: skip
    processes = []
    with load(busy):
        for index in range(-(-runs // each)):
            done = subprocess.run(
                [sys.executable, __file__, *words], check=True, stdout=subprocess.PIPE, text=True
            )
            processes.append(json.loads(done.stdout))
            for run in processes[-1]:
                click.echo(f"process {index + 1}, {run['rounds']} rounds: {shown(run)}")
    # neighbours are of different processes, as a second run is
    found = [made[index] for index in range(each) for made in processes]
    result = counts(found)
    click.echo(json.dumps(result, indent=1))
    if target is not None:
        facts = {key: found[0][key] for key in found[0] if key not in ("seconds", "rounds", "rows")}
        document = facts | {"images": batch, "busy_processes": busy, "counts": result}
        document["runs"] = [
            {"rounds": run["rounds"], "seconds": run["seconds"], "rows": run["rows"]}
            for run in found
        ]
        target.write_text(json.dumps(document, indent=1) + "\n")


def shown(run: dict[str, Any]) -> str:
    """A comparison in a line."""
    return ", ".join(
        f"{row['name']} {row['verdict']} {row['ratio']['median']:.3f} "
        f"({row['ratio']['low']:.3f} .. {row['ratio']['high']:.3f})"
        for row in run["rows"]
    )


if __name__ == "__main__":
    main()
