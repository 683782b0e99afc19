"""Documentation is generated, current, and based on correct measurements."""

import inspect
import json
import re
import warnings
from pathlib import Path

import pytest
from conftest import ROOT
from terminal import python

from lenetgpu.check.warmup import network_problems
from lenetgpu.papers.course import FIGURES, LADDERS
from lenetgpu.papers.shapes import SUITES
from lenetgpu.stages import variants
from lenetgpu.stages.matrix import cells

FOLDERS = (ROOT, ROOT / "docs", ROOT / "docs" / "design", ROOT / "data", ROOT / "weights")
PAGES = [path for folder in FOLDERS for path in sorted(folder.glob("*.md"))]
MEASURED = ROOT / "docs" / "measured"


def measured(pattern):
    paths = sorted(MEASURED.glob(pattern))
    assert paths, pattern
    return pytest.mark.parametrize("path", paths, ids=lambda p: str(p.relative_to(MEASURED)))


def read(path):
    return json.loads(Path(path).read_text())


def test_generated_pages_are_current():
    done = python(ROOT / "scripts" / "tables.py", "--check")
    assert done.returncode == 0, "run scripts/tables.py"


def test_families_in_the_diagram_exist():
    lines = re.findall(
        "xml:space='preserve'>([^<]+)<", (ROOT / "docs" / "pipeline.svg").read_text()
    )
    shown = {name for line in lines for name in re.split(r",\s*", line.strip(", "))}
    assert len(shown) > 20 and shown <= {variant.family for variant in variants()}


@measured("**/*.json")
def test_measured_files_are_dated_and_not_quick(path):
    document = read(path)
    assert document["date"] and not document.get("quick"), "take it again without --quick"


@measured("*/weights.json")
def test_measured_plans_were_correct_or_refused(path):
    for row in read(path)["rows"]:
        assert row["plans"]
        for entry in row["plans"].values():
            assert entry.get("right") or entry["refused"].startswith("weights times 1e")


@measured("*/sanitize.json")
def test_sanitizers_found_only_planted_errors(path):
    document = read(path)
    assert all(entry["found"] > 0 for entry in document["planted"].values())
    assert all(entry["in_a_clean_kernel"] == 0 for entry in document["planted"].values())
    for row in document["rows"]:
        assert not (row["errors"] or row["wrong"] or row["died"] or row["never"]), row["tool"]
        assert row["cases"] + len(row["not_reached"]) == document["cases"]


@measured("*/*/*.json")
def test_measured_candidates_were_correct_or_refused(path):
    document = read(path)
    if path.parent.name == "plans":
        assert abs(document["correct"] - 8_722) <= (0 if document["precision"] == "fp32" else 5)
        return
    cases = document.get("cases") or [document]
    status = {entry["status"] for case in cases for entry in case["candidates"]}
    assert status <= {"right", "refused", "skipped"} and "right" in status
    if path.parent.name == "conv":
        labels = [case["label"] for case in document["cases"]]
        assert labels == [shape.label for shape in SUITES[path.stem].shapes]
    if path.parent.name == "cells":
        own = {c.variant.full_name for c in cells(path.stem) if c.variant and not c.copies
               and c.device == document["device"]["kind"]}  # fmt: skip
        right = {e["name"] for e in document["candidates"] if e["status"] == "right"}
        assert own <= right


@measured("*/peers.json")
def test_measured_peers_are_correct_and_well_sampled(path):
    for row in read(path)["rows"]:
        assert 10_000 * row.get("flips", 0) <= 25 * row.get("judged", 10_000)
        assert len(row["samples_ms"]) >= (3 if row.get("where") == "classify" else 7)


@measured("*/course.json")
def test_measured_course_suite_was_correct(path):
    assert {row["status"] for row in read(path)["rows"]} == {"right"}


