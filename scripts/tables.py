"""Write the generated parts of README.md and docs/ from docs/measured/ and from the package.

A part stands between `<!-- begin:NAME -->` and `<!-- end:NAME -->`, a figure in a sentence between
`<!-- figure:NAME -->` and `<!-- end -->`. A line above a table says of which device, date and
commit it is and what has changed since (measured.py). `--check` writes nothing and exits with 1
where a page is stale; a variant that a page does not name yet makes no page stale.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import click
import engines
import ideas
from measured import (
    CPU,
    GPU,
    GPUS,
    MEASURED,
    ROOT,
    SAME_PROGRAM,
    SOURCES,
    Document,
    filled,
    how_sure,
    kernels_line,
    lines,
    load,
    md,
    of_the_plain_kernel,
    said_of,
    there,
    where,
)
from source_texts import KINDS, TEXTS, Citation, Item, Text, cited

from lenetgpu.lab.conv.request import shape_of
from lenetgpu.measure.torch_peer import NAMES
from lenetgpu.network import STAGE_NAMES, STAGES
from lenetgpu.papers.course_counters import counted_rows
from lenetgpu.papers.course_ladder import SAME, step_rows
from lenetgpu.papers.shapes import SUITES, Suite
from lenetgpu.plan import NAMED, resolve
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.matrix import FAMILIES, cells
from lenetgpu.stages.registry import KINDS as STAGE_KINDS
from lenetgpu.stages.registry import SPAN_KINDS

OURS, SHIPS = "lenetgpu", "best.fp32"
COURSE_MS = 270.0
IMAGES = 10_000
Among = Callable[[Variant], bool]  # the variants that a page is written of


def spread(row: Document, digits: int = 4) -> str:
    return (
        f"**{row['median_ms']:.{digits}f}** ({row['p05_ms']:.{digits}f} to "
        f"{row['p95_ms']:.{digits}f})"
    )


def times(ratio: float | None) -> str | None:
    return None if ratio is None else f"{ratio:,.0f}x" if ratio >= 100 else f"{ratio:.2f}x"


def spanned(ratios: Sequence[float]) -> str | None:
    """Return a geometric mean with the least and the most."""
    if not ratios:
        return None
    return f"**{geometric_mean(ratios):.2f}x** ({min(ratios):.2f}x to {max(ratios):.2f}x)"


def missing(part: str) -> str:
    return f"Not measured on this device yet (`python scripts/measure.py --only {part}`)."


PLACES = {
    "pinned": "page-locked NumPy", "pageable": "NumPy", "floats": "NumPy, float32",
    "device": "on the GPU", "one": "one image", "latency": "one image, `latency=True`",
}  # fmt: skip


def front() -> str:
    """Return the README's table: calls by place of the images, beside the best of PyTorch."""
    document, best = load(GPUS[0], "peers.json"), dict[tuple[str, str], Document]()
    for row in sorted(document["rows"], key=lambda row: -float(row["median_ms"])):
        place = "latency" if "latency" in row["name"] else row["where"]
        best |= {(place, row["precision"]): row} if row["maker"] == OURS else {}
    rows = []
    for place, words in PLACES.items():
        three = [best.get((place, precision), {}) for precision in ("fp32", "fp16", "int8")]
        ours = [
            f"**{row['median_ms']:.3g}** ({times(row.get('times_faster'))})" if row else None
            for row in three
        ]
        peers = [f"{row['peer_ms']:.3g}" if "peer_ms" in row else None for row in three]
        rows += [(words, ours[0], peers[0], *ours[1:], peers[1])] if three[0] else []
    heads = '`LeNet.load()`> | PyTorch> | `precision="fp16"`> | `"int8"`> | PyTorch, fp16>'
    caption = (
        f"{said_of(document)}. Median ms to the labels of {document['images']:,} digits (times "
        f"faster than PyTorch's best mode, without TF32). {_sure(document)}"
    )
    said = [
        f"`{row['name'].partition(',')[0]}`: {row['images_per_second'] / 1e6:.1f} M images/s."
        if "images_per_second" in row
        else f"`lenetgpu infer`: {row['median_ms'] / 1e3:.2f} s, its pass {row['pass_ms']:.3g} ms."
        for row in document["rows"] if "pass_ms" in row or row.get("images", 0) > 1e6
    ]  # fmt: skip
    return lines(caption, md(f"images | {heads}", rows), " ".join(said), _absent(document))


def _sure(document: Document) -> str:
    return how_sure([len(row["samples_ms"]) for row in document["rows"]], document)


def _absent(document: Document) -> str:
    names = [f"{peer['name']} ({peer['why']})" for peer in document["not_measured"]]
    return f"Not measured: {', '.join(names)}." if names else ""


def everybody(folder: str) -> str:
    if not there(folder, "peers.json"):
        return missing("peers")
    document = load(folder, "peers.json")
    rows = [
        (row.get("where", "cpu"), row["name"], spread(row, 4 if folder != CPU else 1),
         row.get("p99_ms") and f"{row['p99_ms']:.4f}",
         times(row.get("over_copy", row.get("over_kernels"))),
         row.get("beyond_us") and f"{row['beyond_us']:.1f}", row.get("correct"), row.get("flips"),
         times(row.get("times_faster")))
        for row in document["rows"]
    ]  # fmt: skip
    limits = "over the bare copy or kernels> | beyond kernels, us>"
    heads = f"images | candidate | ms> | p99> | {limits} | right> | flips> | over its peer>"
    about = f"{said_of(document)}; {document['images']:,} digits ({document['data']})"
    return lines(f"{about}. {_sure(document)}", md(heads, rows), _absent(document))


