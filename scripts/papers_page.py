"""Write docs/papers.md: each part of the four source texts and where it is reproduced.

The parts are lenetgpu/papers/contents/, the variants those that cite one. `--check` writes nothing
and exits with 1 where the page is not what it would write of the variants that it names.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import click

from lenetgpu.papers.contents import KINDS, Citation, Item, Text, cited, texts
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.registry import KINDS as STAGE_KINDS
from lenetgpu.stages.registry import SPAN_KINDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "papers.md"
HEAD = """\
# The source texts, part by part

Every section, figure, table and equation of the four texts that this project implements, and where
it is reproduced: variants that say so themselves (`paper=`), and places in the code, the pages and
the tests. The last column says what is not reproduced, and why. Written by `scripts/papers_page.py`
from `lenetgpu/papers/contents/`; a test holds the numbers that variants, docstrings and kernels
cite against these lists. "After it" is a kernel of our own that follows the text.
"""
Among = Callable[[Variant], bool]


def registered() -> list[Variant]:
    """Every variant, each name and device once."""
    found = {
        (v.kind, v.full_name, v.needs.device): v
        for kind in (*STAGE_KINDS, *SPAN_KINDS)
        for v in variants(kind)
    }
    return list(found.values())


def citing(text: Text, among: Among) -> dict[Citation, list[str]]:
    """The names of the variants that cite each part of `text`."""
    found: dict[Citation, list[str]] = {}
    for variant in filter(among, registered()):
        name = f"{variant.kind} `{variant.full_name}`"
        literal = cited(variant.paper or "", text, literal=True)
        for citation in cited(variant.paper or "", text):
            names = found.setdefault(citation, [])
            said = name if citation in literal else f"after it {name}"
            if said not in names:
                names.append(said)
    return found


def resolved(place: str) -> tuple[Path, str]:
    """The file of a place and what follows it; it lies in the package or in the repository."""
    path, mark, rest = place.partition("#" if "#" in place else ":")
    inside = ROOT / "lenetgpu" / path
    return (inside if inside.exists() else ROOT / path), mark + rest


def link(place: str) -> str:
    """A place as a link from the page."""
    path, rest = resolved(place)
    shown = str(path.relative_to(ROOT)).removeprefix("lenetgpu/")
    if path.is_relative_to(ROOT / "docs"):
        return f"[{path.name}]({path.name}{rest})"
    said = f"{shown}, {rest[1:]}" if rest else shown
    return f"[{said}](../{path.relative_to(ROOT)})"


def _row(item: Item, names: list[str], there: list[str]) -> str:
    where = "; ".join([*names, *map(link, item.places)])
    return f"| {item.number} | {item.title} | {where or '-'} | {item.missing(there) or '-'} |"


def page(among: Among = lambda variant: True) -> str:
    """The page, of the variants that are `among` those wanted."""
    lines, there = [HEAD], [variant.full_name for variant in filter(among, registered())]
    for text in texts():
        named = citing(text, among)
        lines += [f"## {text.name}", "", f"{text.title}.", ""]
        for kind in KINDS:
            items = [item for item in text.items if item.kind == kind]
            if not items:
                continue
            lines += [f"| {kind} | what | where | not reproduced |", "|---|---|---|---|"]
            lines += [_row(item, named.get((kind, item.number), []), there) for item in items]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


@click.command()
@click.option("--check", is_flag=True, help="exit with 1 where the page is stale")
def main(check: bool) -> None:
    """Write docs/papers.md."""
    if not check:
        PAGE.write_text(page())
        click.echo("docs/papers.md written")
        return
    text = PAGE.read_text()
    stale = page(lambda v: f"{v.kind} `{v.full_name}`" in text) != text
    if stale:
        click.echo("docs/papers.md is stale: run scripts/papers_page.py")
    sys.exit(stale)


if __name__ == "__main__":
    main()
