"""Plugins: variants from a user's own file (`--with`), each compared in a separate process.

There a file may crash, hang, or replace a clock or a tolerance without affecting other rows. The
parent validates its claims: it judges outputs on images drawn after the timing, runs its own clock
around many calls, and compares the time with the minimum that the device's ceilings allow. This
catches wrong results and plain cheating, not malicious code: run untrusted files on a separate
machine.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, cast

from lenetgpu.arrays import np
from lenetgpu.check.judge import TOLERANCE, Checked, Errors, judge_parts, largest
from lenetgpu.check.reference import Reference, random_input, reference
from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import Gpu, activate
from lenetgpu.gpu.faults import lacks_memory
from lenetgpu.measure.bench import Bench, Flush, Skip, StageBench, flusher, stage_of
from lenetgpu.measure.conv_bench import Case, ConvBench, laid_out
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.rounds import BREAKS, Candidate, never, why
from lenetgpu.measure.timing import clock
from lenetgpu.pipeline import CPU_CHUNK
from lenetgpu.stages import plugin_files
from lenetgpu.stages.registry import Needs, Rows, Variant

# Seconds to wait for an answer; compiling and checking a slow loop take a few minutes at most.
PATIENCE_S = 600.0
_ENDED_S = 5.0
# Images that the parent draws for its output check, and random outputs that it inspects.
_DRAWN, _INSPECTED = 64, 16
_RUN_MS, _ALLOWED_MS, _FACTOR, _TRIES = 20.0, 5.0, 2.0, 5
_CACHED_BYTES = 256 << 20
_OTHER_UNITS = 4  # Peak of int8 tensor cores or wgmma, as a multiple of mma.sync's fp16 rate.


@dataclass(frozen=True)
class Plugin:
    """Metadata of a variant in `path`, without its code."""

    path: Path
    full_name: str
    kind: str
    precision: str
    needs: Needs
    repeats: bool


class Child:
    """Process that has loaded `paths` and answers requests; it ends with this object."""

    def __init__(self, paths: Sequence[Path], gpu: Gpu | None) -> None:
        self._ours, theirs = Pipe()
        handle, self._requests = theirs.fileno(), 0
        command = f"from lenetgpu.measure.plugins import serve; serve({handle})"
        path = os.pathsep.join(map(os.path.abspath, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, "-c", command], pass_fds=[handle], stdin=subprocess.DEVNULL,
            stdout=2, env=os.environ | {"PYTHONPATH": path},
        )  # fmt: skip
        theirs.close()
        try:
            self.found: list[Plugin] = self.ask("load", [*paths], gpu)
        except LenetError as error:
            if self.ended:
                names = ", ".join(map(str, paths))
                raise LenetError(f"{names}: expected to import it, found that {error}") from error
            raise

    @property
    def ended(self) -> bool:
        """True if the process has ended."""
        return self._ours.closed

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return the process's answer; raise LenetError or Skip if it failed, hangs or ended."""
        self._requests += 1
        number, error, answer = 0, None, None
        try:
            self._ours.send((self._requests, method, arguments))
            end = clock() + PATIENCE_S
            while number != self._requests:  # skip an answer that Ctrl-C interrupted
                if not self._ours.poll(max(0.0, end - clock())):
                    self.end()
                    raise LenetError(f"its process gave no answer in {PATIENCE_S:g} s")
                number, error, answer = self._ours.recv()
        except (EOFError, OSError):
            raise LenetError(self._exit_message()) from None
        except KeyboardInterrupt:
            if not self._ours.poll(_ENDED_S):
                self.end()
            raise
        if error is not None:
            raise error(answer)
        return answer

    def _exit_message(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDED_S)
        code = self._process.returncode
        self.end()
        if code is not None and code < 0:
            return f"its process crashed: {signal.strsignal(-code) or -code}"
        return f"its process ended with exit code {code}"

    def end(self) -> None:
        """End the process."""
        self._ours.close()
        self._process.kill()
        self._process.wait()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.end()


