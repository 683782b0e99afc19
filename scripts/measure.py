"""Every figure of the README and docs/ on one device in one go, into docs/measured/DEVICE/.

Each file is made by a command of its own, checked, given the hashes of the kernels that it ran and
written whole or not at all. What fails is said and the rest goes on; the exit code is then 1.
Needs LENETGPU_MNIST (MNIST's files); the plans' figures LENETGPU_COURSE (model.hdf5) too.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from measure_jobs import PARTS, Job, cpu_jobs, gpu_jobs
from measured import MEASURED, ROOT, folder_of, kernels_of

from lenetgpu.errors import LenetError
from lenetgpu.measure.document import device_json
from lenetgpu.net.device import choose_device
from lenetgpu.store import write_atomically

RUN = "run.json"
"""What the last run took, for the next one's estimate."""
BEAT_S, PATIENCE, LEAST_PATIENCE_S = 20.0, 5.0, 180.0
Say = Callable[[str], None]


class MeasureError(Exception):
    """Why a file was not taken, in a sentence."""


def data() -> dict[str, Path | None]:
    """The files outside the repository by their word, None where a variable does not lead there."""
    found: dict[str, Path | None] = {}
    for word, variable, name in (
        ("mnist", "LENETGPU_MNIST", "t10k-images-idx3-ubyte.gz"),
        ("course", "LENETGPU_COURSE", "model.hdf5"),
    ):
        path = Path(os.environ.get(variable, "")) / name
        found[word] = path.resolve() if os.environ.get(variable) and path.is_file() else None
    return found


def filled(job: Job, places: dict[str, Path | None]) -> list[str]:
    """The job's command with its places; MeasureError where data is not there."""
    words = []
    for word in job.command:
        name = word[1:-1] if re.fullmatch(r"\{\w+\}", word) else ""
        if name and places[name] is None:
            folder = f"LENETGPU_{name.upper()}"
            raise MeasureError(f"{folder}: expected the folder of its files, found none there")
        words.append(str(places[name]) if name else word)
    return words


def finished(document: dict[str, Any], quick: bool) -> dict[str, Any]:
    """The document with its kernels' hashes and no path of this machine."""
    for key in ("data", "weights"):
        if key in document:
            document[key] = Path(document[key]).name
    if quick:
        document["quick"] = True
    document["kernels"] = kernels_of(document)
    return document


def _last_words(*files: Path) -> str:
    lines = [line for file in files for line in file.read_text(errors="replace").splitlines()]
    return next((line.strip()[:160] for line in reversed(lines) if line.strip()), "it said nothing")


