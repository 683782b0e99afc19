"""Wrong fully connected layers, for a CPU and for a GPU."""

from pathlib import Path

import numpy as np

from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.registry import Variant, cpu, cuda, make_variant

_SOURCE = Path(__file__).with_name("kernels.cu").resolve()
GPU_NAMES = ("writes_nothing", "off_by_one", "writes_nan", "races", "low_precision")


def writes_nothing(x, w, y, problem):
    """Leave the output unchanged."""


def off_by_one(x, w, y, problem):
    """Omit the last output."""
    y.reshape(-1)[:-1] = (x @ w).reshape(-1)[:-1]


def writes_nan(x, w, y, problem):
    """Write one NaN."""
    y[:] = x @ w
    y[0, 0] = np.nan


def low_precision(x, w, y, problem):
    """Round the operands to fp16."""
    y[:] = x.astype(np.float16).astype(np.float32) @ w


def swaps_images(x, w, y, problem):
    """Give each image the output of another."""
    y[:] = np.roll(x @ w, 1, axis=0)


_CPU = (writes_nothing, off_by_one, writes_nan, low_precision, swaps_images)


def cpu_variants() -> list[Variant]:
    """Return the wrong CPU variants."""
    fields = {"kind": "fc", "family": "broken", "reads": "NC", "writes": "NC", "needs": cpu()}
    return [make_variant(run, **fields) for run in _CPU]


def gpu_variant(name: str) -> Variant:
    """Return the wrong GPU variant that launches kernel `name`."""

    def run(x, w, y, problem):
        kernel = Kernel(_SOURCE, name, (("K", problem.K), ("M", problem.M)))
        outputs = len(x) * problem.M
        grid = (outputs,) if name == "races" else (-(-outputs // 256),)
        launch(kernel, grid, (256,), (x, w, y, np.int32(len(x))))

    run.__name__ = name
    return make_variant(run, kind="fc", family="broken", reads="NC", writes="NC", needs=cuda())
