"""Watch every GPU variant with compute-sanitizer: memcheck, synccheck, initcheck, racecheck.

\b
    python scripts/sanitize.py --jobs 14 --seconds 240
    python scripts/sanitize.py --json docs/measured/nvidia-h200/sanitize.json

First each tool must find the error that sanitize_planted.cu holds for it, and none in a clean
kernel. Then the cases of sanitize_cases.py run once as they are, so that no tool watches NVRTC,
and once under each tool, in --jobs processes, everybody's first case before anybody's second. The
tools share --seconds; what they did not suffice for is said, and --json has what is over. Exits
with 1 where a tool finds an error, a result is wrong, a process dies, or a variant had no case;
with 2 where it cannot run.
"""

from __future__ import annotations

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
from functools import partial
from pathlib import Path
from typing import Any

import click
from sanitize_allowed import ALLOWED, Allowed

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import Gpu, require_gpu
from lenetgpu.measure.document import head
from lenetgpu.store import write_atomically

WORKER = Path(__file__).with_name("sanitize_cases.py")
SANITIZER = "compute-sanitizer"
TOOLS = {"memcheck": 2, "synccheck": 1, "initcheck": 2, "racecheck": 5}
"""Each tool's share of the time; what one leaves is the next ones'."""
_OPTIONS = {"memcheck": ("--report-api-errors", "no")}
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Set to 1: filters are pruned on the CPU, and each of --jobs would take every core."""
_GRACE_S = 30.0
_PLANTED_S = 120.0
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error")  # fmt: skip  # noqa: E501
_PLACE = re.compile(r"(\w+) access at (\S+?)(?:\(.*?\)(?: const)?)?\+0x[0-9a-f]+ in (\S+?):(\d+)")


@dataclass
class Row:
    """What one tool did: cases by how they ended, reports, how long it took."""

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
        """Nothing was found, and every variant was looked at."""
        return not (self.errors or self.wrong or self.died or self.never)

    def sentence(self) -> str:
        """A line for people."""
        words = [f"{self.tool}: {self.cases} cases, {self.errors} errors, {self.seconds:.0f} s"]
        for what, found in (("wrong", self.wrong), ("died", self.died), ("never", self.never)):
            words += [f"{what}: {', '.join(found)}"] if found else []
        words += [f"{sum(self.allowed.values())} reports allowed"] if self.allowed else []
        left = f"{len(self.not_reached)} cases not reached" if self.not_reached else ""
        return "; ".join([*words, left] if left else words)


def excused(tool: str, report: str) -> Allowed | None:
    """The entry of ALLOWED that `report` is of, with every place that it names."""
    places = _PLACE.findall(report)
    for entry in ALLOWED:
        if entry.tool == tool and len(places) == report.count("+0x") and entry.holds(places):
            return entry
    return None


def reports_of(log: str) -> list[str]:
    """A tool's reports, each of several lines that begin with its marks."""
    lines = [line[10:] if line.startswith("========= ") else "" for line in log.splitlines()]
    found, now = [], list[str]()
    for line in [*lines, ""]:
        if line and not line.startswith(("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMM")):
            starts = not line.startswith(" ")
            if starts and now:
                found.append("\n".join(now))
                now = []
            now.append(line)
        elif now:
            found.append("\n".join(now))
            now = []
    return [text for text in found if not text.startswith(("LEAK", "Warning", "Info"))]


def command(tool: str | None, *arguments: str) -> list[str]:
    """The worker's command, watched by `tool` where there is one."""
    worker = [sys.executable, str(WORKER), *arguments]
    if tool is None:
        return worker
    return [SANITIZER, "--tool", tool, "--print-limit", "200", "--launch-timeout", "120",
            *_OPTIONS.get(tool, ()), *worker]  # fmt: skip


def logged(words: list[str], seconds: float) -> tuple[str, int | None]:
    """What a command prints, and its exit code; None where it was ended after `seconds`."""
    with tempfile.TemporaryFile() as log:
        how: dict[str, Any] = {"stdout": log, "stderr": subprocess.STDOUT}
        how["env"] = os.environ | dict.fromkeys(_THREADS, "1")
        with subprocess.Popen(words, start_new_session=True, **how) as process:
            try:
                code: int | None = process.wait(max(1.0, seconds))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # the tool, and what it watches
                code = None
        log.seek(0)
        return log.read().decode(errors="replace"), code


def found_errors(log: str) -> int | None:
    """The number of the tool's last words; None where it had none."""
    counts = [int(first or second) for first, second in _SUMMARY.findall(log)]
    return counts[-1] if counts else None