def plans() -> list[Document]:
    names = {path.stem for path in (MEASURED / GPU / "plans").glob("*.json")}
    return [load(GPU, "plans", f"{n}.json") | {"plan_name": n} for n in NAMED if n in names]


def _compute(document: Document) -> Document:
    return document["timing_ms"]["compute"]


def _other_variants(documents: list[Document]) -> str:
    """Return a sentence on plans that run other variants today than when measured."""
    names = []
    for document in documents:
        old = [entry["variant"] for entry in document["plan"]]
        now = [bound.variant.names for bound in resolve(document["plan_name"], "cuda").stages]
        if len(old) != len(now) or not all(name in aliases for name, aliases in zip(old, now)):  # noqa: B905
            names.append(f"`{document['plan_name']}`")
    sentence = f" Measured with other variants than the plan has now: {', '.join(names)}."
    return sentence if names else ""


def gpu_plans() -> str:
    runs = plans()
    rows = [
        (f"`{d['plan_name']}`", f"{_compute(d)['median']:.2f}",
         f"{d['timing_ms']['end_to_end']['median']:.2f}", f"{d['images_per_second']:,.0f}",
         f"{d['correct']:,}", f"{COURSE_MS / _compute(d)['median']:,.0f}x")
        for d in sorted(runs, key=lambda d: -float(_compute(d)["median"]))
    ]  # fmt: skip
    sure = how_sure([len(_compute(d)["samples"]) for d in runs], *runs)
    caption = (
        f"{where(*runs)}; {runs[0]['images']:,} MNIST images, the course's weights, medians. "
        f'"Compute" is device to device; "host to host" adds both copies. {sure}'
    )
    heads = (
        "plan | compute ms> | host to host ms> | images/s> | right> | the course's 270 ms over it>"
    )
    return lines(caption + _other_variants(runs), md(heads, rows))


def stage_times() -> str:
    runs = plans()

    def cell(document: Document, name: str) -> str | None:
        for row in document["stages"]:
            stages = row["stages"] or [row["name"]]
            if name in stages:
                return f"{row['median_ms']:.3f}" if stages[0] == name else "with " + stages[0]
        return None

    rows = [[name, *(cell(d, name) for d in runs)] for name in ("input", *STAGE_NAMES)]
    caption = f"{where(*runs)}; the runs of the table above, each stage timed by itself."
    return lines(
        caption, md(" | ".join(["stage, ms", *(f"`{d['plan_name']}`>" for d in runs)]), rows)
    )


def infer_output() -> str:
    document = load(CPU, "infer.json")
    text = (MEASURED / CPU / "infer.txt").read_text().rstrip()
    caption = f"What `make infer` prints without a GPU ({where(document)}):"
    return f"{caption}\n\n```\n{text}\n```"


def course_steps() -> str:
    document = load(GPU, "course.json")
    counts = [len(row["samples_ms"]) for row in document["rows"] if "samples_ms" in row]
    rows = [
        (s["stage"], s["step"], times(s["report_gain"]) if s["report_gain"] else "no figure",
         times(s["gain"]), s["verdict"])
        for s in step_rows(document["rows"])
    ]  # fmt: skip
    caption = f"{where(document)}; {document['images']:,} images. {how_sure(counts, document)}"
    return lines(caption, md("stage | step | gain there> | gain here> | today", rows))


def course_counted() -> str:
    """Return the efficiencies of figures 4 to 6 and those counted from addresses."""
    counted = list(counted_rows())
    rows = [
        (r["figure"], r["stage"], f"`{r['variant']}`",
         *(f"{r[key]:.1f} %" for key in ("report_loads", "loads", "report_stores", "stores")))
        for r in counted
    ]  # fmt: skip
    notes = [f"- Figure {r['figure']}, {r['stage']}: {r['note']}." for r in counted if r["note"]]
    heads = "figure | stage | variant | loads, NVVP> | counted> | stores, NVVP> | counted>"
    return lines(md(heads, rows), "\n".join(notes))


def rounds(document: Document) -> list[int]:
    return [case["rounds"] for case in document["cases"] if "rounds" in case]


def named(case: Document, name: str) -> Document:
    """Return the timed candidate of that name, {} if there is none."""
    entries = (e for e in case["candidates"] if e["name"] == name and e.get("median_ms"))
    return next(entries, {})


def _fastest(case: Document, names: tuple[str, ...]) -> Document:
    entries = [named(case, name) for name in names if named(case, name)]
    return min(entries, key=lambda e: float(e["median_ms"])) if entries else {}


@cache
def literal_of(suite: str) -> Document:
    """Return the document that timed the paper's own kernels of a suite."""
    document = load(GPU, "conv", f"{suite}.json")
    timed = any(_fastest(case, SUITES[suite].literal) for case in document["cases"])
    own = GPU, "ablation", f"{suite}.json"
    return load(*own) if not timed and there(*own) else document


