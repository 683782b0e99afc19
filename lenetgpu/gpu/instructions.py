"""Latency of instructions on the current GPU, in clocks: figures 9 and 13 of convnet2's paper.

It is the time from an instruction's issue to that of the warp's next one, which depends on it.
"""

from dataclasses import dataclass
from functools import cache

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


INSTRUCTIONS = (
    Instruction(0, "mad.f32", "FFMA", "mad"),
    Instruction(1, "add.u32", "IADD", "add", 2, remark="and a LOP3 between: additions are joined"),
    Instruction(2, "mul.lo.u64", "IMAD", "mul", remark="by a register: three multiplications"),
    Instruction(3, "mad.lo.s32", "IMAD"),
    Instruction(4, "ld.shared", "LDS", "ld.shared", remark="the paper's is not waited for"),
    Instruction(5, "ld.local", "LDL", "ld.local", remark="hits the first cache"),
    Instruction(6, "st.shared", "STS", "", _PLACES, remark="nothing waits for it"),
    Instruction(7, "st.local", "STL", "st.local", _PLACES, remark="nothing waits for it"),
    Instruction(8, "ld.const", "LDC"),
    Instruction(9, "ld.global.ca", "LDG", remark="hits the first cache"),
    Instruction(10, "ld.global.cg", "LDG", remark="hits the L2 cache"),
    Instruction(11, "bar.sync", "BAR", threads=_BLOCK, remark="two warps, a block of Table 1"),
    Instruction(12, "mov %clock64", "CS2R", remark="what a part's end costs"),
)
# Instructions of figures 9 and 13 that this method cannot measure, and why.
NOT_MEASURED = {
    "mov.f32": "the compiler leaves none: registers are renamed, not copied",
    "add.u64": "no instruction of its own: two 32-bit additions with a carry",
    "mul.lo.u64 by 4": "no instruction of its own: a shift, mostly within the address's addition",
    "single lines of the kernel": "a clock read at each would keep the compiler from overlapping "
    "them, and a GPU counts no cycles an instruction",
}


@cache
def measured() -> dict[str, float]:
    """Return the minimum clocks of each of `INSTRUCTIONS`, by PTX, on the current GPU."""
    out, args = cupy.zeros(_BLOCK, cupy.int32), (cupy.zeros(_PLACES, cupy.uint64), np.int32(1))
    return {
        one.ptx: least_per_step(one.kernels(), out, args, one.threads) / one.each
        for one in INSTRUCTIONS
    }
