"""Tables of docs/engines.md: the convnet2 paper's engines by the timing model.

The model's figures stand next to the paper's and an H200's from docs/measured/.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import ceil, prod
from typing import Any

from measured import GPU, how_sure, lines, load, md, of_the_plain_kernel, there, where

from lenetgpu.lab.conv.engines import STEP_COLUMNS
from lenetgpu.lab.conv.engines import rounded as figure
from lenetgpu.lab.tables import Table
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_engines import (
    CHANGED,
    CLAIMS,
    COMPUTE,
    FIGURE_9,
    FIGURE_13,
    GTX_480,
    MOST_APART,
    STEPS,
    WITHIN,
    Kernel,
    agrees,
    blocks_per_sm,
    chunks_of,
    claim_rows,
    executions,
    line_cycles,
    listing,
    step_rows,
)
from lenetgpu.papers.warps import Op, fetch_stalls, run
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.convnet2.ladder import ladder_tile

_CHAIN, _APART, _PRODUCT, _LAST = "arithmetic, read next", "arithmetic", "mad, read next", "last"
# the sort of each line of figure 9 in `line_means`; the last one's next is not shown
SORTS_9 = (
    _CHAIN, _CHAIN, _CHAIN, "shared", *("local, read next", _PRODUCT, "store") * 4, _APART, "",
)  # fmt: skip
# and of figure 13: the first and the seventeenth are the last of a line of instructions
SORTS_13 = (
    _LAST, "shared", _CHAIN, _PRODUCT, _APART, *("shared", _CHAIN, _PRODUCT, _APART) * 2,
    "shared", _CHAIN, _PRODUCT, _LAST, "shared", _CHAIN,
)  # fmt: skip


def sides_printed(most: int = 32) -> list[int]:
    """Return the filter sides with which figures 9 and 13 are possible.

    No line takes less than a cycle, and each figure's cheapest, a store and a load that nothing
    waits for, takes 1.00.
    """
    return [
        side
        for side in range(1, most + 1)
        if all(1 <= min(line_cycles(figure, side=side)) < 1.005 for figure in (FIGURE_9, FIGURE_13))
    ]


def own_total(low: bool = False, high: bool = False) -> float:
    """Multiply the savings of sections 3.2 to 4.3: times faster than the unrolled kernel.

    `low` and `high` take every percentage at the end of what rounds to it.
    """
    half = (high - low) / 2
    savings = ((0.66, 0.01), (0.259, 0.001), (0.026, 0.001), (0.05, 0.01))
    return 1 / prod(1 - saving - half * unit for saving, unit in savings)


def line_means(kernel: Kernel, problem: Conv, batch: int) -> dict[str, float]:
    """Return the mean cycles of each sort of line of the sums, as in figures 9 and 13.

    The sort is the operation, "read next" if the next instruction waits for it, or "last" if the
    next one lies in a line of instructions that has to be fetched.
    """
    tile = ladder_tile(problem, batch)
    plain = listing(kernel, tile, chunks_of(problem, tile))
    stalls, sorts, instructions = fetch_stalls(GTX_480, plain), Counter[str](), []
    for index, instruction in enumerate(plain):
        sort = instruction.part
        if sort == COMPUTE and instruction.op is not Op.BARRIER:
            read = ", read next" * (index in plain[index + 1].reads)
            sort = "last" if stalls[index + 1] else instruction.op.name.lower() + read
        sorts[sort] += 1
        instructions.append(replace(instruction, part=sort))
    warps = ceil(tile.threads_x * tile.threads_y / 32)
    timing = run(GTX_480, instructions, blocks_per_sm(tile), warps)
    return {sort: timing.parts[sort] / timing.warps / count for sort, count in sorts.items()}


def ladder() -> list[dict[str, Any]]:
    """Return the steps of Table 1's shape as measured on an H200."""
    steps: list[dict[str, Any]] = load(GPU, "conv", "convnet2.json")["cases"][0]["ladder"]
    return steps


def parted() -> dict[str, dict[str, Any]]:
    """Return the rows of Table 1's shape whose clock build does not distort the kernel."""
    if not there(GPU, "shares.json"):
        return {}
    rows = load(GPU, "shares.json")["cases"][0]["kernels"]
    return {row["kernel"]: row for row in rows if row.get("shares") and of_the_plain_kernel(row)}