def _four(suite: Suite, case: Document, literal: Document) -> list[Document]:
    """Return `best.fp32`, the fastest, ours after the paper, and the paper's own kernel."""
    same = [c for c in literal["cases"] if c["label"] == case["label"]]
    own = _fastest(same[0], suite.literal) if same else {}
    return [named(case, SHIPS), named(case, case["best"] or ""), _fastest(case, suite.after), own]


FOUR = (f"`{SHIPS}`", "fastest of all", "ours after the paper", "the paper's kernel")


def conv_suite(name: str) -> str:
    """Return a suite's shapes: cuDNN, what ships, the fastest, ours, the paper's."""
    if not there(GPU, "conv", f"{name}.json"):
        return missing("conv")
    suite, document, literal = SUITES[name], load(GPU, "conv", f"{name}.json"), literal_of(name)
    rows, ratios = [], [[], [], [], []]  # type: tuple[list[Any], list[list[float]]]
    for case in document["cases"]:
        base = named(case, document["baseline"])
        four = _four(suite, case, literal)
        cells: list[Any] = []
        for entry, speedups in zip(four, ratios, strict=True):
            if "speedup" in entry:
                speedups.append(entry["speedup"])
            cells += [
                (entry and f"{1e3 * entry['median_ms']:,.1f} (`{entry['name']}`)") or None,
                times(entry.get("speedup")),
            ]
        cells[0] = cells[0] and cells[0].split(" (")[0]
        rows.append([case["label"], base and f"{1e3 * base['median_ms']:,.1f}", *cells])
    means = [
        cell for speedups in ratios for cell in (None, speedups and times(geometric_mean(speedups)))
    ]
    rows.append(["geometric mean", None, *means])
    heads = " | ".join(f"{heading}, us> | over cuDNN>" for heading in FOUR)
    images = sorted({case["images"] for case in document["cases"]})
    caption = (
        f"{suite.title}: {where(document)}; {document['peer']}; images: "
        f"{', '.join(f'{n:,}' for n in images)}; medians of CUDA graphs, warm L2. "
        + (f"The paper: {suite.says}. " if suite.says else "")
        + how_sure(rounds(document), document)
    )
    return lines(caption, md(f"shape | cuDNN, us> | {heads}", rows))


def _suites(gpu: str) -> dict[str, Document]:
    return {n: load(gpu, "conv", f"{n}.json") for n in SUITES if there(gpu, "conv", f"{n}.json")}


def conv_overview() -> str:
    """Return a row per suite: the speed-up over cuDNN."""
    documents = _suites(GPU)
    rows = []
    for name, document in documents.items():
        fours = [_four(SUITES[name], case, literal_of(name)) for case in document["cases"]]
        ratios = [[e["speedup"] for e in column if "speedup" in e] for column in zip(*fours)]  # noqa: B905
        rows.append([f"`{name}`", len(fours), *map(spanned, ratios), SUITES[name].says or None])
    every = list(documents.values())
    sure = how_sure([n for d in every for n in rounds(d)], *every, of="a shape")
    heads = " | ".join(["suite", "shapes>", *(f"{candidate}>" for candidate in FOUR), "the paper"])
    return lines(f"{where(*every)}; how many times faster than cuDNN. {sure}", md(heads, rows))


def paper_variants() -> str:
    """Return the Pascal paper's kernels and our successors on its shapes, over cuDNN."""
    rows, every = [], []
    for suite in ("pascal-single", "pascal-multi"):
        document = load(GPU, "conv", f"{suite}.json")
        for name in (*SUITES[suite].literal, *SUITES[suite].after):
            literal = name in SUITES[suite].literal
            source = literal_of(suite) if literal else document
            every.append(source)
            speedups = {c["label"]: named(c, name)["speedup"] for c in source["cases"]
                     if "speedup" in named(c, name)}  # fmt: skip
            claim = SUITES[suite].claim
            says = f"{claim[0]}x" if claim and literal else None
            rows.append([f"`{name}`", suite, len(speedups), *_mean_and_range(speedups), says])
    heads = "variant | suite | shapes> | geometric mean over cuDNN> | least> | most> | the paper>"
    return lines(f"{where(*every)}.", md(heads, rows))


def _mean_and_range(ratios: dict[str, float]) -> list[str]:
    least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    mean = f"{geometric_mean(ratios.values()):.2f}x"
    return [mean, f"{ratios[least]:.2f}x ({least})", f"{ratios[most]:.2f}x ({most})"]


DEPARTURES = (
    ("pascal-single", "prefetch.single_strict", "prefetch.single_strict_both",
     "map and filters both divided, until all multiprocessors have work"),
    ("pascal-single", "prefetch.single_strict_both", "prefetch.single",
     "packed filters, several outputs per thread, tiles from a cost model"),
    ("pascal-multi", "prefetch.strict", "prefetch.strict_async", "copies that bypass registers"),
    ("pascal-multi", "prefetch.strict_async", "prefetch.strict_packed",
     "each block reads contiguous memory in a round"),
    ("pascal-multi", "prefetch.strict_packed", "prefetch.strict_spread", "one block per tile"),
    ("pascal-multi", "prefetch.strict_spread", "prefetch.strict_filled",
     "M' and W'x reduced below N_FMA until every block has a tile"),
    ("pascal-multi", "prefetch.strict_filled", "prefetch.stride_fixed",
     "2D tiles from a cost model, several pixels per thread, channels divided"),
)  # fmt: skip


