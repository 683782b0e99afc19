"""The ideas of the four texts: their gain then, the source of today's gain, and its table."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import fmean, geometric_mean
from typing import Any

from measured import GPU, Document, how_sure, lines, load, md, there, where

from lenetgpu.papers import course_ladder
from lenetgpu.papers.convnet2 import STEPS
from lenetgpu.papers.course import (
    APART,
    FIGURES,
    HOST,
    LADDERS,
    MEAN,
    MERGED,
    RELU,
    RESIDENT,
    SERIAL_MEAN,
    SERIAL_RELU,
    STREAMS,
    streamed,
)
from lenetgpu.papers.shapes import SUITES

PEER = "torch cudnn"


@dataclass(frozen=True)
class Step:
    """Two alternatives for a stage of the course's suite, `before` and `after` by name.

    Several names on a side are consecutive stages; their times are added. `explains` names
    counters (counters.json) that give the reason; `described` uses the suite's description of
    `after`.
    """

    stage: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    then: float | None = None
    explains: tuple[str, ...] = ()
    described: bool = False


@dataclass(frozen=True)
class Rung:
    """A step of the cuda-convnet2 ladder, on every shape of its suite except the printed size."""

    step: str
    then: float | None = None


@dataclass(frozen=True)
class Over:
    """A kernel over another, or over the peer, on every shape of a suite where both ran."""

    suite: str
    before: str
    after: str
    then: float | None = None


@dataclass(frozen=True)
class Tile:
    """Two tiles of the cuda-convnet2 sweep, on every shape except the printed size.

    A tile is a figure of the paper, images and filters per thread, and cached pixels (None:
    most).
    """

    before: tuple[str, int, int, int | None]
    after: tuple[str, int, int, int | None]
    then: float | None = None


Case = Step | Rung | Over | Tile


@dataclass(frozen=True)
class Idea:
    """A row: section, description, measurement of today's gain, and the text's gain.

    `said` replaces a missing gain; `note` is a remark that no counter can make. `ours` marks a
    step that the text does not have; it gets no verdict.
    """

    section: str
    words: str
    cases: tuple[Case, ...]
    said: str = ""
    note: str = ""
    ours: bool = False


LOADS, STORES, SHARED, OCCUPANCY, READ, STALL = (
    "global_load_efficiency",
    "global_store_efficiency",
    "shared_efficiency",
    "occupancy",
    "dram_read_gbs",
    "top_stall",
)
_CONV = ("conv1", "conv2")
_LAST = {"conv1": "unrolled.constant_layout", "conv2": "unrolled.image_layout"}


def _then(stage: str, before: str, after: str) -> float | None:
    """Return the report's gain: of neighbours on a ladder, or of two of its figures."""
    for ladder, steps in LADDERS:
        for (first, old), (second, new) in pairwise(steps):
            if (ladder, first, second) == (stage, before, after):
                return old / new if old and new else None
    times = {f.variant: f.milliseconds for f in FIGURES if f.stage == stage}
    return times[before] / times[after] if before in times and after in times else None


def _step(stage: str, before: str, after: str, *explains: str) -> Step:
    return Step(stage, (before,), (after,), _then(stage, before, after), explains)


def _both(before: str, after: str, *explains: str) -> tuple[Step, ...]:
    return tuple(_step(stage, before, after, *explains) for stage in _CONV)


def _beyond(stage: str, after: str) -> Step:
    """Return the step from the report's last kernel of `stage`."""
    return Step(stage, (_LAST.get(stage, "tiled.relu_apart"),), (after,), None, (READ, STALL))


