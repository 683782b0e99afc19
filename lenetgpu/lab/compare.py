"""`lenetgpu compare`: load the data, compare candidates, and draw and print the results."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.reference import Reference, network_reference
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.dispatch import candidates as dispatch
from lenetgpu.dispatch.candidates import PLANS
from lenetgpu.errors import LenetError, choose, unexpected
from lenetgpu.files import assets
from lenetgpu.files.reading import check_memory
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab import charts, counters
from lenetgpu.lab.documents import load_earlier
from lenetgpu.lab.tables import Part, Table, from_file, status_word
from lenetgpu.measure import plugins
from lenetgpu.measure.bench import PlanBench, stage_of
from lenetgpu.measure.counters.child import Images
from lenetgpu.measure.counters.document import require_gpu
from lenetgpu.measure.document import ceilings_json, comparison_json, device_json, head, stage_rows
from lenetgpu.measure.power import WATCHED_S, watch_all
from lenetgpu.measure.regression import check_earlier, regressions
from lenetgpu.measure.roofline import Ceilings, ceilings
from lenetgpu.measure.rounds import LEAST_ROUNDS, Comparison, Effort, Say, compare
from lenetgpu.measure.statistics import LEAST, MARGIN, SINGLE, SYSTEMATIC
from lenetgpu.measure.timing import profile
from lenetgpu.papers.course import IMAGES, layout_rows
from lenetgpu.papers.course_counters import counted_rows
from lenetgpu.papers.course_ladder import NAMES, CourseRun, step_rows
from lenetgpu.plan import choose_device

_LONGEST_S = 1e9  # upper limit on time options in seconds, so that sums and shares stay finite
INTERRUPTED = "interrupted: the results are incomplete"

COMPARED, COURSE = from_file("compared"), from_file("course")
LAYOUTS, COUNTED, STEPS = map(from_file, ("course layouts", "course counted", "course steps"))


def judged(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a candidate as a row: status in words, ratio's median and ends, all notes joined."""
    ratio = entry.get("ratio") or {}
    few, images = entry.get("scaled_from") or 0, entry.get("images") or 0
    scaled = f"scaled from {few} images" if 0 < few < images else None
    note = "; ".join(filter(None, [entry.get("note"), scaled, *(entry.get("warnings") or ())]))
    return {
        **entry,
        "check": status_word(entry),
        "ratio": ratio.get("median"),
        "low": ratio.get("low"),
        "high": ratio.get("high"),
        "note": note or None,
    }


def legend(baseline: str, rounds: int) -> str:
    """Return an explanation of a comparison's ratios, intervals and verdicts."""
    if rounds < LEAST:
        return f"ratio: time divided by that of {baseline}; a single sample may be {SINGLE:.0%} off"
    return f"ratio: time divided by that of {baseline}; single samples may be off by {SINGLE:.0%}"
    return (
        f"ratio: time divided by that of {baseline} in the same round; median of {rounds:,} "
        "rounds, not the ratio of the medians. low to high: interval that contains the ratio of a "
        f"second run 19 times out of 20, widened by {SYSTEMATIC:.0%} on each side for differences "
        f"between processes. same: the interval lies within {MARGIN:.0%} of 1. undecided: it "
        f"contains 1 but extends further. Fewer than {LEAST} samples may be off by {SINGLE:.0%}."
    )


