"""docs/old-ideas.md: what each idea of the four texts gained then and gains today, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Any

from conv_tables import rounds
from ideas import (
    LOADS,
    OCCUPANCY,
    READ,
    SHARED,
    STALL,
    STORES,
    TEXTS,
    Case,
    Idea,
    Over,
    Rung,
    Step,
    Tile,
)
from measured import GPU, Document, how_sure, load, there, where

from lenetgpu.lab.show.conv_document import geometric_mean
from lenetgpu.papers import course_ladder

OPEN, BY_SHAPE = "not measured", "by the shape"
_NAMES = {
    LOADS: ("loads used", "{:.0f} %"),
    STORES: ("stores used", "{:.0f} %"),
    SHARED: ("shared memory used", "{:.0f} %"),
    OCCUPANCY: ("warps active", "{:.0f} %"),
    READ: ("DRAM read", "{:,.0f} GB/s"),
}
_SHARES = (LOADS, STORES, SHARED, OCCUPANCY)


@dataclass(frozen=True)
class Gain:
    """Today's gain on each shape, a ratio of times, and what explains it."""

    ratios: tuple[float, ...]
    why: str

    @property
    def ratio(self) -> float:
        """The geometric mean."""
        return geometric_mean(list(self.ratios)) or 1.0

    def _shapes(self, word: str) -> int:
        return sum(course_ladder.verdict(ratio) == word for ratio in self.ratios)

    @property
    def verdict(self) -> str:
        """Of the mean, unless a quarter of the shapes gain and a quarter lose."""
        if 4 * min(map(self._shapes, ("holds", "turned"))) >= len(self.ratios) > 1:
            return BY_SHAPE
        return course_ladder.verdict(self.ratio)

    def __str__(self) -> str:
        if len(self.ratios) == 1:
            return _times(self.ratio)
        return (
            f"{_times(self.ratio)} ({_times(min(self.ratios))} to {_times(max(self.ratios))}; "
            f"gains on {self._shapes('holds')}, loses on {self._shapes('turned')} of "
            f"{len(self.ratios)} shapes)"
        )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2f}x"


@cache
def _document(*parts: str) -> Document | None:
    return load(GPU, *parts) if there(GPU, *parts) else None


@cache
def _counters() -> dict[tuple[str, str], dict[str, Any]]:
    """Of each (stage, variant), what Nsight Compute or a count of addresses says."""
    document = _document("counters.json")
    return {(row["stage"], row["variant"]): row for row in document["rows"]} if document else {}


def _of_many(found: list[tuple[float, dict[str, Any], dict[str, Any]]], why: str) -> Gain | None:
    return Gain(tuple(ratio for ratio, _, _ in found), why) if found else None


def _course_ms(stage: str, name: str) -> float | None:
    """A row's time; `name` may begin with a stage of its own."""
    own, _, rest = name.partition(" ")
    if own in ("conv1", "conv2", "pool1", "pool2") and rest:
        stage, name = own, rest
    document = _document("course.json")
    for row in document["rows"] if document else ():
        if (row["stage"], row["variant"]) == (stage, name) and row["status"] == "right":
            return row.get("median_ms")
    return None


def _counted(stage: str, name: str, key: str) -> str | None:
    row = _counters().get((stage, name), {})
    if key == STALL:
        cause, share = row.get("top_stall"), row.get("top_stall_share")
        return f"{cause} {100 * share:.0f} %" if cause and share is not None else None
    value = row.get(key)
    if value is None:
        return None
    return _NAMES[key][1].format(100 * value if key in _SHARES else value)


def _explanation(stage: str, name: str) -> str | None:
    document = _document("course.json")
    for row in document["rows"] if document else ():
        if (row["stage"], row["variant"]) == (stage, name):
            return row.get("explanation")
    return None