@dataclass(frozen=True)
class Work:
    """Subject of a comparison: a stage's `facts`, or a convolution's `case` and `seconds`."""

    problem: Any
    images: int
    limits: Ceilings
    stage: str | None = None
    facts: Reference | None = None
    case: Case | None = None
    seconds: float = 0.0

    @property
    def weights(self) -> tuple[Any, ...]:
        """Host arrays that every candidate is prepared with."""
        if self.case is not None:
            return self.case.weights
        assert self.stage is not None and self.facts is not None
        return tuple(self.facts.weights[name] for name in stage_of(self.stage).weights)

    def sent(self) -> "Work":
        """Return a copy without the parts that cannot be sent to a process."""
        return replace(self, case=None)


class Plugins:
    """Variants of the user's files, and their process; raises LenetError for a bad file."""

    def __init__(self, paths: Iterable[Path], gpu: Gpu | None) -> None:
        self._paths = [*{os.path.realpath(path): path for path in paths}.values()]
        self._gpu = gpu
        self._child = Child(self._paths, gpu) if self._paths else None
        self.found = self._child.found if self._child is not None else []

    def of_kind(self, kind: str) -> tuple[list[Plugin], list[str]]:
        """Return the variants of `kind`, and a message on others; raise LenetError if none fits."""
        fitting = [plugin for plugin in self.found if plugin.kind == kind]
        others = ", ".join(f"{p.full_name} ({p.kind})" for p in self.found if p.kind != kind)
        expected = f"--with: expected variants of kind {kind}"
        if others and not fitting:
            raise LenetError(f"{expected}, found {others}")
        for plugin in fitting:
            if plugin.precision not in TOLERANCE:
                known = f"expected a precision of {', '.join(TOLERANCE)}"
                raise LenetError(f"--with, {plugin.full_name}: {known}, found {plugin.precision!r}")
        return fitting, [f"{expected}, left out {others}"] if others else []

    def candidate(self, plugin: Plugin, work: Work) -> Candidate:
        """Return a candidate to build in its own process; refused or failed if it cannot run."""
        name, precision = plugin.full_name, plugin.precision
        try:
            if self._child is None or self._child.ended:
                self._child = Child(self._paths, self._gpu)
            problem = self._child.ask("lay_out", name, work.sent())
        except LenetError as error:
            return Candidate(name, never, precision, "failed", str(error))
        if isinstance(problem, str):
            return Candidate(name, never, precision, "refused", problem)
        return Candidate(name, lambda: PluginBench(plugin, self._gpu, problem, work), precision)


def named(own: Sequence[Plugin], wanted: str | None) -> str | None:
    """Return the first full name in `own` that `wanted` names, itself or by family, or None."""
    names = [plugin.full_name for plugin in own]
    family = (name for name in names if name.partition(".")[0] == wanted)
    return wanted if wanted in names else next(family, None)


def least_ms(problem: Any, images: int, limits: Ceilings) -> float:
    """Return a lower bound in ms, of bytes beyond any cache or operations at the fastest rate."""
    conv = getattr(problem, "conv", problem)  # no transform needs less than one filter element
    filter_elements = getattr(conv, "R", 1) * getattr(conv, "S", 1)
    peak = 1e12 * max(limits.fma_tflops, _OTHER_UNITS * limits.tensor_tflops)
    moved = max(0, problem.bytes(images) - _CACHED_BYTES)
    compute = float(problem.flop(images)) / filter_elements / peak
    return max(1e3 * compute, float(moved) / (1e6 * limits.copy_gbs))


