"""Ends commands at moments drawn over their time: what is left of their files, and how they end.

    python scripts/kills.py --kills 300      # SIGKILL; then a next start in the same folder
    python scripts/kills.py --signals 12     # as many moments of each command for INT, TERM and HUP

A moment lies between that at which the command heeds signals, which Python's own start keeps it
from before, and its measured end; half of the kills wait for a temporary file to be there first.
Prints a row a command, and what was wrong; ends with 1 where something was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lenetgpu.files.assets import default_digits, default_weights

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
OLD = b"old"
CPU = ("--device", "cpu")
_SLOW_S = 120.0
_ENDING_S = 0.1
"""A process that is being taken down by the system takes no signal any more."""


@dataclass(frozen=True)
class Command:
    """Words, with the files that they write; a file of times differs from run to run."""

    words: tuple[str, ...]
    written: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(word for word in self.words[:2] if not word.startswith("-"))


@dataclass
class Row:
    """What came of a command's moments; `wrong` are sentences."""

    name: str
    moments: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.name:16} {self.moments:4} moments: {said or 'none'}; {len(self.wrong)} wrong"


def writers(limit: int) -> list[Command]:
    """Commands that write files, each with every file that it can write."""
    digits, some = str(default_digits()), ("--limit", str(limit), *CPU)
    labels = [
        Command(("infer", *some, "--scores", "--output", f"x{end}", "--json", "r.json"),
                (f"x{end}", "r.json"))
        for end in (".npy", ".csv", ".h5", ".json")
    ]  # fmt: skip
    return [
        *labels,
        Command(("data", "convert", digits, "made.h5"), ("made.h5",)),
        Command(("weights", "convert", str(default_weights()), "w.h5"), ("w.h5",)),
    ]


def commands(limit: int, mirror: str) -> list[Command]:
    """Every command that takes longer than to say so."""
    some, seconds = ("--limit", str(limit), *CPU), ("--seconds", "1", *CPU)
    forms = ("--json", "r.json", "--csv", "r.csv")
    return [
        *writers(limit)[-4:],
        Command(("infer", *some, "--timing"), ()),
        Command(("profile", *some, *forms, "--trace", "t.json"), ()),
        Command(("compare", "pool1", "--batch", "64", *seconds, *forms), ()),
        Command(("conv", "4,12,12,4,3", *seconds, *forms), ()),
        Command(("warmup", *CPU), ()),
        Command(("variants", "conv2"), ()),
        Command(("doctor",), ()),
        Command(("weights", "verify", str(default_weights())), ()),
        Command(("data", "info"), ()),
        Command(("data", "fetch-mnist", "mnist", "--mirror", mirror), ()),
    ]


@contextmanager
def silent_mirror() -> Iterator[str]:
    """The address of a server that takes half a second to answer that it has nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(0.5)
            with suppress(OSError):  # who asked is gone
                self.send_error(404)

        def log_message(self, *_: object) -> None:
            """It is nobody's business."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def _default_signals() -> None:
    """A job in the background is told to ignore Ctrl-C, and its children would inherit that."""
    for number in CODES:
        signal.signal(number, signal.SIG_DFL)


def start(command: Command, folder: Path) -> subprocess.Popen[str]:
    """The command in a process of its own, in `folder`."""
    return subprocess.Popen(
        [sys.executable, "-m", "lenetgpu", *command.words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"no_proxy": "127.0.0.1"},
        preexec_fn=_default_signals,
    )


def heeds(pid: int) -> bool:
    """Whether the process catches TERM, which Python by itself does not; False where it ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def wait_for(what: Callable[[Any], object], of: Any, child: subprocess.Popen[str]) -> None:
    """Return when it came to be, or the child ended."""
    end = time.monotonic() + _SLOW_S
    while child.poll() is None and time.monotonic() < end and not what(of):
        time.sleep(2e-4)


def left_in(folder: Path) -> list[str]:
    """Temporary files there."""
    return [path.name for path in folder.rglob(".lenetgpu.*")]


def seconds_of(command: Command, folder: Path) -> float:
    """From when it heeds signals to its end, undisturbed."""
    child = start(command, folder)
    wait_for(heeds, child.pid, child)
    began = time.monotonic()
    child.communicate(timeout=_SLOW_S)
    return time.monotonic() - began


def put_old(command: Command, folder: Path) -> None:
    for name in command.written:
        (folder / name).write_bytes(OLD)


def wholes(command: Command, folder: Path) -> dict[str, bytes]:
    """What it writes, of those files that are the same in every run."""
    return {n: (folder / n).read_bytes() for n in command.written if n != "r.json"}


def state(name: str, content: bytes, whole: dict[str, bytes], parts: bool) -> str:
    """Of a file: old, whole or partial. `parts`: a run may have kept what it had done."""
    if content == OLD:
        return "old"
    if name in whole and not parts:
        return "whole" if content == whole[name] else "partial"
    try:
        if name.endswith(".json"):
            json.loads(content)
        elif name.endswith(".npy"):
            import io

            import numpy as np

            np.load(io.BytesIO(content))
        elif name.endswith(".csv"):
            assert content.endswith(b"\n")
        else:
            import io

            import h5py

            with h5py.File(io.BytesIO(content)) as file:
                assert [file[item][()] is not None for item in file]
    except (ValueError, OSError, AssertionError) as error:
        return f"partial ({error})"
    return "whole"


def judge(
    row: Row, command: Command, folder: Path, whole: dict[str, bytes], parts: bool = False
) -> None:
    """Count the files' states; one that is neither the old nor a whole one is wrong."""
    for name in command.written:
        path = folder / name
        found = state(name, path.read_bytes(), whole, parts) if path.exists() else "lost"
        row.counts[found] += 1
        if found not in ("old", "whole"):
            row.wrong.append(f"{name} is {found}")


