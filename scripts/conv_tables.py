"""The tables of convolutions, from docs/measured/DEVICE/conv/SUITE.json."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ablation_tables
from ablation_tables import of_label, of_literal, timed
from measured import GPU, Document, how_sure, load, there, where

from lenetgpu.lab.show.conv import ladder_rows
from lenetgpu.lab.show.conv_document import geometric_mean
from lenetgpu.papers.shapes import SUITES, Suite

SHIPS = "best.fp32"
"""The variant that the package chooses by itself, before anything has been timed."""
HINDSIGHT = "fastest fp32 of all candidates, by hindsight"


AFTER = "ours after the paper"
LITERAL = "the paper's kernel to the letter"


def _fastest(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    return min(entries, key=lambda entry: entry["median_ms"]) if entries else None


def _cells(entry: dict[str, Any] | None) -> tuple[str, str]:
    """(time and name, speed-up) of a candidate."""
    if entry is None:
        return "-", "-"
    speedup = f"{entry['speedup']:.2f}x" if "speedup" in entry else "-"
    precision = "" if entry["precision"] == "fp32" else f", {entry['precision']}"
    return f"{1e3 * entry['median_ms']:,.1f} (`{entry['name']}`{precision})", speedup


def _mean(values: list[float]) -> str:
    mean = geometric_mean(values)
    return "-" if mean is None else f"**{mean:.2f}x**"


def _images(document: dict[str, Any]) -> str:
    """How many images its cases have, where they are as many."""
    found = {case["images"] for case in document["cases"]}
    if len(found) > 1:
        return "images as named"
    return "1 image" if found == {1} else f"{min(found):,} images"


def _named(case: dict[str, Any], name: str) -> dict[str, Any] | None:
    return next((entry for entry in case["candidates"] if entry["name"] == name), None)


def _of_suite(suite: Suite, case: dict[str, Any], literal: Document) -> list[dict[str, Any] | None]:
    """What ships, the fastest after the fact, ours after the paper, and the paper's own kernel.

    Each where it was timed; the last one in `literal`, over that document's own reference.
    """
    return [
        _fastest(timed(case, (SHIPS,))),
        _named(case, case["best"] or ""),
        _fastest(timed(case, suite.after)),
        _fastest(timed(of_label(literal, case["label"]), suite.literal)),
    ]


def _literal_said(suite: Suite, document: Document, literal: Document) -> str:
    """Where the literal kernel's times come from, if from another run."""
    if literal is document:
        return ""
    names = ", ".join(f"`{name}`" for name in suite.literal)
    sure = how_sure(rounds(literal), literal).removesuffix(".")
    return f" {names}: of another run, over its own cuDNN ({where(literal)}; {sure})."


def rounds(document: Document) -> list[int]:
    """How many rounds each case had: a sample of every candidate in each."""
    return [case["rounds"] for case in document["cases"] if "rounds" in case]


def _peer(document: Document) -> str:
    return document["peer"] or "no PyTorch"


