"""Feed damaged files to the package's readers: each is read right or refused in a sentence.

\b
    python scripts/fuzz.py --seconds 60                 # every format, a minute in all
    python scripts/fuzz.py --cases 10000 --jobs 8       # 10,000 cases of each format
    python scripts/fuzz.py --replay findings            # earlier findings again

Harm is: a signal, a hang (--limit), an exception other than LenetError, 200 MB more memory than
before the case, anything printed, data that differ between two reads or that a checksum should have
caught. Cases run in forked children; the case of a child that died runs again alone. Files that are
read, or refused in a new sentence, are damaged further. Each harm is planted first, and must be
found. The exit code is 1 if there was harm.
"""

import contextlib
import ctypes
import faulthandler
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import click
from fuzz_formats import FORMATS, Entry, Format

import lenetgpu
from lenetgpu.errors import LenetError

MEMORY = 200 << 20  # bytes that a process may grow by as it reads a file
_ADDRESSES, _M_PERTURB = 4 << 30, -6
PACKAGE = str(Path(lenetgpu.__file__).parent) + os.sep
ENDS = ("read", "refused")
HARMS = ("signal", "hang", "traceback", "memory", "output", "wrong data")
# cases per child; files kept per finding; files damaged further
_BATCH, _KEPT, _CORPUS = 200, 4, 400


