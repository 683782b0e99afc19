"""Watch every GPU variant with compute-sanitizer: memcheck, synccheck, initcheck, racecheck.

\b
    python scripts/sanitize.py --jobs 14 --seconds 240
    python scripts/sanitize.py --json docs/measured/nvidia-h200/sanitize.json

First each tool must find its planted error in sanitize_planted.cu, and none in a clean kernel.
Then the cases of sanitize_cases.py run once without a tool, so that no tool watches NVRTC, and once
under each tool, in --jobs processes; each variant's first case comes before any second one. The
tools share --seconds; cases that were not reached are reported. A case that ends its process ends
the other cases of that process. The exit code is 1 if a tool finds an error, a result is wrong, a
process dies, or a variant had no case; it is 2 if the script cannot run.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu, require_gpu
from lenetgpu.measure.document import head
from lenetgpu.store import write_atomically

WORKER = Path(__file__).with_name("sanitize_cases.py")
SANITIZER = "compute-sanitizer"
# share of the time for each tool; unused time goes to the next
TOOLS = {"memcheck": 2, "synccheck": 1, "initcheck": 2, "racecheck": 5}
_OPTIONS = {"memcheck": ("--report-api-errors", "no")}
# set to 1: pruning filters uses the CPU, and each of --jobs would use every core
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_GRACE_S = 30.0
_PLANTED_S = 120.0
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")  # fmt: skip  # noqa: E501
_ACCESS = re.compile(r"(\w+) access at (\S+?)(?:\(.*?\)(?: const)?)?\+0x[0-9a-f]+ in (\S+?):(\d+)")


@dataclass
class Row:
    """Result of one tool: cases by outcome, reports, seconds."""

    tool: str
    cases: int = 0
    errors: int = 0
    seconds: float = 0.0
    reports: list[str] = field(default_factory=list)
    allowed: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    died: list[str] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    never: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.errors or self.wrong or self.died or self.never)

    def sentence(self) -> str:
        words = [f"{self.tool}: {self.cases} cases, {self.errors} errors, {self.seconds:.0f} s"]
        for word, cases in (("wrong", self.wrong), ("died", self.died), ("never", self.never)):
            words += [f"{word}: {', '.join(cases)}"] if cases else []
        words += [f"{sum(self.allowed.values())} reports allowed"] if self.allowed else []
        left = f"{len(self.not_reached)} cases not reached" if self.not_reached else ""
        return "; ".join([*words, left] if left else words)


# reports without an error: copies and loads that mbarriers order, which racecheck does not see
_ORDERED = {
    ("Write", "ptx::copy4_or_zero"): ("async.cuh",),
    ("Write", "ptx::copy16_or_zero"): ("async.cuh",),
    ("Read", "Operand::load"): ("tf32/wgmma.cu", "tf32/halo.cu"),
}
WHY = (
    "copies and loads of inputs in tf32/wgmma.cu and halo.cu are ordered by mbarriers, one of "
    "them told by the copies themselves: copy, cp.async.mbarrier.arrive; wait, load, multiply, "
    "arrive; wait, copy (docs/convolutions.md)"
)


def excused(tool: str, report: str) -> bool:
    """Return True if racecheck reports only a write and a read that are ordered."""
    accesses = _ACCESS.findall(report)
    known = all(path.endswith(_ORDERED.get((k, f), ("nowhere",))) for k, f, path, _ in accesses)
    both = {kind for kind, *_ in accesses} == {"Read", "Write"}
    return tool == "racecheck" and both and known and len(accesses) == report.count("+0x")


def reports_of(log: str) -> list[str]:
    """Split a tool's log into reports, which have several marked lines each."""
    lines = [line[10:] if line.startswith("========= ") else "" for line in log.splitlines()]
    reports, report = [], list[str]()
    for line in [*lines, ""]:
        if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMM")):
            starts = not line.startswith(" ")
            if starts and report:
                reports.append("\n".join(report))
                report = []
            report.append(line)
        elif report:
            reports.append("\n".join(report))
            report = []
    return [text for text in reports if not text.startswith(("LEAK", "Warning", "Info"))]


