"""Break the package on purpose, one place at a time, and see which test notices.

A mutant is a line of tests/mutants.json: a text of one file and what replaces it, where it can be
seen ("cpu", "gpu") and the tests that are to notice. One that none notices has survived.

\b
    python scripts/mutants.py                      # all that a CPU can see
    python scripts/mutants.py --where gpu          # the rest, on a GPU
    python scripts/mutants.py --only NAME --write  # again after a change, into docs/mutants.md
    python scripts/mutants.py --take FILE --write  # what --json FILE kept on another machine
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from xml.etree import ElementTree

import click

from lenetgpu.cpu.threads import cpu_name
from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import cupy_installed, driver_gpus
from lenetgpu.gpu.software import commit
from lenetgpu.store import write_atomically

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "mutants.json"
RESULTS = ROOT / "docs" / "measured" / "mutants.json"
PAGE = ROOT / "docs" / "mutants.md"
WHERE, KILLED = ("cpu", "gpu"), ("killed", "timeout")
_NOTICE_ALL = ("--ignore=tests/test_mutants.py", "--deselect=tests/test_receipt.py")
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "build", "dist")


@dataclass(frozen=True)
class Mutant:
    """`old` of `file` (the `nth`, from 1, where there are several) becomes `new`.

    `what` says in words what is then broken; `tests` are pytest's arguments.
    """

    name: str
    file: str
    what: str
    old: str
    new: str
    where: str
    tests: tuple[str, ...]
    nth: int = 0

    @property
    def mark(self) -> str:
        """A hash of what is changed: results of another change are not this one's."""
        facts = json.dumps([self.file, self.old, self.new, self.nth])
        return hashlib.sha256(facts.encode()).hexdigest()[:12]

    def applied(self, text: str) -> str:
        """The file's `text` with the change; LenetError where `old` is not there as is said."""
        count, wanted = text.count(self.old), max(1, self.nth)
        if count < wanted or (count > 1 and not self.nth):
            raise LenetError(
                f"mutant {self.name}: expected {self.old!r} in {self.file} as often as is said, "
                f"found {count}"
            )
        at = -1
        for _ in range(wanted):
            at = text.index(self.old, at + 1)
        return text[:at] + self.new + text[at + len(self.old) :]


