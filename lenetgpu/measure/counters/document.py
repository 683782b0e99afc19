"""Counters as JSON, by Nsight Compute where it can be had and counted from addresses where not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu import machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.counters import counted, read
from lenetgpu.measure.counters.ncu import NoCounters
from lenetgpu.measure.counters.work import Images, Work

Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """`head`: source ("ncu" or "counted"), version, note (why not ncu), images; rows of each work.

    A row is a stage's, a span's or a conversion's: `read.Section.as_json`, or `counted.row`.
    """

    head: dict[str, Any]
    rows: list[list[Row]]

    def as_json(self) -> dict[str, Any]:
        """The head with all rows."""
        return self.head | {"rows": [row for rows in self.rows for row in rows]}


def require_gpu(gpu: Gpu | None, why: str) -> Gpu:
    """`gpu`; LenetError where counters are asked for and there is none, for the reason `why`."""
    if gpu is None:
        raise LenetError(f"--counters: expected a GPU, found device cpu ({why})")
    return gpu


def find(works: Sequence[Work], images: Images, gpu: Gpu) -> Found:
    """The counters of `works`; where they cannot be had, what is counted from addresses."""
    head = {"images": images.count}
    try:
        found = read.read(works, images, gpu)
    except NoCounters as error:
        machine = machines.current()
        rows = [
            [counted.row(place.slot(), images.count, machine) for place in work.places]
            for work in works
        ]
        return Found({"source": counted.SOURCE, "version": None, "note": str(error)} | head, rows)
    made = [[section.as_json() for section in found.of(at)] for at in range(len(works))]
    return Found({"source": read.SOURCE, "version": found.version, "note": None} | head, made)
