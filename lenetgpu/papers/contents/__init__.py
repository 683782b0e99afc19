"""What the four source texts contain, and where each part of it is reproduced.

A module a text: its sections, figures, tables and equations, in their order. The variants that cite
one are not listed here: they say so themselves (`paper=`), and `cited` reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

SECTION, FIGURE, TABLE, EQUATION, SLIDE = "section", "figure", "table", "equation", "slide"
KINDS = (SECTION, FIGURE, TABLE, EQUATION, SLIDE)


@dataclass(frozen=True)
class Item:
    """A part of a text: `number` as printed, `places` in this repository besides the variants.

    A place is a path below the package or the repository, a name in it behind a colon, or a heading
    of a page behind a #. `why` says what is not reproduced of it and why. `gaps` say what no kernel
    does to the letter until a variant of that name is registered: (the variant, what is missing).
    """

    kind: str
    number: str
    title: str
    places: tuple[str, ...] = ()
    why: str = ""
    gaps: tuple[tuple[str, str], ...] = ()

    def missing(self, registered: Iterable[str]) -> str:
        """`why` and the gaps that none of the `registered` variants, by full name, has closed."""
        names = set(registered)
        left = dict.fromkeys(what for variant, what in self.gaps if variant not in names)
        return "; ".join(filter(None, [self.why, *left]))


@dataclass(frozen=True)
class Text:
    """One of the four: `name` as words.md has it, `cited_as` as variants and docstrings name it."""

    name: str
    title: str
    cited_as: tuple[str, ...]
    items: tuple[Item, ...]

    def find(self, kind: str, number: str) -> Item | None:
        """Its part of that kind and number; None where there is none."""
        return next((i for i in self.items if (i.kind, i.number) == (kind, number)), None)


Citation = tuple[str, str]
"""A kind, a number."""

_KIND = {"sec": SECTION, "fig": FIGURE, "tab": TABLE, "equ": EQUATION}
_WORD = r"sections?|figures?|figs?\.?|tables?|equations?"
_NUMBER = r"\(?\d+(?:\.\d+)*\)?"
_JOINT = r"(?:\s*(?:,|-|to|and|or)\s*)"
_NUMBERS = rf"{_NUMBER}(?:{_JOINT}{_NUMBER})*"
_REFERENCE = re.compile(rf"\b({_WORD})\s+({_NUMBERS})(?![\w%])", re.IGNORECASE)


def _spread(kind: str, numbers: str) -> Iterator[Citation]:
    """Each number of "2.2, 3.1 and 4", and those between of "16 to 19" or "5-8"."""
    found = re.split(rf"({_JOINT})", numbers)
    for index, number in enumerate(found[::2]):
        yield kind, number.strip("()")
        if index and found[2 * index - 1].strip() in ("to", "-"):
            first, last = found[2 * index - 2].strip("()"), number.strip("()")
            if first.isdigit() and last.isdigit():
                yield from ((kind, str(n)) for n in range(int(first) + 1, int(last)))


def references(prose: str) -> set[Citation]:
    """What a sentence refers to by a kind's word: "section 2.2", "figs. 16 to 19", "table 1"."""
    return {
        citation
        for word, numbers in _REFERENCE.findall(prose)
        for citation in _spread(_KIND[word[:3].lower()], numbers)
    }


def cited(paper: str, text: Text, literal: bool = False) -> set[Citation]:
    """What a variant's `paper` cites of `text`: "report 2.2.2, table 5; ..." cites two.

    Numbers behind the text's name are sections until a kind's word comes; a slide goes by title.
    `literal` leaves out what stands behind "after": a kernel of our own that follows the text.
    """
    found: set[Citation] = set()
    for clause in paper.split(";"):
        name = next((n for n in text.cited_as if re.search(rf"\b{n}\b", clause)), None)
        if name is None:
            continue
        if literal and "after" in clause[: clause.index(name)].split():
            continue
        rest = clause[clause.index(name) + len(name) :]
        slides = [item.number for item in text.items if item.kind == SLIDE]
        found |= {(SLIDE, slide) for slide in slides if slide in rest.lower()}
        before = re.match(rf"\s+({_NUMBERS})", rest)
        if before:
            found |= set(_spread(SECTION, before[1]))
        found |= references(rest)
    return found


def texts() -> tuple[Text, ...]:
    """All four, in the order of words.md."""
    from lenetgpu.papers.contents import convnet2, course, pascal, tegra

    return course.TEXT, pascal.TEXT, tegra.TEXT, convnet2.TEXT
