"""The compare command: what is loaded, compared and drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from lenetgpu.cpu.threads import cpu_name
from lenetgpu.dispatch.candidates import (
    PLANS,
    check_comparable,
    check_plan_reference,
    default_reference,
    only,
    plan_candidates,
    resolve_reference,
    stage_candidates,
    tried,
)
from lenetgpu.errors import LenetError, choose
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.reading import require_room
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.asked import check_effort, check_gate, gate_note, guests
from lenetgpu.lab.counted import check_counted, count_candidates, count_suite
from lenetgpu.lab.earlier import load_earlier
from lenetgpu.lab.show import plots
from lenetgpu.measure.bench import stage_of
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.counters.document import require_gpu
from lenetgpu.measure.counters.work import Images
from lenetgpu.measure.document import (
    ceilings_json,
    comparison_json,
    device_json,
    head,
    stage_rows,
)
from lenetgpu.measure.guests import cannot_run, of_kind
from lenetgpu.measure.plan_bench import PlanBench
from lenetgpu.measure.power import WATCHED_S, watch_all
from lenetgpu.measure.regression import check_earlier, regressions
from lenetgpu.measure.roofline import Ceilings, ceilings
from lenetgpu.measure.rounds import Effort, Say, compare
from lenetgpu.measure.sampling.facts import Truth, truth
from lenetgpu.measure.timing import profile
from lenetgpu.net.device import choose_device
from lenetgpu.papers.course_counted import counted_rows
from lenetgpu.papers.course_ladder import NAMES, CourseRun, step_rows
from lenetgpu.papers.course_layouts import layout_rows
from lenetgpu.stages import Variant


@dataclass(frozen=True)
class CompareRequest:
    """What `lenetgpu compare` was asked for."""

    what: str | None = None
    suite: str | None = None
    data: Path | None = None
    weights: Path | None = None
    batch: int = 10_000
    device: str = "auto"
    reference: str | None = None
    seconds: float = 20.0
    only: str | None = None
    rounds: int | None = None
    warmup: int | None = None
    watch: float = WATCHED_S
    cold_l2: bool = False
    counters: bool = False
    plot: Path | None = None
    regression: float | None = None
    against: Path | None = None
    outside: tuple[Path, ...] = ()
    checks: float = inf

    @property
    def effort(self) -> Effort:
        """What the checks and the rounds may take, in seconds."""
        return Effort(self.seconds, self.rounds, self.warmup, checks=self.checks)

    @property
    def counted(self) -> Images:
        """What counters are taken with."""
        return Images(
            self.data or assets.default_digits(), self.weights or assets.default_weights(),
            self.batch,
        )  # fmt: skip


@dataclass
class CompareOutcome:
    """The JSON document and what decides the exit code."""

    document: dict[str, Any]
    wrong: list[str]
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    draw: Callable[[], None] = lambda: None

    def sentences(self) -> list[str]:
        """What was left out, is wrong or lost, a line each."""
        wrong = [f"WRONG: {name}" for name in self.wrong]
        return self.notes + wrong + [f"slower: {line}" for line in self.lost]

    @property
    def failed(self) -> bool:
        """Whether the exit code is 1."""
        return bool(self.wrong or self.lost)


@dataclass(frozen=True)
class _Setting:
    gpu: Gpu | None
    images: Any
    facts: Truth
    limits: Ceilings

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else "cuda"


def open_device(wanted: str, say: Say) -> tuple[Gpu | None, Ceilings]:
    """The device that `wanted` names, current from now on, and what it can do at most."""
    gpu, _ = choose_device(wanted)
    if gpu is not None:
        gpu_device.activate(gpu)
    say("ceilings of the device")
    return gpu, ceilings("cpu" if gpu is None else "cuda", gpu.name if gpu else cpu_name())


def _setting(request: CompareRequest, say: Say) -> _Setting:
    import numpy as np

    gpu, limits = open_device(request.device, say)
    weights = load_weights(request.weights or assets.default_weights())
    images = load_dataset(request.data or assets.default_digits()).images
    _require_room(request, images.nbytes // len(images), gpu is None)
    repeats = -(-request.batch // len(images))
    images = np.concatenate([images] * repeats)[: request.batch] if repeats > 1 else images
    images = np.ascontiguousarray(images[: request.batch])
    say("float64 reference")
    facts = truth(images, weights)
    return _Setting(gpu, images, facts, limits)


def _require_room(request: CompareRequest, image_bytes: int, on_cpu: bool) -> None:
    """LenetError where the host's memory lacks for the images, or on a CPU for a stage's."""
    needed = request.batch * image_bytes
    if on_cpu and request.what not in (None, PLANS):
        needed += stage_of(request.what).problem.bytes(request.batch)
    require_room(f"--batch {request.batch}", needed, None)


def _check_request(request: CompareRequest) -> None:
    if (request.what is None) == (request.suite is None):
        raise LenetError(f"compare: expected a stage, {PLANS} or --suite NAME, and one of them")
    if request.suite is not None and request.suite not in NAMES:
        known = choose(request.suite, NAMES[:1])
        raise LenetError(f"suite {request.suite!r} does not exist; {known}")
    if request.batch < 1:
        raise LenetError(f"--batch: expected at least 1 image, found {request.batch}")
    check_effort(request.effort, request.watch)
    if request.cold_l2 and request.what == PLANS:
        raise LenetError("--cold-l2: expected a stage; plans pass more than the L2 cache holds")
    if request.what == PLANS and request.reference is not None:
        gpu, _ = choose_device(request.device)
        check_plan_reference(request.reference, "cpu" if gpu is None else "cuda")
    plain = CompareRequest()
    alone = {name: f"--{name.replace('_', '-')}" for name in ("reference", "cold_l2", "against",
             "only", "rounds", "warmup", "seconds", "watch")}  # fmt: skip
    alone["regression"] = "--fail-on-regression"
    given = [word for name, word in alone.items() if getattr(request, name) != getattr(plain, name)]
    if request.suite is not None and given:
        raise LenetError(f"--suite: expected none of {', '.join(alone.values())}, found {given[0]}")
    check_gate(request.regression, request.against)
    if request.counters:
        check_counted(request.what)
        require_gpu(*choose_device(request.device))
    if request.outside and (request.suite is not None or request.what == PLANS):
        found = PLANS if request.suite is None else f"--suite {request.suite}"
        raise LenetError(f"--with: expected a stage or a span to compare, found {found}")
    if request.plot is not None:
        plots.check_plot(request.plot)


def run_compare(request: CompareRequest, say: Say) -> CompareOutcome:
    """Compare a stage's variants, the plans, or the report's figures; LenetError for bad input."""
    _check_request(request)
    with guests(request.outside, request.device) as found:
        return _run(request, found, say)


def _candidates(
    request: CompareRequest, setting: _Setting, own: list[Variant], say: Say
) -> list[Candidate]:
    """What is compared: the plans, or the stage's variants, `own` from outside among them."""
    what = request.what or PLANS
    if what == PLANS:
        return plan_candidates(
            setting.device, setting.images, setting.facts, setting.facts.weights,
            setting.gpu, say,
        )  # fmt: skip
    found = stage_candidates(what, setting.device, len(setting.images), setting.facts, setting.gpu)
    problem = stage_of(what).problem
    stopped = cannot_run(
        own, setting.gpu, len(setting.images), lambda variant: variant.laid_out(problem)
    )
    return [c for c in found if c.name not in stopped] + [*stopped.values()]