@dataclass(frozen=True)
class Options:
    """Duration (`seconds` for all formats or `cases` of each) and settings of a run."""

    seed: int
    seconds: float = float("inf")
    cases: float = float("inf")
    jobs: int = 1
    limit: float = 10.0
    findings: Path | None = None
    batch: int = _BATCH


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _perturbed(value: int) -> None:
    """Make malloc return filled memory from now on, so that unwritten data shows (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, value)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def outcome(form: Format, path: Path, valid: set[str], base: int) -> tuple[str, str]:
    """Return the outcome, one of ENDS or HARMS, and the message or data.

    Data are read twice, the second time with filled memory, and must be equal.
    """
    printed = os.fstat(1).st_size
    try:
        content = str(form.read(path))
        _perturbed(0xAA)
        again = str(form.read(path)) if _peak() - base <= MEMORY else content
    except LenetError as error:
        kind, message = "output" if "\n" in str(error) else "refused", str(error)
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((f for f in reversed(frames) if f.filename.startswith(PACKAGE)), frames[-1])
        where = f"{Path(last.filename).name}:{last.lineno}"
        first = (str(error).splitlines() or [""])[0]
        kind, message = "traceback", f"{type(error).__name__} at {where}: {first[:120]}"
    else:
        other = form.summed and valid and content not in valid
        kind, message = ("wrong data", "two reads differ, or other data than were summed")
        if content == again and not other:
            kind, message = "read", content
    _perturbed(0)
    if os.fstat(1).st_size != printed:
        return "output", "printed while reading"
    grown = _peak() - base
    return ("memory", f"{grown >> 20} MB more than before") if grown > MEMORY else (kind, message)


class Child:
    """A forked process that reads cases in its own folder and records each outcome."""

    def __init__(self, form: Format, folder: Path, cases: Iterable[bytes], valid: set[str]) -> None:
        self.form, self.folder = form, Path(tempfile.mkdtemp(dir=folder))
        self.path, self.notes = self.folder / form.file, self.folder / "notes"
        for name, data in form.beside.items():
            (self.folder / name).write_bytes(data)
        self.notes.touch()
        self.pid, self.status = os.fork(), 0
        if not self.pid:
            try:
                self._run(cases, valid)
            except BaseException:
                self._note("broken", traceback.format_exc()[-900:], "")
            os._exit(0)

    def _run(self, cases: Iterable[bytes], valid: set[str]) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * os.sysconf("SC_PAGE_SIZE") + _ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        faulthandler.disable()
        os.dup2(os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with contextlib.suppress(AttributeError, OSError):  # a peak of before would hide as much
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")
        base, seen = _peak(), set[str]()
        for data in cases:
            self.path.write_bytes(data)
            how, said = outcome(self.form, self.path, valid, base)
            reason = re.sub(r"'[^']*'|/\S+|[\d.,-]+", "#", said)[:160]
            if how not in ENDS or reason not in seen:
                (self.folder / f"kept-{digest(data)}").write_bytes(data)
            seen.add(reason)
            self._note(how, said[:300], digest(data))
            if how == "memory":
                return

    def _note(self, *what: str) -> None:
        with self.notes.open("a") as file:
            file.write(json.dumps(what) + "\n")

    def over(self, limit: float) -> bool:
        """Return True if it has ended, or was killed because a case took too long."""
        pid, self.status = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            return True
        if time.time() - self.notes.stat().st_mtime > limit:
            self.kill()
            self.status = -1
        return self.status == -1

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def result(self) -> list[tuple[str, str, bytes]]:
        """Return (outcome, message, file) of each case; the file is empty if nothing is new."""
        found = []
        for how, said, name in map(json.loads, self.notes.read_text().splitlines()):
            kept = self.folder / f"kept-{name}"
            found.append((how, said, kept.read_bytes() if kept.is_file() else b""))
        if self.status:
            number = self.status & 0x7F
            how, said = (
                ("hang", "") if self.status == -1 else ("signal", signal.Signals(number).name)
            )
            found.append((how, said, self.path.read_bytes()))
        shutil.rmtree(self.folder)
        return found


def alone(form: Format, data: bytes, valid: set[str], limit: float) -> tuple[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        child = Child(form, Path(folder), [data], valid)
        while not child.over(limit):
            time.sleep(0.005)
        how, said, _ = child.result()[-1]
        return how, said


@dataclass
class Fuzzer:
    """A format's corpus and the tally of its cases."""

    form: Format
    options: Options
    cases: int = 0
    corpus: list[Entry] = field(default_factory=list)
    valid: set[str] = field(default_factory=set)
    kept: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    harms: Counter[str] = field(default_factory=Counter)
    said: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Read every valid file once, so that their messages are known."""
        self.random = Random(f"{self.options.seed} {self.form.name}")
        self.corpus = self.form.seeds()
        for entry in self.corpus:
            how, said = alone(self.form, entry.data, set(), self.options.limit)
            if how == "read":
                self.valid.add(said)
        if not self.valid:
            raise click.ClickException(f"{self.form.name}: expected a valid file to be read")

    def start(self, folder: Path) -> Child:
        chosen = Random(self.random.getrandbits(64))
        mutated = (
            self.form.mutate(chosen, chosen.choice(self.corpus), self.corpus)
            for _ in range(self.options.batch)
        )
        return Child(self.form, folder, mutated, self.valid)

    def take(self, child: Child) -> None:
        """Count a child's outcomes; a signal that does not recur alone is not counted."""
        for how, said, data in child.result():
            if how == "broken":
                raise click.ClickException(f"{self.form.name}: {said}")
            self.cases += 1
            if how in ("signal", "hang", "memory"):
                again = alone(self.form, data, self.valid, self.options.limit)
                if how != "signal" or again[0] not in ENDS:
                    how, said = again
            if how not in ENDS:
                self._found(how, said, data)
                continue
            self.ends[how] += 1
            reason = re.sub(r"'[^']*'|/\S+|[\d.,-]+", "#", said)[:160]
            if data and reason not in self.seen and len(self.corpus) < _CORPUS:
                self.corpus.append(Entry(data, self.corpus[0].hot))
                self.kept += 1
            self.seen.add(reason)

    def _found(self, how: str, said: str, data: bytes) -> None:
        self.harms[how] += 1
        key = (how, said.partition(": ")[0])
        self.said[key] += 1
        if self.options.findings is not None and self.said[key] <= _KEPT:
            self.options.findings.mkdir(parents=True, exist_ok=True)
            name = f"{self.form.name}--{how.replace(' ', '-')}--{digest(data)}"
            (self.options.findings / name).write_bytes(data)


def fuzz(forms: Iterable[Format], options: Options) -> dict[str, Fuzzer]:
    """Damage files of every format until the requested cases or seconds are reached."""
    with tempfile.TemporaryDirectory(prefix="lenetgpu-fuzz-") as folder:
        fuzzers = [Fuzzer(form, options) for form in forms]
        end, running = time.monotonic() + options.seconds, list[tuple[Fuzzer, Child]]()
        begun: Counter[str] = Counter()
        try:
            while left := [f for f in fuzzers if f.cases < options.cases]:
                if time.monotonic() > end:
                    break
                while len(running) < options.jobs:
                    fuzzer = min(left, key=lambda f: begun[f.form.name])
                    begun[fuzzer.form.name] += 1
                    running.append((fuzzer, fuzzer.start(Path(folder))))
                time.sleep(0.005)
                for pair in [pair for pair in running if pair[1].over(options.limit)]:
                    running.remove(pair)
                    pair[0].take(pair[1])
        finally:
            for _, child in running:
                child.kill()
        return {fuzzer.form.name: fuzzer for fuzzer in fuzzers}


