"""Kill or interrupt commands at random moments, and check their files and exit codes.

\b
    python scripts/kills.py --kills 300      # SIGKILL, then another start in the same folder
    python scripts/kills.py --signals 12     # 12 moments of each command for INT, TERM and HUP
    python scripts/kills.py --jobs 200 --workers 100 --pictures 50    # `lenetgpu classify`

A moment lies between the time at which the command handles signals and its measured end; half of
the kills first wait for a temporary file. A killed job is started again: its labels must be those
of an uninterrupted one, and each worker may repeat at most one shard. The script prints a row per
command and everything wrong. The exit code is 1 if something was wrong.
"""

import io
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
from PIL import Image

from lenetgpu.files.assets import default_digits, default_weights
from lenetgpu.files.source import load_dataset

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
OLD = b"old"
CPU = ("--device", "cpu")
_SLOW_S = 120.0
_ENDING_S = 0.1  # a process that the system is ending does not handle signals


@dataclass(frozen=True)
class Command:
    """A command line and the files that it writes; files with times differ between runs."""

    words: tuple[str, ...]
    written: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return " ".join(word for word in self.words[:2] if not word.startswith("-"))


@dataclass
class Row:
    name: str
    moments: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        tally = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return (
            f"{self.name:16} {self.moments:4} moments: {tally or 'none'}; {len(self.wrong)} wrong"
        )


def writers(limit: int) -> list[Command]:
    """Return the commands that write files, each with all files that it can write."""
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


def commands(limit: int) -> list[Command]:
    """Return every command that runs long enough to be interrupted."""
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
    ]


def _default_signals() -> None:
    """Restore default signals: background jobs ignore Ctrl-C, and children would inherit that."""
    for number in CODES:
        signal.signal(number, signal.SIG_DFL)


def start(command: Command, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lenetgpu", *command.words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"no_proxy": "127.0.0.1"},
        preexec_fn=_default_signals,
    )


def handles_signals(pid: int) -> bool:
    """Return True if the process handles TERM, which plain Python does not; False if it ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next((line for line in status.splitlines() if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def wait_for(
    condition: Callable[[Any], object], argument: Any, child: subprocess.Popen[str]
) -> None:
    """Wait until `what(of)` is true or the child ended."""
    end = time.monotonic() + _SLOW_S
    while child.poll() is None and time.monotonic() < end and not condition(argument):
        time.sleep(2e-4)


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".lenetgpu.*")]


def seconds_of(command: Command, folder: Path) -> float:
    """Return the undisturbed time from handling signals to the end."""
    child = start(command, folder)
    wait_for(handles_signals, child.pid, child)
    began = time.monotonic()
    child.communicate(timeout=_SLOW_S)
    return time.monotonic() - began


def put_old(command: Command, folder: Path) -> None:
    for name in command.written:
        (folder / name).write_bytes(OLD)


def stable_files(command: Command, folder: Path) -> dict[str, bytes]:
    """Return the files that it writes, of those that are the same in every run."""
    return {n: (folder / n).read_bytes() for n in command.written if n != "r.json"}


def state(name: str, content: bytes, whole: dict[str, bytes], parts: bool) -> str:
    """Classify a file as old, whole or partial. `parts`: a partial result is legitimate."""
    if content == OLD:
        return "old"
    if name in whole and not parts:
        return "whole" if content == whole[name] else "partial"
    try:
        if name.endswith(".json"):
            json.loads(content)
        elif name.endswith(".npy"):
            np.load(io.BytesIO(content))
        elif name.endswith(".csv"):
            assert content.endswith(b"\n")
        else:
            with h5py.File(io.BytesIO(content)) as file:
                assert [file[item][()] is not None for item in file]
    except (ValueError, OSError, AssertionError) as error:
        return f"partial ({error})"
    return "whole"


def judge(
    row: Row, command: Command, folder: Path, whole: dict[str, bytes], parts: bool = False
) -> None:
    """Count the files' states; one that is neither old nor whole is wrong."""
    for name in command.written:
        path = folder / name
        condition = state(name, path.read_bytes(), whole, parts) if path.exists() else "lost"
        row.counts[condition] += 1
        if condition not in ("old", "whole"):
            row.wrong.append(f"{name} is {condition}")


