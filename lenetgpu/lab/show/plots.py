"""Pictures of results: stacked bars of plans, a roofline of variants, the report's ladder."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, require_extra
from lenetgpu.files.output import require_folder
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.network import STAGE_NAMES

ENDINGS = (".png", ".svg")
_COLOURS = ("#2563eb", "#0d9488", "#7c3aed", "#c2410c", "#ca8a04", "#db2777", "#475569")


def check_plot(path: Path) -> None:
    """Raise LenetError unless `path` is a .png or .svg in an existing folder, and matplotlib is."""
    if path.suffix.lower() not in ENDINGS:
        raise LenetError(
            f"{path}: expected a name ending in {' or '.join(ENDINGS)}, "
            f"found {path.suffix or 'no ending'}"
        )
    require_folder(path)
    require_extra("--plot", "matplotlib", "plot")


def _figure(width: float, height: float, panes: int = 1) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, panes, figsize=(width, height), layout="constrained")
    return figure, axes


def save(figure: Any, path: Path, told: Mapping[str, str] | None = None) -> None:
    """Write a figure as `path` ends, whole or not at all; a PNG holds the words that are `told`."""
    import io

    import matplotlib.pyplot as plt

    from lenetgpu.store import write_atomically

    buffer = io.BytesIO()
    form = path.suffix[1:].lower()
    words = {"metadata": dict(told)} if told is not None and form == "png" else {}
    figure.savefig(buffer, format=form, dpi=130, **words)
    plt.close(figure)
    write_atomically(path, buffer.getvalue())


def bar_label(milliseconds: float) -> str:
    """A time as pictures of plans write it."""
    return f"{milliseconds:,.3f} ms"


def plot_plans(
    path: Path, plans: dict[str, list[dict[str, Any]]], totals: dict[str, float], title: str
) -> None:
    """A stacked bar per plan, a colour per stage.

    `plans` maps a plan to its stage rows, `totals` to the milliseconds of its table row: a bar is
    as long, and the stages' shares divide it. Plans over ten times the fastest would hide the
    others: their bars are cut, and say so.
    """
    import matplotlib.patches as patches

    totals = {name: totals[name] for name in plans}
    ordered = sorted(plans, key=totals.__getitem__, reverse=True)
    stages = [*STAGE_NAMES, "other"]
    palette = dict(zip(stages, (*_COLOURS, "#9ca3af"), strict=True))
    figure, axes = _figure(9.5, 1.8 + 0.42 * len(plans))
    limit = max(t for t in totals.values() if t <= 10 * min(totals.values()))
    shown = set()
    for index, name in enumerate(ordered):
        left = 0.0
        for row in plans[name]:
            stage = row["stages"][0] if row["stages"] else "other"
            shown.add(stage)
            width = min(row["share"] * totals[name], max(0.0, 1.05 * limit - left))
            axes.barh(index, width, left=left, color=palette[stage], edgecolor="white",
                      linewidth=0.5)  # fmt: skip
            left += width
        cut = " (bar cut)" if totals[name] > 1.05 * limit else ""
        axes.text(left + 0.01 * limit, index, bar_label(totals[name]) + cut, va="center",
                  fontsize=9)  # fmt: skip
    axes.set_yticks(range(len(ordered)), ordered)
    axes.set_xlim(0, 1.3 * limit)
    axes.set_xlabel("milliseconds of a pass, divided as its profiled stages are")
    axes.set_title(title, loc="left", fontsize=10)
    handles = [patches.Patch(color=palette[s], label=s) for s in stages if s in shown]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9,
                frameon=False)  # fmt: skip
    save(figure, path)


def _spread(values: list[float], least: float) -> list[float]:
    """Positions as near to `values` as can be with `least` (a factor) between neighbours."""
    order = sorted(range(len(values)), key=values.__getitem__)
    placed = list(values)
    for before, after in itertools.pairwise(order):
        placed[after] = max(placed[after], placed[before] * least)
    return placed


def plot_roofline(path: Path, rows: list[dict[str, Any]], limits: Ceilings, title: str) -> None:
    """Every row's rate over its intensity (FLOP per byte it must move), under the roofs."""
    rows = [row for row in rows if row.get("gflop") and row.get("median_ms")]
    if not rows:
        raise LenetError("--plot: expected candidates with timings, found none")
    figure, axes = _figure(9, 5.6)
    intensities = [1e3 * row["gflop"] / row["mbytes"] for row in rows]
    low, high = min([0.1, *intensities]) / 2, max([200.0, *intensities]) * 4
    roofs = [("fp32 multiply-adds", limits.fma_tflops, "#111827")]
    if limits.tensor_tflops and any(row["precision"] != "fp32" for row in rows):
        roofs.append(("fp16 tensor cores, mma.sync", limits.tensor_tflops, "#6b7280"))
    for name, peak, colour in roofs:
        corner = 1e3 * peak / limits.copy_gbs
        axes.plot([low, corner, high], [low * limits.copy_gbs / 1e3, peak, peak], color=colour,
                  linewidth=1.2)  # fmt: skip
        axes.text(low * 1.2, peak, f"{name}: {peak:.3g} TFLOP/s", va="bottom", fontsize=8)
    slope = f"copy: {limits.copy_gbs:,.0f} GB/s"
    axes.text(low * 1.3, low * 4 * limits.copy_gbs / 1e3, slope, fontsize=8)
    rates = [row["tflops"] for row in rows]
    heights = _spread(rates, 1.17)
    label_at = max(intensities) * 1.5
    for index, (row, x, rate, height) in enumerate(
        zip(rows, intensities, rates, heights, strict=True)
    ):
        colour = _COLOURS[index % len(_COLOURS)]
        axes.plot(x, rate, "o", color=colour, markersize=7)
        axes.annotate(
            f"{row['name']}  {rate:.3g} TFLOP/s", (x, rate), xytext=(label_at, height), fontsize=8,
            color=colour, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_xlabel("FLOP per byte that must be moved")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(title, loc="left", fontsize=10)
    save(figure, path)


def plot_conv(path: Path, document: dict[str, Any], limits: Ceilings) -> None:
    """One shape under its roofs; a suite as the speed-up of each family's best over the reference.

    The families shown are those of the greatest speed-ups.
    """
    where = f"{document['device']['name']}, {document['date']}"
    if document["suite"] is None:
        for case in document["cases"]:
            title = f"conv {case['shape']}, batch {case['images']:,}, {where}"
            plot_roofline(path, case["candidates"], limits, title)
        return
    found: dict[str, dict[int, float]] = {}
    for index, case in enumerate(document["cases"]):
        for entry in case["candidates"]:
            if "speedup" in entry and entry["name"] != case["reference"]:
                family = found.setdefault(entry["name"].split(".")[0], {})
                family[index] = max(family.get(index, 0.0), entry["speedup"])
    if not found:
        raise LenetError("--plot: expected candidates with timings, found none")
    ranked = sorted(found, key=lambda name: -max(found[name].values()))[: len(_COLOURS)]
    labels = [case["label"] for case in document["cases"]]
    figure, axes = _figure(max(7.0, 0.34 * len(labels) + 3.0), 5.0)
    axes.axhline(1.0, color="#111827", linewidth=1.0)
    for name, colour in zip(ranked, _COLOURS, strict=False):
        points = sorted(found[name].items())
        axes.plot([i for i, _ in points], [v for _, v in points], "o-", color=colour, label=name,
                  markersize=5, linewidth=0.8)  # fmt: skip
    axes.set_yscale("log")
    axes.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=8)
    axes.set_ylabel(f"speed-up over {document['reference']}")
    axes.set_title(f"suite {document['suite']}, {where}", loc="left", fontsize=10)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=9, frameon=False)
    save(figure, path)