def computations() -> dict[str, str]:
    """Return figures from the warps' clocks: the share of computation, and savings in it."""
    rows = parted()
    figures = {
        f"{name}, computation's share": f"{rows[name]['shares']['compute']:.3g}"
        for name in ("rolled", "unrolled")
        if name in rows
    }
    pair = [rows.get(name) for name in ("unrolled", "inner product engine")]
    clocks = [row["clocks_a_warp"] * row["shares"]["compute"] for row in pair if row]
    if len(clocks) == len(pair):
        saved = 1 - clocks[1] / clocks[0]
        figures["inner product engine saves, of the computation"] = f"{saved:.3g}"
    return figures


def measured() -> dict[str, str]:
    """Return an H200's values for the paper's figures: cycles, time savings, shares."""
    rows = {row["step"]: row for row in ladder()}

    def saves(step: str, before: str) -> str:
        return f"{1 - rows[step]['median_us'] / rows[before]['median_us']:.3g}"

    def times(step: str) -> str:
        return f"{rows['unrolled']['median_us'] / rows[step]['median_us']:.2f}"

    inner = "inner product, strength reduced"
    return {
        **computations(),
        "rolled, cycles": f"{rows['rolled']['cycles']:,}",
        "unrolled, cycles": f"{rows['unrolled']['cycles']:,}",
        "unrolling saves": saves("unrolled", "rolled"),
        "inner product engine saves": saves("inner product engine", "unrolled"),
        "outer product engine saves": saves("outer product engine", "unrolled"),
        "strength reduction saves": saves(inner, "inner product engine"),
        "extracted conditionals save": saves("inner_product", inner),
        "index converter saves": saves("index_engine", "hoisted_checks"),
        "all of it, times faster than unrolled": (
            f"{times('inner_product')} tensor cores, {times('index_engine')} TMA"
        ),
    }


def core_table() -> str:
    """Return the model's machine: every parameter and its source."""
    chain = [*line_cycles(FIGURE_9, "add")[:2], *line_cycles(FIGURE_9, "mul")]
    local, mads = line_cycles(FIGURE_9, "ld.local"), line_cycles(FIGURE_9, "mad")
    filled = line_cycles(FIGURE_13, "ld.shared")[0]
    configured = "GPGPU-Sim's configuration of a GTX 480"
    core = GTX_480
    rows = [
        ("schedulers, an instruction a cycle each", core.schedulers, configured),
        ("arithmetic", core.arithmetic, f"4 {configured}, the rest the way through the pipeline: "
         f"figure 9's chain of add, mul, add takes {min(chain):.1f} to {max(chain):.1f}"),
        ("multiply-add", core.mad, f"5 and the same way; figure 9: {mads[0]:.1f}"),
        ("division", core.divide, "145 and the same way; no figure shows one"),
        ("shared load", core.shared, "3 (the simulator's default) and the same way"),
        ("a jump holds its warp", core.branch, "fetch, decode and issue anew: assumed"),
        ("local load", core.local,
         f"figure 9's four, {min(local):.0f} to {max(local):.0f}: the sums of 512 threads are "
         "twice the first cache"),
        ("global load", core.far, "assumed as a local one; no figure shows one"),
        ("memory instructions", core.port, f"one a cycle: one memory unit, {configured}"),
        ("a line of 128 bytes", core.line, "4 flits of 32 bytes and a head: its network"),
        ("a line of instructions", core.fetch,
         f"figure 13: every sixteenth line takes {filled:.0f}, and 16 instructions of 8 bytes are "
         "a line of its cache"),
        ("instructions held", core.fetched, f"2 KiB, {configured}"),
    ]  # fmt: skip
    return md("what | cycles or count> | where from", rows)