def departures() -> str:
    """Return a row per step from the Pascal paper's kernels to ours."""
    rows, every = [], {}
    for suite, before, after, change in DEPARTURES:
        document = every.setdefault(suite, load(GPU, "ablation", f"{suite}.json"))
        ratios = {}
        for case in document["cases"]:
            old, new = named(case, before), named(case, after)
            if old and new:
                ratios[case["label"]] = old["median_ms"] / new["median_ms"]
        rows.append(
            [suite, f"`{before}`", f"`{after}`", change, len(ratios), *_mean_and_range(ratios)]
        )
    documents = list(every.values())
    sure = how_sure([n for d in documents for n in rounds(d)], *documents, of="a shape")
    heads = "suite | from | to | what changes | shapes> | geometric mean> | least> | most>"
    return lines(f"{where(*documents)}; time before over time after. {sure}", md(heads, rows))


def _rms(entry: Document) -> float | None:
    comparison = entry.get("same_images")
    return None if comparison is None else float(comparison["rms"])


def _against_cudnn(case: Document) -> tuple[float, float | None, float | None] | None:
    """Return cuDNN's time over best's, best's over the fastest as accurate's, error ratio."""
    entries = {e["name"]: e for e in case["candidates"] if e.get("median_ms")}
    if SHIPS not in entries or NAMES["cuda"] not in entries:
        return None
    best, peer = entries.pop(SHIPS), entries.pop(NAMES["cuda"])
    ratio, own, theirs = peer["median_ms"] / best["median_ms"], _rms(best), _rms(peer)
    if own is None or theirs is None:
        return ratio, None, None
    exact = [e["median_ms"] for e in entries.values() if (_rms(e) or 1e9) <= theirs]
    return ratio, best["median_ms"] / min(exact) if exact else None, own / theirs


def _suite_row(name: str, document_cases: Iterable[Document], images: str) -> list[Any] | None:
    ratio_rows = [row for row in map(_against_cudnn, document_cases) if row is not None]
    if not ratio_rows:
        return None
    ratios, offs, errors = ([v for v in column if v is not None] for column in zip(*ratio_rows))  # noqa: B905
    error = (
        f"{max(errors):.2f} ({sum(e <= 1 for e in errors)} of {len(errors)})" if errors else None
    )
    return [name, images, len(ratio_rows), f"**{geometric_mean(ratios):.2f}x**", times(min(ratios)),
            (offs and times(max(offs))) or None, error]  # fmt: skip


def suites() -> str:
    """Return a table per GPU with a row per suite: `best.fp32` compared with cuDNN."""
    again = {"pascal-multi-best": "pascal-multi again", "convnet2-64": "convnet2 again"}
    parts = []
    for gpu in GPUS:
        documents = _suites(gpu)
        documents |= {words: load(gpu, "again", f"{name}.json") for name, words in again.items()
                  if there(gpu, "again", f"{name}.json")}  # fmt: skip
        if not documents:
            continue
        images = {n: ", ".join(sorted({f"{c['images']:,}" for c in d["cases"]}))
                  for n, d in documents.items()}  # fmt: skip
        rows = [_suite_row(name, d["cases"], images[name]) for name, d in documents.items()]
        alike = {d["suite"]: d for n, d in documents.items() if images[n] == "64"}
        networks = [alike[n] for n in ("resnet50", "vgg16", "convnet2") if n in alike]
        if len(networks) == 3:
            every = [case for document in networks for case in document["cases"]]
            rows.append(_suite_row("resnet50, vgg16, convnet2", every, "64"))
        measured = list(documents.values())
        sure = how_sure([n for d in measured for n in rounds(d)], *measured, of="a shape")
        heads = (
            f"suite | images | shapes> | `{SHIPS}` over cuDNN's best plan, geometric mean> "
            "| minimum> | its time over our fastest variant's, maximum> "
            "| its rms error over cuDNN's, maximum (shapes where it is no larger)>"
        )
        parts += [f"{where(*measured)}. {sure}", md(heads, filter(None, rows))]
    return lines(*parts)


CLASSES: tuple[tuple[str, Callable[[Conv, int], bool]], ...] = (
    ("groups and depthwise", lambda p, n: p.groups > 1),
    ("one channel", lambda p, n: p.C == 1),
    ("a few channels (an RGB image)", lambda p, n: p.C <= 4),
    ("1x1, maps up to 16x16", lambda p, n: p.R == 1 and p.H <= 16),
    ("1x1, larger maps", lambda p, n: p.R == 1),
    ("3x3, maps up to 16x16, 1 image", lambda p, n: p.R == 3 and p.H <= 16 and n == 1),
    ("5x5, maps up to 16x16, 1 image", lambda p, n: p.R == 5 and p.H <= 16 and n == 1),
    ("3x3 and 5x5, larger maps, 1 image", lambda p, n: p.R in (3, 5) and n == 1),
    ("3x3 and 5x5, many images", lambda p, n: p.R in (3, 5)),
    ("other filters", lambda p, n: True),
)


def class_of(problem: Conv, images: int) -> str:
    """Return a description of the first class that contains the convolution."""
    return next(words for words, holds in CLASSES if holds(problem, images))


