"""The conv command: a shape or a suite through every convolution of the device."""

from dataclasses import asdict, dataclass
from functools import partial
from math import isfinite
from typing import Any

from lenetgpu.check.judge import array_module
from lenetgpu.errors import LenetError, first_line
from lenetgpu.gpu.device import Gpu, current_arch
from lenetgpu.gpu.faults import lacks_memory, release
from lenetgpu.gpu.nvrtc import Kernel, compile_together
from lenetgpu.lab import charts
from lenetgpu.lab.compare import CompareOutcome, RegressionCheck, open_device
from lenetgpu.lab.conv.document import case_json, network_json, shape_text, suite_json, summary_json
from lenetgpu.lab.conv.explain import explained, ladder, named
from lenetgpu.lab.conv.request import ConvRequest, add_commands, checkable, command_of, rows_to_run
from lenetgpu.lab.conv.tuning import note, tilings, tune, tuning
from lenetgpu.measure import plugins
from lenetgpu.measure.conv_bench import Case, ConvBench, laid_out
from lenetgpu.measure.document import ceilings_json, device_json, head
from lenetgpu.measure.power import watch_all
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.rounds import BREAKS, Candidate, Comparison, Effort, Say, compare, fail, never
from lenetgpu.measure.torch_peer import NAMES, TorchBench, peer_version
from lenetgpu.papers.shapes import Shape, Suite
from lenetgpu.plan import NAMED, choose_device
from lenetgpu.problems import Conv
from lenetgpu.stages import Variant, choices, find, variants
from lenetgpu.stages.registry import dtype_refusal

RUNS = 5  # runs of a candidate with `--bitwise`


def selected_variants(only: str | None, device: str, planned: bool = False) -> list[Variant]:
    """Return the conv variants of `device` that `only` lists, also by family; None: all.

    Raises LenetError for an unknown name; `planned` accepts names of GPU variants on any device.
    """
    every, selected = variants("conv", device), list[Variant]()
    if only is None:
        return every
    for name in (word.strip() for word in only.split(",")):
        members = [v for v in every if name in _names(v)]
        if not members and not (planned and named(name)):
            names = ", ".join(choices("conv", device))
            raise LenetError(f"--only {name!r}: expected names from {names}")
        selected += members
    return [v for v in every if v in selected]


def _names(variant: Variant) -> set[str]:
    return {*variant.names, *(name.partition(".")[0] for name in variant.names)}


def _named(name: str, device: str) -> Variant | None:
    """Return the variant of a name, or the default one of a family; None if there is none."""
    known = any(name in _names(v) for v in variants("conv", device))
    return find("conv", name, device) if known else None


def run_conv(request: ConvRequest, say: Say) -> CompareOutcome:
    """Check and time the requested convolutions; raise LenetError for bad input."""
    suite, rows = rows_to_run(request)
    if request.tune:
        request = tuning(request)
    available, _ = choose_device(request.device)
    loaded = plugins.Plugins(request.plugins, available)
    regression = RegressionCheck(request, "conv", None)
    user_variants, notes = loaded.of_kind("conv")
    device = "cpu" if available is None else "cuda"
    elsewhere = request.machine is not None or (request.explain and device == "cpu")
    selected = selected_variants(request.only, device, planned=elsewhere)
    if request.baseline and (added := _named(request.baseline, device)) is not None:
        selected = [v for v in variants("conv", device) if v in selected or v == added]
    if selected or user_variants:
        rows = checkable(request, rows, device)
    shapes = [row for row in rows if isinstance(row, Shape)]
    gpu, limits = open_device(request.device, say)
    peer = peer_version(device) if selected and not request.tune else None
    name = NAMES[device] if peer else None
    run = _Run(request, suite, gpu, limits, name, selected, loaded, user_variants)
    baseline = run.baseline(shapes)
    if request.cold_l2 and gpu is None:
        raise LenetError("--cold-l2: expected a GPU, found device cpu")
    now = {"device": device_json(gpu)["name"], "baseline": baseline, "cold_l2": request.cold_l2}
    regression.check(now | {"cases": [(shape_text(s.problem), s.batch) for s in shapes]})
    document = head("conv", gpu) | suite_json(suite)
    document |= {
        "ceilings": ceilings_json(limits),
        "baseline": baseline,
        "peer": peer,
        "cold_l2": request.cold_l2,
        "interrupted": False,
        "left_out": [],
        "cases": [],
    }
    if gpu is not None:
        _compile_all(run, shapes, say)
    wrong = run.fill(document, shapes, say)
    if suite is not None:
        document["summary"] = summary_json(document["cases"], suite)
    if suite is not None and suite.source:
        commands = [command_of(request, row) for row in rows]
        document["network"] = network_json(rows, commands, document["cases"])
    left_out = [(entry["label"], entry["why"]) for entry in document["left_out"]]
    notes += [f"{label} left out, {why}" for label, why in left_out]
    if request.tune:
        notes.append(note(document["cases"]))
    lost = regression.end(document, notes, [f"{label}: {why}" for label, why in left_out])
    return CompareOutcome(document, wrong, lost, notes, partial(_draw, request, document))