@measured("*/counters.json")
def test_measured_counters_cover_every_course_step(path):
    document = read(path)
    found = {(row["stage"], row["variant"]): row for row in document["rows"]}
    assert document["source"] == "ncu" and not any(row["error"] for row in found.values())
    steps = {(stage, name) for stage, every in LADDERS for name, _ in every if "." in name}
    assert steps <= set(found)


@measured("*/shares.json")
def test_measured_part_shares_sum_to_1(path):
    rows = [row for shape in read(path)["cases"] for row in shape["kernels"]]
    timed = [row for row in rows if row["status"] != "refused"]
    assert len(timed) >= 10 and {row["status"] for row in timed} == {"right"}
    assert all(abs(sum(row["shares"].values()) - 1) < 1e-6 for row in timed)


EXCUSE = re.compile(
    r"Figures (?:in this section|on this page)(?: outside generated tables)? were seen during"
    r" development on an? [^;]+, \d{4}-\d{2}-\d{2}; no file records them\."
)
FIGURE = re.compile(
    r"(?<![\w.,])\d[\d,]*(?:\.\d+)?"
    r"(?:\s?(?:ms|us|ns|s|%|TFLOP/s|GFLOP/s|T?GB/s|TB/s|images/s|GHz|MHz|W)|x)(?![\w/])"
)


def unbacked(text):
    """Return figures outside generated parts, except those that an EXCUSE covers.

    An excuse covers its section and the subsections.
    """
    text = re.sub(r"<!-- begin:([\w-]+) -->.*?<!-- end:\1 -->", "", text, flags=re.DOTALL)
    text = re.sub(r"<!-- figure:[\w-]+ -->.*?<!-- end -->", "", text, flags=re.DOTALL)
    found, excused = [], [False] * 7
    for part in re.split(r"^(?=#+ )", text, flags=re.MULTILINE):
        level = len(re.match(r"#*", part)[0])
        excused[level:] = [EXCUSE.search(" ".join(part.split())) is not None] * (7 - level)
        if not any(excused[: level + 1]):
            found += FIGURE.findall(re.sub(r"95\s%\s(confidence\s)?interval", "", part))
    return found


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_figures_in_docs_come_from_measured_files(page):
    left = unbacked(page.read_text())
    if page.name == "words.md":  # a glossary defines percentages and quotes the papers
        papers = {f"{figure.milliseconds:g} ms" for figure in FIGURES}
        left = [figure for figure in left if not figure.endswith("%") and figure not in papers]
    assert left == [], "generate it, quote it (scripts/tables.py), or say that no file records it"


def test_ladder_steps_link_to_their_kernels():
    """The launcher defines the variant, which launches the linked kernel on this network."""
    page = ROOT / "docs" / "ladder.md"
    row = r"^(?:\| \d+ \| |- )\[`([\w.]+)`\]\(([^)]+)\)(?: \[\.cu\]\(([^)]+)\))?"
    rows = set(re.findall(row, page.read_text(), re.MULTILINE))
    known = {v.full_name: v for v in variants("conv")}
    names = {name for name, _, _ in rows}
    new = ", ".join(name for name in known if name not in names)
    assert names <= set(known), "run scripts/tables.py"
    if new:
        warnings.warn(f"docs/ladder.md lacks {new}: run scripts/tables.py", stacklevel=1)
    for name, launcher, kernel in rows:
        variant, source = known[name], page.parent / launcher
        words = {variant.name, inspect.unwrap(variant.run).__name__, variant.run.__name__}
        assert any(re.search(rf"\b{word}\b", source.read_text()) for word in words), name
        if kernel:
            launched = {
                k.source for p in network_problems(variant) for k in variant.kernels(p, 100)
            }
            assert (page.parent / kernel).resolve() in launched, name


def fragments(page):
    """Return the anchors of a page's headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    words = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, fragment = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (fragment and fragment not in fragments(there)):
            dead.append(target)
    assert not dead


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name == "README.md" or f"({name})" in index
