"""The conv command: a shape or a paper's suite through every convolution of the device."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.lab import charts
from lenetgpu.lab.compare import CompareOutcome, Gate, open_device
from lenetgpu.lab.conv.document import (
    about_suite,
    case_json,
    network_json,
    shape_text,
    summary_json,
)
from lenetgpu.lab.conv.explain import explained, has_ladder, ladder, named
from lenetgpu.lab.conv.repeats import err_all, repeat_all
from lenetgpu.lab.conv.request import (
    ConvRequest,
    add_commands,
    command_of,
    require_checkable,
    rows_to_run,
)
from lenetgpu.lab.conv.tuning import note, tilings, tune, tuning
from lenetgpu.measure import plugins
from lenetgpu.measure.bench import Bench
from lenetgpu.measure.conv_bench import Case, ConvBench, laid_out
from lenetgpu.measure.document import ceilings_json, device_json, head
from lenetgpu.measure.power import watch_all
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.rounds import Candidate, Comparison, Effort, Say, compare, never
from lenetgpu.measure.torch_peer import NAMES, TorchBench, peer_version
from lenetgpu.papers.shapes import Row, Shape, Suite
from lenetgpu.plan import NAMED, choose_device
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, choices, families, find, variants
from lenetgpu.stages.needs import lacking


@dataclass(frozen=True)
class _Setting:
    gpu: Gpu | None
    limits: Ceilings
    peer: str | None
    chosen: list[Variant]
    found: plugins.Plugins
    own: list[plugins.Plugin]

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else "cuda"

    @property
    def peer_name(self) -> str | None:
        return NAMES[self.device] if self.peer else None


def chosen_variants(only: str | None, device: str, planned: bool = False) -> list[Variant]:
    """The conv variants of `device`, of those that the comma list `only` names.

    A family's name means all of it. Raises LenetError where a name is none; where GPU variants are
    `planned` for another machine, their names are left to that, and what is run may be nothing.
    """
    every = variants("conv", device)
    if only is None:
        return every
    members = families("conv", device)
    wanted: list[Variant] = []
    for name in (word.strip() for word in only.split(",")):
        found = members.get(name) or [v for v in every if name in v.names]
        if not found and not (planned and named(name)):
            raise LenetError(
                f"--only {name!r}: expected names of {', '.join(choices('conv', device))}"
            )
        wanted += found
    return [v for v in every if v in wanted]


def _with_reference(chosen: list[Variant], wanted: str | None, device: str) -> list[Variant]:
    """`chosen` and the variant that ratios are asked over, if it names one."""
    every = variants("conv", device)
    if wanted not in families("conv", device) and not any(wanted in v.names for v in every):
        return chosen
    assert wanted is not None
    added = find("conv", wanted, device)
    return [v for v in every if v in chosen or v == added]


def _reference(request: ConvRequest, setting: _Setting, shapes: list[Shape]) -> str:
    """The name that ratios are over: as asked, else the peer, else the package's default.

    Where that refuses every shape it is the first that does not.
    """
    names = [v.full_name for v in setting.chosen]
    peer = setting.peer_name
    if mine := plugins.named(setting.own, request.reference):
        return mine
    wanted = request.reference
    if wanted is None and not names:
        return ""
    if wanted is None:
        if peer is not None:
            return peer
        default = find("conv", NAMED["fp32"][setting.device]["conv"], setting.device)
        first = [v for v in (default, *setting.chosen) if v.full_name in names]
        taking = (v for v in first if any(isinstance(laid_out(v, s.problem), Conv) for s in shapes))
        return next(taking, first[0]).full_name
    if peer is not None and wanted in ("torch", peer, peer.split()[-1]):
        return peer
    if wanted not in names:
        members = families("conv", setting.device)
        wanted = find("conv", wanted, setting.device).full_name if wanted in members else wanted
    if wanted not in names:
        also = [peer] if peer else []
        raise LenetError(
            f"--reference {request.reference}: expected one of {', '.join([*also, *names])}"
        )
    return wanted


def _candidates(shape: Shape, case: Case, setting: _Setting, seconds: float) -> list[Candidate]:
    found, gpu = [], setting.gpu
    lacks = None if gpu is None else lacking(shape.problem, gpu.compute_capability)
    for variant in setting.chosen:
        name, precision = variant.full_name, variant.precision
        if gpu is not None and not variant.needs.met_by(gpu):
            note = f"needs {variant.needs}"
            found.append(Candidate(name, never, precision, "refused", note))
            continue
        problem = laid_out(variant, shape.problem) if lacks is None else lacks
        if isinstance(problem, str):
            found.append(Candidate(name, never, precision, "refused", problem))
            continue

        def build(chosen: Variant = variant, laid: Conv = problem) -> Bench:
            return ConvBench(chosen, laid, case, seconds)

        found.append(Candidate(name, build, precision))
    work = plugins.Work(shape.problem, case.images, setting.limits, case=case, seconds=seconds)
    found += [setting.found.candidate(one, work) for one in setting.own]
    if setting.peer_name is not None:
        peer = Candidate(setting.peer_name, lambda: TorchBench(shape.problem, case, seconds))
        found.append(peer if lacks is None else replace(peer, status="refused", note=lacks))
    return found


def run_conv(request: ConvRequest, say: Say) -> CompareOutcome:
    """Check and time what was asked for; LenetError for bad input."""
    suite, rows = rows_to_run(request)
    if request.tune:
        request = tuning(request)
    found = plugins.Plugins(request.outside, choose_device(request.device)[0])
    return _run_rows(request, suite, rows, found, say)


def _run_rows(
    request: ConvRequest,
    suite: Suite | None,
    rows: list[Row],
    found: plugins.Plugins,
    say: Say,
) -> CompareOutcome:
    """`run_conv` with the variants that were `found` outside."""
    shapes = [row for row in rows if isinstance(row, Shape)]
    gate = Gate(request, "conv", None)
    own, notes = found.of_kind("conv")
    device = "cpu" if choose_device(request.device)[0] is None else "cuda"
    elsewhere = request.machine is not None or (request.explain and device == "cpu")
    chosen = chosen_variants(request.only, device, planned=elsewhere)
    chosen = _with_reference(chosen, request.reference, device)
    if chosen or own:
        require_checkable(shapes, device)
    gpu, limits = open_device(request.device, say)
    peer = peer_version(device) if chosen and not request.tune else None
    setting = _Setting(gpu, limits, peer, chosen, found, own)
    reference = _reference(request, setting, shapes)
    if request.cold_l2 and gpu is None:
        raise LenetError("--cold-l2: expected a GPU, found device cpu")
    now = {"device": device_json(gpu)["name"], "reference": reference, "cold_l2": request.cold_l2}
    gate.check(now | {"cases": [(shape_text(one.problem), one.batch) for one in shapes]})
    document = (
        head("conv", gpu)
        | about_suite(suite)
        | {
            "ceilings": ceilings_json(limits),
            "reference": reference,
            "peer": setting.peer,
            "cold_l2": request.cold_l2,
            "interrupted": False,
            "left_out": [],
            "cases": [],
        }
    )
    if gpu is not None:
        ready = [v for v in chosen if v.needs.met_by(gpu)]
        _compile_all(request, shapes, ready, say)
    wrong = _run_cases(request, suite, shapes, setting, document, say)
    if suite is not None:
        document["summary"] = summary_json(document["cases"], suite)
    if suite is not None and suite.source:
        commands = [command_of(request, row) for row in rows]
        document["network"] = network_json(rows, commands, document["cases"])
    left_out = document["left_out"]
    notes += [f"{shape['label']} left out, {shape['why']}" for shape in left_out]
    if request.tune:
        notes.append(note(document["cases"]))
    lost = gate.end(document, notes, [f"{shape['label']}: {shape['why']}" for shape in left_out])
    return CompareOutcome(document, wrong, lost, notes, partial(_draw, request, document))


def _compile_all(request: ConvRequest, shapes: list[Shape], ready: list[Variant], say: Say) -> None:
    """Compile every kernel that the variants say they will launch, by as many threads as help."""
    from lenetgpu.gpu.device import current_arch
    from lenetgpu.gpu.nvrtc import compile_together

    arch = current_arch()
    wanted: dict[Kernel, None] = {}
    for shape in shapes:
        for variant in ready + tilings(request, shape):
            problem = laid_out(variant, shape.problem)
            if not isinstance(problem, str) and variant.kernels is not None:
                found = variant.kernels(problem, shape.batch)
                wanted |= dict.fromkeys(one for one in found if one.meant_for(arch))
    say(f"compiling {len(wanted)} kernels")
    compile_together([*wanted], arch)  # what fails is said, and listed, where it is built


def _draw(request: ConvRequest, document: dict[str, Any]) -> None:
    """Draw the picture that was asked for, if any: a shape under its roofs, or a suite."""
    if request.plot is None:
        return
    where = f"{document['device']['name']}, {document['date']}"
    if document["suite"] is not None:
        drawn = {"": charts.speedups(document)}
        charts.save(request.plot, f"suite {document['suite']}, {where}", drawn)
        return
    for case in document["cases"]:
        title = f"conv {case['shape']}, batch {case['images']:,}, {where}"
        drawn = {"": charts.candidates(case["candidates"], document["ceilings"])}
        charts.save(request.plot, title, drawn)


def _run_cases(
    request: ConvRequest,
    suite: Suite | None,
    shapes: list[Shape],
    setting: _Setting,
    document: dict[str, Any],
    say: Say,
) -> list[str]:
    """Fill the document's `cases`, a shape each; what is wrong, a sentence each."""
    wrong: list[str] = []
    for shape in shapes:
        try:
            comparison = _run(shape, setting, document["reference"], request, say)
            case = case_json(shape, comparison, setting.limits, setting.peer_name)
            add_commands(case, request, shape, setting.peer_name)
            document["cases"].append(case)
            if request.tune:
                case["tuned"] = asdict(tune(shape, case))
            wrong += [f"{shape.label}: {c.name}, {_reason(c)}" for c in comparison.wrong]
            if request.explain:
                here = None if setting.gpu is None else setting.chosen
                found = explained(request, shape, comparison, setting.limits, here)
                case["explanation"] = found
            laddered = has_ladder(suite, setting.chosen) and not comparison.interrupted
            if setting.gpu is not None and laddered:
                case["ladder"] = ladder(shape, setting.gpu, say)
                wrong += [
                    f"{shape.label}: {step['variant']} of the ladder"
                    for step in case["ladder"]
                    if step["status"] == "wrong"
                ]
        except KeyboardInterrupt:
            document["interrupted"] = True
            break
        except MemoryError as error:
            if not document["cases"]:
                raise
            why_not = f"needs more memory: {str(error).partition(chr(10))[0]}"
            document["left_out"].append({"label": shape.label, "why": why_not})
            continue
        if comparison.interrupted:
            document["interrupted"] = True
            break
        _release(comparison, setting.gpu is not None)
    return wrong