def load(path: Path = DATA) -> list[Mutant]:
    """All mutants; LenetError where two have a name or a field is none."""
    found = []
    for entry in json.loads(path.read_text()):
        try:
            mutant = Mutant(**entry | {"tests": tuple(entry["tests"])})
        except (KeyError, TypeError) as error:
            name = entry.get("name", "without a name")
            raise LenetError(f"mutant {name}: expected the fields of Mutant ({error})") from error
        if mutant.where not in WHERE or not mutant.tests:
            raise LenetError(f"mutant {mutant.name}: expected tests, on {' or '.join(WHERE)}")
        found.append(mutant)
    names = [mutant.name for mutant in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise LenetError(f"mutants: expected names of their own, found twice: {', '.join(twice)}")
    return found


def copy_tree(target: Path) -> None:
    """What git knows or would take, or everything but what is made, to `target`."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        shutil.copytree(ROOT, target, ignore=_NOT_COPIED, dirs_exist_ok=True)
        return
    for name in filter(None, done.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


@dataclass(frozen=True)
class Ran:
    """One run of pytest: its exit code (None: out of time), tests that ran, the first failure."""

    code: int | None
    ran: int
    failed: str
    output: str


def _failures(report: Path) -> tuple[int, str]:
    """How many tests ran (skipped ones did not), and the node of the first that failed."""
    ran, failed = 0, ""
    with contextlib.suppress(OSError, ElementTree.ParseError):
        for case in ElementTree.parse(report).iter("testcase"):
            ran += case.find("skipped") is None
            if not failed and (case.find("failure") is not None or case.find("error") is not None):
                module, name = case.get("classname", ""), case.get("name", "")
                path = (module or name).replace(".", "/") + ".py"
                failed = f"{path}::{name}" if module else f"{path} (its import)"
    return ran, failed


def run_tests(folder: Path, arguments: Sequence[str], seconds: float) -> Ran:
    """pytest with `arguments` in the copy at `folder`, ended after `seconds`."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            code = None
    return Ran(code, *_failures(report), output)


def outcome(ran: Ran) -> tuple[str, str]:
    """(killed, timeout, survived or error; which test noticed, or why it is an error)."""
    if ran.code is None:
        return "timeout", ran.failed or "no test ended in time"
    if ran.code == 0:
        return ("survived", "") if ran.ran else ("error", "every test was skipped")
    if ran.failed or ran.code < 0:
        return "killed", ran.failed or "the interpreter, which crashed"
    last = (ran.output.strip().splitlines() or ["nothing said"])[-1]
    return "error", f"pytest ended with {ran.code}: {last}"


def selections(mutants: Iterable[Mutant]) -> list[tuple[str, ...]]:
    """What has to pass unbroken: plain nodes in one run, each choice by options in its own."""
    plain: dict[str, None] = {}
    others: dict[tuple[str, ...], None] = {}
    for mutant in mutants:
        if any(argument.startswith("-") for argument in mutant.tests):
            others[mutant.tests] = None
        else:
            plain |= dict.fromkeys(mutant.tests)
    return [*([tuple(plain)] if plain else []), *others]


def require_passing(folder: Path, chosen: Iterable[tuple[str, ...]], seconds: float) -> None:
    """LenetError where tests fail, or none runs, in the tree as it is."""
    for arguments in chosen:
        ran = run_tests(folder, arguments, seconds)
        if outcome(ran)[0] != "survived":
            said = outcome(ran)[1]
            raise LenetError(f"the tree as it is: expected its tests to pass, found {said}")


def try_mutant(folders: SimpleQueue[Path], seconds: float, all_tests: bool, mutant: Mutant) -> Any:
    """Break one of the copies, run the tests, mend it again."""
    folder = folders.get()
    path = folder / mutant.file
    kept, start = path.read_bytes(), time.perf_counter()
    try:
        path.write_text(mutant.applied(kept.decode()))
        marker = ("-m", "gpu") if mutant.where == "gpu" else ()
        ran = run_tests(folder, (*_NOTICE_ALL, *marker) if all_tests else mutant.tests, seconds)
    finally:
        path.write_bytes(kept)
        folders.put(folder)
    found, by = outcome(ran)
    line = f"{found:9} {time.perf_counter() - start:5.1f} s  {mutant.name}  {by}"
    click.echo(line, err=True)
    return {"name": mutant.name, "of": mutant.mark, "outcome": found, "by": by}


def run_mutants(mutants: Sequence[Mutant], seconds: float, jobs: int, all_tests: bool) -> list[Any]:
    """Results in the mutants' order; LenetError where the unbroken tree does not pass."""
    for mutant in mutants:
        mutant.applied((ROOT / mutant.file).read_text())
    with tempfile.TemporaryDirectory(prefix="mutants-") as base:
        folders: SimpleQueue[Path] = SimpleQueue()
        copies = [Path(base) / str(index) for index in range(jobs)]
        for copy in copies:
            copy.mkdir()
            copy_tree(copy)
            folders.put(copy)
        if not all_tests:
            click.echo("the tree as it is", err=True)
            require_passing(copies[0], selections(mutants), 10 * seconds)
        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(partial(try_mutant, folders, seconds, all_tests), mutants))