def command(tool: str | None, *arguments: str) -> list[str]:
    """Return the worker's command, run under `tool` if given."""
    worker = [sys.executable, str(WORKER), *arguments]
    if tool is None:
        return worker
    return [SANITIZER, "--tool", tool, "--print-limit", "200", "--launch-timeout", "120",
            *_OPTIONS.get(tool, ()), *worker]  # fmt: skip


def logged(words: list[str], seconds: float) -> tuple[str, int | None]:
    """Run a command; return its output and exit code, None if it was ended after `seconds`."""
    with tempfile.TemporaryFile() as log:
        options: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
        options["env"] = os.environ | dict.fromkeys(_THREADS, "1")
        with subprocess.Popen(words, start_new_session=True, **options) as process:
            try:
                code: int | None = process.wait(max(1.0, seconds))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the tool and its process
                code = None
        log.seek(0)
        return log.read().decode(errors="replace"), code


def found_errors(log: str) -> int | None:
    counts = [int(first or second) for first, second in _SUMMARY.findall(log)]
    return counts[-1] if counts else None


def prove(jobs: int) -> dict[str, dict[str, int]]:
    """Return the errors that each tool finds in its planted kernel and in a clean one.

    Raises ClickException unless each tool finds exactly the planted error.
    """
    runs = [(tool, planted) for tool in TOOLS for planted in (tool, "nothing")]

    def run(pair: tuple[str, str]) -> tuple[str, int | None]:
        log, _ = logged(command(pair[0], "--planted", pair[1]), _PLANTED_S)
        return log, found_errors(log) if "launched" in log else None

    def compiled(planted: str) -> None:
        logged(command(None, "--planted", planted), _PLANTED_S)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(compiled, (*TOOLS, "nothing")))
        ended = dict(zip(runs, pool.map(run, runs), strict=True))
    for (tool, planted), (log, errors) in ended.items():
        if errors is None:
            last = (log.strip().splitlines() or ["nothing"])[-1]
            raise click.ClickException(f"{tool}: expected its summary of a kernel, found: {last}")
        if bool(errors) != (planted == tool):
            expected = "the planted error in its" if planted == tool else "no error in a clean"
            raise click.ClickException(f"{tool}: expected {expected} kernel, found {errors} errors")
    return {tool: {"found": ended[tool, tool][1] or 0, "in_a_clean_kernel": 0} for tool in TOOLS}


def counted(row: Row, cases: list[str], log: str, code: int | None) -> set[str]:
    """Add a process's output for `cases` to `row`; return the cases that completed."""
    begun = re.findall(r"^case (.+)$", log, re.MULTILINE)
    ended = re.findall(r"^(done|wrong|failed) (.+? \| [^:\n]+)(.*)$", log, re.MULTILINE)
    row.cases += len(ended)
    row.wrong += [case for result, case, _ in ended if result == "wrong"]
    row.died += [case + reason for result, case, reason in ended if result == "failed"]
    row.not_reached += cases[len(begun) :]
    if len(ended) < len(begun):
        unfinished = f"{begun[-1]} (was not through)"
        (row.not_reached if code is None else row.died).append(
            unfinished if code is None else f"{begun[-1]}: exit code {code}"
        )
    return {case for _, case, _ in ended}


def judged(row: Row, log: str, code: int | None) -> None:
    """Add the errors of a tool to `row`, except excused ones."""
    reports, total = reports_of(log), found_errors(log)
    others = [report for report in reports if not excused(row.tool, report)]
    if allowed := len(reports) - len(others):
        row.allowed[WHY] = row.allowed.get(WHY, 0) + allowed
    row.errors += max(len(others), (total or 0) - allowed)
    row.reports += [report[:600] for report in others[:3]]
    if total is None and code is not None:
        row.died.append(f"no summary of the tool, {(log.split(chr(10)) or [''])[-1]}")