@dataclass(frozen=True)
class _Run:
    request: ConvRequest
    suite: Suite | None
    gpu: Gpu | None
    limits: Ceilings
    peer: str | None
    selected: list[Variant]
    loaded: plugins.Plugins
    user_variants: list[plugins.Plugin]

    def baseline(self, shapes: list[Shape]) -> str:
        """Return the baseline's name: as requested, the peer, or one that supports a shape."""
        peer, requested, selected = self.peer, self.request.baseline, self.selected
        device = "cpu" if self.gpu is None else "cuda"
        if user_variant := plugins.named(self.user_variants, requested):
            return user_variant
        if requested is None and not selected:
            return ""
        if requested is None and peer is None:
            default = find("conv", NAMED["fp32"][device]["conv"], device)
            ordered = [v for v in (default, *selected) if v in selected]
            problems = [shape.problem for shape in shapes]
            for variant in ordered:
                if any(isinstance(laid_out(variant, problem), Conv) for problem in problems):
                    return variant.full_name
            return ordered[0].full_name
        if peer is not None and requested in (None, "torch", peer, peer.split()[-1]):
            return peer
        named_variant = _named(str(requested), device)
        if named_variant is not None and named_variant in selected:
            return named_variant.full_name
        names = [*filter(None, [peer]), *(v.full_name for v in selected)]
        raise LenetError(f"--baseline {requested}: expected one of {', '.join(names)}")

    def candidates(self, shape: Shape, case: Case) -> list[Candidate]:
        """Return the candidates for a shape: variants, plugins and the peer."""
        gpu, seconds = self.gpu, self.request.seconds
        lacks = None if gpu is None else dtype_refusal(shape.problem, gpu.compute_capability)
        candidates = []
        for variant in self.selected + tilings(self.request, shape):
            name, precision = variant.full_name, variant.precision
            problem = lacks or laid_out(variant, shape.problem)
            if gpu is not None and not variant.needs.met_by(gpu):
                problem = f"requires {variant.needs}"
            if isinstance(problem, str):
                candidates.append(Candidate(name, never, precision, "refused", problem))
            else:
                build = partial(ConvBench, variant, problem, case, seconds)
                candidates.append(Candidate(name, build, precision))
        work = plugins.Work(shape.problem, case.images, self.limits, case=case, seconds=seconds)
        candidates += [self.loaded.candidate(plugin, work) for plugin in self.user_variants]
        if self.peer is not None and lacks is not None:
            candidates.append(Candidate(self.peer, never, status="refused", note=lacks))
        elif self.peer is not None:
            build_peer = partial(TorchBench, shape.problem, case, seconds)
            candidates.append(Candidate(self.peer, build_peer))
        return candidates

    def fill(self, document: dict[str, Any], shapes: list[Shape], say: Say) -> list[str]:
        """Fill the document's `cases`, one per shape; return a sentence for each wrong result."""
        wrong: list[str] = []
        for shape in shapes:
            try:
                comparison = self._compare(shape, document["baseline"], say)
                case = case_json(shape, comparison, self.limits, self.peer)
                add_commands(case, self.request, shape, self.peer)
                document["cases"].append(case)
                wrong += self._extend(case, shape, comparison, say)
            except KeyboardInterrupt:
                document["interrupted"] = True
                break
            except MemoryError as error:
                if not document["cases"] and shape is shapes[-1]:
                    raise
                why = f"requires more memory: {first_line(error)}"
                document["left_out"].append({"label": shape.label, "why": why})
                continue
            if comparison.interrupted:
                document["interrupted"] = True
                break
            for candidate in (*comparison.candidates, comparison.again):
                if candidate is not None:
                    candidate.bench = None
            release()
        return wrong

    def _extend(
        self, case: dict[str, Any], shape: Shape, comparison: Comparison, say: Say
    ) -> list[str]:
        """Add tuning, explanation and ladder to a case; return sentences as in `fill`."""
        if self.request.tune:
            case["tuned"] = asdict(tune(shape, case))
        wrong = [f"{shape.label}: {c.name}, {_reason(c)}" for c in comparison.wrong]
        if self.request.explain:
            ran = None if self.gpu is None else self.selected
            case["explanation"] = explained(self.request, shape, comparison, self.limits, ran)
        laddered = self.suite is not None and self.suite.name == "convnet2"
        laddered &= any(variant.family == "convnet2" for variant in self.selected)
        if self.gpu is not None and laddered and not comparison.interrupted:
            steps = case["ladder"] = ladder(shape, self.gpu, say)
            failed = [step["variant"] for step in steps if step["status"] == "wrong"]
            wrong += [f"{shape.label}: {variant} of the ladder" for variant in failed]
        return wrong

    def _compare(self, shape: Shape, baseline: str, say: Say) -> Comparison:
        """Compare all candidates on one shape; the time for rounds grows with their number."""
        if not (self.selected or self.user_variants):
            return Comparison(shape.label, baseline, [])
        request = self.request
        candidates = self.candidates(shape, Case(shape.problem, shape.batch, self.gpu is not None))
        waiting = sum(candidate.status == "waiting" for candidate in candidates)
        effort = Effort(request.seconds * (1 + waiting), request.rounds, request.warmup)

        def about(line: str, *how_far: int) -> None:
            say(f"{shape.label}: {line}", *how_far)

        comparison = compare(shape.label, candidates, baseline, effort, request.cold_l2, say=about)
        if not comparison.interrupted:
            run_again(comparison, request.bitwise, about)
        watch_all(comparison, self.gpu, request.watch, about)
        return comparison