def merged(mutants: Sequence[Mutant], old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
    """A result for every mutant, the new one where there is one, in the mutants' order."""
    found = {entry["name"]: entry for entry in (*old, *new)}
    unrun = {"outcome": "unrun", "by": "", "date": "", "commit": "", "device": ""}
    results = []
    for mutant in mutants:
        entry = found.get(mutant.name)
        if entry is None or entry["of"] != mutant.mark:
            entry = {"name": mutant.name, "of": mutant.mark, **unrun}
        results.append({"where": mutant.where} | entry)
    return results


def share(results: Iterable[Any], where: str) -> tuple[int, int]:
    """(killed, run) of those that `where` can see."""
    outcomes = [entry["outcome"] for entry in results if entry["where"] == where]
    ran = [name for name in outcomes if name != "unrun"]
    return sum(name in KILLED for name in ran), len(ran)


_HEAD = """# Mutants

Made by `scripts/mutants.py --write` of [tests/mutants.json](../tests/mutants.json) and
[measured/mutants.json](measured/mutants.json); do not edit. Each row is a change that somebody
could make, put into a copy of the tree; the test beside it failed there and passes without it.
"""
_NAMED = {"cpu": "What a CPU can see", "gpu": "What only a GPU can see"}


def _said(entry: Any) -> str:
    if entry["outcome"] == "unrun":
        return "not run yet"
    if entry["outcome"] in KILLED:
        late = ", out of time" if entry["outcome"] == "timeout" else ""
        return f"`{entry['by'].removeprefix('tests/')}`{late}"
    return f"**{entry['outcome']}** {entry['by']}".strip()


def page(mutants: Sequence[Mutant], results: Sequence[Any]) -> str:
    """docs/mutants.md: shares, survivors, and a table each for what a CPU and a GPU can see."""
    by_name = {entry["name"]: entry for entry in results}
    left = [m.name for m in mutants if by_name[m.name]["outcome"] in ("survived", "error")]
    lines = [_HEAD, f"Surviving: {', '.join(left) or 'none of those that were run'}.\n"]
    for where in WHERE:
        mine = [mutant for mutant in mutants if mutant.where == where]
        killed, ran = share(results, where)
        runs = {
            f"{entry['device']}, {entry['date']}, commit {entry['commit']}"
            for entry in results
            if entry["where"] == where and entry["outcome"] != "unrun"
        }
        rate = f", {killed / ran:.0%}" if ran else ""
        rate = f"Killed {killed} of {ran} that were run{rate}; there are {len(mine)}."
        lines += [f"## {_NAMED[where]}\n", rate]
        lines += [f"Run on {'; '.join(sorted(runs))}.\n" if runs else ""]
        lines += ["| mutant | file | what is broken | killed by |", "|---|---|---|---|"]
        for mutant in mine:
            file = mutant.file.removeprefix("lenetgpu/")
            cells = mutant.name, f"`{file}`", mutant.what, _said(by_name[mutant.name])
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def chosen(mutants: Sequence[Mutant], where: str, only: Sequence[str]) -> list[Mutant]:
    """Those of `where` that `only` names (all where it names none); LenetError for no such one."""
    strange = set(only) - {mutant.name for mutant in mutants}
    if strange:
        raise LenetError(f"--only: expected names of mutants, found {', '.join(sorted(strange))}")
    found = [m for m in mutants if m.where == where and (not only or m.name in only)]
    if not found:
        raise LenetError(f"--only: expected mutants that a {where} can see, found none")
    if where == "gpu" and not (driver_gpus() and cupy_installed()):
        raise LenetError("--where gpu: expected an NVIDIA GPU with CuPy, found none")
    return found


@click.command(help=__doc__)
@click.option("--where", type=click.Choice(WHERE), default="cpu", show_default=True)
@click.option("--only", multiple=True, metavar="NAME", help="These; may be repeated.")
@click.option("--all-tests", is_flag=True, help="All tests but those that see any change.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True)
@click.option("--timeout", type=float, default=120.0, show_default=True, metavar="SECONDS")
@click.option(
    "--commit",
    "sha",
    default=lambda: commit() or "unknown",
    help="What is recorded; git's where there is one.",
)
@click.option("--json", "target", type=click.Path(path_type=Path), help="Results to a file.")
@click.option("--take", type=click.Path(path_type=Path), help="Run nothing: results of a file.")
@click.option("--write", is_flag=True, help="Results into docs/measured/mutants.json and the page.")
def main(
    where: str,
    only: tuple[str, ...],
    all_tests: bool,
    jobs: int,
    timeout: float,
    sha: str,
    target: Path | None,
    take: Path | None,
    write: bool,
) -> None:
    try:
        mutants = load()
        if take is None:
            picked = chosen(mutants, where, only)
            facts = {"date": datetime.date.today().isoformat(), "commit": sha}
            facts |= {"device": driver_gpus()[0].name if where == "gpu" else cpu_name()}
            new = [entry | facts for entry in run_mutants(picked, timeout, jobs, all_tests)]
        else:
            new = json.loads(take.read_text())
        if target is not None:
            write_atomically(target, (json.dumps(new, indent=1) + "\n").encode())
        if write:
            old = json.loads(RESULTS.read_text())["results"] if RESULTS.is_file() else []
            results = merged(mutants, old, new)
            document = {"command": "mutants", "results": results}
            write_atomically(RESULTS, (json.dumps(document, indent=1) + "\n").encode())
            write_atomically(PAGE, page(mutants, results).encode())
    except LenetError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    left = [entry["name"] for entry in new if entry["outcome"] not in KILLED]
    click.echo(f"killed {len(new) - len(left)} of {len(new)}; left: {', '.join(left) or 'none'}")
    sys.exit(bool(left))


if __name__ == "__main__":
    main()