def fastest_first(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the candidates in order of time; those without a time come last."""
    return sorted(entries, key=lambda entry: entry.get("median_ms") or inf)


def compared_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the document's candidates and the baseline's second run, fastest first."""
    again = [document["baseline_again"]] if document["baseline_again"] else []
    rows = [judged(entry) for entry in fastest_first([*document["candidates"], *again])]
    for row in rows:
        if row["status"] == "wrong":
            where = f"first bad stage {row['first_bad_stage']}, tolerance {row['tolerance']:.0e}"
            row["note"] = "; ".join(filter(None, [row["note"], where]))
    return rows


def _course_rows(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    shown = []
    for row in rows:
        ms, least = row.get("report_ms"), ">" if row.get("at_least") else ""
        figure = None if ms is None else f"{least}{ms:,.2f}"
        shown.append(row | {"check": status_word(row), "report": figure})
    return shown


def table(document: Mapping[str, Any]) -> Table:
    """Return the document's rows as one table, including their counters if they were collected."""
    more = counters.nested(document.get("counters"))
    if "rows" in document:
        return Table([*COURSE, *more], _course_rows(document["rows"]))
    return Table([*COMPARED, *more], compared_rows(document))


def parts(document: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the tables and notes of a comparison or a suite."""
    if "rows" in document:
        yield from _suite_parts(document)
    else:
        cache = "cold L2" if document["cold_l2"] else "warm L2"
        about = f"{document['images']:,} images, {document['device']['name']}, {cache}"
        yield Table(COMPARED, compared_rows(document), f"{document['what']}, {about}", below="note")
        if document["rounds"]:
            yield legend(document["baseline"], document["rounds"])
        yield from counters.of_entries(document, document["candidates"])
    if document["interrupted"]:
        yield INTERRUPTED


def _suite_parts(document: Mapping[str, Any]) -> Iterator[Part]:
    title = f"suite course, {document['images']:,} images, {document['device']['name']}"
    yield Table(COURSE, _course_rows(document["rows"]), title)
    rows, n = document["rows"], document["images"]
    if n != IMAGES:
        yield (
            f"The course timed {IMAGES:,} images, this run {n:,}. Times are not proportional to "
            f"the number of images, so course/here is not given; --batch {IMAGES} gives it."
        )
    if absent := sum(row["status"] == "absent" for row in rows):
        yield f"{absent} of {len(rows)} rows are absent: they need a GPU."
    if document["ladder"]:
        title = "the course's ladder: time of the previous step divided by time of this step"
        yield Table(STEPS, document["ladder"], title)
    yield Table(LAYOUTS, document["layouts"], "table 10: activation shapes")
    title = "global memory efficiency: NVVP (figures 4 to 6) and counted from addresses"
    yield Table(COUNTED, document["counted"], title)
    yield from counters.of_entries(document, rows)


@dataclass(frozen=True)
class Asked:
    """Options common to `compare` and `conv`."""

    device: str = "auto"
    baseline: str | None = None
    seconds: float = 20.0
    only: str | None = None
    rounds: int | None = None
    warmup: int | None = None
    watch: float = WATCHED_S
    cold_l2: bool = False
    plot: Path | None = None
    regression: float | None = None
    against: Path | None = None
    plugins: tuple[Path, ...] = ()
    checks: float = inf

    @property
    def effort(self) -> Effort:
        """The time limits of the checks and the rounds, in seconds."""
        return Effort(self.seconds, self.rounds, self.warmup, checks=self.checks)

    def check(self) -> None:
        """Raise LenetError if an option is out of range or --against or a plot is not possible."""
        most = f"{_LONGEST_S:g} s"
        if not 0 <= self.watch <= _LONGEST_S:
            raise unexpected("--watch", f"a finite time from 0 to {most}", f"{self.watch:g}")
        if not 0 < self.seconds <= _LONGEST_S:
            limits = f"above 0 and up to {most}"
            raise unexpected("--seconds", f"a finite time {limits}", f"{self.seconds:g}")
        if self.rounds is not None and self.rounds < LEAST_ROUNDS:
            raise LenetError(f"--rounds: expected at least {LEAST_ROUNDS}, found {self.rounds}")
        if self.warmup is not None and self.warmup < 0:
            raise LenetError(f"--warmup: expected at least 0 runs, found {self.warmup}")
        percent = self.regression
        if percent is not None and not 0 <= percent < inf:
            raise LenetError(f"--fail-on-regression: expected a percentage from 0, found {percent}")
        if (percent is None) != (self.against is None):
            raise LenetError("--fail-on-regression PCT and --against FILE: give both or neither")
        if self.plot is not None:
            charts.check_plot(self.plot)


@dataclass(frozen=True)
class CompareRequest(Asked):
    """The options of `lenetgpu compare`."""

    what: str | None = None
    suite: str | None = None
    data: Path | None = None
    weights: Path | None = None
    batch: int = 10_000
    counters: bool = False

    @property
    def counted(self) -> Images:
        """The images, weights and batch that counters are collected with."""
        weights = self.weights or assets.default_weights()
        return Images(self.data or assets.default_digits(), weights, self.batch)


@dataclass
class CompareOutcome:
    """The JSON document and the findings that decide the exit code."""

    document: dict[str, Any]
    wrong: list[str]
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    draw: Callable[[], None] = lambda: None

    def sentences(self) -> list[str]:
        """Return the notes, and a line per wrong and per slower candidate."""
        wrong = [f"WRONG: {name}" for name in self.wrong]
        return self.notes + wrong + [f"slower: {line}" for line in self.lost]

    @property
    def failed(self) -> bool:
        """True if the exit code is 1."""
        return bool(self.wrong or self.lost)


class RegressionCheck:
    """Comparison with an earlier run, whose file is read before anything runs."""

    def __init__(self, request: Asked, command: str, what: str | None) -> None:
        self.request = request
        if request.against is not None:
            self.earlier = load_earlier(request.against, command, what)

    def check(self, now: dict[str, Any]) -> None:
        """Raise LenetError unless the earlier file has the settings `now`."""
        if self.request.against is not None:
            check_earlier(self.earlier, str(self.request.against), now)

    def end(self, document: dict[str, Any], notes: list[str], left_out: list[str]) -> list[str]:
        """Return a sentence per regression, including `left_out`; append a summary to `notes`."""
        percent = self.request.regression
        if self.request.against is None or percent is None:
            return []
        some = self.request.only is not None
        lost = regressions(document, self.earlier, percent, some) + left_out
        if document["interrupted"]:
            lost.append("interrupted before every candidate was compared")
        parts = self.earlier.get("cases", [self.earlier])
        timed = sum("median_ms" in entry for part in parts for entry in part["candidates"])
        result = f"{len(lost)} failed" if lost else f"none is more than {percent:g} % slower"
        date = self.earlier.get("date", "an undated file")
        about = f"compared with {timed} timed candidates of {date}"
        notes.append(f"regression check: {about}, {result}")
        return lost


@dataclass(frozen=True)
class _Setting:
    gpu: Gpu | None
    images: Any
    facts: Reference
    limits: Ceilings

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else "cuda"


def open_device(wanted: str, say: Say) -> tuple[Gpu | None, Ceilings]:
    """Make the device named by `wanted` current; return it with its ceilings."""
    gpu, _ = choose_device(wanted)
    if gpu is not None:
        gpu_device.activate(gpu)
    say("ceilings of the device")
    return gpu, ceilings("cpu" if gpu is None else "cuda", gpu.name if gpu else cpu_name())


def _setting(request: CompareRequest, say: Say) -> _Setting:
    gpu, limits = open_device(request.device, say)
    weights = load_weights(request.weights or assets.default_weights())
    images = load_dataset(request.data or assets.default_digits()).images
    needed = request.batch * (images.nbytes // len(images))
    if gpu is None and request.what not in (None, PLANS):
        needed += stage_of(request.what).problem.bytes(request.batch)
    check_memory(f"--batch {request.batch}", needed, None)
    images = np.resize(images, (request.batch, *images.shape[1:]))  # repeated if necessary
    say("float64 reference")
    return _Setting(gpu, images, network_reference(images, weights), limits)


def _check_request(request: CompareRequest) -> None:
    if (request.what is None) == (request.suite is None):
        raise LenetError(f"compare: give one of a stage, the word {PLANS} or --suite NAME")
    if request.suite is not None and request.suite not in NAMES:
        known = choose(request.suite, NAMES[:1])
        raise LenetError(f"suite {request.suite!r} does not exist; {known}")
    if request.batch < 1:
        raise LenetError(f"--batch: expected at least 1 image, found {request.batch}")
    request.check()
    if request.cold_l2 and request.what == PLANS:
        raise LenetError("--cold-l2: expected a stage; the data of a plan exceed the L2 cache")
    if request.what == PLANS and request.baseline is not None:
        gpu, _ = choose_device(request.device)
        dispatch.check_plan_baseline(request.baseline, "cpu" if gpu is None else "cuda")
    names = ("baseline", "cold_l2", "against", "only", "rounds", "warmup", "seconds", "watch")
    options = {name: f"--{name.replace('_', '-')}" for name in names}
    options["regression"] = "--fail-on-regression"
    usual = vars(CompareRequest())
    given = [option for name, option in options.items() if vars(request)[name] != usual[name]]
    if request.suite is not None and given:
        known = ", ".join(options.values())
        raise LenetError(f"--suite: cannot be combined with {known}; found {given[0]}")
    if request.counters and request.what == PLANS:
        raise LenetError(
            f"--counters: expected a stage, a span or --suite to compare, found {PLANS}; "
            "`lenetgpu profile --counters --plan NAME` has a plan's"
        )
    if request.counters:
        require_gpu(*choose_device(request.device))
    if request.plugins and (request.suite is not None or request.what == PLANS):
        found = PLANS if request.suite is None else f"--suite {request.suite}"
        raise LenetError(f"--with: expected a stage or a span to compare, found {found}")


def run_compare(request: CompareRequest, say: Say) -> CompareOutcome:
    """Compare a stage's variants, the plans, or the report's figures; LenetError for bad input."""
    _check_request(request)
    loaded = plugins.Plugins(request.plugins, choose_device(request.device)[0])
    regression, what = RegressionCheck(request, "compare", request.what), request.what
    if what is None:
        return _run_suite(request, say)
    dispatch.check_comparable(what)
    own, notes = loaded.of_kind(stage_of(what).kind) if loaded.found else ([], [])
    setting = _setting(request, say)
    device, gpu, facts, count = setting.device, setting.gpu, setting.facts, len(setting.images)
    if gpu is None and request.cold_l2:
        raise LenetError("--cold-l2: expected a GPU, found device cpu")
    if what == PLANS:
        images = setting.images
        candidates = dispatch.plan_candidates(device, images, facts, facts.weights, gpu, say)
    else:
        candidates = dispatch.stage_candidates(what, device, count, facts, gpu)
    if own:
        work = plugins.Work(stage_of(what).problem, count, setting.limits, what, facts)
        candidates += [loaded.candidate(one, work) for one in own]
    baseline = dispatch.default_baseline(what, device, candidates)
    if mine := plugins.named(own, request.baseline):
        baseline = mine
    elif request.baseline is not None:
        baseline = dispatch.resolve_baseline(what, device, request.baseline, candidates)
    if request.only is not None:
        always = {baseline, *(one.full_name for one in own)}
        candidates = dispatch.only(request.only, candidates, always)
    now = {"device": device_json(gpu)["name"], "baseline": baseline}
    regression.check(now | {"images": count, "cold_l2": request.cold_l2})
    comparison = compare(what, candidates, baseline, request.effort, request.cold_l2, say=say)
    watch_all(comparison, gpu, request.watch, say)
    document = comparison_json(comparison, gpu, setting.limits) | {"images": count}
    if request.counters and gpu is not None:
        counters.count_candidates(comparison, document, request.counted, gpu, say)
    lost = regression.end(document, notes, [])
    wrong = [f"{c.name}, {c.note}" if c.note else c.name for c in comparison.wrong]
    draw = partial(_plot, request.plot, comparison, document, setting.limits)
    return CompareOutcome(document, wrong, lost, notes=notes, draw=draw)


def _plot(
    path: Path | None, comparison: Comparison, document: dict[str, Any], limits: Ceilings
) -> None:
    if path is None:
        return
    about = f"{document['images']:,} images, {document['device']['name']}, {document['date']}"
    title = f"{comparison.what}, {about}"
    if comparison.what != PLANS:
        drawn = charts.candidates(document["candidates"], ceilings_json(limits))
        charts.save(path, title, {"": drawn})
        return
    plans = {}
    for candidate in comparison.candidates:
        bench = candidate.bench
        if isinstance(bench, PlanBench) and candidate.samples:
            few = bench.scaled_from
            timings = profile(bench.pipeline, bench.input[:few], 5)
            plans[candidate.name] = stage_rows(timings, few, None)
    if plans:
        times = {entry["name"]: entry.get("median_ms") for entry in document["candidates"]}
        charts.save(path, title, {"": charts.plan_bars(plans, times)})


def _run_suite(request: CompareRequest, say: Say) -> CompareOutcome:
    setting = _setting(request, say)
    run = CourseRun(setting.device, setting.images, setting.facts, setting.limits, say)
    run.run()
    document = head("compare", setting.gpu) | {
        "what": f"suite {NAMES[0]}",
        "images": len(setting.images),
        "ceilings": ceilings_json(setting.limits),
        "interrupted": run.interrupted,
        "rows": run.rows,
        "layouts": layout_rows(),
        "counted": counted_rows(),
    }
    if request.counters and setting.gpu is not None:
        counters.count_suite(document, request.counted, setting.gpu, say)
    document["ladder"] = step_rows(run.rows)

    def draw() -> None:
        if request.plot is not None:
            about = f"{len(setting.images):,} images, {document['device']['name']}"
            title = f"the course's variants, {about}, {document['date']}"
            charts.save(request.plot, title, charts.ladder(run.rows))

    wrong = [f"{r['stage']} {r['variant']}" for r in run.rows if r["status"] == "wrong"]
    return CompareOutcome(document, list(dict.fromkeys(wrong)), draw=draw)