def kill(command: Command, moments: int, folder: Path, after: Command) -> Row:
    """Kill it at so many moments; `after` is the next start in the folder."""
    row = Row(command.name)
    put_old(command, folder)
    took = seconds_of(command, folder)
    whole = wholes(command, folder)
    for index in range(moments):
        put_old(command, folder)
        child = start(command, folder)
        if index % 2:
            wait_for(left_in, folder, child)
            time.sleep(random.random() * took / 10)
        else:
            wait_for(heeds, child.pid, child)
            time.sleep(random.random() * took)
        row.counts["killed"] += child.poll() is None
        child.kill()
        child.communicate()
        row.moments += 1
        judge(row, command, folder, whole)
        row.counts["with a leftover"] += bool(left_in(folder))
        next_start = start(after, folder)
        _, said = next_start.communicate(timeout=_SLOW_S)
        if next_start.returncode:
            row.wrong.append(f"the next start ended with {next_start.returncode}: {said[-200:]}")
        row.wrong += [f"{name} is there after the next start" for name in left_in(folder)]
    return row


def stop(command: Command, moments: int, folder: Path) -> Row:
    """Send it each of the three signals at so many moments, and again to one in four."""
    row = Row(command.name)
    put_old(command, folder)
    took = seconds_of(command, folder)
    whole = wholes(command, folder)
    for number, code in CODES.items():
        for index in range(moments):
            put_old(command, folder)
            child = start(command, folder)
            wait_for(heeds, child.pid, child)
            at = random.random() * took
            time.sleep(at)
            if child.poll() is not None:
                child.communicate()
                row.counts["ended before"] += 1
                continue
            child.send_signal(number)
            if index % 4 == 3:
                time.sleep(0.1)
                child.send_signal(number)
            sent = time.monotonic()
            _, said = child.communicate(timeout=_SLOW_S)
            if child.returncode == 0 and time.monotonic() - sent < _ENDING_S:
                row.counts["ended meanwhile"] += 1
                continue
            row.moments += 1
            judge(row, command, folder, whole, parts=True)
            when = f"{signal.Signals(number).name} at {at:.3f} s"
            if child.returncode != code:
                row.wrong.append(f"{when}: expected code {code}, found {child.returncode}: {said}")
            elif "Traceback" in said or said.count("\n") > 1:
                row.wrong.append(f"{when}: expected one line, found {said}")
            row.wrong += [f"{when} left {name}" for name in left_in(folder)]
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=0, help="SIGKILLs in all")
    parser.add_argument("--signals", type=int, default=0, help="moments a command and signal")
    parser.add_argument("--limit", type=int, default=2_000, help="images of infer and profile")
    parser.add_argument("--only", default="", help="commands whose name holds this")
    asked = parser.parse_args()
    after = writers(asked.limit)[-1]
    rows = []
    with silent_mirror() as mirror:
        killed = [c for c in writers(asked.limit) if asked.only in c.name] if asked.kills else []
        each = [len(range(i, asked.kills, len(killed))) for i in range(len(killed))]
        jobs = [(kill, c, n, (after,)) for c, n in zip(killed, each, strict=True)]
        if asked.signals:
            stopped = [c for c in commands(asked.limit, mirror) if asked.only in c.name]
            jobs += [(stop, c, asked.signals, ()) for c in stopped]
        for job, command, moments, more in jobs:
            with tempfile.TemporaryDirectory(prefix="lenetgpu-kills-") as folder:
                row = job(command, moments, Path(folder), *more)
            rows.append(row)
            print(row, flush=True)
            for sentence in row.wrong:
                print(f"  WRONG: {sentence}", flush=True)
    wrong = sum(len(row.wrong) for row in rows)
    print(f"{sum(row.moments for row in rows)} moments, {wrong} wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