def differing(first: Any, again: Any) -> int:
    """Return the number of values whose bits differ in two float arrays of one type and device."""
    np, bits = array_module(first), f"uint{8 * first.itemsize}"
    return int(np.count_nonzero(first.reshape(-1).view(bits) != again.reshape(-1).view(bits)))


def run_again(comparison: Comparison, bitwise: bool, say: Say) -> None:
    """Run correct candidates again on the same images: set `errors` and, if `bitwise`, `bits`.

    Candidates sampled once get no errors. Exceptions mark a candidate failed; Ctrl-C ends the runs.
    """
    for candidate in comparison.candidates:
        try:
            if candidate.status == "right" and not candidate.once:
                say(f"errors of {candidate.name}")
                _measure_errors(candidate, candidate.bench)
            if candidate.status == "right" and bitwise:
                say(f"repeating {candidate.name}")
                _repeat(candidate, candidate.bench)
        except KeyboardInterrupt:
            comparison.interrupted = True
            return
        except BREAKS as error:
            fail(candidate, error)


def _measure_errors(candidate: Candidate, bench: Any) -> None:
    """Set `errors`; if they are not finite, the candidate is wrong."""
    try:
        errors = bench.errors()
    except BREAKS as error:
        if not lacks_memory(error):
            raise
        _note(candidate, "not enough memory to measure its rms error")
        return
    if isfinite(errors.rms) and isfinite(errors.largest):
        candidate.errors = errors
    else:
        candidate.status = "wrong"
        _note(candidate, "outputs NaN, infinite or unwritten in one more run")


def _repeat(candidate: Candidate, bench: Any) -> None:
    """Set `bits`; if runs differ, it is wrong unless it declares that they need not agree."""
    first = bench.one_output()
    most = max(differing(first, bench.one_output()) for _ in range(RUNS - 1))
    candidate.bits = "others" if most else "same"
    if not bench.repeats:
        agreement = f"{most:,} values differ" if most else "these agree"
        _note(candidate, f"runs need not agree to the bit: {agreement}")
    elif most:
        candidate.status = "wrong"
        differ = f"{most:,} of {first.size:,} values differ"
        candidate.note = f"{differ} between runs on the same images"


def _note(candidate: Candidate, more: str) -> None:
    candidate.note = "; ".join(filter(None, (candidate.note, more)))


def _compile_all(run: _Run, shapes: list[Shape], say: Say) -> None:
    arch = current_arch()
    ready = [v for v in run.selected if run.gpu is not None and v.needs.met_by(run.gpu)]
    announced: dict[Kernel, None] = {}
    for shape in shapes:
        for variant in ready + tilings(run.request, shape):
            problem = laid_out(variant, shape.problem)
            if not isinstance(problem, str) and variant.kernels is not None:
                kernels = variant.kernels(problem, shape.batch)
                announced |= dict.fromkeys(kernel for kernel in kernels if kernel.meant_for(arch))
    say(f"compiling {len(announced)} kernels")
    compile_together([*announced], arch)  # failures are reported when the variant is built


def _draw(request: ConvRequest, document: dict[str, Any]) -> None:
    if request.plot is None:
        return
    where = f"{document['device']['name']}, {document['date']}"
    if document["suite"] is not None:
        drawn = charts.speedups(document)
        charts.save(request.plot, f"suite {document['suite']}, {where}", {"": drawn})
        return
    for case in document["cases"]:
        title = f"conv {case['shape']}, batch {case['images']:,}, {where}"
        drawn = charts.candidates(case["candidates"], document["ceilings"])
        charts.save(request.plot, title, {"": drawn})


def _reason(candidate: Candidate) -> str:
    checked = candidate.checked
    return candidate.note if checked is None or checked.verdict.passed else str(checked.verdict)