def kill(command: Command, moments: int, folder: Path, after: Command) -> Row:
    """Kill the command at `moments` random moments; `after` runs next in the folder."""
    row = Row(command.name)
    put_old(command, folder)
    duration = seconds_of(command, folder)
    whole = stable_files(command, folder)
    for index in range(moments):
        put_old(command, folder)
        child = start(command, folder)
        if index % 2:
            wait_for(leftovers, folder, child)
            time.sleep(random.random() * duration / 10)
        else:
            wait_for(handles_signals, child.pid, child)
            time.sleep(random.random() * duration)
        row.counts["killed"] += child.poll() is None
        child.kill()
        child.communicate()
        row.moments += 1
        judge(row, command, folder, whole)
        row.counts["with a leftover"] += bool(leftovers(folder))
        next_start = start(after, folder)
        _, message = next_start.communicate(timeout=_SLOW_S)
        if next_start.returncode:
            row.wrong.append(f"the next start ended with {next_start.returncode}: {message[-200:]}")
        row.wrong += [f"{name} is there after the next start" for name in leftovers(folder)]
    return row


def stop(command: Command, moments: int, folder: Path) -> Row:
    """Send each of three signals at `moments` random moments, and again in one of four."""
    row = Row(command.name)
    put_old(command, folder)
    duration = seconds_of(command, folder)
    whole = stable_files(command, folder)
    for number, code in CODES.items():
        for index in range(moments):
            put_old(command, folder)
            child = start(command, folder)
            wait_for(handles_signals, child.pid, child)
            at = random.random() * duration
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
            _, message = child.communicate(timeout=_SLOW_S)
            if child.returncode == 0 and time.monotonic() - sent < _ENDING_S:
                row.counts["ended meanwhile"] += 1
                continue
            row.moments += 1
            judge(row, command, folder, whole, parts=True)
            when = f"{signal.Signals(number).name} at {at:.3f} s"
            if child.returncode != code:
                row.wrong.append(
                    f"{when}: expected code {code}, found {child.returncode}: {message}"
                )
            elif "Traceback" in message or message.count("\n") > 1:
                row.wrong.append(f"{when}: expected one line, found {message}")
            row.wrong += [f"{when} left {name}" for name in leftovers(folder)]
    return row


# jobs of `lenetgpu classify`

_SIZES = (700, 2_500, 1_300, 400, 3_100)
_LITTLE, _FEW = 160, 3  # files of so many images, which share files of labels
_PICTURES = 600


