"""Nsight Compute's command line: the metrics to request, and a parser for its CSV."""

import csv
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from lenetgpu.ini import ini

Value = float | None
_FILE = ini(Path(__file__).with_suffix(".ini"))
_METRICS = {name: text.partition(" | ") for name, text in _FILE["metrics"].items()}
METRICS = {name: metric for name, (metric, _, _) in _METRICS.items()}
TIME = METRICS["ms"]
CAUSES = " ".join(_FILE["stalls"].values()).split()


def stall(cause: str) -> str:
    """Return the metric of warps stalled on `cause` at each issue."""
    return f"smsp__average_warps_issue_stalled_{cause}_per_issue_active.ratio"


# Base unit of every metric; "" for a plain number.
UNITS = {metric: unit for metric, _, unit in _METRICS.values()} | dict.fromkeys(
    map(stall, CAUSES), ""
)


def asked(compute_capability: int) -> dict[str, str]:
    """Return the metrics, with units, of a GPU of that compute capability (90 for 9.0)."""
    hopper = compute_capability // 10 == 9  # elsewhere ncu rejects all if one is `gmma`
    return {name: unit for name, unit in UNITS.items() if hopper or name != stall("gmma")}


@dataclass(frozen=True)
class Counters:
    """Counters of one kernel, or of several together; None if there was nothing to count."""

    kernel: str
    launches: int
    ms: float  # of all launches, each run alone by the profiler: not comparable with other times
    dram_read_gbs: Value = None  # 1e9 bytes per second
    dram_write_gbs: Value = None
    l2_gbs: Value = None
    global_load_efficiency: Value = None  # 0 to 1, as all efficiencies and `occupancy`
    global_store_efficiency: Value = None
    shared_efficiency: Value = None
    occupancy: Value = None
    stalls: Mapping[str, float] = field(default_factory=dict)  # shares by cause, largest first
    load_sectors: Value = None  # totals that the efficiencies refer to
    store_sectors: Value = None
    shared_bytes: Value = None

    def as_json(self) -> dict[str, Any]:
        """Return every field, with the largest stall cause and its share."""
        cause, share = next(iter(self.stalls.items()), (None, None))
        return asdict(self) | {"top_stall": cause, "top_stall_share": share}


_RATES = ("dram_read_gbs", "dram_write_gbs", "l2_gbs")
# Efficiency: the total that it refers to.
_OF = {
    "global_load_efficiency": "load_sectors",
    "global_store_efficiency": "store_sectors",
    "shared_efficiency": "shared_bytes",
}