def _planted(path: Path) -> str:
    kind = path.read_text()
    if kind == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    while kind == "hang":
        pass
    if kind == "traceback":
        raise KeyError(kind)
    if kind == "memory":
        return str(len(b"x" * (2 * MEMORY)))
    if kind == "output":
        os.write(1, b"garbage")
    if kind == "refused":
        raise LenetError("expected another file, found this one")
    return time.monotonic().hex() if kind == "wrong data" else "fine"


def prove(jobs: int = 2) -> None:
    """Plant each kind of harm; raise ClickException if one is not found."""
    for kind in (*HARMS, "refused"):

        def mutate(random: Random, entry: Entry, others: Any, kind: str = kind) -> bytes:
            return kind.encode()

        form = Format(f"planted {kind}", "f", lambda: [Entry(b"fine")], mutate, _planted)
        limit = 0.3 if kind == "hang" else 5.0
        result = fuzz([form], Options(0, cases=2, jobs=jobs, limit=limit, batch=2))[form.name]
        expected = {kind} - {"refused"}
        if set(result.harms) != expected or (kind == "refused") != bool(result.ends["refused"]):
            raise click.ClickException(
                f"the planted {kind}: expected it to be found, found {dict(result.harms)}"
            )


def replay(paths: Iterable[Path], limit: float) -> int:
    """Run stored findings again; return how many still do harm."""
    harmful = 0
    for file in (f for p in paths for f in (sorted(p.iterdir()) if p.is_dir() else [p])):
        name = file.name.partition("--")[0]
        if name not in FORMATS:
            raise click.ClickException(f"{file}: expected FORMAT--HARM--DIGEST, found {file.name}")
        valid = Fuzzer(FORMATS[name], Options(seed=0)).valid
        kind, message = alone(FORMATS[name], file.read_bytes(), valid, limit)
        harmful += kind not in ENDS
        click.echo(f"{file.name}: {kind}, {message}")
    return harmful


@click.command(help=__doc__)
@click.option("--seconds", type=float, help="How long, over all formats; 60 unless --cases.")
@click.option("--cases", type=int, help="How many cases of each format.")
@click.option("--format", "names", multiple=True, type=click.Choice([*FORMATS]))
@click.option("--seed", type=int, help="Of the random numbers; another one each time unless given.")
@click.option("--jobs", type=int, default=os.cpu_count(), show_default=True)
@click.option("--limit", type=float, default=10.0, show_default=True, help="Seconds of a case.")
@click.option("--findings", type=click.Path(path_type=Path), default=Path("findings"),
              show_default=True, help="The folder that findings are kept in.")  # fmt: skip
@click.option("--replay", "replayed", multiple=True, type=click.Path(exists=True, path_type=Path),
              help="Run kept findings again: files, or folders of them.")  # fmt: skip
def main(names: tuple[str, ...], replayed: tuple[Path, ...], **options: Any) -> None:
    if replayed:
        sys.exit(1 if replay(replayed, options["limit"]) else 0)
    if options["seconds"] is None and options["cases"] is None:
        options["seconds"] = 60.0
    if options["seed"] is None:
        options["seed"] = int.from_bytes(os.urandom(4), "little")
    prove(options["jobs"])
    click.echo(f"{len(HARMS)} planted harms found; seed {options['seed']}")
    chosen = {name: value for name, value in options.items() if value is not None}
    results = fuzz([FORMATS[name] for name in names or FORMATS], Options(**chosen))
    for name, fuzzer in results.items():
        harms = ", ".join(f"{count} {kind}" for kind, count in sorted(fuzzer.harms.items()))
        click.echo(f"{name:18} {fuzzer.cases:8,} cases: {fuzzer.ends['read']:,} read, "
                   f"{fuzzer.ends['refused']:,} refused, {fuzzer.kept:,} went further; "
                   f"harm: {harms or 'none'}")  # fmt: skip
        for (kind_of_harm, message), count in fuzzer.said.most_common():
            click.echo(f"  {count} {kind_of_harm}, as {message}")
    total = sum((fuzzer.harms for fuzzer in results.values()), Counter[str]())
    counts = ", ".join(f"{total[kind]} {kind}" for kind in HARMS)
    click.echo(f"of {sum(fuzzer.cases for fuzzer in results.values()):,} damaged files: {counts}")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
