"""The ladder of the cuda-convnet2 paper, its steps measured here beside its figures."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.device import Gpu, current_arch
from lenetgpu.gpu.launch import record
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel, compile_together
from lenetgpu.measure.timing import CALLS
from lenetgpu.papers.convnet2 import STEPS, PaperStep
from lenetgpu.papers.convnet2_shares import Field, times
from lenetgpu.problems import Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.convnet2.engines import INNER_PRODUCT, OUTER_PRODUCT
from lenetgpu.stages.conv.convnet2.im2col import convolve, im2col_kernel, im2col_tile
from lenetgpu.stages.conv.convnet2.ladder import (
    HOISTED_CHECKS,
    INDEX_TABLE,
    ROLLED,
    STRENGTH_REDUCED,
    UNROLLED,
    Step,
)
from lenetgpu.stages.mounted import Mounted

_NOP = 0x918
_ENGINE = "convnet2.index_engine"
_KERNELS = {
    "convnet2.rolled": ROLLED,
    "convnet2.unrolled": UNROLLED,
    "convnet2.strength_reduced": STRENGTH_REDUCED,
    "convnet2.hoisted_checks": HOISTED_CHECKS,
    "convnet2.index_table": INDEX_TABLE,
    "convnet2.inner_product": INNER_PRODUCT,
    "convnet2.outer_product": OUTER_PRODUCT,
}
_SPANS = 5
_BUDGET_MS = 200


def instruction_words(data: bytes, entry: str) -> tuple[int, ...]:
    """The low words of `entry`'s SASS instructions, of its .text section in a cubin, an ELF file.

    Every instruction since Volta has 16 bytes.
    """
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    sections = [
        struct.unpack_from("<I20xQQ", data, sections_at + index * size) for index in range(count)
    ]
    for name, offset, length in sections:
        if data.startswith(f".text.{entry}\0".encode(), sections[names][1] + name):
            return struct.unpack_from(f"<{length // 8}Q", data, offset)[::2]
    raise ValueError(f"the cubin has no code of {entry}")


def instruction_count(data: bytes, entry: str) -> int:
    """Static SASS instructions of `entry` in a cubin, without NOPs."""
    return sum(word & 0xFFF != _NOP for word in instruction_words(data, entry))


def longest_span(spans: Any) -> int:
    """Cycles of the busiest multiprocessor, from the begin of its first block to its last's end.

    `spans` (blocks, 3) holds multiprocessor, begin and end of each block by clock64, which counts
    each multiprocessor's own cycles.
    """
    return max(
        int(spans[spans[:, 0] == unit, 2].max() - spans[spans[:, 0] == unit, 1].min())
        for unit in set(spans[:, 0].tolist())
    )


def _kernel_step(step: PaperStep) -> Step:
    known = _KERNELS[step.variant]
    return known if step.loads is None else replace(known, loads=step.loads)


def step_kernels(step: PaperStep, problem: Conv, batch: int) -> tuple[Kernel, Kernel]:
    """The step's convolution kernel for `batch` images, without and with a clock."""
    if step.variant == _ENGINE:
        tile = im2col_tile(problem, batch)
        return im2col_kernel(problem, tile), im2col_kernel(problem, tile, clock=True)
    chosen = _kernel_step(step)
    return chosen.kernel(problem, batch), chosen.kernel(problem, batch, clock=True)


def _runs(step: PaperStep, field: Field) -> tuple[Callable[[], None], Callable[..., None]]:
    """The whole variant, and its convolution alone, which takes an array for a clock's spans."""
    if step.variant != _ENGINE:
        chosen = _kernel_step(step)
        return partial(field.run, chosen), partial(field.convolve, chosen)
    mounted = Mounted(find("conv", _ENGINE, "cuda"), field.problem, [field.w], field.batch)
    state = mounted.state
    if state.chunk < field.batch:
        raise MemoryError(f"workspace for {field.batch} images of {field.problem}")

    def alone(spans: Any = None) -> None:
        convolve(state.images, state, field.y, field.batch, field.problem, spans)

    return partial(mounted.run, field.x, field.y), alone


