"""Draw the fastest algorithm by images and channels for 3x3 filters, measured or by the model.

    python scripts/winners.py            # draws docs/winners.png, needs no GPU
    python scripts/winners.py --lines    # the cells, for `lenetgpu conv --from` on a GPU

Cells come from docs/measured/nvidia-h200/winners.json if they are there, otherwise from the model
(paler); rings are convolutions of the shipped table of measured ones. The picture's file holds a
digest of its data, so that a test knows when it is stale.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import click
from conv_choices import machine_of, measured_us
from measured import GPU, ROOT, Document, load, there
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from lenetgpu.dispatch.choose import choices
from lenetgpu.dispatch.measured import shipped
from lenetgpu.gpu.machines import H200
from lenetgpu.lab import charts
from lenetgpu.lab.conv.request import shape_of
from lenetgpu.problems import Conv

PICTURE = ROOT / "docs" / "winners.png"
FILE = "winners.json"
MAPS = (7, 14, 28, 56, 112)
CHANNELS = (16, 32, 64, 128, 256, 512)
IMAGES = tuple(1 << power for power in range(8))
# input values; larger cells use the model, because their float64 reference takes too long
MOST_VALUES = 1 << 25
COLOURS = {
    "direct.tuned": "#2563eb",
    "winograd.f2": "#0d9488",
    "winograd.f4": "#c2410c",
    "prefetch.stride_fixed": "#7c3aed",
    "texture.split": "#db2777",
    "direct.tuned_single": "#475569",
    "tensor.wgmma_fp16x3": "#65a30d",
    "tensor.fp16x3": "#ca8a04",
    "tensor.wgmma_tf32x3": "#0891b2",
}
_PALE, _DARK, _COLUMNS = 0.45, "#111827", 3


@dataclass(frozen=True)
class Cell:
    """A convolution of the picture: the fastest algorithm, and the ratio of the next one's time.

    `measured`: by a clock, otherwise by the model. `ring`: the fastest as measured on the same
    map without padding, if known.
    """

    images: int
    channels: int
    winner: str
    margin: float
    measured: bool
    ring: str | None = None


def problem_of(size: int, channels: int, pad: int = 1) -> Conv:
    return Conv(size, size, channels, channels, 3, 3, 1, pad, reads="NCHW", writes="NCHW")


def grid() -> Iterator[tuple[Conv, int]]:
    """Yield the measured cells, those with an input of acceptable size, grouped by map."""
    for size, channels, images in product(MAPS, CHANNELS, IMAGES):
        if size * size * channels * images <= MOST_VALUES:
            yield problem_of(size, channels), images


def by_time(times: Mapping[str, float]) -> tuple[str, float]:
    """Return the fastest algorithm and the ratio of the next one's time (1 if it is alone)."""
    first, *others = sorted(times, key=times.__getitem__)
    return first, times[others[0]] / times[first] if others else 1.0


def panes(document: Document | None) -> dict[str, list[Cell]]:
    """Return the cells of each map size, measured if `document` has them, with rings."""
    measured = {}
    for case in document["cases"] if document else ():
        if len(times := measured_us(case, machine_of(document))[0]) > 1:
            problem = replace(shape_of(case["shape"]).problem, reads="NCHW", writes="NCHW")
            measured[problem, case["images"]] = times
    by_size: dict[str, list[Cell]] = {}
    for size, channels, images in product(MAPS, CHANNELS, IMAGES):
        problem = problem_of(size, channels)
        times = measured.get((problem, images))
        ring = next((r for r in shipped(H200, problem_of(size, channels, 0)) if r.images == images),
                    None)  # fmt: skip
        cycles = {choice.algorithm: choice.cycles for choice in choices(problem, images, H200)}
        winner, margin = by_time(times or cycles)
        cell = Cell(images, channels, winner, margin, times is not None, ring and ring.algorithm)
        by_size.setdefault(f"{size}x{size}", []).append(cell)
    return by_size


