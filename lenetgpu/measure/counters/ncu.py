"""Nsight Compute's command line: where it is, what it is asked, and what its CSV says."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from lenetgpu.measure.counters.metrics import Value

_FOLDERS = ("/usr/local/cuda/bin", "/opt/nvidia/nsight-compute")
_REFUSED = ("ERR_NVGPUCTRPERM", "LibraryNotLoaded")
_NOTHING = ("", "n/a", "no data", "nan", "-nan", "inf", "-inf")
_NAME, _GRID = "Kernel Name", "Grid Size"
_ASKED_S = 20.0


class NoCounters(Exception):  # noqa: N818
    """Why Nsight Compute's counters cannot be had, in a sentence."""


@dataclass(frozen=True)
class Profiled:
    """A launch in the order of launching: its kernel's name, its blocks, its metrics' values.

    Values are in base units, None where there is nothing.
    """

    kernel: str
    blocks: int
    values: dict[str, Value]


def find() -> str:
    """The program: on PATH, in CUDA_HOME or CUDA_PATH, or where CUDA is usually installed."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places = [os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home), *_FOLDERS]
    newest = sorted(map(str, Path(_FOLDERS[1]).glob("*")), reverse=True)
    found = shutil.which("ncu", path=os.pathsep.join([*places, *newest]))
    if found is None:
        raise NoCounters("Nsight Compute: expected ncu on PATH or in CUDA's folder, found none")
    return found


def version(program: str) -> str:
    """What it says of itself: "2025.3.1.0"."""
    number = re.search(r"Version (\S+)", run([program, "--version"], _ASKED_S, ""))
    if number is None:
        raise NoCounters(f"{program} --version: expected its version, found none")
    return number[1]


def command(program: str, metrics: Iterable[str], child: Sequence[str]) -> list[str]:
    """How `child` is run under it: `metrics` in base units, only what the child says to watch."""
    words = ["--profile-from-start", "off", "--clock-control", "none", "--csv", "--page", "raw"]
    return [program, *words, "--print-units", "base", "--metrics", ",".join(metrics), *child]


def run(words: Sequence[str], limit_s: float, more_path: str) -> str:
    """What it prints; NoCounters where it is refused, fails, or takes longer than `limit_s`.

    `more_path` goes before PYTHONPATH. Its processes end with it, and when this raises.
    """
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
    complaint = (
        next(
            (
                line
                for line in f"{out}\n{err}".splitlines()
                if line.startswith("==ERROR==") or any(word in line for word in _REFUSED)
            ),
            "",
        )
        .removeprefix("==ERROR==")
        .strip()[:200]
    )
    if process.returncode or complaint:
        said = complaint or _last_line(err) or _last_line(out) or "nothing said"
        raise NoCounters(f"ncu: expected it to end well, found code {process.returncode}: {said}")
    return out


def _last_line(said: str) -> str:
    return next((line.strip()[:200] for line in reversed(said.splitlines()) if line.strip()), "")


def parsed(said: str, units: Mapping[str, str]) -> list[Profiled]:
    """The launches of its raw CSV, in their order; NoCounters where it is not whole.

    `units` names the metrics with their base units, "" for any. Lines of `==` are its remarks; the
    first row after the heads is of units.
    """
    held = [line for line in said.splitlines() if line.startswith('"')]
    if not held or not held[0].startswith('"ID",'):
        raise NoCounters(f"ncu: expected CSV, found {_last_line(said) or 'nothing'!r}")
    if not held[-1].endswith('"'):
        raise NoCounters(f"ncu, row {len(held) - 1}: expected it whole, found it cut off")
    heads, *rest = csv.reader(held)
    missing = [name for name in (_NAME, _GRID, *units) if name not in heads]
    if missing:
        raise NoCounters(f"ncu: expected a column {missing[0]}, found none")
    if not rest:
        raise NoCounters("ncu: expected a row of units, found the heads only")
    for number, row in enumerate(rest, 1):
        if len(row) != len(heads):
            raise NoCounters(f"ncu, row {number}: expected {len(heads)} columns, found {len(row)}")
    told, *rows = (dict(zip(heads, row, strict=True)) for row in rest)
    for name, unit in units.items():
        if unit and told[name] not in (unit, ""):
            raise NoCounters(f"ncu, {name}: expected {unit}, found {told[name]}")
    return [
        Profiled(
            row[_NAME], _blocks(row[_GRID]), {name: _number(name, row[name]) for name in units}
        )
        for row in rows
    ]


def _number(metric: str, said: str) -> Value:
    """A value with its thousands' commas; None of nothing."""
    if said.strip().lower() in _NOTHING:
        return None
    try:
        return float(said.replace(",", ""))
    except ValueError:
        raise NoCounters(f"ncu, {metric}: expected a number, found {said!r}") from None


def _blocks(grid: str) -> int:
    """How many blocks "(512, 1, 1)" are."""
    extents = [int(number) for number in re.findall(r"\d+", grid)]
    if not extents:
        raise NoCounters(f"ncu: expected a grid, found {grid!r}")
    return prod(extents)
