"""Write the table of measured convolutions that ships, from docs/measured/.

`lenetgpu/stages/conv/tuned/measured.json` gets a row for each device, convolution and number of
images of which one run timed at least two algorithms that `best.fp32` may take: what each took, and
which was the fastest. What was wrong, or erred more than fp32 on the same data (`counted`), is
named as dropped; times of another kernel than its variant would launch now are left out. Of several
runs the one that timed most of them counts, of those the newest. `--check` writes nothing and exits
with 1 where the table is not what it would write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from measured import MEASURED, Document

from lenetgpu.commands.conv.given import taken
from lenetgpu.gpu.machines import H200
from lenetgpu.measure.torch_peer import NAMES
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tf32 import wgmma
from lenetgpu.stages.conv.tuned.choose import counted
from lenetgpu.stages.conv.tuned.measured import SCHEMA, SHIPS, TABLE, Measured, row_of

SOURCES = ("conv/*.json", "again/*.json", "ablation/*.json", "winners.json")
"""Documents of `lenetgpu conv` in the folder of a device."""
_DIGITS = 4
_TWO_WAYS = "tensor.wgmma_tf32x3"


def documents(root: Path) -> Iterator[Document]:
    """What was measured of convolutions on GPUs, quick runs left out."""
    for pattern in SOURCES:
        for path in sorted(root.glob(f"*/{pattern}")):
            document = json.loads(path.read_text())
            if document["device"]["kind"] == "cuda" and not document.get("quick"):
                yield document


def _of_another_kernel(entry: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether a product of two ways was measured with the one that is not taken now."""
    if entry["name"] != _TWO_WAYS or "block" not in entry:
        return False
    layouts = {name: entry[name] for name in ("reads", "writes")}
    problem = replace(taken(case["shape"]).problem, **layouts)
    return bool(wgmma.plan(problem, case["images"], H200).threads != entry["block"][0])


def told(case: dict[str, Any]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Microseconds of best's algorithms in NCHW, and those not to be taken.

    Right ones count, where they err no more than fp32 on the same data, as `counted` has it.
    """
    entries = [entry for entry in case["candidates"] if not _of_another_kernel(entry, case)]
    peers = [entry for entry in entries if entry["name"] == NAMES["cuda"]]
    maps = [e for e in entries if (e.get("reads"), e.get("writes")) == ("NCHW", "NCHW")]
    us, dropped = counted(maps, next(iter(peers), None))
    return {name: float(f"{found:.{_DIGITS}g}") for name, found in us.items()}, dropped


def timed(case: dict[str, Any]) -> dict[str, float]:
    """Microseconds of those of best's algorithms that count, in NCHW."""
    return told(case)[0]


def measured_in(document: Document) -> Iterator[tuple[Conv, Measured]]:
    """Each case of which one algorithm can be told from another."""
    for case in document["cases"]:
        us, dropped = told(case)
        if len(us) > 1:
            problem = replace(taken(case["shape"]).problem, reads="NCHW", writes="NCHW")
            date, commit = document["date"], document.get("commit")
            name = document["device"]["name"]
            yield problem, Measured(name, case["images"], us, date, SHIPS, commit, dropped=dropped)


def table(root: Path = MEASURED) -> dict[str, Any]:
    """The table of what lies in the folder `root`."""
    found: dict[tuple[str, Conv, int], Measured] = {}
    for document in documents(root):
        for problem, row in measured_in(document):
            key = row.device, problem, row.images
            before = found.get(key)
            if before is None or (len(before.us), before.date) < (len(row.us), row.date):
                found[key] = row
    rows = [row_of(problem, row) for (_, problem, _), row in found.items()]
    return {"schema": SCHEMA, "rows": rows}


def text(root: Path = MEASURED) -> str:
    """The table's file: a line a row."""
    made = table(root)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in made["rows"])
    return f'{{"schema": {made["schema"]}, "rows": [\n{lines}\n]}}\n'


@click.command()
@click.option("--check", is_flag=True, help="exit with 1 where the table is stale")
def main(check: bool) -> None:
    """Write the table of measured convolutions that ships."""
    new = text()
    stale = not TABLE.is_file() or TABLE.read_text() != new
    if stale and not check:
        TABLE.write_text(new)
    if stale:
        said = "is stale: run scripts/conv_choices.py" if check else "written"
        click.echo(f"{TABLE.name} {said}, {new.count(chr(10)) - 2} rows")
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    main()
