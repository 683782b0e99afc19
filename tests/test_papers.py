"""The lists of what the source texts contain: complete, their places there, and cited rightly."""

from __future__ import annotations

import ast
import importlib
import re
import sys

import pytest
from conftest import ROOT

from lenetgpu.papers.course import BEYOND, FIGURES, ON_CPU

sys.path.append(str(ROOT / "scripts"))
PAGE, LISTS = importlib.import_module("tables"), importlib.import_module("source_texts")
EQUATION, FIGURE, SECTION, SLIDE, TABLE = "equation", "figure", "section", "slide", "table"
cited, references = LISTS.cited, LISTS.references
TEXTS = {text.name: text for text in LISTS.TEXTS}
COURSE, PASCAL, CONVNET2 = TEXTS["course"], TEXTS["Pascal"], TEXTS["convnet2"]


VARIANTS = PAGE.registered()


def numbers(text, kind):
    return [item.number for item in text.items if item.kind == kind]


def test_the_lists_are_the_texts():
    """As many as each text has, none left out between the first and the last."""
    counts = {
        COURSE: {FIGURE: 6, TABLE: 13, EQUATION: 0},
        PASCAL: {FIGURE: 5, TABLE: 1, EQUATION: 9},
        CONVNET2: {FIGURE: 34, TABLE: 2, EQUATION: 7},
    }
    for text, kinds in counts.items():
        for kind, count in kinds.items():
            assert numbers(text, kind) == [str(n + 1) for n in range(count)], (text.name, kind)
    assert {text: len(numbers(text, SECTION)) for text in counts} == {
        COURSE: 40, PASCAL: 10, CONVNET2: 18,
    }  # fmt: skip
    assert len(numbers(TEXTS["Tegra X1"], SLIDE)) == len(TEXTS["Tegra X1"].items) == 13


@pytest.mark.parametrize("name", TEXTS)
def test_sections_come_in_order_and_each_under_its_own(name):
    found = [tuple(map(int, number.split("."))) for number in numbers(TEXTS[name], SECTION)]
    assert found == sorted(found) and len(set(found)) == len(found)
    assert {section[:-1] for section in found if len(section) > 1} <= set(found)
    for section in found:
        if section[-1] > 1:
            assert (*section[:-1], section[-1] - 1) in found


def anchors(page):
    words = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in words}


def names_in(path):
    """What a Python file defines at its top."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {name.id for t in node.targets for name in ast.walk(t)
                      if isinstance(name, ast.Name)}  # fmt: skip
        elif isinstance(node, ast.AnnAssign):
            found.add(node.target.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_every_place_is_there(name):
    for item in TEXTS[name].items:
        for place in item.places:
            path, rest = PAGE.resolved(place)
            assert path.is_file(), place
            if rest.startswith("#"):
                assert rest[1:] in anchors(path), place
            elif rest.startswith(":"):
                assert rest[1:] in names_in(path), place


@pytest.mark.parametrize("name", TEXTS)
def test_every_part_is_reproduced_or_says_why_not(name):
    text = TEXTS[name]
    named = PAGE.citing(text, lambda variant: True)
    bare = [
        (item.kind, item.number)
        for item in text.items
        if not (item.places or item.why or named.get((item.kind, item.number)))
    ]
    assert bare == []


def unknown(citations, text):
    return sorted(set(citations) - {(item.kind, item.number) for item in text.items})


def test_every_variant_cites_parts_that_there_are():
    """And one that names a text cites some part of it, unless it only says that it improves it."""
    for variant in VARIANTS:
        for text in TEXTS.values():
            found = cited(variant.paper or "", text)
            assert unknown(found, text) == [], (variant.full_name, variant.paper)
            if any(re.search(rf"\b{n}\b", variant.paper or "") for n in text.cited_as):
                own = "improved" in variant.paper or "after" in variant.paper
                assert found or own, (variant.full_name, variant.paper)


def test_the_suites_rows_cite_parts_that_there_are():
    for figure in FIGURES:
        said = figure.table if figure.table[0].isalpha() else f"table {figure.table}"
        found = references(said)
        assert found and unknown(found, COURSE) == [], figure
    for where, *_ in (*BEYOND, *ON_CPU):
        found = references(where) or references(f"section {where}")
        assert found and unknown(found, COURSE) == [], where


OF_FOLDER = {
    "stages/conv/convnet2": CONVNET2,
    "papers/convnet2": CONVNET2,
    "gpu/occupancy": CONVNET2,
    "gpu/instructions": CONVNET2,
    "lab/conv/shares": CONVNET2,
    "stages/conv/prefetch": PASCAL,
    "gpu/machines": PASCAL,
}
_APART = re.compile(r"the book's Figure [\d.]+")


def prose_of(path):
    """Docstrings of a Python file, comments of a kernel, as one line each block."""
    source = path.read_text()
    if path.suffix != ".py":
        yield " ".join(re.findall(r"//(.*)", source))
        return
    for node in ast.walk(ast.parse(source)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield " ".join(value.value.split())


def cited_in_prose():
    """(file, the text that it is of, what its prose cites)."""
    package = ROOT / "lenetgpu"
    for path in sorted(package.rglob("*")):
        if path.suffix not in {".py", ".cu", ".cuh"}:
            continue
        name = path.relative_to(package).as_posix()
        text = next((t for start, t in OF_FOLDER.items() if name.startswith(start)), COURSE)
        found = set()
        for prose in prose_of(path):
            found |= references(_APART.sub("", prose))
        if found:
            yield name, text, found


def test_docstrings_and_kernels_cite_parts_that_there_are():
    found = list(cited_in_prose())
    wrong = {name: unknown(citations, text) for name, text, citations in found}
    assert {name: left for name, left in wrong.items() if left} == {}
    assert {text for _, text, _ in found} == {COURSE, PASCAL, CONVNET2}
    assert sum(len(citations) for *_, citations in found) > 80


@pytest.mark.parametrize(
    ("prose", "found"),
    [
        ("section 2.2", {(SECTION, "2.2")}),
        ("figs. 16 to 19.", {(FIGURE, str(n)) for n in (16, 17, 18, 19)}),
        ("equations (3)-(5)", {(EQUATION, "3"), (EQUATION, "4"), (EQUATION, "5")}),
        ("Tables 5-8 of it", {(TABLE, str(n)) for n in (5, 6, 7, 8)}),
        ("a section of 3 and a figure", set()),
    ],
)
def test_what_prose_refers_to(prose, found):
    assert references(prose) == found


@pytest.mark.parametrize(
    ("paper", "found"),
    [
        ("report 3.1.1 and 3.2.1, tables 9 and 11",
         {(SECTION, "3.1.1"), (SECTION, "3.2.1"), (TABLE, "9"), (TABLE, "11")}),
        ("Lavin & Gray, F(4x4); report 3.4.1 on a CPU", {(SECTION, "3.4.1")}),
        ("convnet2 2.2, 3.1.1, fig. 11", set()),
    ],
)  # fmt: skip
def test_what_a_variant_cites(paper, found):
    assert cited(paper, COURSE) == found
    own = f"after report 2.2.1: in a row; {paper}"  # what follows a text is not it
    assert cited(own, COURSE, literal=True) == found


def test_the_page_is_current():
    page = (ROOT / "docs" / "papers.md").read_text()
    assert PAGE.updated("docs/papers.md", page, named_only=True) == page