def prove(jobs: int) -> dict[str, dict[str, int]]:
    """Errors that each tool finds in its planted kernel, and in one without an error.

    ClickException unless each finds its own, and nothing where there is nothing.
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
    for (tool, planted), (log, found) in ended.items():
        if found is None:
            last = (log.strip().splitlines() or ["nothing"])[-1]
            raise click.ClickException(f"{tool}: expected its summary of a kernel, found: {last}")
        if bool(found) != (planted == tool):
            expected = "the planted error in its" if planted == tool else "no error in a clean"
            raise click.ClickException(f"{tool}: expected {expected} kernel, found {found} errors")
    return {tool: {"found": ended[tool, tool][1] or 0, "in_a_clean_kernel": 0} for tool in TOOLS}


class Part:
    """A part of the cases under one tool, in processes one after another until time is over."""

    def __init__(self, tool: str | None, part: str, cases: list[str], only: str) -> None:
        self.tool, self.part, self.cases, self.only = tool, part, cases, only
        self.begun: list[str] = []
        self.through: list[str] = []
        self.row = Row(tool or "as they are")

    def run(self, until: float) -> Part:
        """Start anew behind a case that ended its process."""
        while len(self.begun) < len(self.cases) and (left := until - time.monotonic()) > 0:
            before = len(self.begun)
            words = ["--part", self.part, "--skip", str(before), "--seconds", f"{left:.1f}"]
            words += ["--only", self.only]
            log, code = logged(command(self.tool, *words), left + _GRACE_S)
            self._take(log, code)
            if self.tool is not None:
                self._judge(self.tool, log)
                if found_errors(log) is None and code is not None:
                    last = (log.strip().splitlines() or ["nothing"])[-1]
                    self.row.died.append(f"part {self.part}: no summary of the tool, {last}")
            if len(self.begun) == before:
                break
        return self

    def _take(self, log: str, code: int | None) -> None:
        begun = re.findall(r"^case (.+)$", log, re.MULTILINE)
        through = re.findall(r"^(done|wrong|failed) (.+? \| [^:\n]+)(.*)$", log, re.MULTILINE)
        self.begun += begun
        self.through += [case for _, case, _ in through]
        self.row.wrong += [case for how, case, _ in through if how == "wrong"]
        self.row.died += [case + why for how, case, why in through if how == "failed"]
        self.row.cases += len(through)
        if len(through) < len(begun) and code is None:
            self.row.not_reached.append(f"{begun[-1]} (was not through)")
        elif len(through) < len(begun):
            self.row.died.append(f"{begun[-1]}: exit code {code}")

    def _judge(self, tool: str, log: str) -> None:
        """Count the tool's errors but those that are allowed; what it printed is the least."""
        reports = reports_of(log)
        others = [report for report in reports if excused(tool, report) is None]
        for entry in filter(None, (excused(tool, report) for report in reports)):
            self.row.allowed[entry.why] = self.row.allowed.get(entry.why, 0) + 1
        allowed = len(reports) - len(others)
        self.row.errors += max(len(others), (found_errors(log) or 0) - allowed)
        self.row.reports += [report[:600] for report in others[:3]]


def watch(tool: str | None, cases: list[str], jobs: int, seconds: float, only: str = "") -> Row:
    """All `cases`, which are those of `only`, under `tool`, or as they are."""
    began = time.monotonic()
    parts = [Part(tool, f"{index}/{jobs}", cases[index::jobs], only) for index in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(partial(Part.run, until=began + seconds), parts))
    row = Row(tool or "as they are", seconds=time.monotonic() - began)
    for part in parts:
        row.cases, row.errors = row.cases + part.row.cases, row.errors + part.row.errors
        for name in ("reports", "wrong", "died", "not_reached"):
            getattr(row, name).extend(getattr(part.row, name))
        for why, count in part.row.allowed.items():
            row.allowed[why] = row.allowed.get(why, 0) + count
    begun = {case for part in parts for case in part.begun}
    row.not_reached += [case for case in cases if case not in begun]
    row.never = sorted(owners(cases) - owners(case for part in parts for case in part.through))
    return row


def owners(cases: Iterable[str]) -> set[str]:
    """The variants and plans that cases are of."""
    return {case.partition(" | ")[0] for case in cases}


def listed(only: str = "") -> list[str]:
    """The cases of `only`, in the order in which they run; ClickException where there is none."""
    log, code = logged(command(None, "--list", "--only", only), _PLANTED_S)
    cases = re.findall(r"^case (.+)$", log, re.MULTILINE)
    if code != 0 or not cases:
        last = (log.strip().splitlines() or ["nothing"])[-1]
        raise click.ClickException(f"{WORKER.name} --list: expected cases, found: {last}")
    return cases


def version() -> str:
    """What compute-sanitizer calls itself."""
    log, _ = logged([SANITIZER, "--version"], _PLANTED_S)
    found = re.search(r"Version (\S+)|version (\S+)", log)
    return (found[1] or found[2]) if found else "unknown"


def document(
    gpu: Gpu, planted: Any, cases: list[str], rows: list[Row], only: str
) -> dict[str, Any]:
    """What is kept of a run."""
    found = head("sanitize", gpu) | {
        "sanitizer": version(),
        "planted": planted,
        "cases": len(cases),
        "only": only,
        "variants": len(owners(cases)),
        "rows": [vars(row) | {"seconds": round(row.seconds, 1)} for row in rows],
    }
    return found


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
        if target is not None:  # what the next tool does not come to its end of is not lost
            text = json.dumps(document(gpu, planted, cases, rows, only), indent=1)
            write_atomically(target, text.encode() + b"\n")
    sys.exit(0 if all(row.clean for row in rows) and not (bare.wrong or bare.died) else 1)


if __name__ == "__main__":
    main()