def which_algorithm() -> str:
    """Return a table per GPU: how often each algorithm of `best.fp32` was fastest, by class."""
    import conv_choices

    parts = []
    for gpu in GPUS:
        documents = list(_suites(gpu).values())
        by_class: dict[str, tuple[list[str], list[float], list[float]]] = {}
        for document in documents:
            for case in document["cases"]:
                words = class_of(shape_of(case["shape"]).problem, case["images"])
                wins, ahead, chosen = by_class.setdefault(words, ([], [], []))
                us, _ = conv_choices.measured_us(case, conv_choices.machine_of(document))
                winner = min(us, key=us.__getitem__) if len(us) > 1 else ""
                wins.append(winner)
                ahead += [e["speedup"] for e in [named(case, winner)] if "speedup" in e]
                chosen += [e["speedup"] for e in [named(case, SHIPS)] if "speedup" in e]
        if not documents:
            continue
        rows = []
        for words, _ in CLASSES:
            if words in by_class:
                wins, ahead, chosen = by_class[words]
                names = sorted(filter(None, set(wins)), key=lambda name: (-wins.count(name), name))
                won = ", ".join(f"`{name}` {wins.count(name)}" for name in names)
                rows.append([words, len(wins), won or None, spanned(ahead), spanned(chosen)])
        sure = how_sure([n for d in documents for n in rounds(d)], *documents, of="a shape")
        heads = (
            "convolutions | shapes> | fastest variant (on how many shapes) | fastest over cuDNN> "
            f"| `{SHIPS}` over cuDNN>"
        )
        parts += [f"{where(*documents)}. {sure}", md(heads, rows)]
    return lines(*parts)


def shares_parts() -> str:
    """Return the parts of Table 1's kernels: the paper's computation, the model's, and waits."""
    from lenetgpu.papers.convnet2_measured import PARTS

    document = load(GPU, "shares.json")
    rows = []
    for row in document["cases"][0]["kernels"]:
        if not row.get("shares"):
            continue
        values = [row["shares"][part] for part in PARTS] + list(row["waits"].values())
        own = [f"{value:.0%}" for value in values]
        own = own if of_the_plain_kernel(row) else [f"({cell})" for cell in own]
        model = (row["model"] or {}).get("compute")
        rows.append(
            [row["figure"], row["kernel"], *own, *(None if v is None else f"{v:.0%}" for v in
             (row["paper"], model)), f"{row['median_us']:,.2f}", f"{row['slowed']:.2f}x"]
        )  # fmt: skip
    heads = " | ".join(
        ["figure", "kernel", *(f"{part}>" for part in PARTS), "of it waiting for loads>",
         "waiting for sums>", "compute, the paper>", "compute, the model>", "us>", "with clocks>"]
    )  # fmt: skip
    caption = (
        f"{where(document)}; Table 1 with 5x5 filters (the other shapes are in the report). In "
        f"brackets: the build with clocks takes less than {SAME_PROGRAM[0]}x or more than "
        f"{SAME_PROGRAM[1]}x the plain kernel's time."
    )
    picture = f"![the kernels' parts](measured/{GPU}/shares.png)"
    return lines(caption, md(heads, rows), picture if there(GPU, "shares.png") else "")


def shares_tiles() -> str:
    """Return the two fastest tiles of each shape, Table 1's, and the fastest of figures 5 and 6."""
    from lenetgpu.lab.conv.shares import tile_rows

    document = load(GPU, "shares.json")
    rows = []
    for case in document["cases"]:
        timed = [row for row in tile_rows(case) if row["median_us"]]
        for index, row in enumerate(timed):
            best = next(other for other in timed if other["figure"] == row["figure"])
            if index < 2 or row["table_1"] or (row is best and row["figure"] in "56"):
                rows.append(
                    [case["label"], row["figure"], row["threads"], row["images_per_thread"],
                     row["filters_per_thread"], row["cached_pixels"], f"{row['shared_bytes']:,}",
                     row["registers"], f"{row['blocks']:,}", f"{row['waves']:.2f}",
                     f"{row['median_us']:,.2f}", f"{row['ratio']:.2f}x"]
                )  # fmt: skip
    heads = (
        "shape | figure | threads | images a thread> | filters a thread> | cached pixels> "
        "| shared bytes> | registers> | blocks> | waves> | us> | over Table 1's>"
    )
    return lines(f"{where(document)}; `convnet2.unrolled`, each tile checked.", md(heads, rows))


def shares_instructions() -> str:
    """Return the clocks of each instruction and the paper's lines."""
    from lenetgpu.gpu.instructions import INSTRUCTIONS
    from lenetgpu.lab.conv.shares import between

    document = load(GPU, "shares.json")
    remarks = {instruction.ptx: instruction.remark for instruction in INSTRUCTIONS}
    rows = [
        [row["ptx"], row["sass"], f"{row['clocks']:.1f}",
         *((row[f] and between(row[f])) or None for f in ("figure_9", "figure_13")),
         remarks.get(row["ptx"]) or None]
        for row in document["instructions"]
    ]  # fmt: skip
    caption = f"{where(document)}; clocks until the warp's next instruction, which waits for it."
    notes = "\n".join(
        f"- {subject}: {reason}." for subject, reason in document["not_measured"].items()
    )
    table = md("PTX | SASS | clocks> | figure 9> | figure 13> | remark", rows)
    return lines(caption, table, notes, latency_sentence(document))


