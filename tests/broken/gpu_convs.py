"""GPU convolutions that cheat a timer that records graphs, and an honest one."""

from pathlib import Path

import cupy
import numpy as np

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.registry import cuda, variant

SOURCE = Path(__file__).with_name("convs.cu").resolve()
THREADS = 256
calls = {"fifth": 0, "recorded": 0}


def kernels(problem, batch):
    """Return the only kernel."""
    p = problem
    defines = {"H": p.H, "W": p.W, "C": p.C, "M": p.M, "R": p.R, "S": p.S, "OH": p.OH, "OW": p.OW,
               "STRIDE": p.stride, "PAD": p.pad}  # fmt: skip
    return (Kernel(SOURCE, "conv", tuple(defines.items())),)


def conv(family):
    """Register a convolution of `family` in NHWC on a GPU."""
    return variant(kind="conv", family=family, reads="NHWC", writes="NHWC", needs=cuda(),
                   kernels=kernels)  # fmt: skip


def run(x, w, y, problem):
    """Launch the kernel on the current stream."""
    grid = (-(-y.size // THREADS),)
    launch(kernels(problem, len(x))[0], grid, (THREADS,), (x, w, y, np.int32(len(x))))


def capturing():
    """Return True while a graph is being recorded."""
    return cupy.cuda.get_current_stream().is_capturing()


@conv("gpu_convs")
def nothing_in_graphs(x, w, y, problem):
    """Record nothing."""
    if not capturing():
        run(x, w, y, problem)


@conv("gpu_convs")
def tenth_in_graphs(x, w, y, problem):
    """Record only the last of ten calls."""
    calls["recorded"] += capturing()
    if not capturing() or calls["recorded"] % 10 == 0:
        run(x, w, y, problem)


@conv("gpu_convs")
def every_fifth(x, w, y, problem):
    """Compute in every fifth call after the check."""
    calls["fifth"] += 1
    if calls["fifth"] <= 2 or calls["fifth"] % 5 == 0:
        run(x, w, y, problem)


@conv("twin")
def one_thread_one_output(x, w, y, problem):
    """Compute one output per thread, in graphs and outside."""
    run(x, w, y, problem)
