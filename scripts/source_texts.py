"""Contents of the four source texts and where each part is reproduced, from docs/papers.json.

An item there is [kind, number, title, locations, reason]. Variants cite the texts themselves
(`paper=`), which `cited` parses.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECTION, FIGURE, TABLE, EQUATION, SLIDE = "section", "figure", "table", "equation", "slide"
KINDS = (SECTION, FIGURE, TABLE, EQUATION, SLIDE)


@dataclass(frozen=True)
class Item:
    """A part of a text: `number` as printed, `locations` in this repository besides the variants.

    A location is a path below the package or repository, with a name after a colon or a heading of
    a page after a #. `why`: what is not reproduced, and the reason.
    """

    kind: str
    number: str
    title: str
    locations: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True)
class Text:
    """A source text; `cited_as` are its names in variants and docstrings."""

    name: str
    title: str
    cited_as: tuple[str, ...]
    items: tuple[Item, ...]


Citation = tuple[str, str]  # kind, number

_KIND = {"sec": SECTION, "fig": FIGURE, "tab": TABLE, "equ": EQUATION}
_WORD = r"sections?|figures?|figs?\.?|tables?|equations?"
_NUMBER = r"\(?\d+(?:\.\d+)*\)?"
_JOINT = r"(?:\s*(?:,|-|to|and|or)\s*)"
_NUMBERS = rf"{_NUMBER}(?:{_JOINT}{_NUMBER})*"
_REFERENCE = re.compile(rf"\b({_WORD})\s+({_NUMBERS})(?![\w%])", re.IGNORECASE)


def _spread(kind: str, numbers: str) -> Iterator[Citation]:
    """Yield the numbers of "2.2, 3.1 and 4"; ranges like "16 to 19" and "5-8" are expanded."""
    parts = re.split(rf"({_JOINT})", numbers)
    for index, number in enumerate(parts[::2]):
        yield kind, number.strip("()")
        if index and parts[2 * index - 1].strip() in ("to", "-"):
            first, last = parts[2 * index - 2].strip("()"), number.strip("()")
            if first.isdigit() and last.isdigit():
                yield from ((kind, str(n)) for n in range(int(first) + 1, int(last)))


def references(prose: str) -> set[Citation]:
    """Return the citations in a sentence: "section 2.2", "figs. 16 to 19", "table 1"."""
    return {
        citation
        for word, numbers in _REFERENCE.findall(prose)
        for citation in _spread(_KIND[word[:3].lower()], numbers)
    }


def cited(paper: str, text: Text, literal: bool = False) -> set[Citation]:
    """Return the citations of `text` in a variant's `paper`: "report 2.2.2, table 5; ..." has two.

    Numbers after the text's name are sections until another kind is named; slides go by title.
    `literal` ignores what follows "after": a kernel of our own derived from the text.
    """
    citations: set[Citation] = set()
    for clause in paper.split(";"):
        name = next((n for n in text.cited_as if re.search(rf"\b{n}\b", clause)), None)
        if name is None:
            continue
        if literal and "after" in clause[: clause.index(name)].split():
            continue
        following = clause[clause.index(name) + len(name) :]
        slides = [item.number for item in text.items if item.kind == SLIDE]
        citations |= {(SLIDE, slide) for slide in slides if slide in following.lower()}
        before = re.match(rf"\s+({_NUMBERS})", following)
        if before:
            citations |= set(_spread(SECTION, before[1]))
        citations |= references(following)
    return citations


def _text(document: dict[str, Any]) -> Text:
    items = tuple(
        Item(*fields[:3], *([tuple(fields[3])] if len(fields) > 3 else []), *fields[4:])
        for fields in document["items"]
    )
    return Text(document["name"], document["title"], tuple(document["cited_as"]), items)


_PAGE = Path(__file__).resolve().parent.parent / "docs" / "papers.json"
TEXTS = tuple(map(_text, json.loads(_PAGE.read_text())))