class PluginBench(Bench):
    """Bench in a separate process, whose outputs and times this process validates."""

    def __init__(self, plugin: Plugin, gpu: Gpu | None, problem: Any, work: Work) -> None:
        super().__init__(work.images)
        self._plugin, self._work = plugin, work
        self.problem, self.repeats = problem, plugin.repeats
        self._claims: list[float] = []
        self._child = Child([plugin.path], gpu)
        self._ask("build", plugin.full_name, problem, work.sent(), work.weights)

    def _ask(self, method: str, *arguments: Any) -> Any:
        answer, attributes = self._child.ask(method, *arguments)
        vars(self).update(attributes)
        return answer

    def use_cold_cache(self, flush: Flush) -> None:
        """Flush the L2 cache before every timed call, in the process."""
        self._ask("cold")

    def check(self) -> Checked:
        """Compare with the float64 reference output in the process; `recheck` does so here."""
        return cast(Checked, self._ask("check"))

    def sample(self) -> float:
        """Return one time in milliseconds for all images."""
        self._claims.append(float(self._ask("sample")))
        return self._claims[-1]

    def burst(self, milliseconds: float) -> tuple[Callable[[], Any], int]:
        """Return work that takes about `milliseconds` without a pause, and its passes."""
        return partial(self._ask, "run_burst"), self._ask("burst", milliseconds)

    def explain(self, images: int, machine: Any) -> Rows:
        """Return the rows of its variant's `explain`."""
        return cast(Rows, self._ask("explain", images, machine))

    def one_output(self) -> Any:
        """Return the output of one more run on the first of the images shared by all candidates."""
        assert self._work.case is not None
        x = self._work.case.first("NHWC", min(self.images, CPU_CHUNK))
        return self._ask("output", x.get() if self._work.case.gpu else x)

    def errors(self) -> Errors:
        """Return the errors of `one_output` against float64."""
        assert self._work.case is not None
        return self._work.case.errors(self._work.case.arrays.asarray(self.one_output()))

    def recheck(self) -> Checked:
        """Recheck in the process, then validate its outputs, clock and speed here."""
        checked: Checked = self._ask("recheck")
        if not checked.verdict.passed or self.once:
            return checked
        caught = self._outputs_wrong() or self._clock_wrong() or self._too_fast()
        verdict = replace(checked.verdict, passed=False, note=f", {caught}")
        return replace(checked, verdict=verdict) if caught else checked

    def _outputs_wrong(self) -> str:
        """Return a complaint if timed calls are wrong on newly drawn images, or an empty string."""
        kind, rng = self._plugin.kind, np.random.default_rng()
        x, _ = random_input(kind, self.problem, min(_DRAWN, self.images), rng)
        weights = self._work.weights
        w = weights if len(weights) > 1 else next(iter(weights), None)
        expected = reference(kind, x, w, self.problem)
        numbers = np.unique([0, self.images - 1, *rng.integers(0, self.images, _INSPECTED)])
        pairs = [(self._ask("answer", x, numbers), expected[numbers % len(x)])]
        verdict = judge_parts(pairs, largest(expected) or 1.0, self._plugin.precision)
        off = verdict.note or f", error {verdict.error:.1e}"
        return "" if verdict.passed else f"leaves a wrong output of other images{off}"

    def _clock_wrong(self) -> str:
        """Return a complaint if our clock contradicts the times claimed for many calls."""
        calls, tries = 1, 0
        while tries < _TRIES:
            sample = self._ask("sample")
            start = clock()
            times, claim = self._ask("timed", calls)
            elapsed = 1e3 * (clock() - start)
            claimed = (claim or sample * times) * self.scaled_from / self.images
            if not elapsed <= _FACTOR * claimed + _ALLOWED_MS:
                tries += 1
            elif claimed >= _RUN_MS:
                return ""
            else:
                calls, tries = 2 * calls, 0
        return f"claims {claimed:.3g} ms where {elapsed:.3g} ms passed"

    def _too_fast(self) -> str:
        """Return a complaint if the device's ceilings do not allow the claimed time."""
        claimed = median(self._claims or [inf])
        least = least_ms(self.problem, self.images, self._work.limits)
        if _FACTOR * claimed >= least:
            return ""
        return f"claims {claimed:.3g} ms, but this device needs at least {least:.3g} ms"


