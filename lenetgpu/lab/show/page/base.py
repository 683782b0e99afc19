"""The frame that every page shares: templates, the head with device, date and commit, writing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu import __version__
from lenetgpu.errors import one_line
from lenetgpu.store import write_atomically

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = Path(__file__).parent


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

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )


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
