"""Section 2.2's parameters swept: figures 5, 6 and 7, equations (1) to (5) beside times.

The kernel is `convnet2.unrolled`, section 2's with its sums in registers. Figure 5 holds a whole
filter in shared memory and sums one output a thread, figure 6 loads chunks of it, figure 7 sums
several outputs a thread; figure 4's threads are swept besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel, compile_kernel, compile_together
from lenetgpu.gpu.occupancy import Demand, Waves, residency
from lenetgpu.papers.convnet2_field import Field, times
from lenetgpu.problems import FLOAT_BYTES, Conv
from lenetgpu.stages.conv.convnet2.ladder import CHANNELS, UNROLLED, Step, Tile

STATIC_BYTES = 48 << 10
"""Shared memory that a kernel may declare for itself."""
_X, _Y, _EACH, _CACHED = 16, 4, 4, 4
_THREADS = ((8, 8), (32, 2), (16, 8), (32, 4), (32, 8))
_OUTPUTS = (1, 2, 4, 8)
_CHUNKS = (1, 2, 4, 8, 16)


def table_1_tile(problem: Conv) -> Tile:
    """Table 1's parameters; of more than 8 channels a chunk holds 8."""
    return Tile(_X, _Y, _EACH, _EACH, _CACHED, min(problem.C, CHANNELS))


def tiles(problem: Conv) -> list[tuple[str, Tile]]:
    """(figure, tile) of the sweep, each tile once, Table 1's among figure 7's."""
    return list({tile: (figure, tile) for figure, tile in _swept(problem)}.values())


def _swept(problem: Conv) -> Iterator[tuple[str, Tile]]:
    base, pixels = table_1_tile(problem), problem.R * problem.S
    single = replace(base, images_per_thread=1, filters_per_thread=1)
    yield "5", replace(single, cached_pixels=pixels)
    for cached in _CHUNKS:
        if cached < pixels:
            yield "6", replace(single, cached_pixels=cached)
    for images in _OUTPUTS:
        for filters in _OUTPUTS:
            if images * filters > 1:
                yield "7", replace(base, images_per_thread=images, filters_per_thread=filters)
    for cached in _CHUNKS:
        if cached != base.cached_pixels and cached < pixels:
            yield "7", replace(base, cached_pixels=cached)
    for x, y in _THREADS:
        yield "4", replace(base, threads_x=x, threads_y=y)


def whole_filter_bytes(problem: Conv, tile: Tile) -> int:
    """SharedMem_original: figure 5's two arrays with the tile's threads, outputs and channels."""
    rows = problem.R * problem.S * tile.cached_channels
    return FLOAT_BYTES * rows * (tile.images + tile.filters)


def tile_bytes(problem: Conv, tile: Tile) -> int:
    """Equation (1): SharedMem_tile = cached_pixels / filter_size^2 x SharedMem_original."""
    part = Fraction(tile.cached_pixels, problem.R * problem.S)
    return int(part * whole_filter_bytes(problem, tile))


def refusal(problem: Conv, tile: Tile) -> str | None:
    """The sentence that refuses a tile, None where the kernel takes it."""
    needed = tile_bytes(problem, tile)
    if needed > STATIC_BYTES:
        return (
            f"needs {needed:,} bytes of shared memory, a kernel declares {STATIC_BYTES:,} at most"
        )
    return None


def step_of(tile: Tile) -> Step:
    """The kernel with `tile`, whatever the shape."""
    return replace(UNROLLED, tile=lambda problem, images: tile)


def tile_kernels(problem: Conv, batch: int) -> list[Kernel]:
    """What `measure_tiles` launches, besides relayouts."""
    swept = [tile for _, tile in tiles(problem) if refusal(problem, tile) is None]
    return [step_of(tile).kernel(problem, batch) for tile in swept]


def predicted(problem: Conv, batch: int, figure: str, tile: Tile) -> dict[str, Any]:
    """A row of the sweep before anything has run: the parameters, equations (1) and (5)."""
    return {
        "figure": figure,
        **vars(tile),
        "tile_bytes": tile_bytes(problem, tile),
        "whole_bytes": whole_filter_bytes(problem, tile),
        "blocks": tile.blocks(problem, batch),
        "table_1": tile == table_1_tile(problem),
        "status": "waiting",
        "shared_bytes": None,
        "registers": None,
        "local_bytes": None,
        "blocks_per_sm": None,
        "limited_by": None,
        "waves": None,
        "median_us": None,
        "ratio": None,
        "relative_error": None,
        "note": "",
    }


def compiled(kernel: Kernel, row: dict[str, Any], arch: str, machine: Machine) -> dict[str, Any]:
    """What ptxas says of a row's kernel; equations (2) to (4) of it, and waves on `machine`."""
    used = compile_kernel(kernel, arch).resources
    demand = Demand(used.registers, row["threads_x"] * row["threads_y"], used.shared_bytes)
    held = residency(demand, machine.limits)
    return {
        "shared_bytes": used.shared_bytes,
        "registers": used.registers,
        "local_bytes": used.stack_bytes,
        "blocks_per_sm": held.blocks,
        "limited_by": held.limit,
        "waves": Waves(row["blocks"], held.blocks * machine.multiprocessors).waves,
    }


def measure_tiles(
    field: Field, machine: Machine, say: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """A row a tile: predicted shared bytes and blocks, what was compiled, and the time.

    Each is checked against float64 before any is timed; a wrong one gets no time, one that does not
    fit its sentence in `note`. `ratio` is the time of Table 1's tile over the row's.
    """
    from lenetgpu.gpu.device import current_arch

    problem, batch, rows = field.problem, field.batch, []
    runs: dict[str, Callable[[], None]] = {}
    compile_together(tile_kernels(problem, batch), current_arch())
    for number, (figure, tile) in enumerate(tiles(problem)):
        row, step = predicted(problem, batch, figure, tile), step_of(tile)
        rows.append(row)
        refused = refusal(problem, tile)
        if refused is not None:
            row |= {"status": "refused", "note": refused}
            continue
        say(f"tile {number + 1}")
        row |= compiled(step.kernel(problem, batch), row, current_arch(), machine)
        verdict = field.verdict(step, "fp32")
        row |= {"status": "right" if verdict.passed else "wrong", "relative_error": verdict.error}
        if verdict.passed:
            runs[str(number)] = partial(field.convolve, step)
    found = times(runs)
    for number, row in enumerate(rows):
        if str(number) in found:
            row["median_us"] = 1e3 * found[str(number)].median
    base = next((row["median_us"] for row in rows if row["table_1"]), None)
    for row in rows:
        if base and row["median_us"]:
            row["ratio"] = base / row["median_us"]
    return rows
