"""Ends `lenetgpu classify` by SIGKILL at drawn moments, starts it again, and compares the labels.

    python scripts/job_kills.py --jobs 200 --workers 100 --pictures 50

`--jobs`: so many times the whole job is killed, half of them with two Dask workers; `--workers`: so
many times one of three workers is; `--pictures`: so many times a whole job of pictures. After the
restart the concatenated labels must be those of one uninterrupted run, bit for bit, each shard must
have one file, and at most one shard a worker may have been done twice. Prints what was found; ends
with 1 where something was wrong.
"""

from __future__ import annotations

import argparse
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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image

from lenetgpu.files.assets import default_digits
from lenetgpu.files.dataset import load_dataset

_SLOW_S = 120.0
_SIZES = (700, 2_500, 1_300, 400, 3_100)
_LITTLE, _FEW = 160, 3
"""Files of so many images, which share files of labels."""
_PICTURES = 600


@dataclass
class Tally:
    """What came of the kills; `wrong` are sentences."""

    kills: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        return f"{self.kills} kills: {said or 'nothing'}; {len(self.wrong)} wrong"


class Jobs:
    """Files to read in `folder`, of many images or `pictures`, and how a job over them is started.

    There are `count` images.
    """

    def __init__(self, folder: Path, shard: int, seed: int, pictures: bool = False) -> None:
        self.folder, self.shard, self.random = folder, shard, random.Random(seed)
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
        """A job's processes, in a group of their own."""
        words = ["classify", self.sources, "--out", out, "--shard", self.shard, "--device", "cpu"]
        words += ["--threads", 1, "--plan", "fp32", "--no-progress"]
        words += ["--workers", workers] if workers else []
        command = [sys.executable, "-m", "lenetgpu", *map(str, words)]
        pipe = subprocess.PIPE
        return out, subprocess.Popen(command, start_new_session=True, stdout=pipe, stderr=pipe)

    def end(self, started: tuple[Path, subprocess.Popen[bytes]]) -> Path:
        """Wait for a job, which must come to its end."""
        out, process = started
        _, said = process.communicate(timeout=_SLOW_S)
        if process.returncode:
            raise RuntimeError(f"{out}: code {process.returncode}: {said.decode()[-300:]}")
        return out

    def labels(self, out: Path) -> bytes:
        """All labels in the order of the shards' names."""
        return b"".join(np.load(path).tobytes() for path in sorted(out.glob("part-*.npy")))

    def wait(self, out: Path, process: subprocess.Popen[bytes]) -> bool:
        """Until a drawn moment: any, or soon after a drawn number of shards; False: it is over."""
        wanted = self.random.choice((0, self.random.randrange(1, self.count // self.shard)))
        end = time.monotonic() + (_SLOW_S if wanted else self.random.uniform(0.1, 2.5))
        while process.poll() is None and time.monotonic() < end:
            if wanted and out.is_dir() and len(list(out.glob("part-*.npy"))) >= wanted:
                end, wanted = time.monotonic() + self.random.uniform(0, 0.02), 0
            time.sleep(0.001)
        return process.poll() is None


def unlisted(out: Path) -> int:
    """Shards whose file is there and that no line names: they will be done again."""
    lines = (out / "manifest.json").read_text().splitlines()
    named = set()
    for line in lines[1:]:
        with suppress(ValueError):  # the end of the line that was being written
            named.add(json.loads(line)["done"]["file"])
    return sum(path.name not in named for path in out.glob("part-*.npy"))


def again(jobs: Jobs, out: Path, workers: int, tally: Tally) -> None:
    """Start the job again and hold what it leaves against the uninterrupted one's."""
    begun = (out / "manifest.json").exists()
    redone = unlisted(out) if begun else 0
    tally.counts["before the first shard" if not begun else "while it ran"] += 1
    tally.counts["shards done again"] += redone
    if redone > max(1, workers):
        tally.wrong.append(f"{out}: {redone} shards done again")
    jobs.end(jobs.start(out, workers))
    judge(jobs, out, tally)


def judge(jobs: Jobs, out: Path, tally: Tally) -> None:
    """Labels bit for bit, a line and a file a shard, nothing left over."""
    if jobs.labels(out) != jobs.whole:
        tally.wrong.append(f"{out}: other labels")
    summary = json.loads((out / "summary.json").read_text())
    if summary["images_done"] != jobs.count or sum(summary["counts"]) != jobs.count:
        tally.wrong.append(f"{out}: {summary['images_done']} of {jobs.count} images")
    if left := [path.name for path in out.glob(".lenetgpu.*") if path.suffix != ".lock"]:
        tally.wrong.append(f"{out}: left over: {left[:3]}")


def kill_jobs(jobs: Jobs, count: int, tally: Tally) -> None:
    """SIGKILL to all processes of a job at once."""
    for number in range(count):
        workers = 2 * (number % 2)
        out, process = jobs.start(jobs.folder / f"job {number}", workers)
        tally.counts["alive"] += jobs.wait(out, process)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        tally.kills += 1
        again(jobs, out, workers, tally)


def children(parent: int) -> list[int]:
    """Dask's workers of the job whose process `parent` is."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and b"spawn_main" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def kill_workers(jobs: Jobs, count: int, tally: Tally) -> None:
    """SIGKILL to one worker of three, `count` times; the job goes on and ends well."""
    for number in itertools.count():
        if tally.kills == count:
            return
        out, process = jobs.start(jobs.folder / f"workers {number}", 3)
        tally.counts["alive"] += jobs.wait(out, process)
        workers = children(process.pid)
        if workers:
            with suppress(ProcessLookupError):
                os.kill(jobs.random.choice(workers), signal.SIGKILL)
        tally.kills += bool(workers)
        _, said = process.communicate(timeout=_SLOW_S)
        if process.returncode:  # it was killed before the job began
            tally.counts["ended with a sentence"] += 1
            if process.returncode != 2 or b"Traceback" in said:
                tally.wrong.append(f"{out}: code {process.returncode}: {said.decode()[-300:]}")
            jobs.end(jobs.start(out, 3))
        judge(jobs, out, tally)
        text = (out / "manifest.json").read_text().splitlines()[1:]
        shards = [json.loads(line)["done"]["shard"] for line in text]
        tally.counts["shards done again"] += len(shards) - len(set(shards))
        if len(shards) - len(set(shards)) > 1:
            tally.wrong.append(f"{out}: {len(shards) - len(set(shards))} shards done again")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--pictures", type=int, default=50)
    parser.add_argument("--shard", type=int, default=100, help="images of a shard")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="lenetgpu-jobs-") as folder:
        for what, count, kill in (
            ("whole jobs", asked.jobs, kill_jobs),
            ("single workers", asked.workers, kill_workers),
            ("whole jobs of pictures", asked.pictures, kill_jobs),
        ):
            if not count:
                continue
            pictures, tally = "pictures" in what, Tally()
            shard = max(1, asked.shard // 10) if pictures else asked.shard
            jobs = Jobs(Path(folder) / what, shard, asked.seed, pictures)
            kill(jobs, count, tally)
            print(f"{what}: {tally}", *tally.wrong, sep="\n  ")
            wrong += len(tally.wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