def _step_why(step: Step) -> str:
    before, after = step.before[-1], step.after[-1]
    said = []
    for key in step.explains:
        old, new = (_counted(step.stage, name, key) for name in (before, after))
        if old and new:
            said.append(f"{'stalled by' if key == STALL else _NAMES[key][0]} {old} -> {new}")
    if said:
        return ", ".join(said)
    old, new = (_explanation(step.stage, name) or "" for name in (before, after))
    if step.told:
        return new or "-"
    return " -> ".join(filter(None, [_without(old, new), _without(new, old)])) or "-"


def _without(words: str, others: str) -> str:
    """The clauses of `words` that are not among those of `others`."""
    known = others.split(", ")
    return ", ".join(clause for clause in words.split(", ") if clause not in known)


def _step(step: Step) -> Gain | None:
    before = [_course_ms(step.stage, name) for name in step.before]
    after = [_course_ms(step.stage, name) for name in step.after]
    if not all(before) or not all(after):
        return None
    ratio = sum(filter(None, before)) / sum(filter(None, after))
    return Gain((ratio,), _step_why(step))


def _rung(rung: Rung) -> Gain | None:
    document = _document("conv", "convnet2.json")
    found = []
    for case in document["cases"] if document else ():
        rows = {row["step"]: row for row in case.get("ladder", ())}
        row = rows.get(rung.step, {})
        if row.get("ratio") and "as printed" not in case["label"]:
            found.append((row["ratio"], rows[row["before"]], row))
    changes = []
    for key, name in (("local_bytes", "local bytes"), ("registers", "registers"),
                      ("instructions", "instructions")):  # fmt: skip
        sides = [[pair[side][key] for pair in found if pair[side].get(key) is not None]
                 for side in (1, 2)]  # fmt: skip
        if all(sides) and sides[0] != sides[1]:
            changes.append(f"{name} {fmean(sides[0]):,.0f} -> {fmean(sides[1]):,.0f}")
    return _of_many(found, ", ".join(changes) or "-")


def _over(over: Over) -> Gain | None:
    document = _document("ablation", f"{over.suite}.json")
    found = []
    for case in document["cases"] if document else ():
        rows = {entry["name"]: entry for entry in case["candidates"]}
        pair = rows.get(over.before, {}), rows.get(over.after, {})
        if all(row.get("median_ms") for row in pair):
            found.append((pair[0]["median_ms"] / pair[1]["median_ms"], *pair))
    sides = [[pair[side]["roofline"] for pair in found if pair[side].get("roofline")]
             for side in (1, 2)]  # fmt: skip
    why = " -> ".join(f"{fmean(side):.0%}" for side in sides) if all(sides) else ""
    return _of_many(found, f"of the roof {why}" if why else "-")


def _tile(tile: Tile) -> Gain | None:
    document = _document("shares.json")
    found = []
    for case in document["cases"] if document else ():
        if "as printed" in case["label"]:
            continue
        rows = [_swept(case["tiles"], asked) for asked in (tile.before, tile.after)]
        if all(rows):
            found.append((rows[0]["median_us"] / rows[1]["median_us"], *rows))
    changes = []
    for key in ("shared_bytes", "registers", "blocks"):
        sides = [fmean(pair[side][key] for pair in found) for side in (1, 2)] if found else [0, 0]
        if sides[0] != sides[1]:
            changes.append(f"{key.replace('_', ' ')} {sides[0]:,.0f} -> {sides[1]:,.0f}")
    return _of_many(found, ", ".join(changes) or "-")


def _swept(tiles: list[dict[str, Any]], asked: tuple[str, int, int, int | None]) -> dict[str, Any]:
    """The right tile that was asked for, of most pixels where it says None; {} where none is."""
    figure, images, filters, pixels = asked
    found = [
        row
        for row in tiles
        if (row["figure"], row["images_per_thread"], row["filters_per_thread"])
        == (figure, images, filters)
        and pixels in (None, row["cached_pixels"])
        and row["status"] == "right"
    ]
    return max(found, key=lambda row: row["cached_pixels"], default={})


