"""Hardware counters as JSON: from Nsight Compute or, without it, derived from addresses.

The derived values are global access efficiencies that a variant's own explanation gives
(`lenetgpu.stages.sectors`). Only some variants have them, and they are never labelled as measured.
"""

import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu import machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.machines import Machine
from lenetgpu.measure.counters import child, ncu
from lenetgpu.measure.counters.child import Images, Work, as_json
from lenetgpu.measure.counters.ncu import Counters, NoCounters, Profiled, asked, merged, of_values
from lenetgpu.plan import BoundStage

Row = dict[str, Any]
_EFFICIENCY = re.compile(r"([\d.]+)% of loads, ([\d.]+)% of stores")
SOURCE = "ncu"
LIMIT_S = 300.0
_PACKAGES = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Section:
    """A step of a work (by index), with counters by kernel, or an error if it could not run."""

    work: int
    name: str
    variant: str
    kernels: list[Counters] = field(default_factory=list)
    error: str | None = None

    def as_json(self) -> Row:
        """Return `stage`, `variant`, `error`, counters of all kernels, and each of `kernels`."""
        row: Row = {"stage": self.name, "variant": self.variant, "error": self.error}
        if self.kernels:
            row |= merged(self.variant, self.kernels).as_json() | {"kernel": None}
        return row | {"kernels": [kernel.as_json() for kernel in self.kernels]}


def read(works: Sequence[Work], images: Images, gpu: Gpu) -> tuple[str, list[list[Section]]]:
    """Return Nsight Compute's version and each work's sections on `gpu`, or raise NoCounters."""
    program = ncu.find()
    version, units = ncu.version(program), asked(gpu.compute_capability)
    if "cupy" in sys.modules:  # free GPU memory for the process
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    with tempfile.TemporaryDirectory(prefix="lenetgpu-counters-") as name:
        folder = Path(name)
        (folder / child.WORK).write_text(json.dumps(as_json(works, images, gpu.index)))
        words = [sys.executable, "-m", child.__name__, name]
        csv = ncu.run(ncu.command(program, units, words), LIMIT_S, str(_PACKAGES))
        try:
            listed = json.loads((folder / child.SECTIONS).read_text())
        except (OSError, ValueError) as error:
            raise NoCounters("ncu: expected the process to write sections, found none") from error
    found = sections(listed, ncu.parsed(csv, units))
    return version, [[s for s in found if s.work == index] for index in range(len(works))]


def sections(listed: Sequence[dict[str, Any]], launches: Sequence[Profiled]) -> list[Section]:
    """Return each section with its launches, which follow its mark; raise NoCounters otherwise."""
    parts: list[list[Profiled]] = [[] for _ in listed]
    at = None
    for launched in launches:
        if launched.kernel == child.MARK.entry:
            at = launched.blocks - 1
            if at >= len(listed):
                raise NoCounters(f"ncu: expected {len(listed)} sections, found number {at + 1}")
        elif at is None:
            raise NoCounters(f"ncu: expected a mark first, found kernel {launched.kernel}")
        else:
            parts[at].append(launched)
    return [_section(*pair) for pair in zip(listed, parts, strict=True)]


def _section(listed: dict[str, Any], part: Sequence[Profiled]) -> Section:
    work, name, variant = listed["work"], listed["name"], listed["variant"]
    if listed["error"]:
        return Section(work, name, variant, error=listed["error"])
    names = [launched.kernel for launched in part]
    remaining = iter(names)
    for entry in listed["launched"]:
        if entry not in remaining:
            found = ", ".join(names) or "none"
            raise NoCounters(f"ncu, {name} {variant}: expected kernel {entry}, found {found}")
    by_name: dict[str, list[Counters]] = {kernel: [] for kernel in names}
    for launched in part:
        by_name[launched.kernel].append(of_values(launched.kernel, launched.values))
    return Section(work, name, variant, [merged(*counted) for counted in by_name.items()])


def require_gpu(gpu: Gpu | None, why: str) -> None:
    """Raise LenetError with the reason `why` if there is no GPU."""
    if gpu is None:
        raise LenetError(f"--counters: expected a GPU, found device cpu ({why})")


def find(works: Sequence[Work], images: Images, gpu: Gpu) -> tuple[Row, list[list[Row]]]:
    """Return a head (source, version, note, images), and a list of rows for each work.

    Without Nsight Compute the rows have values derived from addresses.
    """
    try:
        version, found = read(works, images, gpu)
    except NoCounters as error:
        head = {"source": "counted", "version": None, "note": str(error)}
        count, machine = images.count, machines.current()
        rows = [[_counted(spec.bound(), count, machine) for spec in work.specs] for work in works]
    else:
        head = {"source": SOURCE, "version": version, "note": None}
        rows = [[section.as_json() for section in work] for work in found]
    return head | {"images": images.count}, rows


def efficiencies(bound: BoundStage, images: int, machine: Machine) -> tuple[float, float] | None:
    """Return global load and store efficiency (0 to 1) of a stage's variant, or None if unknown."""
    if bound.variant.explain is not None:
        rows = dict(bound.variant.explain(bound.problem, images, machine))
        shares = _EFFICIENCY.search(rows.get("counted efficiency", ""))
        if shares:
            return float(shares[1]) / 100, float(shares[2]) / 100
    return None


def _counted(bound: BoundStage, images: int, machine: Machine) -> Row:
    loads, stores = efficiencies(bound, images, machine) or (None, None)
    head = {"stage": bound.name, "variant": bound.variant.full_name, "error": None}
    shares = {"global_load_efficiency": loads, "global_store_efficiency": stores}
    return head | shares | {"kernels": []}