def _reason(candidate: Candidate) -> str:
    checked = candidate.checked
    return candidate.note if checked is None or checked.verdict.passed else str(checked.verdict)


def _run(
    shape: Shape, setting: _Setting, reference: str, request: ConvRequest, say: Say
) -> Comparison:
    """Every candidate on one shape, the time of them all together for the rounds."""
    if not (setting.chosen or setting.own):
        return Comparison(shape.label, reference, [])
    case = Case(shape.problem, shape.batch, setting.gpu is not None)
    setting = replace(setting, chosen=setting.chosen + tilings(request, shape))
    candidates = _candidates(shape, case, setting, request.seconds)
    waiting = sum(candidate.status == "waiting" for candidate in candidates)

    def about(line: str, *how_far: int) -> None:
        say(f"{shape.label}: {line}", *how_far)

    comparison = compare(
        shape.label,
        candidates,
        reference,
        Effort(request.seconds * (1 + waiting), request.rounds, request.warmup),
        request.cold_l2,
        say=about,
    )
    if not comparison.interrupted:
        err_all(comparison, about)
    if request.bitwise and not comparison.interrupted:
        repeat_all(comparison, about)
    watch_all(comparison, setting.gpu, request.watch, about)
    return comparison


def _release(comparison: Comparison, on_gpu: bool) -> None:
    """Give a shape's memory back before the next."""
    for candidate in (*comparison.candidates, comparison.again):
        if candidate is not None:
            candidate.bench = None
    if on_gpu:
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