COURSE = (
    Idea("2.1.2", "no more threads than outputs", _both("direct.basic", "direct.tight", OCCUPANCY)),
    Idea("2.1.3", "inputs in shared memory, filters in constant memory",
         _both("direct.tight", "direct.shared_constant", LOADS, STALL)),
    Idea("2.1.4", "blocks of whole warps; four maps share an input",
         (_step("conv1", "direct.shared_constant", "direct.whole_warps", OCCUPANCY),
          _step("conv2", "direct.shared_constant", "direct.quadrants", OCCUPANCY, STALL),
          _step("conv2", "direct.shared_constant", "direct.two_maps", OCCUPANCY))),
    Idea("2.2.2", "tiles of the unrolled product in shared memory",
         (_step("conv1", "unrolled.image_naive", "unrolled.image_tiled", LOADS, STALL),)),
    Idea("2.2.2", "W' transposed as it is loaded",
         _both("unrolled.image_untransposed", "unrolled.image_tiled", LOADS, SHARED), "no figure"),
    Idea("2.2.3", "W' in constant memory",
         (_step("conv1", "unrolled.image_tiled", "unrolled.image_constant", SHARED, STALL),)),
    Idea("2.2.3", "constant memory rolled in parts where W' is too large",
         (Step("conv2", ("unrolled.tiled",), ("unrolled.constant",), None, (SHARED, STALL)),),
         "left unbuilt", "both a block a tile, ours"),
    Idea("2.2.4", "the layout of the pool after it",
         (_step("conv1", "unrolled.image_constant", "unrolled.constant_layout", STORES),
          _step("conv2", "unrolled.image_tiled", "unrolled.image_layout", LOADS, STORES))),
    Idea("2.2.6", "cuBLAS",
         (*(_beyond(s, "cublas.im2col") for s in _CONV), _beyond("fc1", "cublas.sgemm")),
         "could not be linked; 2x was expected"),
    Idea("2.3", "an unrolled product instead of a direct convolution",
         (_step("conv1", "direct.whole_warps", "unrolled.constant_layout", SHARED, STALL),
          Step("conv2", ("direct.quadrants",), ("unrolled.image_layout",), 670 / 180,
               (SHARED, STALL)))),
    Idea("2.4", "FFT", tuple(_beyond(stage, "fft.cufft") for stage in _CONV), "could not be run"),
    Idea("3.1", "two linear stages made one",
         tuple(Step(stage, (APART,), (MERGED,), described=True)
               for stage in ("pool1+conv2", "pool2+fc1")),
         "a thought"),
    Idea("3.1.1", "ReLU on the GPU", tuple(
        _step(stage, SERIAL_RELU, RELU) for stage in ("pool1", "pool2")),
         "", "serial: that machine's CPU"),
    Idea("3.2.1", "the mean on the GPU", tuple(
        _step(stage, SERIAL_MEAN, MEAN) for stage in ("pool1", "pool2")),
         "", "serial: that machine's CPU"),
    Idea("3.2.2", "ReLU inside the mean", tuple(
        Step(stage, (RELU, MEAN), ("fused.maps_looped",), described=True)
        for stage in ("pool1", "pool2")),
         "no figure", "the two kernels without the copy that keeps their input"),
    Idea("3.2.3", "the pool's input through shared memory", tuple(
        Step(stage, ("fused.relu_in_mean",), ("tiled.shared",), None, (LOADS, READ))
        for stage in ("pool1", "pool2")), "left for the layout", "both along the output, ours"),
    Idea("3.2.4", "the pool's layout", tuple(
        _step(stage, MEAN, "layout.quad_looped", LOADS, READ) for stage in ("pool1", "pool2"))),
    Idea("3.3.1", "argmax on the GPU", (_step("argmax", "serial.loops", "thread.wide_blocks"),),
         "", "serial: that machine's CPU"),
    Idea("3.3.2", "argmax by reduction: a list in shared memory, and by shuffles",
         tuple(Step("argmax", ("thread.per_image",), (name,), None, (OCCUPANCY, READ))
               for name in ("reduction.list", "reduction.shuffle")),
         "left unbuilt as too dear", "over a thread an image with as many blocks"),
    Idea("3.4", "what stages hand on stays on the GPU", (Step("all", (HOST,), (RESIDENT,)),),
         "no figure"),
    Idea("3.4.1", "convolution and pool in one kernel", (
        Step("conv1+pool1", ("conv1 unrolled.tiled", "pool1 fused.relu_in_mean"),
             ("block.unrolled",)),
        Step("conv2+pool2", ("conv2 unrolled.tiled", "pool2 fused.relu_in_mean"),
             ("block.unrolled",))), "left unbuilt", "all ours, a block a tile"),
    Idea("3.5", "streams", tuple(
        Step("all", (streamed(1, 1),), (streamed(*shape),)) for shape in STREAMS if shape[0] > 1),
         "a slight improvement"),
    Idea("3.6", "half precision", tuple(
        Step(stage, (name,), ("cublas.half",), None, (READ,))
        for stage, name in (("conv1", "cublas.im2col"), ("conv2", "cublas.im2col"),
                            ("fc1", "cublas.sgemm"))), "could not be run"),
)  # fmt: skip

