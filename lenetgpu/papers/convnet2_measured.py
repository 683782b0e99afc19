"""Measurements of the convnet2 paper's kernels: their time by part, their tiles, and the ladder.

Time is divided into loads, sums and stores (figures 8, 14, 20 to 34). In a separate build
(parts.cuh), every warp reads clock64 between the parts and adds up the cycles of each; a kernel's
share is the sum over its warps. Both barriers of a chunk are timed separately and added to the part
that they follow, as in the timing model: the one after the loads to the filters, which are loaded
last, the one after the sums to the sums. Writing ends when the stores are issued.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from statistics import median_low
from typing import Any, TypeVar

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import Verdict, judge
from lenetgpu.check.reference import random_input, reference
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu, current_arch
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.launch import record
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel, compile_together
from lenetgpu.gpu.occupancy import Demand, Waves, residency
from lenetgpu.measure.rounds import Entry, interleave
from lenetgpu.measure.timing import CALLS, Replays, Summary, summarise
from lenetgpu.papers import data_of
from lenetgpu.papers.convnet2 import (
    STEPS,
    TABLE_1,
    TABLE_1_BATCH,
    PaperStep,
    is_table_1,
    rows_of,
)
from lenetgpu.papers.convnet2_engines import COMPUTE, CONVERSION, FILTERS, IMAGES, WRITE, simulate
from lenetgpu.papers.convnet2_engines import STEPS as SIMULATED
from lenetgpu.problems import FLOAT_BYTES, Conv
from lenetgpu.stages import find
from lenetgpu.stages.conv.convnet2 import engines, ladder
from lenetgpu.stages.conv.convnet2.im2col import convolve, im2col_kernel, im2col_tile
from lenetgpu.stages.conv.convnet2.ladder import Loads, Step, Tile
from lenetgpu.stages.conv.convnet2.layout import run_innermost
from lenetgpu.stages.prepared import PreparedKernel

STATIC_BYTES = 48 << 10  # Bytes of shared memory that a kernel may declare statically.
_THREADS = ((8, 8), (32, 2), (16, 8), (32, 4), (32, 8))
_OUTPUTS = (1, 2, 4, 8)
_CHUNKS = (1, 2, 4, 8, 16)


def table_1_tile(problem: Conv) -> Tile:
    """Return Table 1's parameters; a chunk holds at most 8 channels."""
    return Tile(16, 4, 4, 4, 4, min(problem.C, ladder.CHANNELS))


def tiles(problem: Conv) -> list[tuple[str, Tile]]:
    """Return (figure, tile) of the sweep without repeats; Table 1's tile is one of figure 7's."""
    base, pixels = table_1_tile(problem), problem.R * problem.S
    single = replace(base, images_per_thread=1, filters_per_thread=1)
    chunks = [cached for cached in _CHUNKS if cached < pixels]
    swept = [("5", replace(single, cached_pixels=pixels))]
    swept += [("6", replace(single, cached_pixels=cached)) for cached in chunks]
    swept += [
        ("7", replace(base, images_per_thread=images, filters_per_thread=filters))
        for images in _OUTPUTS
        for filters in _OUTPUTS
        if images * filters > 1
    ]
    swept += [("7", replace(base, cached_pixels=cached)) for cached in chunks]
    swept += [("4", replace(base, threads_x=x, threads_y=y)) for x, y in _THREADS]
    return list({tile: (figure, tile) for figure, tile in swept}.values())


def whole_filter_bytes(problem: Conv, tile: Tile) -> int:
    """Return SharedMem_original: figure 5's two arrays, for the tile's outputs and channels."""
    return FLOAT_BYTES * problem.R * problem.S * tile.cached_channels * (tile.images + tile.filters)


def tile_bytes(problem: Conv, tile: Tile) -> int:
    """Return equation (1): SharedMem_tile = cached_pixels / filter_size^2 x SharedMem_original."""
    part = Fraction(tile.cached_pixels, problem.R * problem.S)
    return int(part * whole_filter_bytes(problem, tile))


def refusal(problem: Conv, tile: Tile) -> str | None:
    """Return why the kernel does not support a tile, or None."""
    size = tile_bytes(problem, tile)
    why = f"requires {size:,} bytes of shared memory, found at most {STATIC_BYTES:,}"
    return why if size > STATIC_BYTES else None


def step_of(tile: Tile) -> Step:
    """Return the kernel with `tile`, for any shape."""
    return replace(ladder.UNROLLED, tile=lambda problem, images: tile)