def title(document: Document | None, cells: dict[str, list[Cell]]) -> str:
    """Return the title, which says what was measured and what was not."""
    every = [cell for pane in cells.values() for cell in pane]
    measured = sum(cell.measured for cell in every)
    if document is None or not measured:
        rings = " but for the rings" if any(cell.ring for cell in every) else ""
        return f"by the model, for an H200: NOT MEASURED{rings}"
    source = f"{document['device']['name']}, {document['date']}"
    remainder = "" if measured == len(every) else "; pale ones by the model, not measured"
    return f"{source}, {measured} of {len(every)} cells measured{remainder}"


def digest(document: Document | None) -> str:
    cells = panes(document)
    facts = [title(document, cells), {k: [asdict(c) for c in pane] for k, pane in cells.items()}]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def measured_here() -> Document | None:
    return load(GPU, FILE) if there(GPU, FILE) else None


def _pane(cells: list[Cell], shown: list[str]) -> charts.Spec:
    """Return the chart of a map size: images by channels, coloured by algorithm."""
    rows = [
        {
            "images": cell.images,
            "channels": cell.channels,
            "winner": cell.winner,
            "pale": 1.0 if cell.measured else _PALE,
            "ring": cell.ring,
            "margin": "" if cell.ring else f"{cell.margin:.1f}",
            "ink": "white" if cell.measured else _DARK,
        }
        for cell in cells
    ]
    rings = [row for row in rows if row["ring"]]
    axis = {"labelAngle": 0}
    x = {"field": "images", "type": "ordinal", "title": "images", "axis": axis}
    y = {"field": "channels", "type": "ordinal", "title": "channels in and out"}
    y["sort"] = "descending"
    tint = charts.colour("winner", list(COLOURS))
    tint["scale"]["range"] = list(COLOURS.values())
    tint["legend"] = {"values": shown}
    pale = {"field": "pale", "type": "quantitative", "scale": None}
    ink = {"field": "ink", "type": "nominal", "scale": None}
    ring = {"type": "point", "filled": True, "size": 90, "stroke": _DARK, "strokeWidth": 1.5}
    layers = [
        charts.layer(None, {"type": "rect", "stroke": "white"}, color=tint, opacity=pale),
        charts.layer(None, {"type": "text", "fontSize": 9}, text={"field": "margin"}, color=ink),
        charts.layer(rings, ring, color=tint | {"field": "ring"}),
    ]
    return charts.spec(rows, 24 * len(CHANNELS), encoding={"x": x, "y": y}, layer=layers)


def draw(path: Path, document: Document | None) -> None:
    """Draw a pane per map size: images by channels, coloured by algorithm, with the margin."""
    by_size = panes(document)
    texts = [
        f"3x3, padding 1: {title(document, by_size)}",
        "in a cell: the next's time over the fastest's; ring: measured, without padding",
    ]
    every = [cell for cells in by_size.values() for cell in cells]
    algorithms = {cell.winner for cell in every} | {cell.ring for cell in every}
    shown = [name for name in COLOURS if name in algorithms]
    drawn = {
        f"maps of {name}": _pane(cells, shown) | {"width": 300} for name, cells in by_size.items()
    }
    charts.save(path, texts, drawn, columns=_COLUMNS, apart=False)
    note = PngInfo()
    note.add_text("Comment", digest(document))
    with Image.open(path) as picture:
        picture.save(path, pnginfo=note)


@click.command()
@click.option("--lines", is_flag=True, help="print the cells, a line of benchdnn's each")
def main(lines: bool) -> None:
    """Draw docs/winners.png."""
    if lines:
        for p, images in grid():
            click.echo(f"mb{images}ic{p.C}ih{p.H}oc{p.M}kh{p.R}ph{p.pad}")
        return
    draw(PICTURE, measured_here())
    click.echo(f"{PICTURE.name} written")


if __name__ == "__main__":
    main()