_SAID = {"3.1.2": "", "3.2": "the engine was simulated; here mma.sync",
         "3.3": "the engine was simulated; here mma.sync",
         "4.3": "the paper's converter is one simulated instruction"}  # fmt: skip
_WORDS = {
    "3.1.2": "loops unrolled: sums in registers",
    "3.2": "an inner product engine",
    "3.3": "an outer product engine",
    "4.1": "strength reduction of indices",
    "4.2": "extracted conditionals",
    "4.3": "an index converter",
}


def _convnet2() -> Iterator[Idea]:
    chunks = Tile(("5", 1, 1, None), ("6", 1, 1, 16))
    yield Idea("2.2", "chunks of pixels instead of the whole filter", (chunks,), "no figure",
               "16 pixels of the filter at a time")  # fmt: skip
    several = Tile(("6", 1, 1, 4), ("7", 4, 4, 4))
    yield Idea("2.2", "several images and filters a thread", (several,), "no figure",
               "4 x 4, as Table 1 has them")  # fmt: skip
    for section, words in _WORDS.items():
        steps = [step for step in STEPS if step.section == section and step.before]
        cases = tuple(Rung(s.name, 1 / (1 - s.gain) if s.gain else None) for s in steps)
        gain = "" if any(case.then for case in cases) else "drawn, no number"
        yield Idea(section, words, cases, gain, _SAID.get(section, ""))


def _pascal() -> Iterator[Idea]:
    single, multi = (SUITES[name].claim for name in ("pascal-single", "pascal-multi"))
    assert single and multi
    yield Idea("3.1, 4", "one channel by P and Q, against cuDNN",
               (Over("pascal-single", PEER, "prefetch.single_strict", single[0]),))  # fmt: skip
    yield Idea("3.2, 4", "many channels by stride-fixed blocks, against cuDNN",
               (Over("pascal-multi", PEER, "prefetch.strict", multi[0]),))  # fmt: skip
    for section, words, before, after in (
        ("3.2", "S of 32 or 64 bytes instead of a filter's plane", "strict_plane", "strict"),
        ("3.2", "S of 32 or 64 bytes instead of 128", "strict_s128", "strict"),
        ("2.3", "division (e) instead of (b), the channels", "strict_channels", "strict"),
        ("2.3", "division (e) instead of (c), the filters", "strict_filters", "strict"),
        ("2.3", "division (e) instead of (d), the lines", "strict_maps", "strict"),
    ):
        case = Over("pascal-multi", f"prefetch.{before}", f"prefetch.{after}")
        yield Idea(section, words, (case,), "no figure")
    both = Over("pascal-single", "prefetch.single_strict", "prefetch.single_strict_both")
    yield Idea("3.1", "away from it: map and filters both divided", (both,), ours=True)
    for words, before, after in (
        ("away from it: copies past the registers", "strict", "strict_async"),
        ("and filters packed round by round", "strict_async", "strict_packed"),
        ("and a block for each tile", "strict_packed", "strict_spread"),
        ("and tiles too small for N_FMA", "strict_spread", "strict_filled"),
        (
            "ours after it: 2D tiles by a model, channels split, another kernel",
            "strict_filled",
            "stride_fixed",
        ),
    ):
        case = Over("pascal-multi", f"prefetch.{before}", f"prefetch.{after}")
        yield Idea("3.2", words, (case,), ours=True)


TEGRA = (
    Idea("performance", "direct convolution through textures, against cuDNN",
         (Over("overfeat", PEER, "texture.slides"),), "75 % of the peak, no library beside it"),
    Idea("workload distribution", "tiles of 5x8, a block a map",
         (Over("overfeat", "texture.direct", "texture.slides"),), "no figure",
         "over tiles and images a block by a model, ours"),
    Idea("data reuse: coefficients", "several maps a thread, warps that share the channels",
         (Over("overfeat", "texture.direct", "texture.split"),), ours=True),
)  # fmt: skip

TEXTS: tuple[tuple[str, tuple[Idea, ...]], ...] = (
    ("The course report", COURSE),
    ("cuda-convnet2", tuple(_convnet2())),
    ("Pascal", tuple(_pascal())),
    ("Tegra X1", TEGRA),
)


