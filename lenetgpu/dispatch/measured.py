"""Measured times of algorithms by device, shape and images: a shipped table and a local cache.

`measured.json` holds times from the project's devices; scripts/conv_choices.py writes it from
docs/measured. `lenetgpu conv --tune` caches its times in the kernel cache, by device, driver and
sources. `counted` selects the times of a run that count.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from lenetgpu.dispatch.algorithms import ALGORITHMS, TENSOR, TILED, WINOGRAD, why_not
from lenetgpu.errors import unexpected
from lenetgpu.gpu import machines, nvrtc
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.registry import OPTIONS
from lenetgpu.store import entries
from lenetgpu.store.entries import folder, sources

TABLE = Path(__file__).with_suffix(".json")
SCHEMA = 1
SHIPS, HERE = "the table that ships", "this machine, by conv --tune"
# Largest ratio between the images of a row and of a call for which the row applies. By the cost
# model, the winner stays the winner at up to twice as many images in 90 % of cases, and is 1.2 %
# slower on average, 1.6 times at worst; from a ratio of three, 11 % and 3.5 times.
NEAR = 2.0
_KIND = "tuned"
_CONV = Path(__file__).resolve().parents[1] / "stages" / "conv"
_PYTHON = ("dispatch", "stages/conv", "gpu", "problems.py")


@dataclass(frozen=True)
class Measured:
    """Times of algorithms from one run of one convolution; a name may include a tiling."""

    device: str
    images: int
    us: Mapping[str, float]  # microseconds per call by algorithm, or algorithm@tiling
    date: str
    source: str = HERE  # or SHIPS
    commit: str | None = None
    load: float = 0.0  # other processes that computed on the GPU
    dropped: tuple[str, ...] = ()  # algorithms that were wrong, failed, or not exact enough
    lacks: tuple[str, ...] = ()  # requested options that the measured problem did not have
    twin: bool = False  # measured on another GPU with the same multiprocessors

    @property
    def algorithm(self) -> str:
        """The fastest algorithm."""
        return min(self.us, key=lambda name: self.us[name])

    def off(self, algorithm: str) -> float | None:
        """Return an algorithm's time over the fastest's, or None if it was not measured."""
        us = self.us.get(algorithm)
        return us and us / self.us[self.algorithm]

    @property
    def without(self) -> str:
        """Suffix ` without bias, relu` if the measured problem had none, else empty."""
        return f" without {', '.join(self.lacks)}" if self.lacks else ""

    @property
    def on(self) -> str:
        """Suffix ` on NVIDIA H200` if that is another GPU than requested, else empty."""
        return f" on {self.device}" if self.twin else ""

    def plans_for(self, images: int) -> bool:
        """Return True if a run of `images` has the same plans and errors: same GPU, same images."""
        return self.images == images and not self.twin

    def sound(self) -> bool:
        """Return True if the row is valid: at least one image, and finite times above 0."""
        timed = bool(self.us) and all(0 < us < inf for us in self.us.values())
        return timed and self.images >= 1 and self.load < inf

    def __str__(self) -> str:
        images = f"{self.images:,} image{'s' * (self.images > 1)}"
        load = self.load and f"while {self.load:.0f} other processes ran"
        commit = self.commit and f"commit {self.commit[:10]}"
        parts = self.device, self.date, images, self.without.strip(), commit, load, self.source
        return ", ".join(map(str, filter(None, parts)))


def read_table(path: Path) -> dict[tuple[str, Conv], tuple[Measured, ...]]:
    """Return a table's rows by device and problem; raise LenetError if the table is invalid."""
    rows: dict[tuple[str, Conv], tuple[Measured, ...]] = {}
    try:
        document = json.loads(path.read_text())
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema {document['schema']}")
        for row in document["rows"]:
            sizes, algorithm = row.pop("problem"), row.pop("algorithm")
            sizes |= {k: tuple(v) for k, v in sizes.items() if isinstance(v, list)}
            problem = Conv(**sizes)
            row["dropped"] = tuple(row.get("dropped", ()))
            found = Measured(**row, source=SHIPS)
            if not found.sound() or found.algorithm != algorithm:
                raise ValueError(f"a row of {algorithm} that was not the fastest")
            rows[found.device, problem] = (*rows.get((found.device, problem), ()), found)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}; install lenetgpu again"
        raise unexpected(path.name, "the table of measured convolutions", reason) from error
    return rows


@cache
def _shipped() -> dict[tuple[str, Conv], tuple[Measured, ...]]:
    return read_table(TABLE)


def shipped(machine: Machine, problem: Conv) -> tuple[Measured, ...]:
    """Return the shipped rows of `problem` for the name of `machine`, or for its full names."""
    known = machines.FULL_NAMES.items()
    names = (machine.name, *(full for full, found in known if found.name == machine.name))
    return next((rows for name in names if (rows := _shipped().get((name, problem)))), ())


@dataclass(frozen=True)
class Entry:
    """Cache entry of one problem on one device: times, dates and loads by number of images."""

    device: str
    problem: str
    us: dict[str, dict[str, float]]
    dates: dict[str, str]
    loads: dict[str, float]