def gain(case: Case) -> Gain | None:
    """What a case gains today; None where no file has both sides."""
    if isinstance(case, Step):
        return _step(case)
    if isinstance(case, Rung):
        return _rung(case)
    return _over(case) if isinstance(case, Over) else _tile(case)


def _label(case: Case, idea: Idea) -> str:
    if isinstance(case, Rung) and len(idea.cases) > 1:
        return f"{case.step}: "
    if not isinstance(case, Step):
        return ""
    name = case.stage
    if sum(isinstance(c, Step) and c.stage == case.stage for c in idea.cases) > 1:
        name = case.after[-1].removeprefix("plan course, ")
    return f"{name}: " if len(idea.cases) > 1 or name != case.stage else ""


def verdict(idea: Idea) -> str:
    """One word, or one for each case where they differ."""
    if idea.ours:
        return "-"
    found = [(case, gain(case)) for case in idea.cases]
    words = [seen.verdict if seen else OPEN for _, seen in found]
    if len(set(words)) == 1:
        return words[0]
    each = (f"{_label(case, idea).rstrip(': ')} {word}"
            for (case, _), word in zip(found, words, strict=True))  # fmt: skip
    return ", ".join(each)


def _then(idea: Idea) -> str:
    figures = [f"{_label(case, idea)}{_times(case.then)}" for case in idea.cases if case.then]
    return "; ".join(figures) or ("ours" if idea.ours else idea.said or "no figure")


def _row(idea: Idea) -> str:
    seen = [(case, gain(case)) for case in idea.cases]
    today = "; ".join(f"{_label(case, idea)}{found or OPEN}" for case, found in seen)
    why = dict.fromkeys(f"{_label(case, idea)}{found.why}" for case, found in seen if found)
    said = "; ".join([*why, *filter(None, [idea.note])]) or "-"
    return f"| {idea.section} | {idea.words} | {_then(idea)} | {today} | {said} | {verdict(idea)} |"


def _documents(ideas: Iterable[Idea]) -> Iterator[tuple[Document, list[int]]]:
    kinds = {type(case) for idea in ideas for case in idea.cases}
    if Step in kinds and (document := _document("course.json")):
        yield document, [len(r["samples_ms"]) for r in document["rows"] if "samples_ms" in r]
        if counters := _document("counters.json"):
            yield counters, []
    if Rung in kinds and (document := _document("conv", "convnet2.json")):
        yield document, []
    if Tile in kinds and (document := _document("shares.json")):
        yield document, []
    suites = {c.suite for idea in ideas for c in idea.cases if isinstance(c, Over)}
    for suite in sorted(suites):
        if document := _document("ablation", f"{suite}.json"):
            yield document, rounds(document)


def table(ideas: tuple[Idea, ...]) -> str:
    """A row an idea of one text."""
    documents = list(_documents(ideas))
    if not documents:
        return "Not measured yet: `python scripts/measure.py --only course,conv,ablation`."
    every = [document for document, _ in documents]
    counts = [count for _, found in documents for count in found]
    lines = [
        f"{where(*every)}. {how_sure(counts, *every)}",
        "",
        "| section | idea | gain then | gain today | what explains it | verdict |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *map(_row, ideas)])


def summary() -> str:
    """How many ideas hold, are gone, have turned, text by text."""
    lines = [
        "| text | ideas | hold | gone | turned | by the stage or shape |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for title, ideas in TEXTS:
        words = [verdict(idea) for idea in ideas if not idea.ours]
        counts = [words.count(word) for word in ("holds", "gone", "turned")]
        rest = len(words) - sum(counts)
        lines.append(f"| {title} | {len(words)} | {' | '.join(map(str, [*counts, rest]))} |")
    return "\n".join(lines)


def _names(title: str) -> str:
    return f"ideas-{title.lower().replace(' ', '-')}"


SECTIONS = {"ideas": summary} | {
    _names(title): (lambda ideas=ideas: table(ideas)) for title, ideas in TEXTS
}
