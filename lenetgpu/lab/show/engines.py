"""The convnet2 paper's engines, simulated, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lenetgpu.lab.show import tables
from lenetgpu.lab.show.tables import Column, as_rich, used
from lenetgpu.papers.convnet2_engines import CHANGED
from lenetgpu.papers.convnet2_listings import PARTS

if TYPE_CHECKING:
    from rich.console import Console


def figure(value: float) -> str:
    """Cycles whole, shares and times with three digits."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def verdict(agrees: bool) -> str:
    """Whether the model comes near the paper's figure."""
    return "yes" if agrees else "no"


STEP_COLUMNS = (
    Column("section", "section", numeric=False),
    Column("step", "step", numeric=False),
    Column("cycles", "cycles", figure),
    *(Column(part, part, figure) for part in PARTS),
)
FIGURE_COLUMNS = (
    Column("section", "section", numeric=False),
    Column("figure", "figure", numeric=False),
    Column("the paper", "paper", figure),
    Column("model", "model", figure),
    Column("agrees", "agrees", verdict, numeric=False),
)
CHANGE_COLUMNS = tuple(Column(change.name, f"changed.{change.name}", figure) for change in CHANGED)
_REMARK = Column("remark", "remark", numeric=False)


def _table(document: dict[str, Any]) -> tuple[tuple[Column, ...], list[dict[str, Any]]]:
    rows = document["figures"]
    return used((*FIGURE_COLUMNS, *CHANGE_COLUMNS, _REMARK), rows), rows


def as_markdown(document: dict[str, Any]) -> str:
    """The paper's figures, the model's, and those under each change, as Markdown."""
    return tables.as_markdown(*_table(document))


def as_csv(document: dict[str, Any]) -> str:
    """The same as CSV."""
    return tables.as_csv(*_table(document))


def print_engines(console: Console, document: dict[str, Any]) -> None:
    """The steps' cycles, then the paper's figures beside the model's, then what each change is."""
    rows = document["figures"]
    title = (
        f"{document['simulated']}, simulated: {document['shape']}, batch {document['images']:,}; "
        "cycles, and a warp's mean cycles in each part"
    )
    console.print(as_rich(STEP_COLUMNS, document["steps"], title, width=console.width))
    title = "the paper's figures, the model's"
    columns = used(FIGURE_COLUMNS, rows)
    console.print(as_rich(columns, rows, title, width=console.width))
    title = "the model's figures with one assumption changed"
    columns = (FIGURE_COLUMNS[1], *CHANGE_COLUMNS)
    console.print(as_rich(columns, rows, title, width=console.width))
    for name, what in document["changes"].items():
        console.print(f"{name}: {what}", highlight=False, soft_wrap=True)
