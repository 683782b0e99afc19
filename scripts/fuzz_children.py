"""Processes in which `scripts/fuzz.py` reads damaged files, and how each file ends there."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import hashlib
import json
import os
import re
import resource
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from fuzz_formats import Format

import lenetgpu
from lenetgpu.errors import LenetError

MEMORY = 200 << 20
"""Bytes that a process may grow by as it reads a file."""
_ADDRESSES = 4 << 30
_M_PERTURB = -6
PACKAGE = str(Path(lenetgpu.__file__).parent) + os.sep
Case = tuple[int, bytes]
ENDS = ("read", "refused")
HARMS = ("signal", "hang", "traceback", "memory", "output", "wrong data")


class Lines:
    """Which lines of the package a reader reached that none reached before."""

    def __init__(self, seen: set[Any]) -> None:
        self.seen, self.new = seen, set[Any]()

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        key = (frame.f_code.co_filename, frame.f_lineno)
        if key not in self.seen:
            self.new.add(key)
        return self._line

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread, and those that start within."""
        threading.settrace(self._enter)
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]

    def say(self, sentence: str) -> None:
        """A refusal is a place too: what HDF5 says tells where in it the file came to."""
        key = re.sub(r"'[^']*'|/\S+|[\d.,-]+", "#", sentence)[:160]
        if key not in self.seen:
            self.new.add(key)

    def taken(self) -> list[Any]:
        """What is new since the last call."""
        found, self.new = list(self.new), set()
        self.seen.update(found)
        return found


def digest(data: bytes) -> str:
    """What a file is called by."""
    return hashlib.sha256(data).hexdigest()[:16]


def _perturbed(value: int) -> None:
    """Fill what malloc gives from now on, so that what nobody wrote shows (glibc)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_PERTURB, value)


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if f.filename.startswith(PACKAGE)), frames[-1])
    first_line = (str(error).splitlines() or [""])[0]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return f"{type(error).__name__} at {where}: {first_line[:120]}"


class Child:
    """Runs cases of a format in a folder of its own, in a process of its own."""

    def __init__(self, form: Format, folder: Path, seen: set[Any], valid: set[str]) -> None:
        self.form, self.valid, self.lines = form, valid, Lines(seen)
        self.path, self.base = folder / form.file, 0
        for name, data in form.beside.items():
            (folder / name).write_bytes(data)

    def begin(self) -> None:
        """From here on memory counts: what malloc gives back later would hide as much, and so would
        a peak of before, which Linux forgets when it is asked to."""
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self.base = _peak()

    def _grown(self) -> int:
        return _peak() - self.base

    def outcome(self, data: bytes) -> tuple[str, str]:
        """("read" | "refused" | a harm, what is said or was read).

        What was read is read again where malloc fills what it gives, and must be the same.
        """
        self.path.write_bytes(data)
        printed, grown = os.fstat(1).st_size, 0
        try:
            with self.lines.watched():
                found = self.form.read(self.path)
            grown = self._grown()
            _perturbed(0xAA)
            again = self.form.read(self.path) if grown <= MEMORY else found
        except LenetError as error:
            self.lines.say(str(error))
            how, said = "refused", str(error)
            if "\n" in said:
                how, said = "output", f"a sentence of several lines: {said[:120]!r}"
        except BaseException as error:
            how, said = "traceback", _place(error)
        else:
            how, said = self._judged(str(found), str(again))
        _perturbed(0)
        grown = grown or self._grown()
        if os.fstat(1).st_size != printed:
            return "output", "printed while reading"
        return ("memory", f"{grown >> 20} MB more than before") if grown > MEMORY else (how, said)

    def _judged(self, found: str, again: str) -> tuple[str, str]:
        if found != again:
            return "wrong data", "two reads of one file differ"
        if self.form.summed and self.valid and found not in self.valid:
            return "wrong data", "other data than were summed"
        return "read", found


def _peak() -> int:
    """The most bytes of memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _limited() -> None:
    """Address space, core files; what is printed goes into a file that is looked at."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    faulthandler.disable()
    printed = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR)
    os.dup2(printed, 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class Process:
    """A forked child that runs `cases`, (number of the corpus, file), and says a line of each."""

    def __init__(self, child: Child, cases: Callable[[], Iterable[Case]]) -> None:
        source, target = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            with contextlib.suppress(BrokenPipeError):
                os.close(source)
                _limited()
                try:
                    _work(child, cases(), target)
                except BaseException:
                    _say(target, "broken", traceback.format_exc()[-900:], "", 0, [])
            os._exit(0)
        os.close(target)
        self.source, self.room, self.rest = source, child.path.parent, b""
        self.path = child.path
        self.since, self.used = time.monotonic(), 0.0

    def _cpu(self) -> float:
        """Seconds of a processor that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def lines(self) -> list[Any] | None:
        """What came since the last call; None at the end."""
        data = os.read(self.source, 1 << 20)
        if not data:
            return None
        self.since, self.used = time.monotonic(), self._cpu()
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def hangs(self, limit: float) -> bool:
        """Whether the case took `limit` seconds of a processor, or waits for thrice as long."""
        waited = time.monotonic() - self.since
        return waited > limit and (self._cpu() - self.used > limit or waited > 3 * limit)

    def end(self, kill: bool = False) -> int:
        """The signal that ended it, 0 for none."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.source)
        return os.waitpid(self.pid, 0)[1] & 0x7F


def _say(target: int, *what: Any) -> None:
    line = json.dumps(what).encode() + b"\n"
    while line:
        line = line[os.write(target, line) :]


def _work(child: Child, cases: Iterable[Case], target: int) -> None:
    child.begin()
    for number, data in cases:
        how, said = child.outcome(data)
        new = child.lines.taken()
        if new or how not in ENDS:
            (child.path.parent / f"kept-{digest(data)}").write_bytes(data)
        _say(target, how, said[:300], digest(data), number, new)
        if how == "memory":
            return


def alone(form: Format, data: bytes, valid: set[str], limit: float) -> tuple[str, str]:
    """How one file ends in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = Process(Child(form, Path(folder), set(), valid), lambda: [(0, data)])
        while True:
            if select.select([process.source], [], [], 0.05)[0]:
                said = process.lines()
                if said == []:
                    continue
                number = process.end(kill=said is not None)
                if said:
                    return said[0][0], said[0][1]
                return "signal", signal.Signals(number).name if number else "ended without a word"
            if process.hangs(limit):
                process.end(kill=True)
                return "hang", f"more than {limit:g} s"