@cache
def _kernels() -> str:
    """Return a digest of every convolution's kernels and their headers."""
    return entries.name_of([nvrtc.source_hash(path) for path in sorted(_CONV.rglob("*.cu"))])


def _name(device: str, problem: Conv) -> str:
    """Return an entry's name; it changes with the kernels, their Python sources and the driver."""
    facts = [device, repr(problem), _kernels(), sources(*_PYTHON), nvrtc.environment()]
    return entries.name_of(facts)


def cached(device: str, problem: Conv) -> tuple[Measured, ...]:
    """Return this machine's rows of `problem` on `device`; none if the cached entry is invalid."""
    entry = None if folder(_KIND) is None else entries.load(_KIND, _name(device, problem), Entry)
    if entry is None:
        return ()
    try:
        rows = tuple(
            Measured(device, int(images), us, entry.dates[images], load=entry.loads[images])
            for images, us in entry.us.items()
        )
    except (KeyError, ValueError):
        return ()
    return rows if all(row.sound() for row in rows) else ()


def save(problem: Conv, found: Measured) -> bool:
    """Add a row of `problem` to the rows in the cache; return True if it was written."""
    entry = Entry(found.device, repr(problem), {}, {}, {})
    for row in (*cached(found.device, problem), found):
        images = str(row.images)
        entry.us[images], entry.dates[images] = dict(row.us), row.date
        entry.loads[images] = row.load
    return entries.save(_KIND, _name(found.device, problem), entry)


def near(problem: Conv, images: int, machine: Machine) -> list[Measured]:
    """Return the measured rows of `problem` for a similar number of images, nearest first.

    Of equally near rows, those with the same bias, ReLU and dtype come first, then this
    machine's own. The local cache is read only if `machine` is a GPU of this host, rows of its
    twins only if there are none of its name.
    """
    here = machine.name in {gpu.name for gpu in driver_gpus()}

    def own(requested: Conv) -> tuple[Measured, ...]:
        return (*(cached(machine.name, requested) if here else ()), *shipped(machine, requested))

    def of_twins(requested: Conv) -> tuple[Measured, ...]:
        found = (_shipped().get((name, requested), ()) for name in machines.twins(machine))
        return tuple(replace(row, twin=True) for rows in found for row in rows)

    def distance(row: Measured) -> float:
        return max(row.images / images, images / row.images)

    plain = replace(problem, bias=False, relu=False, dtype="fp32")
    lacks = tuple(name for name in OPTIONS if name in problem.requires - plain.requires)
    for rows_of in (own, of_twins):
        rows = [*rows_of(problem)]
        if lacks:
            rows += [replace(row, lacks=lacks) for row in rows_of(plain)]
        if rows := [row for row in rows if distance(row) <= NEAR]:
            return sorted(rows, key=lambda row: (distance(row), row.lacks, row.source != HERE))
    return []


_PLAIN = ("direct.", "prefetch.", "texture.")
# Accepted error of Winograd over that of fp32 on the same data, if only largest errors are known.
WINOGRAD_ERROR = 3.0


def inexact(problem: Conv, images: int, machine: Machine) -> tuple[str, ...]:
    """Return the Winograd algorithms that `why_not` refuses, by shape or by predicted error."""
    return tuple(name for name in WINOGRAD if why_not(name, problem, machine, images=images))


def counted(
    entries: Iterable[Mapping[str, Any]],
    peer: Mapping[str, Any] | None = None,
    inexact: Collection[str] = (),
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return a case's microseconds of best's algorithms, and the names of dropped ones.

    Dropped are algorithms that were wrong or failed, or whose error is larger than fp32's. Errors
    are root mean squares, limited by that of `peer` (cuDNN), if all have them for the same images;
    else the largest errors, limited by those of `peer` and our fp32 kernels without transforms,
    and for Winograd by WINOGRAD_ERROR times that. Without a `peer` Winograd has no limit.
    Algorithms that are `inexact` by the model need a `peer` on the same images.
    """
    own = [entry for entry in entries if entry["name"].partition(TILED)[0] in ALGORITHMS]
    right = [entry for entry in own if entry["status"] == "right" and entry.get("median_ms")]
    peers = [] if peer is None or peer.get("relative_error") is None else [peer]
    same = all("same_images" in entry for entry in (*right, *peers))

    def error_of(entry: Mapping[str, Any]) -> Any:
        return entry["same_images"]["rms"] if same else entry.get("relative_error")

    plain = [error_of(entry) or 0.0 for entry in right if entry["name"].startswith(_PLAIN)]
    theirs = [error_of(entry) for entry in peers]
    limit = max(theirs if same and peers else [*plain, *theirs], default=float("inf"))
    limits = dict.fromkeys(TENSOR, limit)
    if peers:
        limits |= dict.fromkeys(WINOGRAD, limit if same else WINOGRAD_ERROR * limit)
    us, dropped = {}, [e["name"] for e in own if e["status"] in ("wrong", "failed")]
    for entry in right:
        name, error = entry["name"], error_of(entry)
        most = limits.get(name.partition(TILED)[0])
        unknown = name in inexact and not (same and peers)
        if unknown or (most is not None and (error is None or not error <= most)):
            dropped.append(name)
        else:
            us[name] = 1e3 * entry["median_ms"]
    return us, tuple(dropped)