def _run(request: CompareRequest, found: list[Variant], say: Say) -> CompareOutcome:
    """`run_compare` with the variants that were `found` outside."""
    earlier = None
    if request.against is not None:
        earlier = load_earlier(request.against, "compare", request.what)
    if request.suite is not None:
        return _run_suite(request, say)
    assert request.what is not None
    check_comparable(request.what)
    own, notes = of_kind(found, stage_of(request.what).kind) if found else ([], [])
    setting = _setting(request, say)
    if setting.gpu is None and request.cold_l2:
        raise LenetError("--cold-l2: expected a GPU, found device cpu")
    candidates = _candidates(request, setting, own, say)
    reference = default_reference(request.what, setting.device, candidates)
    if request.reference is not None:
        reference = resolve_reference(request.what, setting.device, request.reference, candidates)
    if request.only is not None:
        always = {reference, *(variant.full_name for variant in own)}
        candidates = only(request.only, candidates, always)
    else:
        candidates = tried(candidates)
    if earlier is not None:
        now = {
            "device": device_json(setting.gpu)["name"],
            "reference": reference,
            "images": len(setting.images),
            "cold_l2": request.cold_l2,
        }
        check_earlier(earlier, str(request.against), now)
    comparison = compare(
        request.what, candidates, reference, request.effort, request.cold_l2, say=say
    )
    watch_all(comparison, setting.gpu, request.watch, say)
    document = comparison_json(comparison, setting.gpu, setting.limits)
    document["images"] = len(setting.images)
    if request.counters and setting.gpu is not None:
        count_candidates(comparison, document, request.counted, setting.gpu, own, say)
    lost = []
    if earlier is not None and request.regression is not None:
        lost = regressions(document, earlier, request.regression, request.only is not None)
        if comparison.interrupted:
            lost.append("interrupted before every candidate was compared")
        notes = [*notes, gate_note(earlier, request.regression, lost)]
    wrong = [f"{c.name}, {c.note}" if c.note else c.name for c in comparison.wrong]
    draw = partial(_plot, request.plot, comparison, document, setting)
    return CompareOutcome(document, wrong, lost, notes=notes, draw=draw)


def _plot(
    path: Path | None, comparison: Comparison, document: dict[str, Any], setting: _Setting
) -> None:
    if path is None:
        return
    n, name = len(setting.images), document["device"]["name"]
    title = f"{comparison.what}, {n:,} images, {name}, {document['date']}"
    if comparison.what != PLANS:
        plots.plot_roofline(path, document["candidates"], setting.limits, title)
        return
    plans = {}
    for candidate in comparison.candidates:
        bench = candidate.bench
        if isinstance(bench, PlanBench) and candidate.samples:
            images, few = bench.input, bench.scaled_from
            rows = stage_rows(profile(bench.pipeline, images[:few], 5), few, None)
            plans[candidate.name] = rows
    if plans:
        times = {entry["name"]: entry.get("median_ms") for entry in document["candidates"]}
        plots.plot_plans(path, plans, times, title)


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
        count_suite(document, request.counted, setting.gpu, say)
    document["ladder"] = step_rows(run.rows)
    title = (
        f"the course's variants, {len(setting.images):,} images, "
        f"{document['device']['name']}, {document['date']}"
    )

    def draw() -> None:
        if request.plot is not None:
            plots.plot_ladder(request.plot, run.rows, title)

    wrong = [f"{r['stage']} {r['variant']}" for r in run.rows if r["status"] == "wrong"]
    return CompareOutcome(document, list(dict.fromkeys(wrong)), draw=draw)
