"""The ladder of the cuda-convnet2 paper, its steps measured here beside its figures."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.truth import random_input, reference
from lenetgpu.gpu.device import Gpu, current_arch
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel, compile_together
from lenetgpu.measure.timing import CALLS
from lenetgpu.papers.convnet2 import STEPS, PaperStep
from lenetgpu.papers.convnet2_shares import times
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, find
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


def instruction_count(data: bytes, entry: str) -> int:
    """Static SASS instructions of `entry`: its .text section in 16-byte words, without NOPs.

    Counted in a cubin, an ELF file; every instruction since Volta has 16 bytes.
    """
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)

    def section(index: int) -> tuple[int, int, int]:
        base = sections_at + index * size
        (name,) = struct.unpack_from("<I", data, base)
        offset, length = struct.unpack_from("<QQ", data, base + 0x18)
        return name, offset, length

    names_at = section(names)[1]
    for index in range(count):
        name, offset, length = section(index)
        end = data.index(b"\0", names_at + name)
        if data[names_at + name : end] == f".text.{entry}".encode():
            opcodes = struct.unpack_from(f"<{length // 8}Q", data, offset)[::2]
            return sum(opcode & 0xFFF != _NOP for opcode in opcodes)
    raise ValueError(f"the cubin has no code of {entry}")


_NOP = 0x918
_ENGINE = "convnet2.index_engine"
_SPANS = 5
_BUDGET_MS = 200
_CHECKED_IMAGES = 3


def longest_span(spans: Any) -> int:
    """Cycles of the busiest multiprocessor, from the begin of its first block to its last's end.

    `spans` (blocks, 3) holds multiprocessor, begin and end of each block by clock64, which counts
    each multiprocessor's own cycles.
    """
    return max(
        int(spans[spans[:, 0] == unit, 2].max() - spans[spans[:, 0] == unit, 1].min())
        for unit in set(spans[:, 0].tolist())
    )


@dataclass
class _Bench:
    """A variant prepared for one input: the whole, its convolution alone, and that with a clock."""

    whole: Callable[[], None]
    alone: Callable[[Any], None]

    def alone_unclocked(self) -> None:
        """The convolution alone, as the variant launches it."""
        self.alone(None)


def _kernel_step(step: PaperStep) -> Step:
    known = {
        "rolled": ROLLED,
        "unrolled": UNROLLED,
        "strength_reduced": STRENGTH_REDUCED,
        "hoisted_checks": HOISTED_CHECKS,
        "index_table": INDEX_TABLE,
        "inner_product": INNER_PRODUCT,
        "outer_product": OUTER_PRODUCT,
    }[step.variant.removeprefix("convnet2.")]
    return known if step.loads is None else replace(known, loads=step.loads)


def step_kernels(step: PaperStep, problem: Conv, batch: int) -> tuple[Kernel, Kernel]:
    """The step's convolution kernel for `batch` images, without and with a clock."""
    if step.variant == _ENGINE:
        tile = im2col_tile(problem, batch)
        return im2col_kernel(problem, tile), im2col_kernel(problem, tile, clock=True)
    chosen = _kernel_step(step)
    return chosen.kernel(problem, batch), chosen.kernel(problem, batch, clock=True)


def _bench(step: PaperStep, variant: Variant, x: Any, w: Any, y: Any, problem: Conv) -> _Bench:
    n = len(x)
    mounted = Mounted(variant, problem, [w], n)
    state = mounted.state
    if state.chunk < n:
        raise MemoryError(f"workspace for {n} images of {problem}")
    if step.variant == _ENGINE:
        return _Bench(
            lambda: mounted.run(x, y),
            lambda spans: convolve(state.images, state, y, n, problem, spans),
        )
    chosen = _kernel_step(step)
    images, outputs = (x, y) if n == 1 else (state.images, state.outputs)
    return _Bench(
        lambda: chosen.run(x, state, y, problem),
        lambda spans: chosen.convolve(images, state, outputs, n, problem, spans),
    )


def _step_row(step: PaperStep, problem: Conv, batch: int) -> dict[str, Any]:
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
        "median_us": None,
        "whole_us": None,
        "cycles": None,
        "registers": None,
        "local_bytes": None,
        "shared_bytes": None,
        "instructions": None,
        "blocks": None,
        "threads": None,
        "ratio": None,
        "cycles_ratio": None,
        "relative_error": None,
        "note": "",
    }


