"""Counters of works: the process under Nsight Compute run, its launches given to their sections."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.counters import child, ncu
from lenetgpu.measure.counters.metrics import Counters, asked, merged, of_values
from lenetgpu.measure.counters.ncu import NoCounters, Profiled
from lenetgpu.measure.counters.work import Images, Work, as_json

SOURCE = "ncu"
LIMIT_S = 300.0
_PACKAGES = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Section:
    """A step of a work (its index): the counters of its kernels, in the order of first launches.

    `error` is a sentence where it could not be run; a step without kernels has none.
    """

    work: int
    name: str
    variant: str
    kernels: list[Counters] = field(default_factory=list)
    error: str | None = None

    @property
    def whole(self) -> Counters | None:
        """All its kernels as one, None where there is none."""
        return merged(self.variant, self.kernels) if self.kernels else None

    def as_json(self) -> dict[str, Any]:
        """`stage`, `variant`, `error`, the counters of all kernels, and `kernels` one by one."""
        whole = self.whole
        head = {"stage": self.name, "variant": self.variant, "error": self.error}
        found = {} if whole is None else whole.as_json() | {"kernel": None}
        return head | found | {"kernels": [kernel.as_json() for kernel in self.kernels]}


@dataclass(frozen=True)
class Read:
    """The sections of works, and the version of Nsight Compute that counted."""

    version: str
    sections: list[Section]

    def of(self, work: int) -> list[Section]:
        """The sections of a work, by its index."""
        return [section for section in self.sections if section.work == work]


def read(works: Sequence[Work], images: Images, gpu: Gpu, limit_s: float = LIMIT_S) -> Read:
    """Count the kernels of `works` on `gpu`.

    In a process of its own, each kernel as often as the counters need passes: nothing there is a
    time. Raises NoCounters where Nsight Compute is not there, is refused the counters, or says what
    does not fit what was launched.
    """
    program = ncu.find()
    version, units = ncu.version(program), asked(gpu.compute_capability)
    if "cupy" in sys.modules:  # the process needs memory of its own
        sys.modules["cupy"].get_default_memory_pool().free_all_blocks()
    with tempfile.TemporaryDirectory(prefix="lenetgpu-counters-") as name:
        folder = Path(name)
        (folder / child.WORK).write_text(json.dumps(as_json(works, images, gpu.index)))
        words = [sys.executable, "-m", child.__name__, name]
        said = ncu.run(ncu.command(program, units, words), limit_s, str(_PACKAGES))
        try:
            told = json.loads((folder / child.SECTIONS).read_text())
        except (OSError, ValueError) as error:
            message = "ncu: expected the process to leave its sections, found none"
            raise NoCounters(message) from error
    return Read(version, sections(told, ncu.parsed(said, units)))


def sections(told: Sequence[dict[str, Any]], launches: Sequence[Profiled]) -> list[Section]:
    """Each section with its launches; NoCounters unless these are those that it made.

    A section's launches follow a mark of as many blocks as its number. Kernels of libraries may
    stand between our own, which are all there in their order.
    """
    parts: list[list[Profiled]] = [[] for _ in told]
    at = None
    for launched in launches:
        if launched.kernel == child.MARK.entry:
            at = launched.blocks - 1
            if at >= len(told):
                raise NoCounters(f"ncu: expected {len(told)} sections, found number {at + 1}")
        elif at is None:
            raise NoCounters(f"ncu: expected a mark first, found kernel {launched.kernel}")
        else:
            parts[at].append(launched)
    return [_section(one, part) for one, part in zip(told, parts, strict=True)]


def _section(told: dict[str, Any], part: Sequence[Profiled]) -> Section:
    work, name, variant = told["work"], told["name"], told["variant"]
    if told["error"]:
        return Section(work, name, variant, error=told["error"])
    names = [launched.kernel for launched in part]
    left = iter(names)
    for entry in told["launched"]:
        if entry not in left:
            found = ", ".join(names) or "none"
            raise NoCounters(f"ncu, {name} {variant}: expected kernel {entry}, found {found}")
    by_name: dict[str, list[Counters]] = {}
    for launched in part:
        kernel = launched.kernel
        by_name.setdefault(kernel, []).append(of_values(kernel, launched.values))
    return Section(work, name, variant, [merged(*counted) for counted in by_name.items()])
