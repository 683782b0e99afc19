"""The report page: a chapter per device, its sections, and the script that draws the charts."""

import base64
import datetime
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.lab.page import base, blocks
from lenetgpu.lab.page.blocks import Chart, Document, Part, Section, device_name
from lenetgpu.lab.page.sections import SECTIONS, text_of
from lenetgpu.lab.tables import Table

MOST_BYTES = 6_000_000


@dataclass(frozen=True)
class Chapter:
    """The sections of one device, and the titles of the sections without data."""

    name: str
    anchor: str
    sections: list[Section]
    missing: list[str]


def chapters(documents: Sequence[Document]) -> list[Chapter]:
    """Group the documents by device and build a chapter for each, in order of first appearance."""
    devices: dict[str, list[Document]] = {}
    for document in documents:
        devices.setdefault(device_name(document), []).append(document)
    result = []
    for number, (name, own) in enumerate(devices.items(), 1):
        sections = [make(own) for make in SECTIONS]
        for section in sections:
            section.anchor += f"-{number}" if number > 1 else ""
        missing = [section.title for section in sections if not section.blocks]
        filled = [section for section in sections if section.blocks]
        result.append(Chapter(name, f"device-{number}", filled, missing))
    return result


def _parts(chapters: Sequence[Chapter]) -> Iterator[Part]:
    for chapter in chapters:
        for section in chapter.sections:
            for block in section.blocks:
                yield from block.parts


def tried(document: Document) -> None:
    """Build the sections and cells of one document, which raises an exception if it is damaged."""
    for part in _parts(chapters([document])):
        if isinstance(part, Table):
            for row in part.rows:
                part.cells(row)


def _as_data(value: Any) -> str:
    """Return JSON that is safe inside a script element: <, > and & are escaped."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script whose only global is `vegaEmbed`."""
    import vl_convert

    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return "(()=>{" + bundle.replace("</script", "<\\/script") + "\n})();"


def _allowed(program: str) -> str:
    """Return the hash source by which a content security policy allows an inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(program.encode()).digest()).decode()}'"


def _head(documents: Sequence[Document], files: int, left_out: Sequence[str]) -> base.Head:
    dates = sorted({document["date"] for document in documents if document.get("date")})
    commits = list(dict.fromkeys(blocks.short_commit(d.get("commit")) for d in documents))
    commit = commits[0].removeprefix("commit ")
    fresh = any(document.get("fresh") for document in documents)
    facts = {"files": f"{files:,}"}
    if fresh:
        facts = {"not compared for time": ", ".join(left_out)} if left_out else {}
    return base.Head(
        title=text_of("page", "title"),
        lead=text_of("page", "fresh" if fresh else "files"),
        device=blocks.either(device_name(document) for document in documents),
        date=" to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "not recorded",
        commit=commit if len(commits) == 1 else f"{len(commits)} commits, given below each chart",
        facts=facts | {"page made": datetime.date.today().isoformat()},
    )


def page(
    documents: Sequence[Document], undrawn: Sequence[str] = (), left_out: Sequence[str] = ()
) -> str:
    """Return the report page; raise LenetError if it is larger than MOST_BYTES."""
    # `undrawn`: files with nothing to draw; `left_out`: candidates not compared for lack of time
    by_device = chapters(documents)
    charts = [part for part in _parts(by_device) if isinstance(part, Chart)]
    specs = {f"c{id(one):x}": one.spec | {"description": str(one.title)} for one in charts}
    library, program = _library(), Path(__file__).with_name("report.js").read_text()
    html = base.render(
        "report.html.j2",
        head=_head(documents, len(documents) + len(undrawn), left_out),
        chapters=by_device,
        element_id=lambda chart: f"c{id(chart):x}",
        source_of="this run" if any(d.get("fresh") for d in documents) else "these files",
        undrawn=list(undrawn),
        data=_as_data(specs),
        library=library,
        program=program,
        allowed=f"{_allowed(library)} {_allowed(program)} 'unsafe-eval'",
    )
    size = len(html.encode(errors="backslashreplace"))
    if size > MOST_BYTES:
        raise LenetError(
            f"report: expected files that make a page of at most {MOST_BYTES / 1e6:g} MB, "
            f"found {size / 1e6:.1f} MB; name fewer of them"
        )
    return html
