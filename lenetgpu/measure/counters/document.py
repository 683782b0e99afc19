"""Counters as JSON, by Nsight Compute where it can be had and counted from addresses where not.

What is counted from addresses are the efficiencies of global accesses that a variant's own
explanation gives (`lenetgpu.stages.sectors`), of some variants only; they are never called
measured.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu import machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.machines import Machine
from lenetgpu.measure.counters import read
from lenetgpu.measure.counters.ncu import NoCounters
from lenetgpu.measure.counters.work import Images, Work
from lenetgpu.plan import Slot

Row = dict[str, Any]
_EFFICIENCY = re.compile(r"([\d.]+)% of loads, ([\d.]+)% of stores")


@dataclass(frozen=True)
class Found:
    """`head`: source ("ncu" or "counted"), version, note (why not ncu), images; rows of each work.

    A row is a stage's, a span's or a conversion's: `read.Section.as_json`, or of addresses.
    """

    head: Row
    rows: list[list[Row]]

    def as_json(self) -> Row:
        """The head with all rows."""
        return self.head | {"rows": [row for rows in self.rows for row in rows]}


def require_gpu(gpu: Gpu | None, why: str) -> Gpu:
    """`gpu`; LenetError where counters are asked for and there is none, for the reason `why`."""
    if gpu is None:
        raise LenetError(f"--counters: expected a GPU, found device cpu ({why})")
    return gpu


def find(works: Sequence[Work], images: Images, gpu: Gpu) -> Found:
    """The counters of `works`; where they cannot be had, what is counted from addresses."""
    try:
        found = read.read(works, images, gpu)
    except NoCounters as error:
        head = {"source": "counted", "version": None, "note": str(error)}
        count, machine = images.count, machines.current()
        rows = [[_counted(place.slot(), count, machine) for place in one.places] for one in works]
    else:
        head = {"source": read.SOURCE, "version": found.version, "note": None}
        rows = [[section.as_json() for section in found.of(at)] for at in range(len(works))]
    return Found(head | {"images": images.count}, rows)


def efficiencies(slot: Slot, images: int, machine: Machine) -> tuple[float, float] | None:
    """Global load and store efficiency, 0 to 1, of a slot's variant; None where it counts none."""
    if slot.variant.explain is not None:
        for about, said in slot.variant.explain(slot.problem, images, machine):
            shares = _EFFICIENCY.search(said)
            if about == "counted efficiency" and shares:
                return float(shares[1]) / 100, float(shares[2]) / 100
    return None


def _counted(slot: Slot, images: int, machine: Machine) -> Row:
    loads, stores = efficiencies(slot, images, machine) or (None, None)
    return {
        "stage": slot.name,
        "variant": slot.variant.full_name,
        "error": None,
        "global_load_efficiency": loads,
        "global_store_efficiency": stores,
        "kernels": [],
    }