def plot_ladder(path: Path, rows: list[dict[str, Any]], title: str) -> None:
    """conv1 and conv2 from the slowest variant to the fastest, times on a logarithmic axis."""
    picked = [("conv1", "#2563eb"), ("conv2", "#c2410c")]
    if not any(row.get("median_ms") for row in rows):
        raise LenetError("--plot: expected candidates with timings, found none")
    figure, panes = _figure(9, 5.2, panes=2)
    for axes, (stage, colour) in zip(panes, picked, strict=True):
        found: dict[str, float] = {}
        for row in rows:
            if row["stage"] == stage and row.get("median_ms"):
                found[row["variant"]] = row["median_ms"]
        if not found:
            continue
        names = sorted(found, key=lambda name: -found[name])
        slowest = found[names[0]]
        for index, name in enumerate(names):
            axes.barh(-index, found[name], color=colour)
            axes.text(found[name] * 1.15, -index,
                      f"{found[name]:,.2f} ms, {slowest / found[name]:,.0f}x",
                      va="center", fontsize=8)  # fmt: skip
        axes.set_yticks([-i for i in range(len(names))], names, fontsize=8)
        axes.set_xscale("log")
        axes.set_xlim(min(found.values()) / 3, slowest * 60)
        axes.set_xlabel("milliseconds")
        axes.set_title(stage, loc="left", fontsize=10)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    save(figure, path)