def _ordered(stalls: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(stalls.items(), key=lambda item: -item[1])
    return {cause: share for cause, share in ordered if share > 0}


def of_values(kernel: str, values: Mapping[str, Value]) -> Counters:
    """Return the counters of one launch from metric values in base units."""

    def scaled(name: str, unit: float) -> Value:
        value = values[METRICS[name]]
        return None if value is None else value / unit

    found: dict[str, Any] = {name: scaled(name, 1e9) for name in _RATES}
    for name, total in _OF.items():
        found[total] = values[METRICS[total]]
        found[name] = scaled(name, 100) if found[total] else None
    waits = {cause: values.get(stall(cause)) or 0.0 for cause in CAUSES}
    waited = sum(waits.values()) or 1.0
    stalls = _ordered({cause: wait / waited for cause, wait in waits.items()})
    ms, occupancy = (values[TIME] or 0.0) / 1e6, scaled("occupancy", 100)
    return Counters(kernel, 1, ms, occupancy=occupancy, stalls=stalls, **found)


def _weighted(pairs: Sequence[tuple[Value, Value]]) -> Value:
    """Return the weighted mean or None; pairs without a value or a weight are ignored."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


def merged(kernel: str, parts: Sequence[Counters]) -> Counters:
    """Return `parts` as one entry: throughputs averaged by time, efficiencies by sectors."""

    def mean(name: str, weight: str = "ms") -> Value:
        return _weighted([(getattr(part, name), getattr(part, weight)) for part in parts])

    found: dict[str, Any] = {name: mean(name) for name in (*_RATES, "occupancy")}
    for name, weight in _OF.items():
        known = [getattr(part, weight) for part in parts if getattr(part, weight) is not None]
        found |= {weight: sum(known) if known else None, name: mean(name, weight)}
    shared = [(p.shared_bytes or 0, p.shared_efficiency) for p in parts if p.shared_efficiency]
    waves = sum(size / efficiency for size, efficiency in shared)
    found["shared_efficiency"] = sum(size for size, _ in shared) / waves if waves else None
    stalled = [part for part in parts if part.stalls]
    stalls = {
        cause: _weighted([(part.stalls.get(cause, 0.0), part.ms) for part in stalled]) or 0.0
        for cause in CAUSES
    }
    launches, ms = sum(part.launches for part in parts), sum(part.ms for part in parts)
    return Counters(kernel, launches, ms, stalls=_ordered(stalls), **found)


_FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
_REFUSED = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded")
_ABSENT = ("", "n/a", "no data", "nan", "-nan", "inf", "-inf")
_NAME, _GRID = "Kernel Name", "Grid Size"
_ASKED_S = 20.0


class NoCounters(Exception):  # noqa: N818
    """Exception for unavailable Nsight Compute counters; its text says why."""


@dataclass(frozen=True)
class Profiled:
    """A launch: its kernel's name, its blocks, and its metrics in base units (None: absent)."""

    kernel: str
    blocks: int
    values: dict[str, Value]


def find() -> str:
    """Return the path of ncu, from PATH or CUDA's folders; raise NoCounters if there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    paths = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home), *_FOLDERS]
    newest = sorted(map(str, Path(_FOLDERS[1]).glob("*")), reverse=True)
    program = shutil.which("ncu", path=os.pathsep.join([*paths, *newest]))
    if program is None:
        raise NoCounters("Nsight Compute: expected ncu on PATH or in CUDA's folder, found none")
    return program


def version(program: str) -> str:
    """Return the version that `program` reports, such as "2025.3.1.0"."""
    number = re.search(r"Version (\S+)", run([program, "--version"], _ASKED_S, ""))
    if number is None:
        raise NoCounters(f"{program} --version: expected its version, found none")
    return number[1]


def command(program: str, metrics: Iterable[str], child: Sequence[str]) -> list[str]:
    """Return the command that profiles `child`: `metrics` in base units, in ranges it starts."""
    words = ["--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    return [program, *words, "--print-units", "base", "--metrics", ",".join(metrics), *child]


def run(words: Sequence[str], limit_s: float, more_path: str) -> str:
    """Return its output; raise NoCounters if it is denied access, fails, or exceeds `limit_s`."""
    path = os.pathsep.join(filter(None, [more_path, os.environ.get("PYTHONPATH")]))
    try:
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
    except OSError as error:
        raise NoCounters(f"{words[0]}: expected to start it, found: {error.strerror}") from error
    try:
        out, err = process.communicate(timeout=limit_s)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise NoCounters(f"ncu: expected an end in {limit_s:.0f} s, found none") from error
        raise
    errors = [
        line.removeprefix("==ERROR==").strip()[:200]
        for line in f"{out}\n{err}".splitlines()
        if line.startswith("==ERROR==") or any(word in line for word in _REFUSED)
    ]
    if process.returncode or errors:
        message = errors[0] if errors else _last_line(err) or _last_line(out) or "no message"
        raise NoCounters(f"ncu: expected exit code 0, found {process.returncode}: {message}")
    return out


def _last_line(text: str) -> str:
    return next((line.strip()[:200] for line in reversed(text.splitlines()) if line.strip()), "")


def parsed(text: str, units: Mapping[str, str]) -> list[Profiled]:
    """Return the launches in ncu's raw CSV, in order; raise NoCounters if it is incomplete."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    if not lines or not lines[0].startswith('"ID",'):
        raise NoCounters(f"ncu: expected CSV, found {_last_line(text) or 'nothing'!r}")
    if not lines[-1].endswith('"') or lines[-1].count('"') % 2:
        raise NoCounters(f"ncu, row {len(lines) - 1}: expected it whole, found it cut off")
    names, *cells = csv.reader(lines)
    missing = [name for name in (_NAME, _GRID, *units) if name not in names]
    if missing:
        raise NoCounters(f"ncu: expected a column {missing[0]}, found none")
    if not cells:
        raise NoCounters("ncu: expected a row of units, found none")
    for number, row in enumerate(cells, 1):
        if len(row) != len(names):
            raise NoCounters(f"ncu, row {number}: expected {len(names)} columns, found {len(row)}")
    # the first row holds units
    units_of, *rows = (dict(zip(names, row, strict=True)) for row in cells)
    for name, unit in units.items():
        if unit and units_of[name] not in (unit, ""):
            raise NoCounters(f"ncu, {name}: expected {unit}, found {units_of[name]}")
    return [
        Profiled(row[_NAME], _blocks(row[_GRID]), {n: _number(n, row[n]) for n in units})
        for row in rows
    ]


def _number(metric: str, text: str) -> Value:
    """Return a value without thousands separators, or None if it is absent."""
    if text.strip().lower() in _ABSENT:
        return None
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise NoCounters(f"ncu, {metric}: expected a number, found {text!r}") from None


def _blocks(grid: str) -> int:
    """Return the number of blocks of a grid such as "(512, 1, 1)"."""
    if not (extents := re.findall(r"\d+", grid)):
        raise NoCounters(f"ncu: expected a grid, found {grid!r}")
    return prod(map(int, extents))