class _Server:
    """Process side: one variant's bench, and the requests of `Child` and `PluginBench`."""

    _bench: Any
    run_burst: Callable[[], Any]

    def load(self, paths: list[Path], gpu: Gpu | None) -> list[Plugin]:
        self._gpu = gpu
        found = [(path, variant) for path in paths for variant in plugin_files.load(path)]
        self._variants = {variant.full_name: variant for _, variant in found}
        return [
            Plugin(path, v.full_name, v.kind, v.precision, v.needs, v.repeats) for path, v in found
        ]

    def lay_out(self, name: str, work: Work) -> Any:
        """Return the problem in the variant's layouts, or why it cannot run, and if it compiles."""
        variant, gpu = self._variants[name], self._gpu
        by_stage = work.stage is not None
        problem = (variant.laid_out if by_stage else partial(laid_out, variant))(work.problem)
        if isinstance(problem, str):
            return problem
        compiled = compiles(variant, gpu, problem, work.images)
        here = "cpu" if gpu is None else "cuda"
        if variant.needs.device != here:
            return f"requires {variant.needs}, found device {here}{compiled}"
        if gpu is not None and not variant.needs.met_by(gpu):
            return f"requires {variant.needs}, found cuda {gpu.version}{compiled}"
        return problem

    def build(self, name: str, problem: Any, work: Work, weights: tuple[Any, ...]) -> None:
        if self._gpu is not None:
            activate(self._gpu)
        variant = self._variants[name]
        if work.stage is not None and work.facts is not None:
            self._bench = StageBench(variant, stage_of(work.stage), work.images, work.facts)
        else:
            case = Case(work.problem, work.images, self._gpu is not None, weights)
            self._bench = ConvBench(variant, problem, case, work.seconds)

    def cold(self) -> None:
        self._bench.use_cold_cache(flusher())

    def timed(self, calls: int) -> tuple[int, float]:
        """Return the number of calls made, or samples on a CPU, and the milliseconds claimed.

        On a CPU the claim covers these very calls, since others would meet another load. On a
        GPU it is 0, and a sample's claim counts: events do not see work on another stream.
        """
        if self._gpu is not None:
            return self._bench.run(calls), 0.0
        return calls, self._bench.passes * sum(self._bench.sample() for _ in range(calls))

    def burst(self, milliseconds: float) -> int:
        self.run_burst, times = self._bench.burst(milliseconds)
        return int(times)

    def explain(self, images: int, machine: Any) -> Any:
        explain = self._bench.variant.explain
        return [] if explain is None else explain(self._bench.problem, images, machine)

    def reply(self, method: str, arguments: tuple[Any, ...]) -> Any:
        """Return the result of `method`, with the bench's attributes if there is a bench."""
        if method in ("load", "lay_out"):
            return getattr(self, method)(*arguments)
        answer = getattr(self if hasattr(self, method) else self._bench, method)(*arguments)
        names = ("scaled_from", "problem", "launched", "once", "passes", "method", "note")
        return answer, {name: getattr(self._bench, name, "") for name in names}


def compiles(variant: Variant, gpu: Gpu | None, problem: Any, batch: int) -> str:
    """Compile the variant's kernels, for `gpu` if possible; return a clause that says so."""
    kernels = () if variant.kernels is None else variant.kernels(problem, batch)
    if not kernels or variant.needs.device != "cuda":
        return ""
    fits = gpu is not None and variant.needs.met_by(gpu)
    arch = gpu.arch if gpu is not None and fits else _arch_for(variant.needs)
    if arch is None:
        return "; not compiled: no NVRTC is here that knows such a GPU"
    for kernel in kernels:
        if kernel.meant_for(arch):
            nvrtc.compile_kernel(kernel, arch)
    return f"; compiles for {arch}"


def _arch_for(needs: Needs) -> str | None:
    """Return an architecture that meets `needs` and that NVRTC supports, sm_90a first, or None."""
    try:
        nvrtc.version()
    except LenetError:
        return None
    for arch in filter(nvrtc.supported, ("sm_90a", *reversed(nvrtc.ARCHITECTURES))):
        if needs.met_by(Gpu(0, arch, int(arch[3:].rstrip("a")))):
            return arch
    return None


def serve(handle: int) -> None:
    """Answer requests over the connection `handle` until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    requests, server = Connection(handle), _Server()
    while True:
        try:
            number, method, arguments = requests.recv()
        except EOFError:
            return
        reply: tuple[int, type[Exception] | None, Any]
        try:
            reply = number, None, server.reply(method, arguments)
        except BREAKS as error:
            skipped = isinstance(error, Skip) or lacks_memory(error)
            reply = number, Skip if skipped else LenetError, why(error)
        requests.send(reply)
