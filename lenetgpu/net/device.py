"""Which device a command runs on, and why."""

from __future__ import annotations

import re

from lenetgpu.errors import LenetError
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.plan import AUTO, NAMED, canonical


def choose_device(wanted: str, plan: str = AUTO) -> tuple[Gpu | None, str]:
    """The GPU for "auto", "cpu", "cuda" or "cuda:K" (None for the CPU), and why in one clause.

    Raises LenetError where a GPU is asked for and there is none, or the word is another.
    """
    if wanted == "cpu":
        return None, "asked for"
    if wanted == "auto":
        known = NAMED.get(canonical(plan))
        if known is not None and "cuda" not in known:
            return None, f"plan {plan} runs on the CPU"
        gpus = gpu_device.driver_gpus()
        if not gpus:
            return None, "no NVIDIA GPU found"
        if not gpu_device.cupy_installed():
            return None, f"{gpus[0].name} found, but CuPy is missing: {gpu_device.INSTALL_HINT}"
        return gpus[0], "NVIDIA GPU found"
    kind, _, index = wanted.partition(":")
    number = index or "0"
    if kind != "cuda" or wanted.endswith(":") or not re.fullmatch("[0-9]{1,9}", number):
        raise LenetError(f"device {wanted!r}: expected auto, cpu, cuda or cuda:K")
    return gpu_device.require_gpu(int(number)), "asked for"
