"""Stride-fixed blocks: faithful reproduction of the Pascal paper's 2.3 and 3.2, then departures."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import FLOAT, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.prefetch import plan as planning
from lenetgpu.stages.conv.prefetch.plan import DIVISIONS, StrictPlan, StrictTile
from lenetgpu.stages.conv.prefetch.single_strict import prefetch
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import Rows, of_shape

_FILTER = 0  # S of one whole filter plane, K x K x 4 bytes (Chen et al.)


@dataclass(frozen=True)
class Choice:
    """A variant of the kernel: section 2.3's division, S in bytes or the paper's, departures."""

    division: str = "both"
    segment: int | None = None
    # The first n of: copies that bypass registers, filters packed round by round, a block per
    # tile, and tiles too small for N_FMA.
    departures: int = 0


@cache
def plan(choice: Choice, problem: Conv, machine: Machine) -> StrictPlan | None:
    """Return the plan of `choice`; None if its data sets do not fit shared memory."""
    segment = FLOAT * problem.R * problem.S if choice.segment == _FILTER else choice.segment
    paper = planning.strict_plan(problem, machine, choice.division, segment)
    if paper is None:
        return None
    asynchronous, packed, spread, fills = (choice.departures >= n for n in range(1, 5))
    tile = replace(paper.tile, asynchronous=asynchronous, packed=packed, spread=spread)
    return replace(paper, tile=planning.filled(tile, problem) if fills else tile)


@cache
def _kernel(problem: Conv, tile: StrictTile) -> Kernel:
    sizes = {
        "DIVISION": list(DIVISIONS).index(tile.division),
        "SMS": tile.multiprocessors,
        "ASYNC": int(tile.asynchronous),
        "SHARED_BYTES": tile.shared(problem),
    }
    for name in ("elements", "columns", "filters", "each", "threads", "cached", "packed"):
        sizes[name.upper()] = int(getattr(tile, name))
    return conv_kernel(__file__, "conv_strict", problem, **sizes)


def pack(w: Any, problem: Conv, tile: StrictTile) -> Any:
    """Return w (R, S, C, M) in float32 as (M, C, R, S) or (filter group, round, M', element)."""
    plain = np.ascontiguousarray(np.asarray(w, np.float32).transpose(3, 2, 0, 1))
    if not tile.packed:
        return plain  # the paper's Fig. 1(b)
    rounds = tile.rounds(problem)
    spare = (0, -problem.M % tile.filters), (0, rounds * tile.elements - problem.gemm_k)
    padded = np.pad(plain.reshape(problem.M, problem.gemm_k), spare)
    split = padded.reshape(-1, tile.filters, rounds, tile.elements)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def launch_tile(x: Any, w: Any, y: Any, problem: Conv, tile: StrictTile) -> None:
    """Launch the kernel of `tile` on x (n, C, H, W), filters from `pack` and y (n, M, OH, OW)."""
    if tile.division == "channels":
        y.fill(0)  # multiprocessors add their parts to it
    blocks = len(x) * tile.tiles(problem) if tile.spread else tile.multiprocessors * tile.each
    args, shared = (x, w, y, np.int32(len(x))), tile.shared(problem)
    launch(_kernel(problem, tile), (blocks,), (tile.threads,), args, shared=shared)


def _offer(name: str, choice: Choice, paper: str, summary: str) -> None:
    def tile(problem: Conv) -> StrictTile:
        planned = plan(choice, problem, machines.current())
        assert planned is not None, "refused by `supports`"
        return planned.tile

    def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
        planned = plan(choice, problem, machine)
        rows = [planning.NO_TWO] if planned is None else planning.plan_rows(planned)
        return [*planning.explain_machine(machine), *rows]

    def supports(problem: Conv) -> str | None:
        if problem.stride != 1:
            return f"supports stride 1, as the paper's equation (1), found {problem.stride}"
        if plan(choice, problem, machines.current()) is None:
            sides = f"{problem.R}x{problem.S}"
            return f"supports filters whose data sets two blocks hold, found {sides}"
        return None

    @prefetch(
        name=name,
        summary=summary,
        prepare=lambda w, problem, batch: cupy.asarray(pack(w, problem, tile(problem))),
        kernels=of_shape(lambda problem: _kernel(problem, tile(problem))),
        supports=supports,
        explain=explain,
        paper=paper,
        repeats=choice.division != "channels",
    )
    def run(x: Any, w: Any, y: Any, problem: Conv) -> None:
        launch_tile(x, w, y, problem, tile(problem))


_VARIANTS = (
    ("strict_channels", Choice("channels"), "Pascal 2.3, Fig. 2(b)",
     "prefetch.strict, channels divided; multiprocessors add their sums in global memory."),
    ("strict_filters", Choice("filters"), "Pascal 2.3, Fig. 2(c)",
     "prefetch.strict, only filters divided, and held in shared memory if they fit."),
    ("strict_maps", Choice("maps"), "Pascal 2.3, Fig. 2(d)",
     "prefetch.strict, only the map's rows divided, and held in shared memory if they fit."),
    ("strict_plane", Choice(segment=_FILTER), "Pascal 3.2, S of Chen et al.",
     "prefetch.strict with S = K x K x 4 bytes, one channel of each filter per round."),
    ("strict_s32", Choice(segment=32), "Pascal 3.2",
     "prefetch.strict with S = 32 bytes, the smallest transaction of global memory."),
    ("strict_s128", Choice(segment=128), "Pascal 3.2, S of Tan et al.",
     "prefetch.strict with S = 128 bytes, the largest transaction of global memory."),
    ("strict", Choice(), "Pascal 3.2 and 2.3, Fig. 2(e)",
     "Rounds of S bytes of M' filters and W'x pixels, in 2 x N_SM blocks of 512 threads."),
    ("strict_async", Choice(departures=1), "after Pascal 3.2",
     "prefetch.strict, the next round copied by cp.async, which bypasses registers."),
    ("strict_packed", Choice(departures=2), "after Pascal 3.2",
     "prefetch.strict_async, filters packed so that each block reads contiguous memory."),
    ("strict_spread", Choice(departures=3), "after Pascal 3.2",
     "prefetch.strict_packed, one block per tile instead of two per multiprocessor."),
    ("strict_filled", Choice(departures=4), "after Pascal 3.2",
     "prefetch.strict_spread, M' and W'x reduced below N_FMA until every block has a tile."),
)  # fmt: skip
for _variant in _VARIANTS:
    _offer(*_variant)