def latency_sentence(document: Document) -> str:
    if "latency" not in document:
        return "This run did not record the load's latency that N_FMA hides."
    row = document["latency"]
    return (
        f"A load from global memory takes {row['load']:,.0f} cycles, plans take "
        f"{row['planned_load']:,} (`gpu/machines.py`); N_FMA is {row['n_fma']:,} multiply-adds, "
        f"planned with {row['planned_n_fma']:,}."
    )


def conditionals() -> str:
    """Return a row per shape: the speed-up by extracted conditionals."""
    pairs = {
        "multiply-adds": ("strength_reduced", "hoisted_checks"),
        "inner product engine": ("inner product, strength reduced", "inner_product"),
        "outer product engine": ("outer product, strength reduced", "outer_product"),
    }
    document = load(GPU, "conv", "convnet2.json")
    rows = []
    for case in document["cases"]:
        us = {row["step"]: row["median_us"] for row in case["ladder"]}
        rows.append([case["label"], *(times(us[old] / us[new]) for old, new in pairs.values())])
    heads = " | ".join(["shape", *(f"{name}>" for name in pairs)])
    return lines(f"{where(document)}; time before over time after.", md(heads, rows))


def weights(folder: str) -> str:
    """Return a row per set of weights, a column per plan: largest error, flips, refusals."""
    if not there(folder, "weights.json"):
        return missing("weights")
    document = load(folder, "weights.json")
    names = list(document["rows"][0]["plans"])

    def cell(entry: Document) -> str:
        if "refused" in entry:
            return "refused"
        error = f"{entry['error']:.0e}" if entry["error"] else "0"
        flips = f", {entry['flips']}" if entry["flips"] else ""
        return error + flips + ("" if entry["right"] else " **wrong**")

    rows = [[r["weights"], *(cell(r["plans"][n]) for n in names)] for r in document["rows"]]
    slow = ", ".join(f"`{n}` gets {few}" for n, few in document["slow"].items() if n in names)
    few = f" ({slow} digits)" if slow else ""
    caption = f"{where(document)}; {document['images']:,} images{few}; {kernels_line((document,))}."
    return lines(caption, md(" | ".join(["weights", *(f"`{n}`>" for n in names)]), rows))


def scale() -> str:
    return lines(*(_scale(load(f, "scale.json")) for f in (*GPUS, CPU) if there(f, "scale.json")))


def _scale(document: Document) -> str:
    alone = {r["shard"]: r["images_per_second"] for r in document["rows"] if not r["workers"]}
    rows = []
    for row in document["rows"]:
        shard, workers, rate = row["shard"], row["workers"], row["images_per_second"]
        span = f"({min(row['samples']):,.0f} to {max(row['samples']):,.0f})"
        rows.append(
            [f"{shard:,}", workers or "none", f"{rate:,.0f} {span}",
             times(rate / alone[shard]) if shard in alone else None]
        )  # fmt: skip
    about = (
        f"{where(document)}; plan {document['plan']}; {document['images']:,} images in "
        f"{document['files']} files in the page cache; {document['rounds']} interleaved jobs a row."
    )
    heads = "images per shard> | Dask workers | images/s> | relative to none>"
    return lines(about, md(heads, rows))


def sanitize() -> str:
    document = load(GPU, "sanitize.json")
    rows = [
        [row["tool"], f"{row['cases']:,}", row["errors"], sum(row["allowed"].values()),
         len(row["wrong"]), len(row["died"]), f"{len(row['not_reached']):,}"]
        for row in document["rows"]
    ]  # fmt: skip
    planted = sum(entry["found"] > 0 for entry in document["planted"].values())
    only = f", only those with {document['only']} in their names" if document.get("only") else ""
    caption = (
        f"{where(document)}, compute-sanitizer {document['sanitizer']}; {document['cases']:,} "
        f"cases of {document['variants']} variants and plans{only}; {planted} of "
        f"{len(document['planted'])} planted errors found."
    )
    heads = "tool | cases> | errors> | allowed reports> | wrong results> | died> | not reached>"
    reasons = dict.fromkeys(reason for row in document["rows"] for reason in row["allowed"])
    return lines(caption, md(heads, rows), *(f"Allowed: {reason}." for reason in reasons))


def matrix(device: str) -> str:
    """Return a row per stage, a column per family; reasons for refused cells, sources of times."""
    folder = {"cpu": CPU, "cuda": GPU}[device]
    documents = [load(folder, "cells", f"{stage}.json") for stage in STAGE_NAMES
                 if there(folder, "cells", f"{stage}.json")]  # fmt: skip
    own = {(d["what"], e["name"]): e["median_ms"] for d in documents for e in d["candidates"]
           if e["status"] == "right" and e.get("median_ms")}  # fmt: skip
    suite = load(GPU, "course.json")
    course = {(r["stage"], r["variant"]): r["median_ms"] for r in suite["rows"] if "median_ms" in r}
    course = course if device == "cuda" else {}
    shown = [cell for cell in cells() if cell.device == device]

    def text(cell: Any) -> str:
        if cell.variant is None:
            return "refused (1)"
        key = cell.stage, cell.variant.full_name
        ms = (
            f"{own[key]:,.3f}" if key in own else f"{course[key]:,.3f} (2)" if key in course else ""
        )
        return " ".join(filter(None, (f"`{cell.name}`", "(3)" if cell.copies else "", ms)))

    rows = [[s, *(text(cell) for cell in shown if cell.stage == s)] for s in STAGE_NAMES]
    table = md(" | ".join(["stage", *FAMILIES]), rows)
    notes = [f"(1) {c.stage} by {c.family}: {c.refused}." for c in shown if c.refused is not None]
    if "(2)" in table:
        notes.append(f"(2) By `lenetgpu compare --suite course`: {where(suite)}.")
    if any(cell.copies for cell in shown):
        notes.append("(3) The CPU's variant, with copies around it.")
    caption = missing("cells").replace("Not measured", "Not measured cell by cell")
    if documents:
        counts = [
            len(e["samples_ms"]) for d in documents for e in d["candidates"] if "samples_ms" in e
        ]
        caption = f"{where(*documents)}; ms for {IMAGES:,} images. {how_sure(counts, *documents)}"
    return lines(caption, table, "\n".join(f"- {note}" for note in notes))