def _step_row(step: PaperStep, problem: Conv, batch: int) -> dict[str, Any]:
    measured = (
        "median_us", "whole_us", "cycles", "registers", "local_bytes", "shared_bytes",
        "instructions", "blocks", "threads", "ratio", "cycles_ratio", "relative_error",
    )  # fmt: skip
    return {
        "step": step.name,
        "what": step.what,
        "variant": step.variant,
        "before": step.before,
        "section": step.section,
        "paper_cycles": step.cycles,
        "paper_gain": step.gain,
        "paper_remark": step.remark,
        "shape": [problem.C, problem.H, problem.W, problem.M, problem.R, problem.S],
        "stride": problem.stride,
        "pad": problem.pad,
        "batch": batch,
        **dict.fromkeys(measured),
        "note": "",
    }


def _static_facts(alone: Callable[..., None]) -> dict[str, Any]:
    with record() as launches:
        alone()
    (launched,) = launches
    compiled = compile_kernel(launched.kernel, current_arch())
    used = compiled.resources
    return {
        "registers": used.registers,
        "local_bytes": used.stack_bytes,
        "shared_bytes": used.shared_bytes + launched.shared,
        "instructions": instruction_count(compiled.binary, launched.kernel.entry),
        "blocks": launched.grid[0],
        "threads": launched.block[0] * launched.block[1],
    }


def _cycles(alone: Callable[..., None], blocks: int) -> int:
    spans = cupy.full((blocks, 3), -1, cupy.int64)
    found = []
    for _ in range(_SPANS):
        for _ in range(CALLS):
            alone(spans)
        found.append(longest_span(spans.get()))
    return sorted(found)[len(found) // 2]


def measure_ladder(
    problem: Conv, batch: int, *, gpu: Gpu, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """The paper's steps on `batch` images of `problem`, in its order, one row a step.

    Every variant is first checked against float64 on fresh images; a wrong one has status "wrong"
    and no figures, a refused one "refused" and the sentence in `note`. Then, of the right ones:

    - `median_us`, `p05_us`, `p95_us`: the convolution kernel alone, 3 to 20 replays of a CUDA graph
      of 10 launches, interleaved with the other steps';
    - `whole_us`: with the relayouts that the variant needs around it;
    - `cycles`: `longest_span` of a build with clock64 (the figures above are of one without);
    - `registers`, `local_bytes` a thread, `shared_bytes`, `blocks`, `threads`;
    - `instructions`: static SASS instructions in the cubin, NOPs apart;
    - `ratio`, `cycles_ratio`: time, cycles of the step `before` over this step's;
    - `total_ratio`: the baseline's time over this step's (the paper: 4.4).

    `paper_cycles`, `paper_gain` (share of the time saved), `section` and `paper_remark` are the
    paper's. `problem`'s layouts are ignored: NCHW in and out. Needs a GPU with CuPy.
    """
    field = Field(problem, batch)
    problem = field.problem
    rows = [_step_row(step, problem, batch) for step in STEPS]
    chosen = []
    for step, row in zip(STEPS, rows, strict=True):
        variant = find("conv", step.variant, "cuda")
        refusal = variant.refusal(problem)
        if refusal is None and not variant.needs.met_by(gpu):
            refusal = f"needs {variant.needs}"
        if refusal is None:
            chosen.append((step, variant, row))
        else:
            row |= {"status": "refused", "note": refusal}
    kernels = [kernel for step, *_ in chosen for kernel in step_kernels(step, problem, batch)]
    compile_together(kernels, current_arch())
    runs: dict[str, Callable[[], None]] = {}
    for step, variant, row in chosen:
        say(step.name)
        whole, alone = _runs(step, field)
        verdict = field.judged(whole, variant.precision)
        row |= {
            "status": "right" if verdict.passed else "wrong",
            "relative_error": verdict.error,
            "precision": variant.precision,
        }
        if verdict.passed:
            row |= _static_facts(alone)
            row["cycles"] = _cycles(alone, row["blocks"])
            runs |= {step.name: alone, f"{step.name}, whole": whole}
    found = times(runs, CALLS, _BUDGET_MS)
    timed = {row["step"]: row for row in rows if row["step"] in found}
    for name, row in timed.items():
        row |= {
            "median_us": 1e3 * found[name].median,
            "p05_us": 1e3 * found[name].p05,
            "p95_us": 1e3 * found[name].p95,
            "whole_us": 1e3 * found[f"{name}, whole"].median,
        }
    for row in timed.values():
        if row["before"] in timed:
            before = timed[row["before"]]
            row["ratio"] = before["median_us"] / row["median_us"]
            row["cycles_ratio"] = before["cycles"] / row["cycles"]
        if STEPS[0].name in timed:
            row["total_ratio"] = timed[STEPS[0].name]["median_us"] / row["median_us"]
    return rows
