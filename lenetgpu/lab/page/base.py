"""Parts shared by all pages: templates, the page head, and sprite sheets of digits."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from functools import cache
from math import isqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu import __version__
from lenetgpu.arrays import np
from lenetgpu.errors import one_line
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.store import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

_SIDE = IMAGE_SHAPE[0]


@dataclass(frozen=True)
class Head:
    """The head of a page: title, introduction, and the origin of its figures."""

    title: str
    lead: str
    device: str
    date: str
    commit: str | None
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, str]:
        """Device, date, commit and the other facts, in the order that the page lists them."""
        commit = self.commit or "not recorded"
        return {"device": self.device, "date": self.date, "commit": commit, **self.facts}


@cache
def _environment() -> Environment:
    """Return the template environment: texts pass through `one_line` and are escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: one_line(value) if type(value) is str else value,
    )
    environment.filters["kind"] = lambda part: type(part).__name__.lower()
    return environment


def render(template: str, **values: Any) -> str:
    """Return a page, or a part of one, made from a template."""
    return _environment().get_template(template).render(version=__version__, **values)


def fragment(template: str, **values: Any) -> Any:
    """Return part of a page, rendered from a template, as Markup."""
    from markupsafe import Markup

    return Markup(render(template, **values))


def write_page(path: Path, html: str) -> int:
    """Write a page atomically, and return its bytes; raise LenetError if it cannot be written."""
    data = html.encode(errors="backslashreplace")
    write_atomically(path, data)
    return len(data)


def png_uri(pixels: Any) -> str:
    """Return a picture (H, W) or (H, W, 3) of uint8 as a PNG data URI."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@dataclass(frozen=True)
class Sheet:
    """A sprite sheet of digits, `columns` per row; a macro in parts.html.j2 crops them."""

    uri: str
    columns: int
    rows: int

    def cell(self, number: int) -> tuple[int, int]:
        """Return the (column, row) of a digit."""
        return number % self.columns, number // self.columns


def sheet(images: Any) -> Sheet:
    """Return a sheet of images (N, 28, 28) or (N, 28, 28, 1), uint8, in order; N may be 0."""
    count = len(images)
    columns = max(1, isqrt(max(0, count - 1)) + 1)
    rows = max(1, -(-count // columns))
    cells = np.zeros((rows * columns, _SIDE, _SIDE), np.uint8)
    cells[:count] = np.asarray(images).reshape(count, _SIDE, _SIDE)
    grid = cells.reshape(rows, columns, _SIDE, _SIDE).swapaxes(1, 2)
    return Sheet(png_uri(grid.reshape(rows * _SIDE, columns * _SIDE)), columns, rows)