def watch(tool: str | None, cases: list[str], jobs: int, seconds: float, only: str = "") -> Row:
    """Run `cases`, selected by `only`, in processes under `tool`, or without one."""
    row, began, completed = Row(tool or "as they are"), time.monotonic(), set[str]()

    def run(index: int) -> tuple[str, int | None]:
        words = ["--part", f"{index}/{jobs}", "--seconds", f"{seconds:.1f}", "--only", only]
        return logged(command(tool, *words), seconds + _GRACE_S)

    with ThreadPoolExecutor(jobs) as pool:
        for index, (log, code) in enumerate(pool.map(run, range(jobs))):
            completed |= counted(row, cases[index::jobs], log, code)
            if tool is not None:
                judged(row, log, code)
    row.seconds = time.monotonic() - began
    row.never = sorted(owners(cases) - owners(completed))
    return row


def owners(cases: Iterable[str]) -> set[str]:
    return {case.partition(" | ")[0] for case in cases}


def listed(only: str = "") -> list[str]:
    """Return the cases selected by `only` in order; raise ClickException if there are none."""
    log, code = logged(command(None, "--list", "--only", only), _PLANTED_S)
    cases = re.findall(r"^case (.+)$", log, re.MULTILINE)
    if code != 0 or not cases:
        last = (log.strip().splitlines() or ["nothing"])[-1]
        raise click.ClickException(f"{WORKER.name} --list: expected cases, found: {last}")
    return cases


def version() -> str:
    log, _ = logged([SANITIZER, "--version"], _PLANTED_S)
    match = re.search(r"Version (\S+)|version (\S+)", log)
    return (match[1] or match[2]) if match else "unknown"


def document(
    gpu: Gpu, planted: Any, cases: list[str], rows: list[Row], only: str
) -> dict[str, Any]:
    result = head("sanitize", gpu) | {
        "sanitizer": version(),
        "planted": planted,
        "cases": len(cases),
        "only": only,
        "variants": len(owners(cases)),
        "rows": [vars(row) | {"seconds": round(row.seconds, 1)} for row in rows],
    }
    return result


@click.command(help=__doc__)
@click.option("--jobs", type=click.IntRange(min=1), default=4, show_default=True)
@click.option("--seconds", type=float, default=600.0, show_default=True,
              help="All tools' together; the run without a tool may take as many.")  # fmt: skip
@click.option("--only", default="", metavar="NAMES",
              help="Plans and variants that have one of these in their name.")  # fmt: skip
@click.option("--json", "target", type=click.Path(path_type=Path), help="Keep the result here.")
def main(jobs: int, seconds: float, only: str, target: Path | None) -> None:
    try:
        gpu = require_gpu(0)
        if shutil.which(SANITIZER) is None:
            raise LenetError(
                f"{SANITIZER}: expected it on PATH (CUDA's toolkit has it), found none"
            )
    except LenetError as error:
        click.echo(f"sanitize: error: {error}", err=True)
        sys.exit(2)
    planted = prove(jobs)
    click.echo(f"{len(planted)} planted errors found, each by its tool; none in a clean kernel")
    cases = listed(only)
    bare = watch(None, cases, jobs, seconds, only)
    click.echo(bare.sentence())
    rows, left, shares = [], seconds, sum(TOOLS.values())
    for tool, share in TOOLS.items():
        rows.append(watch(tool, cases, jobs, left * share / shares, only))
        left, shares = max(0.0, left - rows[-1].seconds), shares - share
        click.echo(rows[-1].sentence())
        for report in rows[-1].reports:
            click.echo(report)
        if target is not None:  # kept if the next tool does not finish
            text = json.dumps(document(gpu, planted, cases, rows, only), indent=1)
            write_atomically(target, text.encode() + b"\n")
    sys.exit(0 if all(row.clean for row in rows) and not (bare.wrong or bare.died) else 1)


if __name__ == "__main__":
    main()