def linked(variant: Variant) -> str:
    """Return the variant's name linked to its launcher, with its kernel if there is one."""
    launcher = Path(inspect.getfile(inspect.unwrap(variant.run))).resolve()
    text = f"[`{variant.full_name}`](../{launcher.relative_to(SOURCES)})"
    kernel = launcher.with_suffix(".cu")
    if kernel.is_file() and variant.needs.device == "cuda":
        text += f" [.cu](../{kernel.relative_to(SOURCES)})"
    return text if variant.precision == "fp32" else f"{text}, {variant.precision}"


def _lenet(stage: str) -> Document:
    label = f"{stage}, {IMAGES:,} images"
    cases = load(GPU, "conv", "lenet.json")["cases"]
    return next(case for case in cases if case["label"] == label)


def ladder(stage: str, among: Among) -> str:
    """Return the GPU's convolutions of `stage`, slowest first, then those without a time."""
    case, suite = _lenet(stage), load(GPU, "course.json")
    conv = {e["name"]: e for e in case["candidates"]}
    course = {r["variant"]: r["median_ms"] for r in suite["rows"]
              if r["stage"] == stage and "median_ms" in r}  # fmt: skip
    timed: list[tuple[float, str, Variant | None]] = []
    untimed = []
    for variant in filter(among, variants("conv", "cuda")):
        entry = conv.get(variant.full_name, {})
        if entry.get("median_ms"):
            timed.append((entry["median_ms"], "conv", variant))
        elif variant.full_name in course:
            timed.append((course[variant.full_name], "course", variant))
        else:
            untimed.append(f"- {linked(variant)}: {entry.get('note') or 'in neither run'}")
    timed.append((conv[case["baseline"]]["median_ms"], "conv", None))
    timed.sort(key=lambda rung: -rung[0])
    naive = next(ms for ms, _, v in timed if v is not None and v.full_name == "direct.basic")
    rows: list[list[Any]] = []
    number = 0
    for ms, run, variant in timed:
        own = ["-", case["baseline"], "PyTorch's convolution, fp32 without TF32", None]
        if variant is not None:
            number += 1
            own = [str(number), linked(variant), variant.summary, variant.paper or None]
        rows.append([*own, f"{ms:,.3f}", run, f"{naive / ms:,.1f}x"])
    problem = next(s.problem for s in STAGES if s.name == stage)
    said = (
        f"{problem.C}x{problem.H}x{problem.W} to {problem.M}x{problem.OH}x{problem.OW} by "
        f"{problem.R}x{problem.S} filters, {IMAGES:,} images, "
        f"{problem.flop(IMAGES) / 1e9:.1f} GFLOP."
    )
    heads = "rung> | variant | what it does | source | ms> | run | over `direct.basic`>"
    rest = lines("Not on this ladder:", "\n".join(untimed)) if untimed else ""
    return lines(said, md(heads, rows), rest)


def ladder_runs() -> str:
    conv, course = load(GPU, "conv", "lenet.json"), load(GPU, "course.json")
    return (
        f"- `conv`: {where(conv)}; `lenetgpu conv --suite lenet`. {how_sure(rounds(conv), conv)}\n"
        f"- `course`: {where(course)}; `lenetgpu compare --suite course`, for the variants that "
        "the first run left out."
    )


def ladder_cpu(among: Among) -> str:
    return "\n".join(f"- {linked(v)}: {v.summary}" for v in filter(among, variants("conv", "cpu")))


def registered() -> list[Variant]:
    kinds = (*STAGE_KINDS, *SPAN_KINDS)
    return list(
        {(v.kind, v.full_name, v.needs.device): v for k in kinds for v in variants(k)}.values()
    )


def citing(text: Text, among: Among) -> dict[Citation, list[str]]:
    """Return the names of the variants that cite each part of `text`."""
    names_of: dict[Citation, list[str]] = {}
    for variant in filter(among, registered()):
        name = f"{variant.kind} `{variant.full_name}`"
        literal = cited(variant.paper or "", text, literal=True)
        for citation in cited(variant.paper or "", text):
            names = names_of.setdefault(citation, [])
            words = name if citation in literal else f"after it {name}"
            if words not in names:
                names.append(words)
    return names_of


