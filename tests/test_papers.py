"""Lists of the source texts' contents: complete, reproduced in existing places, cited correctly."""

import importlib
import re
import sys

import pytest
from conftest import ROOT
from test_docs import fragments

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


def test_lists_have_every_item_of_the_texts():
    """As many items as each text has, none missing between the first and the last."""
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
def test_cited_paths_resolve(name):
    for item in TEXTS[name].items:
        for location in item.locations:
            path, rest = PAGE.resolved(location)
            assert path.is_file(), location
            if rest.startswith("#"):
                assert rest[1:] in fragments(path), location
            elif rest.startswith(":"):
                found = re.search(rf"^((def|class) )?{rest[1:]}\b", path.read_text(), re.MULTILINE)
                assert found, location


@pytest.mark.parametrize("name", TEXTS)
def test_every_item_is_reproduced_or_explained(name):
    named = PAGE.citing(TEXTS[name], lambda variant: True)
    for item in TEXTS[name].items:
        assert item.locations or item.why or named.get((item.kind, item.number)), item


def unknown(citations, text):
    return sorted(set(citations) - {(item.kind, item.number) for item in text.items})


def test_variants_cite_existing_items():
    """A variant that names a text must also cite a part, unless it only improves on the text."""
    for variant in VARIANTS:
        for text in TEXTS.values():
            found = cited(variant.paper or "", text)
            assert unknown(found, text) == [], (variant.full_name, variant.paper)
            if any(re.search(rf"\b{n}\b", variant.paper or "") for n in text.cited_as):
                own = "improved" in variant.paper or "after" in variant.paper
                assert found or own, (variant.full_name, variant.paper)


def test_suite_rows_cite_existing_items():
    for figure in FIGURES:
        said = figure.table if figure.table[0].isalpha() else f"table {figure.table}"
        found = references(said)
        assert found and unknown(found, COURSE) == [], figure
    for where, *_ in (*BEYOND, *ON_CPU):
        found = references(where) or references(f"section {where}")
        assert found and unknown(found, COURSE) == [], where


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
def test_references_in_prose_are_parsed(prose, found):
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
def test_citations_of_a_variant_are_parsed(paper, found):
    assert cited(paper, COURSE) == found
    own = f"after report 2.2.1: in a row; {paper}"  # a clause with "after" is not literal
    assert cited(own, COURSE, literal=True) == found


def test_papers_page_is_current():
    page = (ROOT / "docs" / "papers.md").read_text()
    assert PAGE.updated("docs/papers.md", page, named_only=True) == page
