"""What the course report times that is no stage of ours: passes of a stage, alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import judge
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.measure.bench import StageBench, stage_of
from lenetgpu.measure.document import rates_json, times_json
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.timing import cpu_ms, gpu_ms, repeat, summarise
from lenetgpu.papers.course import RELU, SERIAL_RELU
from lenetgpu.problems import Pool

GPU_BUDGET_S, CPU_BUDGET_S = 0.15, 0.5
_LEAST, MOST = 5, 50
_SERIAL_IMAGES = 100


def times_of(samples: list[float]) -> dict[str, Any]:
    """The JSON fields of a row's samples in milliseconds."""
    summary = summarise(samples)
    return times_json(summary) | {"samples_ms": summary.samples}


def timed(sample: Callable[[], float], device: str) -> dict[str, Any]:
    """The times of `sample`, warmed up once, for as long as a row of `device` may take."""
    sample()
    if device == "cuda":
        return times_of(repeat(sample, GPU_BUDGET_S, _LEAST, MOST))
    return times_of(repeat(sample, CPU_BUDGET_S, 1, MOST))


def on_the_cpu() -> str:
    """Whose time a serial row is, on a machine with a GPU too."""
    return f"on one thread of the CPU, {cpu_name()}"


def passed(bench: StageBench, name: str, limits: Ceilings | None) -> dict[str, Any]:
    """RELU in place or MEAN alone, on the map that the pool reads; checked here against CuPy."""
    from lenetgpu.stages.pool.looped import access_counts, mean_alone, relu_in_place

    problem, x = bench.problem, bench.input
    assert isinstance(problem, Pool)
    if name == RELU:
        y = x.copy()
        expected = cupy.maximum(x, np.float32(0))
        moved, flop = 2 * x.nbytes, x.size
        efficiency = "in place"
    else:
        n, height, width, maps = x.shape
        windows = x.reshape(n, height // 2, 2, width // 2, 2, maps)
        expected = windows.mean(axis=(2, 4), dtype=np.float64)
        y = cupy.full(expected.shape, cupy.nan, cupy.float32)
        moved, flop = x.nbytes + y.nbytes, x.size
        loads, stores = access_counts(problem)
        efficiency = f"counted efficiency {loads.efficiency:.1%} of loads, "
        efficiency += f"{stores.efficiency:.1%} of stores"

    def work() -> None:
        if name == RELU:
            relu_in_place(y, problem)
        else:
            mean_alone(x, y, problem)

    work()
    verdict = judge(y, expected, "fp32")
    if not verdict.passed:
        return {"status": "wrong", "relative_error": verdict.error}
    row = timed(lambda: gpu_ms(work), "cuda")
    row |= rates_json(flop, moved, row["median_ms"] / 1e3, "fp32", limits)
    row["explanation"] = f"{efficiency}, {row['gbs']:.0f} GB/s"
    return row


def serial_pass(stage: str, name: str, images: int) -> dict[str, Any]:
    """The report's serial ReLU or mean on one thread of the CPU, scaled to `images`."""
    from lenetgpu.stages.pool.serial import mean_loops, relu_loops

    problem = stage_of(stage).problem
    assert isinstance(problem, Pool)
    few = min(_SERIAL_IMAGES, images)
    rng = np.random.default_rng()
    x = rng.standard_normal((few, *problem.in_shape)).astype(np.float32)
    relu, mean = np.full_like(x, np.nan), np.full((few, *problem.out_shape), np.nan, np.float32)

    def loops() -> None:
        if name == SERIAL_RELU:
            relu_loops(x.reshape(-1), relu.reshape(-1))
        else:
            for image, pooled in zip(x, mean, strict=True):
                mean_loops(image, pooled)

    def sample() -> float:
        return cpu_ms(loops) * images / few

    sample()
    folded = x.reshape(few, problem.H // 2, 2, problem.W // 2, 2, problem.C)
    right = (
        np.array_equal(relu, np.maximum(x, 0))
        if name == SERIAL_RELU
        else judge(mean, folded.mean(axis=(2, 4), dtype=np.float64), "fp32").passed
    )
    row: dict[str, Any] = {"variant": name, "status": "right" if right else "wrong"}
    if right:
        row |= times_of(repeat(sample, CPU_BUDGET_S, 1, MOST))
        scaled = f"scaled from {few} images, " if few < images else ""
        row["note"] = scaled + on_the_cpu()
    return row