class Jobs:
    """`count` images in data files or `pictures`, and the command of a job over them."""

    def __init__(self, folder: Path, shard: int, pictures: bool = False) -> None:
        self.folder, self.shard, self.random = folder, shard, random.Random(0)
        sizes = () if pictures else (*_SIZES, *[_FEW] * _LITTLE)
        self.sources, self.count = folder / "read", sum(sizes) or _PICTURES
        self.sources.mkdir(parents=True)
        images, at = load_dataset(default_digits()).images, 0
        for number in range(self.count if pictures else 0):
            Image.fromarray(images[number, ..., 0]).save(self.sources / f"digit {number:03}.png")
        for number, count in enumerate(sizes):
            np.save(self.sources / f"digits {number:03}.npy", images[at : at + count])
            at += count
        self.whole = self.labels(self.end(self.start(folder / "whole")))

    def start(self, out: Path, workers: int = 0) -> tuple[Path, subprocess.Popen[bytes]]:
        words = ["classify", self.sources, "--out", out, "--shard", self.shard, "--device", "cpu"]
        words += ["--threads", 1, "--plan", "fp32", "--no-progress"]
        words += ["--workers", workers] if workers else []
        command = [sys.executable, "-m", "lenetgpu", *map(str, words)]
        pipe = subprocess.PIPE
        return out, subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=pipe)

    def end(self, started: tuple[Path, subprocess.Popen[bytes]]) -> Path:
        out, process = started
        _, message = process.communicate(timeout=_SLOW_S)
        if process.returncode:
            raise RuntimeError(f"{out}: code {process.returncode}: {message.decode()[-300:]}")
        return out

    def labels(self, out: Path) -> bytes:
        return b"".join(np.load(path).tobytes() for path in sorted(out.glob("part-*.npy")))

    def wait(self, out: Path, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a random moment, or a random number of shards; return False if the job ended."""
        shards = self.random.choice((0, self.random.randrange(1, self.count // self.shard)))
        end = time.monotonic() + (_SLOW_S if shards else self.random.uniform(0.1, 2.5))
        while process.poll() is None and time.monotonic() < end:
            if shards and out.is_dir() and len(list(out.glob("part-*.npy"))) >= shards:
                end, shards = time.monotonic() + self.random.uniform(0, 0.02), 0
            time.sleep(0.001)
        return process.poll() is None


def unlisted(out: Path) -> int:
    """Return the number of shards whose file exists but is not listed; they are repeated."""
    lines = (out / "manifest.json").read_text().splitlines()
    listed = set()
    for line in lines[1:]:
        with suppress(ValueError):  # the end of the line that was being written
            listed.add(json.loads(line)["done"]["file"])
    return sum(path.name not in listed for path in out.glob("part-*.npy"))


def again(jobs: Jobs, out: Path, workers: int, row: Row) -> None:
    """Start the job again and compare the result with that of an uninterrupted one."""
    begun = (out / "manifest.json").exists()
    redone = unlisted(out) if begun else 0
    row.counts["before the first shard" if not begun else "while it ran"] += 1
    row.counts["shards done again"] += redone
    if redone > max(1, workers):
        row.wrong.append(f"{out}: {redone} shards done again")
    jobs.end(jobs.start(out, workers))
    judge_job(jobs, out, row)


def judge_job(jobs: Jobs, out: Path, row: Row) -> None:
    """Check labels bit for bit, one line and file per shard, and no other files."""
    if jobs.labels(out) != jobs.whole:
        row.wrong.append(f"{out}: other labels")
    summary = json.loads((out / "summary.json").read_text())
    if summary["images_done"] != jobs.count or sum(summary["counts"]) != jobs.count:
        row.wrong.append(f"{out}: {summary['images_done']} of {jobs.count} images")
    if left := [path.name for path in out.glob(".lenetgpu.*") if path.suffix != ".lock"]:
        row.wrong.append(f"{out}: left over: {left[:3]}")


def kill_jobs(count: int, folder: Path, pictures: bool = False) -> Row:
    """Send SIGKILL to all processes of a job at once; every second job has two workers."""
    row = Row("jobs of pictures" if pictures else "jobs")
    jobs = Jobs(folder, 10 if pictures else 100, pictures)
    for number in range(count):
        workers = 2 * (number % 2)
        out, process = jobs.start(jobs.folder / f"job {number}", workers)
        row.counts["alive"] += jobs.wait(out, process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        row.moments += 1
        again(jobs, out, workers, row)
    return row


def children(parent: int) -> list[int]:
    """Return the Dask workers of the job with process `parent`."""
    workers = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and b"spawn_main" in (entry / "cmdline").read_bytes():
                workers.append(int(entry.name))
    return workers


def kill_workers(count: int, folder: Path) -> Row:
    """Send SIGKILL to one of three workers, `count` times; the job must finish."""
    row, jobs = Row("workers"), Jobs(folder, 100)
    for number in itertools.count():
        if row.moments == count:
            break
        out, process = jobs.start(jobs.folder / f"workers {number}", 3)
        row.counts["alive"] += jobs.wait(out, process)
        workers = children(process.pid)
        if workers:
            with suppress(ProcessLookupError):
                os.kill(jobs.random.choice(workers), signal.SIGKILL)
        row.moments += bool(workers)
        _, message = process.communicate(timeout=_SLOW_S)
        if process.returncode:  # it was killed before the job began
            row.counts["ended with a sentence"] += 1
            if process.returncode != 2 or b"Traceback" in message:
                row.wrong.append(f"{out}: code {process.returncode}: {message.decode()[-300:]}")
            jobs.end(jobs.start(out, 3))
        judge_job(jobs, out, row)
        text = (out / "manifest.json").read_text().splitlines()[1:]
        shards = [json.loads(line)["done"]["shard"] for line in text]
        row.counts["shards done again"] += len(shards) - len(set(shards))
        if len(shards) - len(set(shards)) > 1:
            row.wrong.append(f"{out}: {len(shards) - len(set(shards))} shards done again")
    return row


@click.command(help=__doc__)
@click.option("--kills", default=0, help="SIGKILLs of commands, in all.")
@click.option("--signals", default=0, help="Moments of each command and signal.")
@click.option("--jobs", default=0, help="SIGKILLs of whole jobs.")
@click.option("--workers", default=0, help="SIGKILLs of one worker of three.")
@click.option("--pictures", default=0, help="SIGKILLs of whole jobs of pictures.")
@click.option("--limit", default=2_000, help="Images of infer and profile.")
@click.option("--only", default="", help="Commands whose name holds this.")
def main(
    kills: int, signals: int, jobs: int, workers: int, pictures: int, limit: int, only: str
) -> None:
    killed = [c for c in writers(limit) if kills and only in c.name]
    todo = []
    for number, command in enumerate(killed):
        moments = len(range(number, kills, len(killed)))
        todo.append(partial(kill, command, moments, after=writers(limit)[-1]))
    todo += [partial(stop, c, signals) for c in commands(limit) if signals and only in c.name]
    ways = (jobs, kill_jobs), (workers, kill_workers), (pictures, partial(kill_jobs, pictures=True))
    todo += [partial(way, count) for count, way in ways if count]
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="lenetgpu-kills-") as scratch:
        for number, job in enumerate(todo):
            folder = Path(scratch) / str(number)
            folder.mkdir()
            row = job(folder)
            print(row, *(f"  WRONG: {sentence}" for sentence in row.wrong), sep="\n", flush=True)
            wrong += len(row.wrong)
    print(f"{wrong} wrong")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