def resolved(location: str) -> tuple[Path, str]:
    """Return the file of a location and what follows it."""
    path, mark, rest = location.partition("#" if "#" in location else ":")
    inside = ROOT / "lenetgpu" / path
    return (inside if inside.exists() else ROOT / path), mark + rest


def link(location: str) -> str:
    path, rest = resolved(location)
    shown = str(path.relative_to(ROOT)).removeprefix("lenetgpu/")
    if path.is_relative_to(ROOT / "docs"):
        return f"[{path.name}]({path.relative_to(ROOT / 'docs')}{rest})"
    return f"[{f'{shown}, {rest[1:]}' if rest else shown}](../{path.relative_to(ROOT)})"


def papers(among: Among) -> str:
    """Return each part of the four source texts and where it is reproduced, or why not."""
    parts = []

    def row(item: Item, names: list[str]) -> list[str | None]:
        linked = "; ".join([*names, *map(link, item.locations)])
        return [item.number, item.title, linked or None, item.why or None]

    for text in TEXTS:
        by = citing(text, among)
        parts += [f"## {text.name}", f"{text.title}."]
        for kind in KINDS:
            rows = [row(i, by.get((kind, i.number), [])) for i in text.items if i.kind == kind]
            if rows:
                parts.append(md(f"{kind} | what | where | not reproduced", rows))
    return lines(*parts)


def _right() -> str:
    rows = load(GPU, "peers.json")["rows"]
    return f"{next(r['correct'] for r in rows if r['maker'] == OURS and 'correct' in r):,}"


FIGURES_QUOTED: dict[str, Callable[[], str]] = {
    "course-total": lambda: f"{COURSE_MS:.0f} ms",
    "no-gain": lambda: f"{(SAME - 1) * 100:.0f} %",
    "mnist-right": _right,
}
_QUOTE = re.compile(r"<!-- figure:([\w-]+) -->(.*?)<!-- end -->", re.DOTALL)


def quoted(text: str) -> str:
    """Return `text` with every quoted figure replaced; raise KeyError for an unknown one."""
    return _QUOTE.sub(
        lambda match: f"<!-- figure:{match[1]} -->{FIGURES_QUOTED[match[1]]()}<!-- end -->", text
    )


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def contents(text: str) -> str:
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^(##+) (.+)$", text, flags=re.MULTILINE)
    return "\n".join(f"{'  ' * (len(m) - 2)}- [{w}](#{anchor(w)})" for m, w in headings)


def sections(among: Among = lambda variant: True) -> dict[str, dict[str, Callable[[], str]]]:
    """Return the generated parts of each page, limited to variants accepted by `among`."""
    pages: dict[str, dict[str, Callable[[], str]]] = {
        "README.md": {"infer": infer_output, "peers": front},
        "docs/measured.md": {
            "candidates": partial(everybody, GPUS[0]), "gpu": gpu_plans, "stages": stage_times,
            "cpu": partial(everybody, CPU), "course-steps": course_steps,
            "course-counted": course_counted, "conv": conv_overview,
            **{f"conv-{name}": partial(conv_suite, name) for name in SUITES
               if there(GPU, "conv", f"{name}.json")},
            "sanitize": sanitize,
        },
        "docs/scale.md": {"scale": scale},
        "docs/weights.md": {"weights": partial(weights, GPU), "weights-cpu": partial(weights, CPU)},
        "docs/matrix.md": {f"matrix-{d}": partial(matrix, d) for d in ("cuda", "cpu")},
        "docs/old-ideas.md": ideas.sections(),
        "docs/ladder.md": {
            "ladder-runs": ladder_runs, "ladder-conv2": partial(ladder, "conv2", among),
            "ladder-conv1": partial(ladder, "conv1", among),
            "ladder-cpu": partial(ladder_cpu, among),
        },
        "docs/convnet2.md": {
            "shares-parts": shares_parts, "shares-tiles": shares_tiles,
            "shares-instructions": shares_instructions, "convnet2-conditionals": conditionals,
        },
        "docs/convolutions.md": {
            "suites": suites, "which-algorithm": which_algorithm,
            "paper-variants": paper_variants, "departures": departures,
        },
        "docs/engines.md": engines.SECTIONS,
        "docs/papers.md": {"papers": partial(papers, among)},
    }  # fmt: skip
    if not there(GPUS[0], "peers.json"):
        del pages["README.md"]["peers"]
    return pages


def updated(page: str, text: str, named_only: bool = False) -> str:
    """Return the page with every part rewritten; `named_only` leaves out new variants."""
    among: Among = lambda v: not named_only or f"`{v.full_name}`" in text  # noqa: E731
    for name, make in sections(among)[page].items():
        text = filled(page, text, name, make())
    if "<!-- begin:contents -->" in text:
        text = filled(page, text, "contents", contents(text))
    return quoted(text)


@click.command()
@click.option("--check", is_flag=True, help="exit with 1 where a page is stale")
def main(check: bool) -> None:
    """Write the generated parts of README.md and docs/, and the figures quoted in their prose."""
    stale = []
    for page in sections():
        text = (ROOT / page).read_text()
        new = updated(page, text, named_only=check)
        if new != text:
            stale.append(page)
            if not check:
                (ROOT / page).write_text(new)
    for page in stale:
        click.echo(f"{page} is stale: run scripts/tables.py" if check else f"{page} written")
    sys.exit(bool(check and stale))


if __name__ == "__main__":
    main()