def plot_shares(path: Path, document: dict[str, Any]) -> None:
    """A pane a shape, a stacked bar a kernel of its parts; the paper's computation in words."""
    parted = [[row for row in case["kernels"] if row.get("shares")] for case in document["cases"]]
    named = {row["kernel"]: row["figure"] for rows in parted for row in rows}
    if not named:
        raise LenetError("--plot: expected kernels with shares, found none")
    order = {kernel: index for index, kernel in enumerate(named)}
    figure, panes = _figure(2.6 + 3.4 * len(parted), 1.8 + 0.36 * len(order), panes=len(parted))
    for number, (case, rows) in enumerate(zip(document["cases"], parted, strict=True)):
        axes = panes if len(parted) == 1 else panes[number]
        for row in rows:
            left, index = 0.0, order[row["kernel"]]
            for (part, share), colour in zip(row["shares"].items(), _COLOURS, strict=False):
                axes.barh(-index, 100 * share, left=left, color=colour, edgecolor="white",
                          linewidth=0.5, label=part if row is rows[0] else None)  # fmt: skip
                if share > 0.08:
                    axes.text(left + 50 * share, -index, f"{100 * share:.0f}", color="white",
                              ha="center", va="center", fontsize=8)  # fmt: skip
                left += 100 * share
            if row.get("paper") is not None:
                axes.text(101, -index, f"the paper: compute {100 * row['paper']:.0f}", va="center",
                          fontsize=8)  # fmt: skip
        names = [f"{kernel} (fig. {told})" for kernel, told in named.items()]
        axes.set_yticks([-i for i in order.values()], [""] * len(names) if number else names,
                        fontsize=8)  # fmt: skip
        axes.set_xlim(0, 100)
        axes.set_xlabel("% of its warps' clocks")
        axes.set_title(case["label"], loc="left", fontsize=9)
    every = [panes] if len(parted) == 1 else list(panes)
    drawn = next(axes for axes, rows in zip(every, parted, strict=True) if rows)
    figure.legend(*drawn.get_legend_handles_labels(), loc="outside lower center", ncols=4,
                  fontsize=8, frameon=False)  # fmt: skip
    title = f"{document['device']['name']}, {document['date']}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    save(figure, path)


def plot_streams(path: Path, sweeps: list[dict[str, Any]], title: str) -> None:
    """A pane a plan: milliseconds over images a chunk, a line a number of streams.

    Chunks that taper are left out. The bare copy, the kernels alone and kernels that read the
    host's memory are drawn across, the model's schedule is a star.
    """
    if not sweeps:
        raise LenetError("expected a sweep of streams to draw, found none")
    figure, panes = _figure(3.2 * len(sweeps), 4, panes=len(sweeps))
    for axes, sweep in zip([panes] if len(sweeps) == 1 else panes, sweeps, strict=True):
        ways: dict[str, list[dict[str, Any]]] = {}
        for row in sweep["rows"]:
            ways.setdefault(row["way"], []).append(row)
        counts = sorted({row["streams"] for row in ways.get("schedule", [])})
        for count, colour in zip(counts, itertools.cycle(_COLOURS), strict=False):
            rows = [row for row in ways["schedule"] if row["streams"] == count]
            rows = [row for row in rows if row.get("taper", 1) == 1]
            rows.sort(key=lambda row: row["chunk"])
            axes.plot([row["chunk"] for row in rows], [row["median_ms"] for row in rows],
                      marker="o", markersize=3, color=colour, label=f"{count}")  # fmt: skip
        for name, style in (("bare copy", "--"), ("kernels", ":"), ("zero-copy", "-.")):
            for row in ways.get(name, []):
                axes.axhline(row["median_ms"], color="#475569", linestyle=style, label=name)
        for row in ways.get("auto", []):
            axes.plot(row["chunk"], row["median_ms"], "*", markersize=12, color="#111827",
                      label="auto")  # fmt: skip
        axes.set_xscale("log")
        axes.set_ylim(0)
        axes.set_xlabel("images a chunk")
        axes.set_title(f"{sweep['plan']}, {sweep['dtype']}", loc="left", fontsize=10)
    leftmost = panes if len(sweeps) == 1 else panes[0]
    leftmost.set_ylabel(f"ms for {sweeps[0]['images']:,} images")
    figure.legend(*leftmost.get_legend_handles_labels(), loc="outside right upper", fontsize=8,
                  title="streams", title_fontsize=8)  # fmt: skip
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    save(figure, path)
