"""Write the shipped table of measured convolutions from docs/measured/.

`lenetgpu/dispatch/measured.json` gets a row for each device, convolution and batch size for which
one run timed at least two algorithms of `best.fp32`: their times and the fastest. Algorithms that
were wrong, or less accurate than fp32 on the same data (`counted`), are listed as dropped; Winograd
without a comparison on the same images is judged by its error model. Times of kernels that the
variant would no longer launch on that GPU are left out. Of several runs, the one with most
algorithms counts, then the newest.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from measured import MEASURED, Document

from lenetgpu.dispatch.algorithms import KINDS, MODELED, TENSOR, TILED
from lenetgpu.dispatch.choose import CLAIM
from lenetgpu.dispatch.measured import (
    SCHEMA,
    SHIPS,
    TABLE,
    Measured,
    counted,
    inexact,
)
from lenetgpu.gpu.machines import FULL_NAMES, USUAL, Machine
from lenetgpu.lab.conv.request import shape_of
from lenetgpu.measure.torch_peer import NAMES
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.product import Product
from lenetgpu.stages.conv.tf32.one_launch import OneLaunch

# documents of `lenetgpu conv` in a device's folder
SOURCES = ("conv/*.json", "again/*.json", "ablation/*.json", "winners.json")
_DIGITS = 4
_EPILOGUE = re.compile(r"( --(bias|relu|dtype \w+))+$")  # after a shape of the documents


def documents(root: Path) -> Iterator[Document]:
    """Yield the measurements of convolutions on GPUs, without quick runs."""
    for pattern in SOURCES:
        for path in sorted(root.glob(f"*/{pattern}")):
            document = json.loads(path.read_text())
            if document["device"]["kind"] == "cuda" and not document.get("quick"):
                yield document


def machine_of(document: Document) -> Machine:
    """Return the GPU of a measurement, or the default one if its figures are unknown."""
    return FULL_NAMES.get(document["device"]["name"], USUAL)


def problem_of(case: dict[str, Any], reads: str = "NCHW", writes: str = "NCHW") -> Conv:
    """Return the convolution of a case in given layouts, with its bias, ReLU and dtype."""
    epilogue = {name: case[name] for name in ("bias", "relu", "dtype") if name in case}
    plain = shape_of(_EPILOGUE.sub("", case["shape"])).problem
    return replace(plain, reads=reads, writes=writes, **epilogue)


# Entry points that older documents name otherwise.
_FORMER = {"tensor_halo": "tensor_taps", "tf32_halo": "tf32_patch"}


def _product(name: str, problem: Conv, images: int, machine: Machine) -> Product | OneLaunch | None:
    """Return the launch of a tensor-core variant today, or None if its tiling no longer exists."""
    base, _, word = name.partition(TILED)
    if not word:
        return MODELED[base](problem, images, machine)[1]
    return next(iter(replace(KINDS[base], word=word).products(problem, images, machine)), None)


def _of_another_kernel(entry: dict[str, Any], case: dict[str, Any], machine: Machine) -> bool:
    """Return True if a product was measured with another kernel than it would launch today.

    Documents that do not name kernels are compared by threads per block if there is one launch.
    With several launches, a time of another tiling stands until the model promises CLAIM.
    """
    if entry["name"].partition(TILED)[0] not in TENSOR or "reads" not in entry:
        return False
    problem = problem_of(case, entry["reads"], entry["writes"])
    made = _product(entry["name"], problem, case["images"], machine)
    if made is None:
        return True
    kernel = made.kernel() if isinstance(made, OneLaunch) else made.kernels()[0]
    names = {kernel.entry, _FORMER.get(kernel.entry)}
    if "launched" in entry and names.isdisjoint(entry["launched"]):
        return True
    if isinstance(made, OneLaunch):
        return "launched" not in entry and made.threads != entry.get("block", [made.threads])[0]
    return "shared_bytes" in entry and _outdone(entry, made, case["images"], machine)


def _outdone(entry: dict[str, Any], made: Product, images: int, machine: Machine) -> bool:
    """Return True if it had another tiling than `made`, and the model promises CLAIM for `made`."""
    own = made.tiling.threads, made.tiling.shared_bytes(made.layout)
    if own == (entry["block"][0], entry["shared_bytes"]) or not entry.get("median_ms"):
        return False
    kind = KINDS[entry["name"].partition(TILED)[0]]
    promised = kind.cycles(made, images, machine) / machine.clock_mhz
    return CLAIM * promised < 1e3 * float(entry["median_ms"])


def measured_us(case: dict[str, Any], machine: Machine) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return microseconds of best's algorithms in NCHW on `machine`, and the excluded ones.

    An algorithm counts if it was right and as accurate as fp32 on the same data (`counted`).
    """
    entries = [e for e in case["candidates"] if not _of_another_kernel(e, case, machine)]
    peers = [entry for entry in entries if entry["name"] == NAMES["cuda"]]
    maps = [e for e in entries if (e.get("reads"), e.get("writes")) == ("NCHW", "NCHW")]
    inaccurate = inexact(problem_of(case), case["images"], machine)
    us, dropped = counted(maps, next(iter(peers), None), inaccurate)
    return {name: float(f"{found:.{_DIGITS}g}") for name, found in us.items()}, dropped


def measured_in(document: Document) -> Iterator[tuple[Conv, Measured]]:
    """Yield each case with at least two comparable algorithms."""
    for case in document["cases"]:
        us, dropped = measured_us(case, machine_of(document))
        if len(us) > 1:
            date, commit = document["date"], document.get("commit")
            name = document["device"]["name"]
            yield (
                problem_of(case),
                Measured(name, case["images"], us, date, SHIPS, commit, dropped=dropped),
            )


def row_of(problem: Conv, found: Measured) -> dict[str, Any]:
    """Return the table's row of a measurement."""
    sizes = {"reads": problem.reads, "writes": problem.writes}
    for size in fields(problem):
        if (value := getattr(problem, size.name)) != size.default:
            sizes[size.name] = value
    row = {
        "device": found.device, "problem": sizes, "images": found.images,
        "algorithm": found.algorithm, "us": dict(found.us), "date": found.date,
        "commit": found.commit,
    }  # fmt: skip
    return row | ({"dropped": found.dropped} if found.dropped else {})


def table(root: Path = MEASURED) -> dict[str, Any]:
    """Return the table of the measurements in folder `root`."""
    rows_of: dict[tuple[str, Conv, int], Measured] = {}
    for document in documents(root):
        for problem, row in measured_in(document):
            key = row.device, problem, row.images
            older = rows_of.get(key)
            if older is None or (len(older.us), older.date) < (len(row.us), row.date):
                rows_of[key] = row
    rows = [row_of(problem, row) for (_, problem, _), row in rows_of.items()]
    return {"schema": SCHEMA, "rows": rows}


def text(root: Path = MEASURED) -> str:
    document = table(root)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in document["rows"])
    return f'{{"schema": {document["schema"]}, "rows": [\n{lines}\n]}}\n'


if __name__ == "__main__":
    TABLE.write_text(text())