# --- what the files say of them: docs/old-ideas.md

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
    """Today's gain on each shape, a ratio of times, and its explanation."""

    ratios: tuple[float, ...]
    why: str

    @property
    def ratio(self) -> float:
        return geometric_mean(self.ratios)

    def _shapes(self, word: str) -> int:
        return sum(course_ladder.verdict(ratio) == word for ratio in self.ratios)

    @property
    def verdict(self) -> str:
        """Return the verdict of the mean, or BY_SHAPE if a quarter gain and a quarter lose."""
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
def _document(*parts: str) -> Document:
    return load(GPU, *parts) if there(GPU, *parts) else {"rows": [], "cases": []}


@cache
def _rows(file: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of course.json or counters.json by stage and variant."""
    return {(row["stage"], row["variant"]): row for row in _document(file)["rows"]}


def _course_ms(stage: str, name: str) -> float | None:
    """Return a row's time; `name` may begin with another stage."""
    own, _, rest = name.partition(" ")
    key = (own, rest) if own in ("conv1", "conv2", "pool1", "pool2") and rest else (stage, name)
    row = _rows("course.json").get(key, {})
    return row.get("median_ms") if row.get("status") == "right" else None


def _counted(stage: str, name: str, key: str) -> str | None:
    row = _rows("counters.json").get((stage, name), {})
    if key == STALL:
        cause, share = row.get("top_stall"), row.get("top_stall_share")
        return f"{cause} {100 * share:.0f} %" if cause and share is not None else None
    value = row.get(key)
    if value is None:
        return None
    return _NAMES[key][1].format(100 * value if key in _SHARES else value)


def _step_why(step: Step) -> str:
    names = step.before[-1], step.after[-1]
    changes = []
    for key in step.explains:
        old, new = (_counted(step.stage, name, key) for name in names)
        if old and new:
            changes.append(f"{'stalled by' if key == STALL else _NAMES[key][0]} {old} -> {new}")
    if changes:
        return ", ".join(changes)
    rows = (_rows("course.json").get((step.stage, name), {}) for name in names)
    old, new = ((row.get("explanation") or "").split(", ") for row in rows)
    if step.described:
        return ", ".join(new) or "-"
    sides = ([clause for clause in clauses if clause not in other]
             for clauses, other in ((old, new), (new, old)))  # fmt: skip
    return " -> ".join(filter(None, map(", ".join, sides))) or "-"


Pair = tuple[float, dict[str, Any], dict[str, Any]]


def _pairs(case: Rung | Over | Tile) -> Iterator[Pair]:
    """Yield the ratio of times and both rows for every shape except the printed size."""
    files = {Rung: ("conv", "convnet2.json"), Tile: ("shares.json",)}
    parts = ("ablation", f"{case.suite}.json") if isinstance(case, Over) else files[type(case)]
    for document_case in _document(*parts)["cases"]:
        if isinstance(case, Over):
            rows = {entry["name"]: entry for entry in document_case["candidates"]}
            old, new = rows.get(case.before, {}), rows.get(case.after, {})
            if old.get("median_ms") and new.get("median_ms"):
                yield old["median_ms"] / new["median_ms"], old, new
        elif "as printed" in document_case["label"]:
            continue
        elif isinstance(case, Rung):
            rows = {row["step"]: row for row in document_case.get("ladder", ())}
            row = rows.get(case.step, {})
            if row.get("ratio"):
                yield row["ratio"], rows[row["before"]], row
        else:
            old, new = (_swept(document_case["tiles"], tile) for tile in (case.before, case.after))
            if old and new:
                yield old["median_us"] / new["median_us"], old, new


_CHANGES: dict[type, tuple[str, ...]] = {
    Rung: ("local_bytes", "registers", "instructions"),
    Over: ("roofline",),
    Tile: ("shared_bytes", "registers", "blocks"),
}


def _changes(case: Rung | Over | Tile, pairs: list[Pair]) -> str:
    """Return what else changed between both sides, averaged over the shapes."""
    changes = []
    for key in _CHANGES[type(case)]:
        sides = [[p[side][key] for p in pairs if p[side].get(key) is not None] for side in (1, 2)]
        if all(sides) and sides[0] != sides[1]:
            form = "{:.0%} -> {:.0%}" if key == "roofline" else "{:,.0f} -> {:,.0f}"
            name = "of the roof" if key == "roofline" else key.replace("_", " ")
            changes.append(f"{name} {form.format(*map(fmean, sides))}")
    return ", ".join(changes) or "-"


def _swept(tiles: list[dict[str, Any]], tile: tuple[str, int, int, int | None]) -> dict[str, Any]:
    """Return the requested tile if it was right ({} if none); None selects the most pixels."""
    named = ("figure", "images_per_thread", "filters_per_thread")
    tiles_right = [
        row
        for row in tiles
        if tuple(row[name] for name in named) == tile[:3]
        and tile[3] in (None, row["cached_pixels"])
        and row["status"] == "right"
    ]
    return max(tiles_right, key=lambda row: row["cached_pixels"], default={})


def gain(case: Case) -> Gain | None:
    """Return today's gain of a case, or None if no file has both sides."""
    if not isinstance(case, Step):
        pairs = list(_pairs(case))
        return Gain(tuple(ratio for ratio, *_ in pairs), _changes(case, pairs)) if pairs else None
    before, after = (
        [_course_ms(case.stage, n) for n in side] for side in (case.before, case.after)
    )
    if None in before or None in after:
        return None
    return Gain((sum(before) / sum(after),), _step_why(case))  # type: ignore[arg-type]


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
    gains = [(case, gain(case)) for case in idea.cases]
    words = [today.verdict if today else OPEN for _, today in gains]
    if len(set(words)) == 1:
        return words[0]
    labels = (_label(case, idea).rstrip(": ") for case in idea.cases)
    return ", ".join(f"{label} {word}" for label, word in zip(labels, words, strict=True))


def row(idea: Idea) -> tuple[str, ...]:
    labels = {case: _label(case, idea) for case in idea.cases}
    then = [f"{label}{_times(case.then)}" for case, label in labels.items() if case.then]
    seen = {case: gain(case) for case in idea.cases}
    today = (f"{labels[case]}{found or OPEN}" for case, found in seen.items())
    why = dict.fromkeys(f"{labels[case]}{found.why}" for case, found in seen.items() if found)
    return (
        idea.section, idea.words,
        "; ".join(then) or ("ours" if idea.ours else idea.said or "no figure"),
        "; ".join(today), "; ".join([*why, *filter(None, [idea.note])]) or "-", verdict(idea),
    )  # fmt: skip


def _documents(ideas: Iterable[Idea]) -> Iterator[Document]:
    cases = [case for idea in ideas for case in idea.cases]
    kinds = {type(case) for case in cases}
    wanted = [("course.json",), ("counters.json",)] if Step in kinds else []
    wanted += [("conv", "convnet2.json")] if Rung in kinds else []
    wanted += [("shares.json",)] if Tile in kinds else []
    suites = sorted({case.suite for case in cases if isinstance(case, Over)})
    for parts in (*wanted, *(("ablation", f"{suite}.json") for suite in suites)):
        if there(GPU, *parts):
            yield _document(*parts)


def table(ideas: tuple[Idea, ...]) -> str:
    """Return a table with a row per idea of one text."""
    every = list(_documents(ideas))
    if not every:
        return "Not measured yet: `python scripts/measure.py --only course,conv,ablation`."
    timed = [one for one in every if one["command"] == "compare"]
    counts = [len(r["samples_ms"]) for one in timed for r in one["rows"] if "samples_ms" in r]
    swept = [one for one in every if one.get("suite") in {o.suite for i in ideas for o in i.cases
             if isinstance(o, Over)}]  # fmt: skip
    counts += [case["rounds"] for one in swept for case in one["cases"] if "rounds" in case]
    heads = "section | idea | gain then | gain today | what explains it | verdict"
    return lines(f"{where(*every)}. {how_sure(counts, *every)}", md(heads, map(row, ideas)))


def summary() -> str:
    rows = []
    for title, ideas in TEXTS:
        words = [verdict(idea) for idea in ideas if not idea.ours]
        counts = [words.count(word) for word in ("holds", "gone", "turned")]
        rows.append([title, len(words), *counts, len(words) - sum(counts)])
    return md("text | ideas> | hold> | gone> | turned> | by the stage or shape>", rows)


def sections() -> dict[str, Callable[[], str]]:
    """Return the parts of docs/old-ideas.md: the summary, and a table a text."""
    names = {title: f"ideas-{title.lower().replace(' ', '-')}" for title, _ in TEXTS}
    return {"ideas": summary} | {names[title]: partial(table, ideas) for title, ideas in TEXTS}
