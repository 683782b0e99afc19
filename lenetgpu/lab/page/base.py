"""The frame that every page shares: templates, a head with facts, sheets of digits."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from functools import cache
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu import __version__
from lenetgpu.errors import one_line
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.store import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent
_SIDE = IMAGE_SHAPE[0]


@dataclass(frozen=True)
class Head:
    """What stands above a page: its title, a sentence or two, and where its figures come from.

    `facts` are shown after device, date and commit, by name and in order.
    """

    title: str
    lead: str
    device: str
    date: str
    commit: str | None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, str]:
        """Device, date, commit and the other facts, as the page lists them."""
        commit = self.commit or "not recorded"
        return {"device": self.device, "date": self.date, "commit": commit, **self.facts}


@cache
def environment() -> Environment:
    """The templates of this folder: every value is escaped, and one that is missing is an error.

    Text is shown as `one_line` has it; what is Markup, as of `tojson`, goes as it is.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    made.filters["kind"] = lambda part: type(part).__name__.lower()
    return made


def _printable(value: Any) -> Any:
    return one_line(value) if type(value) is str else value


def render(template: str, head: Head, **values: Any) -> str:
    """The page of a template that extends base.html.j2."""
    return environment().get_template(template).render(head=head, version=__version__, **values)


def fragment(template: str, **values: Any) -> Any:
    """A template that is a part of a page, as Markup to be put into one."""
    from markupsafe import Markup

    return Markup(environment().get_template(template).render(**values))


def write_page(path: Path, html: str) -> None:
    """Write a page, whole or not at all; LenetError where it cannot be written."""
    write_atomically(path, html.encode(errors="backslashreplace"))


def png_uri(pixels: Any) -> str:
    """A picture (H, W) or (H, W, 3) of uint8 as a data URI that holds a PNG."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class Sheet:
    """Digits side by side in one picture, `columns` a row; `digits` in parts.html.j2 cuts it."""

    uri: str
    columns: int
    rows: int

    def place(self, number: int) -> tuple[int, int]:
        """(column, row) of a digit."""
        return number % self.columns, number // self.columns


def sheet(images: Any) -> Sheet:
    """A sheet of images (N, 28, 28) or (N, 28, 28, 1), uint8, in order; N may be 0.

    A page holds one far cheaper than a picture a digit: 30 KB for 120 of them.
    """
    import numpy as np

    count = len(images)
    columns = max(1, isqrt(max(0, count - 1)) + 1)
    rows = max(1, -(-count // columns))
    cells = np.zeros((rows * columns, _SIDE, _SIDE), np.uint8)
    cells[:count] = np.asarray(images).reshape(count, _SIDE, _SIDE)
    grid = cells.reshape(rows, columns, _SIDE, _SIDE).swapaxes(1, 2)
    return Sheet(png_uri(grid.reshape(rows * _SIDE, columns * _SIDE)), columns, rows)
