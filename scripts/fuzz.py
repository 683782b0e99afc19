"""Feed the package's readers damaged files: each is to be read right, or refused in a sentence.

\b
    python scripts/fuzz.py --seconds 60                 # every format, a minute in all
    python scripts/fuzz.py --cases 10000 --jobs 8       # so many cases of each format
    python scripts/fuzz.py --replay findings            # what was found before, again

Harm is: a signal, a hang (--limit), an exception that is no LenetError, memory of 200 MB above what
a process had before the case, anything printed, data that differ between two reads or that a
checksum should have caught. Cases run in forked children; where one dies, its case is run again
alone. Files that reach a line of the package, or a sentence, that none before reached are damaged
further. Each harm is planted first, and must be found. Exits with 1 where there was harm.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import click
from fuzz_children import ENDS, HARMS, MEMORY, Case, Child, Process, alone, digest
from fuzz_formats import FORMATS as OF_DATA
from fuzz_formats import Format
from fuzz_mutations import Entry
from fuzz_records import FORMATS as KEPT
from fuzz_taken import FORMATS as TAKEN

from lenetgpu.errors import LenetError

FORMATS = {**OF_DATA, **KEPT, **TAKEN}
_BATCH = 200
_KEPT = 4
"""Files that are kept of one finding: of the same harm at the same place."""


@dataclass(frozen=True)
class Options:
    """How long (`seconds` over all formats, `cases` of each), and how."""

    seed: int
    seconds: float | None = None
    cases: int | None = None
    jobs: int = 1
    limit: float = 10.0
    findings: Path | None = None
    batch: int = _BATCH


@dataclass
class Tally:
    """Of one format: cases, how they ended, files that went further, findings by what is said."""

    cases: int = 0
    kept: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    harms: Counter[str] = field(default_factory=Counter)
    said: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], str] = field(default_factory=dict)

    def line(self, name: str) -> str:
        """A line of the table."""
        harms = ", ".join(f"{count} {kind}" for kind, count in sorted(self.harms.items()))
        return (f"{name:16} {self.cases:8,} cases: {self.ends['read']:,} read, "
                f"{self.ends['refused']:,} refused, "
                f"{self.kept:,} went further; harm: {harms or 'none'}")  # fmt: skip


class Fuzzer:
    """One format: its corpus, what was reached, what was found; its files lie in `folder`."""

    def __init__(self, form: Format, folder: Path, options: Options) -> None:
        self.form, self.folder, self.options = form, folder, options
        self.random = Random(f"{options.seed} {form.name}")
        self.tally, self.spent = Tally(), 0.0
        self.corpus = form.seeds()
        self.seen: set[Any] = set()
        self.valid: set[str] = set()
        self._begin()

    def _begin(self) -> None:
        """Read every valid file once: what they reach is nothing new."""
        taken = set()
        for entry in self.corpus:
            process = self._process(lambda entry=entry: [(0, entry.data)])
            while (said := process.lines()) is not None:
                self._learn([key for line in said for key in line[-1]])
                taken |= {what for how, what, *_ in said if how == "read"}
            process.end()
        self.valid = taken
        if not self.valid:
            raise click.ClickException(f"{self.form.name}: expected a valid file to be read")

    def _learn(self, new: list[Any]) -> None:
        self.seen.update(tuple(key) if isinstance(key, list) else key for key in new)

    def _process(self, cases: Callable[[], Iterable[Case]]) -> Process:
        room = Path(tempfile.mkdtemp(dir=self.folder))
        return Process(Child(self.form, room, self.seen, self.valid), cases)

    def start(self, count: int) -> Process:
        """A child for a batch of `count` damaged files."""
        random = Random(self.random.getrandbits(64))

        def cases() -> Iterator[Case]:
            for _ in range(count):
                number = random.randrange(len(self.corpus))
                yield number, self.form.mutate(random, self.corpus[number], self.corpus)

        return self._process(cases)

    def take(self, process: Process) -> bool:
        """Take what a child says, if it does; whether it is at its end."""
        started = process.since
        said: list[Any] | None = []
        if select.select([process.source], [], [], 0)[0]:
            said = process.lines()
        for how, what, name, number, new in said or []:
            if how == "broken":
                raise click.ClickException(f"{self.form.name}: {what}")
            self._count(how, what, process.room / f"kept-{name}", number, new)
        over = said is None
        if over:
            number = process.end()
            if number:
                self._confirm("signal", signal.Signals(number).name, process.path.read_bytes())
        elif not said and process.hangs(self.options.limit):
            over = True
            process.end(kill=True)
            self._confirm("hang", "", process.path.read_bytes())
        self.spent += max(0.0, time.monotonic() - started) if over else process.since - started
        if over:
            shutil.rmtree(process.room)
        return over

    def _count(self, how: str, what: str, kept: Path, number: int, new: list[Any]) -> None:
        if how == "memory":
            self._confirm(how, what, kept.read_bytes())
            return
        self.tally.cases += 1
        if how in ENDS:
            self.tally.ends[how] += 1
        else:
            self._found(how, what, kept.read_bytes())
        if {tuple(k) if isinstance(k, list) else k for k in new} - self.seen and how in ENDS:
            self.corpus.append(replace(self.corpus[number], data=kept.read_bytes()))
            self.tally.kept += 1
        self._learn(new)

    def _confirm(self, how: str, what: str, data: bytes) -> None:
        """Run a case again, alone: only a signal counts that does not come again."""
        self.tally.cases += 1
        again, said = alone(self.form, data, self.valid, self.options.limit)
        if again not in ENDS:
            self._found(again, said, data)
        elif how == "signal":
            self._found(how, f"{what}, not alone", data)
        else:
            self.tally.ends[again] += 1

    def _found(self, how: str, what: str, data: bytes) -> None:
        self.tally.harms[how] += 1
        key = (how, what.partition(": ")[0])
        self.tally.said[key] += 1
        self.tally.first.setdefault(key, what)
        if self.options.findings is not None and self.tally.said[key] <= _KEPT:
            self.options.findings.mkdir(parents=True, exist_ok=True)
            name = f"{self.form.name}--{how.replace(' ', '-')}--{digest(data)}"
            (self.options.findings / name).write_bytes(data)


def fuzz(forms: Iterable[Format], options: Options) -> dict[str, Tally]:
    """Damage files of every format until there were as many cases, or as many seconds, as asked."""
    with tempfile.TemporaryDirectory(prefix="lenetgpu-fuzz-") as folder:
        fuzzers = [Fuzzer(form, Path(folder), options) for form in forms]
        end = time.monotonic() + (options.seconds or float("inf"))
        running: list[tuple[Fuzzer, Process]] = []
        begun: Counter[str] = Counter()
        try:
            while True:
                left = [
                    f for f in fuzzers if options.cases is None or f.tally.cases < options.cases
                ]
                if time.monotonic() > end or not left:
                    break
                while len(running) < options.jobs:
                    fuzzer = min(left, key=lambda f: begun[f.form.name])
                    begun[fuzzer.form.name] += 1
                    running.append((fuzzer, fuzzer.start(options.batch)))
                select.select([process.source for _, process in running], [], [], 0.05)
                running = [pair for pair in running if not pair[0].take(pair[1])]
        finally:
            for _, process in running:
                process.end(kill=True)
        return {fuzzer.form.name: fuzzer.tally for fuzzer in fuzzers}


def _planted(path: Path) -> str:
    """A reader that does the harm that a file names."""
    what = path.read_text()
    if what == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    while what == "hang":
        pass
    if what == "traceback":
        raise KeyError(what)
    if what == "memory":
        return str(len(b"x" * (2 * MEMORY)))
    if what == "output":
        os.write(1, b"garbage")
    if what == "refused":
        raise LenetError("expected another file, found this one")
    return time.monotonic().hex() if what == "wrong data" else "fine"


def prove(jobs: int = 2) -> None:
    """Each harm is planted, and must be found; one that is missed is a ClickException."""
    for kind in (*HARMS, "refused"):

        def mutate(random: Random, entry: Entry, others: Any, kind: str = kind) -> bytes:
            return kind.encode()  # never "fine": enough of those end a run before a slow harm

        form = Format(f"planted {kind}", "f", lambda: [Entry(b"fine")], mutate, _planted)
        found = fuzz(
            [form],
            Options(seed=0, cases=2, jobs=jobs, limit=0.3 if kind == "hang" else 5.0, batch=2),
        )[form.name]
        wanted = {kind} - {"refused"}
        if set(found.harms) != wanted or (kind == "refused") != bool(found.ends["refused"]):
            raise click.ClickException(
                f"the planted {kind}: expected it to be found, found {dict(found.harms)}"
            )


def replay(places: Iterable[Path], limit: float) -> int:
    """Run kept findings again; how many still do harm."""
    files = [
        f for place in places for f in (sorted(place.iterdir()) if place.is_dir() else [place])
    ]
    harmful = 0
    for file in files:
        name = file.name.partition("--")[0]
        if name not in FORMATS:
            raise click.ClickException(f"{file}: expected FORMAT--HARM--DIGEST, found {file.name}")
        with tempfile.TemporaryDirectory() as folder:
            valid = Fuzzer(FORMATS[name], Path(folder), Options(seed=0)).valid
        how, said = alone(FORMATS[name], file.read_bytes(), valid, limit)
        harmful += how not in ENDS
        click.echo(f"{file.name}: {how}, {said}")
    return harmful


@click.command(help=__doc__)
@click.option("--seconds", type=float, help="How long, over all formats.")
@click.option("--cases", type=int, help="How many cases of each format.")
@click.option("--format", "names", multiple=True, type=click.Choice([*FORMATS]),
              help="Only this format; may be given more than once.")  # fmt: skip
@click.option("--seed", type=int, help="Of the random numbers; another one each time unless given.")
@click.option("--jobs", type=int, default=os.cpu_count(), show_default=True)
@click.option(
    "--limit", type=float, default=10.0, show_default=True, help="Seconds a case may take."
)
@click.option("--findings", type=click.Path(path_type=Path), default=Path("findings"),
              show_default=True, help="The folder that findings are kept in.")  # fmt: skip
@click.option("--replay", "replayed", multiple=True, type=click.Path(exists=True, path_type=Path),
              help="Run kept findings again: files, or folders of them.")  # fmt: skip
def main(names: tuple[str, ...], replayed: tuple[Path, ...], **asked: Any) -> None:
    if replayed:
        sys.exit(1 if replay(replayed, asked["limit"]) else 0)
    if asked["seconds"] is None and asked["cases"] is None:
        asked["seconds"] = 60.0
    if asked["seed"] is None:
        asked["seed"] = int.from_bytes(os.urandom(4), "little")
    prove(asked["jobs"])
    click.echo(f"{len(HARMS)} planted harms found; seed {asked['seed']}")
    tallies = fuzz([FORMATS[name] for name in names or FORMATS], Options(**asked))
    for name, tally in tallies.items():
        click.echo(tally.line(name))
        for key, count in tally.said.most_common():
            click.echo(f"  {count} {key[0]}, as {tally.first[key]}")
    harms: Counter[str] = sum((tally.harms for tally in tallies.values()), Counter())
    counts = ", ".join(f"{harms[kind]} {kind}" for kind in HARMS)
    click.echo(f"of {sum(tally.cases for tally in tallies.values()):,} damaged files: {counts}")
    sys.exit(1 if harms else 0)


if __name__ == "__main__":
    main()
