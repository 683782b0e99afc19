"""Counters as tables: the columns of NVVP's figures in the course report, and stalls."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show import tables
from lenetgpu.lab.show.tables import Column, fixed, percent, significant

if TYPE_CHECKING:
    from rich.console import Console

NONE = "-"
_STALLS_SHOWN, _LEAST_SHARE, _NAME = 3, 0.05, 44


@dataclass(frozen=True)
class Dashed(Column):
    """A column in which NONE stands where nothing was counted."""

    def cell(self, row: dict[str, Any]) -> str:
        """The value as text, or NONE."""
        return super().cell(row) or NONE


def stalls(shares: dict[str, float]) -> str:
    """The largest shares by cause: "long_scoreboard 61 %, wait 12 %"."""
    found = [(cause, share) for cause, share in shares.items() if share >= _LEAST_SHARE]
    return ", ".join(f"{cause} {share:.0%}" for cause, share in found[:_STALLS_SHOWN])


_ADDRESSES = (
    Dashed("loads eff.", "global_load_efficiency", percent),
    Dashed("stores eff.", "global_store_efficiency", percent),
)
FIGURES = (
    Dashed("DRAM read GB/s", "dram_read_gbs", significant(3)),
    Dashed("written GB/s", "dram_write_gbs", significant(3)),
    Dashed("L2 GB/s", "l2_gbs", significant(3)),
    *_ADDRESSES,
    Dashed("shared eff.", "shared_efficiency", percent),
    Dashed("active warps", "occupancy", percent),
    Dashed("warps stalled by", "stalls", stalls, numeric=False),
)
_STAGE = (
    Dashed("stage", "stage", numeric=False),
    Dashed("variant", "variant", numeric=False),
)
_KERNEL = (
    Dashed("kernel", "kernel", lambda name: name[:_NAME], numeric=False),
    Dashed("launches", "launches"),
    Dashed("ms alone", "ms", fixed(3)),
)


def rows_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a kernel, those of a stage one below the other; one where a stage has none."""
    return [
        {**entry, "stage": row["stage"], "variant": row["variant"], "error": row["error"]}
        for row in rows
        for entry in row["kernels"] or [row]
    ]


def columns(counters: dict[str, Any], kernels: bool) -> tuple[Column, ...]:
    """Those of its source: "counted" has efficiencies of global accesses only."""
    measured = counters["source"] == "ncu"
    named = (*_STAGE, *(_KERNEL if kernels and measured else ()))
    return (*named, *(FIGURES if measured else _ADDRESSES))


def nested(counters: dict[str, Any] | None) -> tuple[Column, ...]:
    """The same as columns of rows that hold their counters under `counters`."""
    if counters is None:
        return ()
    own = columns(counters, False)[len(_STAGE) :]
    return tuple(replace(column, key=f"counters.{column.key}") for column in own)


def said(counters: dict[str, Any]) -> str:
    """Where the figures come from."""
    if counters["source"] == "ncu":
        return (
            f"measured by Nsight Compute {counters['version']}, every kernel alone and several "
            "times over: its milliseconds are none to compare"
        )
    return f"counted from addresses, not measured: {counters['note']}"


def print_counters(
    console: Console, counters: dict[str, Any], rows: list[dict[str, Any]], kernels: bool
) -> None:
    """A table of `rows` of stages, by `kernels` one by one, and where its figures come from."""
    title = f"counters, {counters['images']:,} images"
    shown = rows_of(rows) if kernels else rows
    own = columns(counters, kernels)
    console.print(tables.as_rich(own, shown, title, width=console.width))
    for row in rows:
        if row["error"]:
            sentence = f"{row['stage']} {row['variant']}: {row['error']}"
            console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"counters {said(counters)}", highlight=False, soft_wrap=True)