def filter_sentence() -> str:
    """Return the sentence on the filter size that figures 9 and 13 imply."""
    sides, tile = sides_printed(), ladder_tile(TABLE_1, TABLE_1_BATCH)
    return (
        f"Figure 9's cheapest line took {min(c for _, c in FIGURE_9):,} cycles in all and figure "
        f"13's {min(c for _, c in FIGURE_13):,}: with filters of {sides[0]} x {sides[0]} a line of "
        f"the first runs {executions(True):,} times and one of the second "
        f"{executions(False):,} times ({tile.blocks(TABLE_1, TABLE_1_BATCH)} blocks, two warps, 7 "
        "chunks of 4 pixels), one cycle each and one over. No other side up to 32 fits both "
        f"figures; with the 32 that Table 1 prints, a local load would take "
        f"{max(line_cycles(FIGURE_9, side=32)):.0f} cycles. {blocks_per_sm(tile)} blocks a "
        "multiprocessor, as the paper has it."
    )


def steps_table() -> str:
    return Table(STEP_COLUMNS, step_rows(TABLE_1, TABLE_1_BATCH)).markdown().rstrip()


def lines_table() -> str:
    rows = []
    figures = (("9", FIGURE_9, SORTS_9), ("13", FIGURE_13, SORTS_13))
    for (name, seen, sorts), step in zip(figures, STEPS, strict=False):
        means = line_means(step.kernel, TABLE_1, TABLE_1_BATCH)
        for sort in filter(None, dict.fromkeys(sorts)):
            values = [
                c
                for c, line_sort in zip(line_cycles(seen), sorts, strict=True)
                if line_sort == sort
            ]
            ends = dict.fromkeys(f"{end:.1f}" for end in (min(values), max(values)))
            rows.append([name, sort, " to ".join(ends), f"{means[sort]:.1f}"])
    return md("figure | line | the paper, cycles> | model>", rows)


def figures_table() -> str:
    """Return the paper's figures, the model's and an H200's."""
    document = load(GPU, "conv", "convnet2.json")
    on_h200, clocked = measured(), ""
    if there(GPU, "shares.json"):
        clocked = f"What is of the computation: warps' clocks, {where(load(GPU, 'shares.json'))}. "
    caption = (
        f"H200: {where(document)}; {how_sure([], document, of='a step')} {clocked}Within "
        f"{WITHIN['cycles']:.0%} of cycles and times, {WITHIN['share']:.0%} and {MOST_APART} of a "
        "share: agrees."
    )
    rows = [
        [row["section"], row["figure"], None if row["paper"] is None else figure(row["paper"]),
         figure(row["model"]), {None: None, True: "yes", False: "no"}[row["agrees"]],
         on_h200.get(row["figure"], "not measured"), row["remark"] or None]
        for row in claim_rows(TABLE_1, TABLE_1_BATCH)
    ]  # fmt: skip
    heads = "section | figure | the paper> | model> | agrees | H200> | remark"
    return lines(caption, md(heads, rows))


def changes_table() -> str:
    names, rows = [change.name for change in CHANGED], []
    claims = {claim.name: claim for claim in CLAIMS}
    for row in claim_rows(TABLE_1, TABLE_1_BATCH):
        claim, printed = claims[row["figure"]], row["paper"]
        values = [row["model"], *(row["changed"][name] for name in names)]
        marks = ["**" if claim.printed is not None and agrees(claim, v) else "" for v in values]
        cells = (f"{m}{figure(v)}{m}" for m, v in zip(marks, values, strict=True))
        rows.append([row["figure"], None if printed is None else figure(printed), *cells])
    heads = ["figure", "the paper>", "as stated>", *(f"{name}>" for name in names)]
    notes = "\n".join(f"- {change.name}: {change.what}" for change in CHANGED)
    return lines(md(" | ".join(heads), rows), notes)


def total_sentence() -> str:
    """Return the sentence on the paper's total from its own savings."""
    paper = next(claim.printed for claim in CLAIMS if claim.unit == "times")
    return (
        f"The paper's {paper}x: its savings from section 3.2 on multiply to {own_total():.2f}, and "
        f"to {own_total(low=True):.2f} to {own_total(high=True):.2f} with what its percentages "
        "round. So it is counted from the unrolled kernel, and unrolling is not in it."
    )


SECTIONS: dict[str, Callable[[], str]] = {
    "engines-core": core_table,
    "engines-filters": filter_sentence,
    "engines-steps": steps_table,
    "engines-lines": lines_table,
    "engines-figures": figures_table,
    "engines-total": total_sentence,
    "engines-changes": changes_table,
}