def tile_kernels(problem: Conv, batch: int) -> list[Kernel]:
    """Return the kernels that `measure_tiles` launches, except for relayouts."""
    swept = [tile for _, tile in tiles(problem) if refusal(problem, tile) is None]
    return [step_of(tile).kernel(problem, batch) for tile in swept]


def predicted(problem: Conv, batch: int, figure: str, tile: Tile) -> dict[str, Any]:
    """Return a row of the sweep before any run: the parameters, equations (1) and (5)."""
    compiled = ("shared_bytes", "registers", "local_bytes", "blocks_per_sm", "limited_by", "waves")
    return {
        "figure": figure,
        **vars(tile),
        "tile_bytes": tile_bytes(problem, tile),
        "blocks": tile.blocks(problem, batch),
        "table_1": tile == table_1_tile(problem),
        "status": "waiting",
        **dict.fromkeys((*compiled, "median_us", "ratio", "relative_error")),
        "note": "",
    }


def measure_tiles(
    field: "Field", machine: Machine, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Return a row per tile: predicted shared bytes and blocks, compiled resources, and the time.

    A tile that is wrong against float64 gets no time; one that does not fit has the reason in
    `note`. `ratio` is the time of Table 1's tile over the row's.
    """
    problem, batch, rows = field.problem, field.batch, []
    runs: dict[int, Callable[[], None]] = {}
    compile_together(tile_kernels(problem, batch), current_arch())
    for number, (figure, tile) in enumerate(tiles(problem)):
        row, step = predicted(problem, batch, figure, tile), step_of(tile)
        rows.append(row)
        if (why := refusal(problem, tile)) is not None:
            row |= {"status": "refused", "note": why}
            continue
        say(f"tile {number + 1}")
        used = compile_kernel(step.kernel(problem, batch), current_arch()).resources
        demand = Demand(used.registers, tile.threads_x * tile.threads_y, used.shared_bytes)
        resident = residency(demand, machine.limits)
        row |= {
            "shared_bytes": used.shared_bytes,
            "registers": used.registers,
            "local_bytes": used.stack_bytes,
            "blocks_per_sm": resident.blocks,
            "limited_by": resident.limit,
            "waves": Waves(row["blocks"], resident.blocks * machine.multiprocessors).waves,
        }
        verdict = field.verdict(step, "fp32")
        row |= {"status": "right" if verdict.passed else "wrong", "relative_error": verdict.error}
        if verdict.passed:
            runs[number] = partial(field.convolve, step)
    for number, time in times(runs).items():
        rows[number]["median_us"] = 1e3 * time.median
    base = next((row["median_us"] for row in rows if row["table_1"]), None)
    for row in rows:
        if base and row["median_us"]:
            row["ratio"] = base / row["median_us"]
    return rows


_CHECKED_IMAGES = 3
_REPLAYS, _LEAST_REPLAYS = 20, 3


class Field:
    """`batch` random images of `problem`, their filters, a float64 reference and workspaces.

    Layouts are NCHW in and out. The reference covers the first and the last images. Needs a GPU
    with CuPy; raises MemoryError if the workspaces do not hold all images.
    """

    def __init__(self, problem: Conv, batch: int) -> None:
        self.problem, self.batch = replace(problem, reads="NCHW", writes="NCHW"), batch
        host, self.w = random_input("conv", self.problem, batch, np.random.default_rng())
        self._checked = sorted({*range(batch)[:_CHECKED_IMAGES], *range(batch)[-_CHECKED_IMAGES:]})
        expected = reference("conv", host[self._checked], self.w, self.problem)
        self._expected = expected.transpose(0, 3, 1, 2)
        self.x = cupy.asarray(host.transpose(0, 3, 1, 2), order="C")
        self.y = cupy.empty((batch, problem.M, problem.OH, problem.OW), cupy.float32)
        # every kernel on images innermost can read this variant's prepared state
        variant = find("conv", "convnet2.index_table", "cuda")
        self._state = PreparedKernel(variant, self.problem, [self.w], batch).state
        if self._state.chunk < batch:
            raise MemoryError(f"workspace for {batch} images of {problem}")

    def judged(self, run: Callable[[], None], precision: str) -> Verdict:
        """Judge `run` from `x` into poisoned outputs; those without a reference must be finite."""
        self.y.fill(cupy.nan)
        self._state.outputs.fill(cupy.nan)
        run()
        outputs = self.y.get()[self._checked]
        finite = bool(cupy.isfinite(self.y).all())
        return judge(outputs if finite else outputs * float("nan"), self._expected, precision)

    def verdict(self, step: Step, precision: str, spans: Any = None) -> Verdict:
        """Judge `step` with its relayouts."""
        return self.judged(partial(self.run, step, spans), precision)

    def run(self, step: Step, spans: Any = None) -> None:
        """Run `step` with its relayouts."""

        def convolve(images: Any, outputs: Any, n: int) -> None:
            step.convolve(images, self._state, outputs, n, self.problem, spans)

        run_innermost(convolve, self.x, self._state, self.y, self.problem)

    def convolve(self, step: Step, spans: Any = None) -> None:
        """Run the convolution alone; call it after `run`, whose images it reads."""
        images, outputs = self.x, self.y
        if self.batch > 1:
            images, outputs = self._state.images, self._state.outputs
        step.convolve(images, self._state, outputs, self.batch, self.problem, spans)


_Name = TypeVar("_Name")


def times(
    runs: dict[_Name, Callable[[], None]], calls: int = 5, budget_ms: float = 60
) -> dict[_Name, Summary]:
    """Return milliseconds a call of each of `runs`, by name: CUDA graph replays, interleaved."""
    samples: dict[_Name, list[float]] = {name: [] for name in runs}
    entries: list[Entry] = []
    for name, run in runs.items():
        run()
        replays = Replays(Graph(run, calls), calls)
        replays.once()
        entries.append((replays.sample, samples[name]))

    def enough(taken: list[float]) -> bool:
        return len(taken) >= _LEAST_REPLAYS and calls * sum(taken) > budget_ms

    if entries:
        interleave(entries, _REPLAYS, enough=enough)
    return {name: summarise(taken) for name, taken in samples.items()}


def kernel_step(variant: str, loads: Loads | None) -> Step:
    """Return the kernel of a variant of the ladder, with `loads` as its way to load if given."""
    name = variant.removeprefix("convnet2.").upper()
    step: Step = getattr(engines if name.endswith("PRODUCT") else ladder, name)
    return step if loads is None else replace(step, loads=loads)


PARTS = ("image load", "filter load", "compute", "write")  # Parts as in the paper's figures.
_BARRIERS = {"waiting for loads": "filter load", "waiting for sums": "compute"}  # and their parts
_CLOCKED = (*PARTS[:2], "waiting for loads", "compute", "waiting for sums", "write")
_WARP, _RUNS = 32, 5


@dataclass(frozen=True)
class Shown:
    """A kernel whose time is divided into parts, and its figure in the paper."""

    name: str
    variant: str
    figure: str
    loads: Loads | None = None
    printed: float | None = None  # the computation's share in the paper, None if only drawn
    remark: str = "drawn only"
    simulated: str = ""  # the timing model's step

    @property
    def step(self) -> Step:
        """The kernel's step."""
        return kernel_step(self.variant, self.loads)


SHOWN = rows_of("shares", Shown)


def clocked(step: Step) -> Step:
    """Return `step` in the build whose warps time their parts."""
    return replace(step, noted="PARTS")


def warps_of(step: Step, problem: Conv, batch: int) -> int:
    """Return the warps of a launch of `step`, the rows that a clocked build writes."""
    tile = step.tile(problem, batch)
    return tile.blocks(problem, batch) * (tile.threads_x * tile.threads_y // _WARP)


def kernels(problem: Conv, batch: int) -> list[Kernel]:
    """Return the kernels that `measure_shares` launches, except for relayouts."""
    plain = [shown.step.kernel(problem, batch) for shown in SHOWN]
    return plain + [clocked(shown.step).kernel(problem, batch, True) for shown in SHOWN]


def parted(noted: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Return (shares, waits) of `noted` (warps, 6) int64, the clocks of parts.cuh's parts.

    `shares` are those of `PARTS` and sum to 1; `waits` is the portion of them spent at each
    barrier. Raises LenetError if a warp wrote nothing, or its clocks are all 0.
    """
    if int(noted.min()) < 0 or not int(noted.sum(axis=1).min()):
        raise LenetError("clocks: expected every warp to note its parts, found one that did not")
    clocks = dict(zip(_CLOCKED, (noted.sum(axis=0) / noted.sum()).tolist(), strict=True))
    waits = {name: clocks[name] for name in _BARRIERS}
    shares = {part: clocks[part] for part in PARTS}
    for name, part in _BARRIERS.items():
        shares[part] += waits[name]
    return shares, waits


def _clocks(build: Step, field: Field, spans: Any) -> dict[str, Any]:
    """Return a row's shares, from the median of several runs of a clocked build."""
    runs = []
    for _ in range(_RUNS):
        spans.fill(-1)
        field.convolve(build, spans)
        runs.append(spans.get())
    middle = sorted(runs, key=lambda noted: int(noted.sum()))[_RUNS // 2]
    shares, waits = parted(middle)
    return {"shares": shares, "waits": waits, "clocks_a_warp": float(middle.sum()) / len(middle)}


def simulated_shares(name: str) -> dict[str, float]:
    """Return the timing model's shares of its step `name` at Table 1, on a GTX 480."""
    kernel = next(step.kernel for step in SIMULATED if step.name == name)
    share = simulate(kernel, TABLE_1, TABLE_1_BATCH).share
    shares = (share(CONVERSION) + share(IMAGES), share(FILTERS), share(COMPUTE), share(WRITE))
    return dict(zip(PARTS, shares, strict=True))


def _row(shown: Shown, at_table_1: bool) -> dict[str, Any]:
    return {
        **{"kernel": shown.name, "variant": f"convnet2.{shown.variant}", "figure": shown.figure},
        "status": "waiting",
        "paper": shown.printed if at_table_1 else None,
        "remark": shown.remark if at_table_1 else "",
        "model": simulated_shares(shown.simulated) if at_table_1 and shown.simulated else None,
        **dict.fromkeys(("shares", "waits", "slowed", "median_us", "relative_error")),
        "note": "",
    }


def measure_shares(
    field: Field, *, gpu: Gpu, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Return a row per kernel of `SHOWN`, then the kernel that cannot be divided.

    `shares` are of `PARTS`, and `waits` is the portion of them spent at barriers. `slowed` is
    the time with clocks over the time without, `median_us` the latter. `paper` is the
    computation's share in the paper, `model` the timing model's shares, both at Table 1 only.
    If either build is wrong against float64, the status is "wrong" and there are no times; a
    wrong clocked build has no shares either.
    """
    problem, batch = field.problem, field.batch
    compile_together(kernels(problem, batch), current_arch())
    at_table_1 = is_table_1(problem, batch)
    rows: list[dict[str, Any]] = []
    runs: dict[tuple[str, bool], Callable[[], None]] = {}
    for shown in SHOWN:
        row, variant = _row(shown, at_table_1), find("conv", f"convnet2.{shown.variant}", "cuda")
        rows.append(row)
        if not variant.needs.met_by(gpu):
            row |= {"status": "refused", "note": f"requires {variant.needs}"}
            continue
        say(shown.name)
        build = clocked(shown.step)
        spans = cupy.full((warps_of(shown.step, problem, batch), len(_CLOCKED)), -1, cupy.int64)
        plain = field.verdict(shown.step, variant.precision)
        with_clocks = field.verdict(build, variant.precision, spans)
        row |= {
            "status": "right" if plain.passed and with_clocks.passed else "wrong",
            "relative_error": max(plain.error, with_clocks.error),
            "clocks_a_warp": None,
        }
        if with_clocks.passed:
            row |= _clocks(build, field, spans)
        if row["status"] == "right":
            runs[shown.name, False] = partial(field.convolve, shown.step)
            runs[shown.name, True] = partial(field.convolve, build, spans)
    summaries = times(runs)
    for row in rows:
        if (row["kernel"], False) in summaries:
            fast, slow = (summaries[row["kernel"], clock].median for clock in (False, True))
            row |= {"median_us": 1e3 * fast, "slowed": slow / fast}
    return [*rows, data_of("convnet2")["not divided"]]


_NOP = 0x918
_ENGINE = "convnet2.index_engine"
_SPANS = 5
_BUDGET_MS = 200


def instruction_words(data: bytes, entry: str) -> tuple[int, ...]:
    """Return the low words of `entry`'s SASS instructions (16 bytes each) in a cubin (ELF)."""
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
    """Count the static SASS instructions of `entry` in a cubin, without NOPs."""
    return sum(word & 0xFFF != _NOP for word in instruction_words(data, entry))


def longest_span(spans: Any) -> int:
    """Return cycles of the busiest multiprocessor, from its first block's start to its last's end.

    `spans` (blocks, 3) holds each block's multiprocessor, and its start and end by clock64.
    """
    of_units = [spans[spans[:, 0] == unit] for unit in set(spans[:, 0].tolist())]
    return max(int(blocks[:, 2].max() - blocks[:, 1].min()) for blocks in of_units)


def step_kernels(step: PaperStep, problem: Conv, batch: int) -> tuple[Kernel, Kernel]:
    """Return the step's convolution kernel for `batch` images, without and with a clock."""
    if step.variant == _ENGINE:
        tile = im2col_tile(problem, batch)
        return im2col_kernel(problem, tile), im2col_kernel(problem, tile, clock=True)
    kernel = kernel_step(step.variant, step.loads).kernel
    return kernel(problem, batch), kernel(problem, batch, clock=True)


def _runs(step: PaperStep, field: Field) -> tuple[Callable[[], None], Callable[..., None]]:
    """Return the whole variant, and its convolution alone, which takes an array for clock spans."""
    if step.variant != _ENGINE:
        chosen = kernel_step(step.variant, step.loads)
        return partial(field.run, chosen), partial(field.convolve, chosen)
    prepared = PreparedKernel(find("conv", _ENGINE, "cuda"), field.problem, [field.w], field.batch)
    state = prepared.state
    if state.chunk < field.batch:
        raise MemoryError(f"workspace for {field.batch} images of {field.problem}")

    def alone(spans: Any = None) -> None:
        convolve(state.images, state, field.y, field.batch, field.problem, spans)

    return partial(prepared.run, field.x, field.y), alone


def _step_row(step: PaperStep, problem: Conv, batch: int) -> dict[str, Any]:
    measured = (
        "median_us", "whole_us", "cycles", "registers", "local_bytes", "shared_bytes",
        "instructions", "blocks", "threads", "ratio", "cycles_ratio", "relative_error",
    )  # fmt: skip
    return {
        "step": step.name,
        **{name: getattr(step, name) for name in ("what", "variant", "before", "section")},
        **{f"paper_{name}": getattr(step, name) for name in ("cycles", "gain", "remark")},
        "shape": [problem.C, problem.H, problem.W, problem.M, problem.R, problem.S],
        **{"stride": problem.stride, "pad": problem.pad, "batch": batch},
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
    cycles = []
    for _ in range(_SPANS):
        for _ in range(CALLS):
            alone(spans)
        cycles.append(longest_span(spans.get()))
    return median_low(cycles)


def _add_times(rows: list[dict[str, Any]], summaries: dict[str, Summary]) -> None:
    timed = {row["step"]: row for row in rows if row["step"] in summaries}
    for name, row in timed.items():
        alone = summaries[name]
        row |= {f"{key}_us": 1e3 * getattr(alone, key) for key in ("median", "p05", "p95")}
        row["whole_us"] = 1e3 * summaries[f"{name}, whole"].median
    for row in timed.values():
        if row["before"] in timed:
            before = timed[row["before"]]
            row["ratio"] = before["median_us"] / row["median_us"]
            row["cycles_ratio"] = before["cycles"] / row["cycles"]
        if STEPS[0].name in timed:
            row["total_ratio"] = timed[STEPS[0].name]["median_us"] / row["median_us"]


def measure_ladder(
    problem: Conv, batch: int, *, gpu: Gpu, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Measure the paper's steps on `batch` images of `problem`, in its order, one row per step.

    A variant that is wrong against float64 has status "wrong" and no figures, a refused one
    "refused" and the reason in `note`. The others have:

    - `median_us`, `p05_us`, `p95_us`: the convolution kernel alone, 3 to 20 replays of a CUDA graph
      of 10 launches, interleaved with the other steps'; `whole_us`: with the variant's relayouts;
    - `cycles`: `longest_span` of a build with clock64 (the times above are of a build without);
    - `registers`, `local_bytes` per thread, `shared_bytes`, `blocks`, `threads`; `instructions`:
      static SASS instructions in the cubin, without NOPs;
    - `ratio`, `cycles_ratio`: time, cycles of the step `before` over this step's; `total_ratio`:
      the baseline's time over this step's (the paper: 4.4).

    `paper_cycles`, `paper_gain` (share of the time saved), `section` and `paper_remark` are the
    paper's. `problem`'s layouts are ignored: NCHW in and out. Needs a GPU with CuPy.
    """
    field = Field(problem, batch)
    problem = field.problem
    rows = [_step_row(step, problem, batch) for step in STEPS]
    supported = []
    for step, row in zip(STEPS, rows, strict=True):
        variant = find("conv", step.variant, "cuda")
        why = variant.refusal(problem)
        if why is None and not variant.needs.met_by(gpu):
            why = f"requires {variant.needs}"
        if why is None:
            supported.append((step, variant, row))
        else:
            row |= {"status": "refused", "note": why}
    kernels = [kernel for step, *_ in supported for kernel in step_kernels(step, problem, batch)]
    compile_together(kernels, current_arch())
    runs: dict[str, Callable[[], None]] = {}
    for step, variant, row in supported:
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
    _add_times(rows, times(runs, CALLS, _BUDGET_MS))
    return rows