def _measure_cycles(bench: _Bench, row: dict[str, Any]) -> None:
    spans = cupy.full((row["blocks"], 3), -1, cupy.int64)
    found = []
    for _ in range(_SPANS):
        for _ in range(CALLS):
            bench.alone(spans)
        found.append(longest_span(spans.get()))
    row["cycles"] = sorted(found)[len(found) // 2]


def _static_facts(bench: _Bench, row: dict[str, Any]) -> None:
    from lenetgpu.gpu.launch import record

    with record() as launches:
        bench.alone(None)
    (launched,) = launches
    compiled = compile_kernel(launched.kernel, current_arch())
    used = compiled.resources
    row |= {
        "registers": used.registers,
        "local_bytes": used.stack_bytes,
        "shared_bytes": used.shared_bytes + launched.shared,
        "instructions": instruction_count(compiled.binary, launched.kernel.entry),
        "blocks": launched.grid[0],
        "threads": launched.block[0] * launched.block[1],
    }


def measure_ladder(
    problem: Conv,
    batch: int,
    *,
    gpu: Gpu,
    say: Callable[[str], None] = lambda _: None,
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
    problem = replace(problem, reads="NCHW", writes="NCHW")
    rng = np.random.default_rng()
    host, w = random_input("conv", problem, batch, rng)
    checked = sorted({*range(batch)[:_CHECKED_IMAGES], *range(batch)[-_CHECKED_IMAGES:]})
    truth = reference("conv", host[checked], w, problem).transpose(0, 3, 1, 2)
    x = cupy.asarray(host.transpose(0, 3, 1, 2), order="C")
    y = cupy.empty((batch, problem.M, problem.OH, problem.OW), cupy.float32)
    rows = [_step_row(step, problem, batch) for step in STEPS]
    benches: dict[str, _Bench] = {}
    chosen = list(_not_refused(rows, problem, gpu))
    compile_together(
        [k for one, *_ in chosen for k in step_kernels(one, problem, batch)], current_arch()
    )
    for step, variant, row in chosen:
        say(step.name)
        bench = _bench(step, variant, x, w, y, problem)
        verdict = _check(bench, y, checked, truth, variant.precision)
        row |= {
            "status": "right" if verdict.passed else "wrong",
            "relative_error": verdict.error,
            "precision": variant.precision,
        }
        if verdict.passed:
            benches[step.name] = bench
            _static_facts(bench, row)
            _measure_cycles(bench, row)
    _add_times(rows, benches)
    _add_ratios(rows)
    return rows


def _not_refused(
    rows: list[dict[str, Any]], problem: Conv, gpu: Gpu
) -> Iterator[tuple[PaperStep, Variant, dict[str, Any]]]:
    """(step, variant, row) of what runs; the rows of the others say why not."""
    for step, row in zip(STEPS, rows, strict=True):
        variant = find("conv", step.variant, "cuda")
        refusal = variant.refusal(problem)
        if refusal is None and not variant.needs.met_by(gpu):
            refusal = f"needs {variant.needs}"
        if refusal is None:
            yield step, variant, row
        else:
            row |= {"status": "refused", "note": refusal}


def _check(bench: _Bench, y: Any, checked: list[int], truth: Any, precision: str) -> Verdict:
    """The whole variant into a poisoned output, `checked` images judged; finite everywhere."""
    y.fill(cupy.nan)
    bench.whole()
    if not bool(cupy.isfinite(y).all()):
        return judge(y.get()[checked] * float("nan"), truth, precision)
    return judge(y.get()[checked], truth, precision)


def _add_times(rows: list[dict[str, Any]], benches: dict[str, _Bench]) -> None:
    runs = {name: bench.alone_unclocked for name, bench in benches.items()}
    runs |= {f"{name}, whole": bench.whole for name, bench in benches.items()}
    found = times(runs, CALLS, _BUDGET_MS)
    for row in rows:
        if row["step"] in benches:
            alone, whole = found[row["step"]], found[f"{row['step']}, whole"]
            row |= {
                "median_us": 1e3 * alone.median,
                "p05_us": 1e3 * alone.p05,
                "p95_us": 1e3 * alone.p95,
                "whole_us": 1e3 * whole.median,
            }


def _add_ratios(rows: list[dict[str, Any]]) -> None:
    found = {row["step"]: row for row in rows if row["median_us"] is not None}
    baseline = found.get(STEPS[0].name)
    for row in found.values():
        before = found.get(row["before"])
        if before is not None:
            row["ratio"] = before["median_us"] / row["median_us"]
            row["cycles_ratio"] = before["cycles"] / row["cycles"]
        if baseline is not None:
            row["total_ratio"] = baseline["median_us"] / row["median_us"]
