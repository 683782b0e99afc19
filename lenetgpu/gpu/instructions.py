"""Latency of instructions on the current GPU, in clocks: figures 9 and 13 of convnet2's paper.

It is the time from an instruction's issue to that of the warp's next one, which depends on it.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu.latency import STEPS, least_per_step
from lenetgpu.gpu.nvrtc import Kernel

_PLACES = 16
_WARP, _BLOCK = 32, 64


@dataclass(frozen=True)
class Instruction:
    """A measured instruction, its PTX and its SASS."""

    op: int  # OP of instructions.cu
    ptx: str
    sass: str
    line: str = ""  # its name in figures 9 and 13 of the paper
    each: int = 1  # instructions per step
    threads: int = _WARP
    remark: str = ""

    def kernels(self) -> list[Kernel]:
        """Return the chain's kernel in both lengths."""
        return [Kernel.beside(__file__, "instruction_latency", STEPS=n, OP=self.op) for n in STEPS]


_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text())
INSTRUCTIONS = tuple(Instruction(**row) for row in _TABLES["measured"])
# Instructions of figures 9 and 13 that this method cannot measure, and why.
NOT_MEASURED: dict[str, str] = _TABLES["not measured"]


@cache
def measured() -> dict[str, float]:
    """Return the minimum clocks of each of `INSTRUCTIONS`, by PTX, on the current GPU."""
    out, args = cupy.zeros(_BLOCK, cupy.int32), (cupy.zeros(_PLACES, cupy.uint64), np.int32(1))
    return {
        one.ptx: least_per_step(one.kernels(), out, args, one.threads) / one.each
        for one in INSTRUCTIONS
    }
