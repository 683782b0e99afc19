"""GPU pools that cheat events, graphs and checks, and an honest one."""

from pathlib import Path

import cupy
import numpy as np

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.registry import cuda, variant

SOURCE = Path(__file__).with_name("pools.cu").resolve()
THREADS = 256
state = {"calls": 0, "first": 0}
cache = {}
side = []


def kernels(entry):
    """Return a function that lists the kernel of a pool, `entry`."""

    def of(problem, batch):
        defines = (("H", problem.H), ("W", problem.W), ("C", problem.C))
        return (Kernel(SOURCE, entry, defines),)

    return of


def pool(family, entry="pool"):
    """Register a pool of `family` in NHWC on a GPU that launches kernel `entry`."""
    return variant(kind="pool", family=family, reads="NHWC", writes="NHWC", needs=cuda(),
                   kernels=kernels(entry))  # fmt: skip


def run(x, y, problem, entry="pool"):
    """Launch the kernel on the current stream."""
    grid = (-(-y.size // THREADS),)
    launch(kernels(entry)(problem, len(x))[0], grid, (THREADS,), (x, y, np.int32(len(x))))


@pool("gpu_pools")
def keeps_last(x, y, problem):
    """Compute in the first thirty calls, then leave the previous output."""
    state["first"] += 1
    if state["first"] <= 30:
        run(x, y, problem)


@pool("gpu_pools")
def every_tenth(x, y, problem):
    """Compute in every tenth call after the check."""
    state["calls"] += 1
    if state["calls"] < 5 or state["calls"] % 10 == 0:
        run(x, y, problem)


@pool("gpu_pools")
def by_address(x, y, problem):
    """Cache outputs by the input's address."""
    key = (x.data.ptr, x.shape)
    if key not in cache:
        run(x, y, problem)
        cache[key] = y.copy()
    y[...] = cache[key]


@pool("gpu_pools", "slow_pool")
def another_stream(x, y, problem):
    """Launch on a separate stream that nothing waits for."""
    if not side:
        side.append(cupy.cuda.Stream(non_blocking=True))
    with side[0]:
        run(x, y, problem, "slow_pool")


@pool("gpu_pools", "slow_pool")
def another_stream_later(x, y, problem):
    """Launch on the separate stream after the check."""
    state["later"] = state.get("later", 0) + 1
    if state["later"] <= 5:
        run(x, y, problem)
    else:
        another_stream(x, y, problem)


@pool("gpu_pools", "but_tail")
def but_tail(x, y, problem):
    """Omit images past 512, more than a check on its own input has."""
    run(x, y, problem, "but_tail")


@pool("gpu_pools", "one_too_many")
def past_its_output(x, y, problem):
    """Store a few floats too many."""
    run(x, y, problem, "one_too_many")


@pool("gpu_pools", "in_place")
def its_input(x, y, problem):
    """Apply the ReLU in place, in the input."""
    run(x, y, problem, "in_place")


@pool("twin")
def one_thread_one_output(x, y, problem):
    """Compute one output per thread, correctly."""
    run(x, y, problem)