def table(name: str) -> str:
    """A suite's shapes: the reference, what ships, the fastest by hindsight, ours, the paper's."""
    suite = SUITES[name]
    if not there(GPU, "conv", f"{name}.json"):
        return "Not measured yet: `python scripts/measure.py --only conv` on a GPU fills it."
    document = load(GPU, "conv", f"{name}.json")
    reference, literal = document["reference"], of_literal(name, document)
    lines = [
        f"{suite.title}: {where(document)}; {_peer(document)}; {_images(document)}; fp32 without "
        "TF32, medians of interleaved replays of CUDA graphs, warm L2, every row checked against "
        "float64." + (f" The paper: {suite.says}." if suite.says else "")
        + (" Copies between layouts are counted in." if name == "convnet2" else "")
        + f" {how_sure(rounds(document), document)}" + _literal_said(suite, document, literal),
        "",
        f"| shape | {reference}, us | what ships, `{SHIPS}`, us | times faster | of the roof "
        f"| {HINDSIGHT}, us | times faster | {AFTER}, us | times faster "
        f"| {LITERAL}, us | times faster | the paper |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    means: list[list[float]] = [[], [], [], []]
    for case in document["cases"]:
        entries = _of_suite(suite, case, literal)
        for entry, found in zip(entries, means, strict=True):
            if entry is not None and "speedup" in entry:
                found.append(entry["speedup"])
        base = _named(case, reference) or {}
        there_us = f"{1e3 * base['median_ms']:,.1f}" if base.get("median_ms") else "-"
        ships, *others = entries
        roof = f"{ships['roofline']:.0%}" if ships and ships.get("roofline") else "-"
        shipped, times = _cells(ships)
        cells = [case["label"], there_us, shipped.split(" (")[0], times, roof,
                 *(cell for entry in others for cell in _cells(entry)),
                 case["paper"] or "-"]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    claim = f"{suite.claim[0]}x" if suite.claim else "-"
    shipped, *found = map(_mean, means)
    lines.append(f"| geometric mean | | | {shipped} | | | {' | | '.join(found)} | {claim} |")
    return "\n".join(lines)


def _range(entries: list[dict[str, Any] | None]) -> str:
    """Geometric mean of speed-ups, with the least and the most."""
    found = [entry["speedup"] for entry in entries if entry is not None and "speedup" in entry]
    if not found:
        return "-"
    return f"**{geometric_mean(found):.2f}x** ({min(found):.2f}x to {max(found):.2f}x)"


def _suites() -> dict[str, Document]:
    return {n: load(GPU, "conv", f"{n}.json") for n in SUITES if there(GPU, "conv", f"{n}.json")}


def overview() -> str:
    """A line a suite: how many times faster than the reference, ours and the paper's own kernel."""
    documents = _suites()
    if not documents:
        return "Not measured yet."
    every = list(documents.values())
    others = {name: of_literal(name, document) for name, document in documents.items()}
    apart = [other for name, other in others.items() if other is not documents[name]]
    said = f" {LITERAL.capitalize()}: of another run where the suite's own has none "
    said = f"{said}({where(*apart)})." if apart else ""
    lines = [
        f"{where(*every)}; {', '.join(dict.fromkeys(map(_peer, every)))}: how many times faster "
        f"than `{every[0]['reference']}`, geometric mean (least to most). `{SHIPS}` is what ships: "
        "it chooses before anything is timed. The fastest by hindsight is picked shape by shape "
        "from all candidates after they were timed; nothing in the package runs it as a whole. "
        + how_sure([n for document in every for n in rounds(document)], *every, of="a shape")
        + said,
        "",
        f"| suite | shapes | what ships, `{SHIPS}` | {HINDSIGHT} | {AFTER} | {LITERAL} "
        "| the paper |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, document in documents.items():
        suite = SUITES[name]
        found = [_of_suite(suite, case, others[name]) for case in document["cases"]]
        cells = [_range(list(column)) for column in zip(*found, strict=True)]
        row = [f"`{name}`", str(len(found)), *cells, suite.says or "-"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


@cache
def _timing(suite: str, literal: bool) -> Document:
    """The document that has a suite's times: ablation's of the paper's own kernel."""
    document = load(GPU, "conv", f"{suite}.json")
    return of_literal(suite, document) if literal else document


def variants_table(*asked: tuple[str, str, tuple[str, ...]]) -> str:
    """Variants over the peer on a suite's shapes: (variant, suite, last words of labels or none).

    A shape counts where its label ends with one of the words.
    """
    documents = {
        (name, suite): _timing(suite, name in SUITES[suite].literal) for name, suite, _ in asked
    }
    every = list({id(one): one for one in documents.values()}.values())
    lines = [
        f"{where(*every)}; {_peer(every[0])}; "
        + how_sure([n for document in every for n in rounds(document)], *every, of="a shape"),
        "",
        "| variant | suite | shapes | geometric mean over cuDNN | least | most | the paper |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for variant, suite, ends in asked:
        cases = [c for c in documents[variant, suite]["cases"] if c["label"].endswith(ends or "")]
        found = {
            case["label"]: entry["speedup"]
            for case in cases
            if (entry := _named(case, variant)) is not None and "speedup" in entry
        }
        least, most = min(found, key=found.__getitem__), max(found, key=found.__getitem__)
        claim = SUITES[suite].claim
        literal = variant in SUITES[suite].literal
        lines.append(
            f"| `{variant}` | {suite}{', ' + ' and '.join(ends) if ends else ''} | {len(found)} "
            f"| {geometric_mean(list(found.values())):.2f}x | {found[least]:.2f}x ({least}) "
            f"| {found[most]:.2f}x ({most}) | {f'{claim[0]}x' if claim and literal else '-'} |"
        )
    return "\n".join(lines)


def paper_variants() -> str:
    """The Pascal paper's kernels on its shapes, and ours after them."""
    return variants_table(
        *((name, suite, ())
          for suite in ("pascal-single", "pascal-multi")
          for name in (*SUITES[suite].literal, *SUITES[suite].after))
    )  # fmt: skip


def own_variants() -> str:
    """Our own kernels on the Pascal paper's shapes, each alone, and what ships."""
    return variants_table(
        (SHIPS, "pascal-multi", ()),
        ("direct.tuned", "pascal-multi", ()),
        ("winograd.f4", "pascal-multi", ("K3", "K5")),
        (SHIPS, "pascal-single", ()),
        ("direct.tuned_single", "pascal-single", ()),
    )


def _number(value: Any, write: str = "{:,}") -> str:
    return "-" if value is None else write.format(value)


def steps_table() -> str:
    """The cuda-convnet2 paper's steps, each shape of its suite."""
    if not there(GPU, "conv", "convnet2.json"):
        return "Measured with the suite convnet2."
    document = load(GPU, "conv", "convnet2.json")
    parts = []
    for case in document["cases"]:
        rows = [row for row in ladder_rows(case.get("ladder", [])) if row.get("median_us")]
        lines = [
            f"{case['label']} ({case['shape']}, batch {case['images']:,}), the convolution alone; "
            "a gain is the time of the step named under `over`, divided by this step's:",
            "",
            "| section | step | us | cycles | cycles there | registers | local bytes "
            "| instructions | gain | gain there | over |",
            "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
        ]
        lines += [
            f"| {row['section']} | {row['step']} | {row['median_us']:,.2f} "
            f"| {_number(row['cycles'])} | {_number(row['paper_cycles'])} | {row['registers']} "
            f"| {row['local_bytes']} | {_number(row['instructions'])} "
            f"| {_number(row['ratio'], '{:.2f}x')} | {_number(row.get('paper_ratio'), '{:.2f}x')} "
            f"| {row['before'] or '-'} |"
            for row in rows
        ]
        parts.append("\n".join(lines))
    said = f"{where(document)}; a row a step of the paper, steps interleaved. "
    said += how_sure([], document, of="a step")
    return "\n\n".join([said, *parts, *document["notes"]])


def _maker(name: str) -> Callable[[], str]:
    return lambda: table(name)


SECTIONS = {f"conv-{name}": _maker(name) for name in SUITES}
SECTIONS |= {"conv": overview, "convnet2-steps": steps_table}
BLOCKS = {"paper-variants": paper_variants, "own-variants": own_variants}
BLOCKS |= ablation_tables.BLOCKS