def _wait(job: Job, command: list[str], work: Path, expected: float, say: Say) -> None:
    """Run `command`, saying now and then how far it is; MeasureError where it does not end well."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # wide enough for tables, without colours
    env = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
    out, err = work / "out", work / "err"
    limit = max(LEAST_PATIENCE_S, PATIENCE * expected)
    with out.open("wb") as stdout, err.open("wb") as stderr:
        child = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=ROOT, env=env)
        start = beat = time.monotonic()
        try:
            while child.poll() is None:
                time.sleep(0.1)
                now = time.monotonic()
                if now - start > limit:
                    raise MeasureError(f"it ran past {limit:.0f} s; {_last_words(out, err)}")
                if now - beat > BEAT_S:
                    beat = now
                    say(f"  {job.target}: {now - start:.0f} s of about {expected:.0f} s; "
                        f"{_last_words(err, out)}")  # fmt: skip
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    if child.returncode:
        raise MeasureError(f"exit code {child.returncode}; {_last_words(out, err)}")


def take(
    job: Job, into: Path, places: dict[str, Path | None], quick: bool, expected: float, say: Say
) -> None:
    """Run one job and lay its files into `into`; MeasureError where nothing was taken."""
    with tempfile.TemporaryDirectory(prefix="lenetgpu-measure-") as folder:
        work = Path(folder)
        made = {"json": work / "found.json", "picture": work / "found.png"}
        _wait(job, filled(job, places | made), work, expected, say)
        try:
            document = finished(json.loads(made["json"].read_text()), quick)
            picture = made["picture"].read_bytes() if job.picture else b""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MeasureError(f"expected its JSON and picture, found {error!r}") from error
        files = {job.target: (json.dumps(document, indent=1) + "\n").encode()}
        if job.text:
            files[job.text] = (work / "out").read_bytes()
        if job.picture:
            files[job.picture] = picture
        for name, content in files.items():
            write_atomically(into / name, content)


def guesses(jobs: list[Job], into: Path, quick: bool) -> dict[str, float]:
    """Seconds that each job may take: what it took the last time here, else its own guess."""
    last: dict[str, float] = {}
    if (into / RUN).is_file() and not quick:
        last = json.loads((into / RUN).read_text())["seconds"]
    return {job.target: last.get(job.target, job.seconds) for job in jobs}


def chosen(kind: str, only: str | None, quick: bool) -> list[Job]:
    """The jobs of the parts asked for; LenetError for a part that there is not."""
    wanted = PARTS[kind] if only is None else tuple(only.split(","))
    unknown = [part for part in wanted if part not in PARTS[kind]]
    if unknown:
        raise LenetError(
            f"--only: expected some of {', '.join(PARTS[kind])} on {kind}, found {unknown[0]!r}"
        )
    jobs = gpu_jobs(quick) if kind == "cuda" else cpu_jobs(quick)
    return [job for job in jobs if job.part in wanted]


def run(jobs: list[Job], into: Path, quick: bool, say: Say) -> list[str]:
    """Take every job; the sentences of those that failed."""
    places, expected = data(), guesses(jobs, into, quick)
    say(f"{len(jobs)} files into {into}, about {sum(expected.values()) / 60:.0f} minutes:")
    for job in jobs:
        say(f"  {job.target:26} about {expected[job.target]:4.0f} s")
    failed, took = [], {}
    for number, job in enumerate(jobs, 1):
        say(f"[{number}/{len(jobs)}] {job.target}: {shlex.join(job.command[1:])}")
        start = time.monotonic()
        try:
            take(job, into, places, quick, expected[job.target], say)
        except (MeasureError, LenetError) as error:
            failed.append(f"{job.target}: {error}")
            say(f"  FAILED: {error}")
            continue
        took[job.target] = round(time.monotonic() - start, 1)
        say(f"  taken in {took[job.target]:.0f} s")
    if took and not quick:
        _remember(into / RUN, took)
    return failed


def _remember(path: Path, took: dict[str, float]) -> None:
    last = json.loads(path.read_text())["seconds"] if path.is_file() else {}
    found = {
        "command": "measure", "date": datetime.date.today().isoformat(), "seconds": last | took
    }  # fmt: skip
    write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda")
@click.option(
    "--only", metavar="PARTS", help="some of peers,cells,conv,course,plans; infer on a CPU"
)
@click.option("--quick", is_flag=True, help="few samples, to see that all runs; not to be quoted")
@click.option("--into", type=click.Path(path_type=Path), default=MEASURED, help="folder of devices")
@click.option("--dry-run", is_flag=True, help="say what would be run, and about how long")
def main(device: str, only: str | None, quick: bool, into: Path, dry_run: bool) -> None:
    """Take all figures of the README and docs/ on one device."""
    try:
        gpu, _ = choose_device(device)
        jobs = chosen("cpu" if gpu is None else "cuda", only, quick)
    except LenetError as error:
        click.echo(f"measure: error: {error}", err=True)
        sys.exit(2)
    folder = into.resolve() / folder_of(device_json(gpu))
    if dry_run:
        expected = guesses(jobs, folder, quick)
        for job in jobs:
            click.echo(f"{job.target:26} {expected[job.target]:4.0f} s  {shlex.join(job.command)}")
        click.echo(f"about {sum(expected.values()) / 60:.0f} minutes")
        return
    try:
        failed = run(jobs, folder, quick, lambda line: click.echo(line))
    except KeyboardInterrupt:
        click.echo("interrupted: what was taken until then is kept", err=True)
        sys.exit(130)
    for sentence in failed:
        click.echo(f"FAILED: {sentence}", err=True)
    if not failed and into.resolve() == MEASURED:
        click.echo("now: python scripts/update_docs.py")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
