"""Measure every figure of the README and docs/ on one device, into docs/measured/DEVICE/.

    python scripts/measure.py --dry-run     # the commands, and about how long they take
    python scripts/measure.py --only peers,conv
    python scripts/tables.py                # afterwards: the tables

Run nothing else on the machine meanwhile. Failures are reported and the others go on; a file is
replaced completely or not at all. External data: LENETGPU_MNIST and LENETGPU_COURSE.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from measured import MEASURED, ROOT, folder_of, kernels_of

from lenetgpu.errors import LenetError
from lenetgpu.gpu.device import driver_gpus
from lenetgpu.measure.document import device_json
from lenetgpu.network import STAGE_NAMES
from lenetgpu.papers.shapes import SUITES
from lenetgpu.plan import NAMED, choose_device
from lenetgpu.stages.matrix import cells
from lenetgpu.store import write_atomically

# suites whose paper kernels are timed step by step, with the peer and the shipped variant
ABLATIONS = {
    "pascal-single": "prefetch,best.fp32",
    "pascal-multi": "prefetch,best.fp32",
    "overfeat": "texture,best.fp32",
}
_BY_BEST = "best.fp32,direct.tuned,winograd,tensor.fp16x3,tensor.wgmma_fp16x3,tensor.wgmma_tf32x3"
Say = Callable[[str], None]


class MeasureError(Exception):
    """Reason why a file was not measured, a sentence."""


@dataclass(frozen=True)
class Job:
    """A command that writes the JSON of `target` in about `seconds`.

    In its words `{json}` stands for the output file, `{picture}` for a PNG of the same name,
    `{mnist}` and `{course}` for the data. Its output becomes `text`.
    """

    part: str
    target: str
    command: str
    seconds: float
    text: str = ""


def _scale(device: str, quick: bool) -> str:
    if quick:
        return "--images 20000 --shards 10000 --rounds 1"
    if device == "cpu":
        return "--images 800000"
    counts = [0, *(1 << k for k in range(8) if 1 << k <= max(1, len(driver_gpus())))]
    return f"--images 20000000 --shards 100000,1000000 --workers {','.join(map(str, counts))}"


def jobs_of(device: str, quick: bool) -> Iterator[Job]:
    """Yield the files of a GPU or a CPU ("cuda", "cpu")."""
    few = "--rounds 3 --quick" if quick else "--rounds 15"
    on = f"--device {device}"
    seconds = 0.02 if quick else 0.2
    yield Job("peers", "peers.json", f"scripts/peers.py {on} --data {{mnist}} {few}", 300)
    for stage in STAGE_NAMES:
        own = [c.variant.full_name for c in cells(stage)
               if c.variant and c.device == device and not c.copies]  # fmt: skip
        words = f"--batch {300 if quick else 10_000} --seconds {0.2 if quick else 4} --watch 0.2"
        only = ",".join(dict.fromkeys(own))
        yield Job("cells", f"cells/{stage}.json", f"compare {stage} {on} {words} --only {only}", 8)
    yield Job("weights", "weights.json",
              f"scripts/any_weights.py {on} {'--images 200' if quick else ''}", 60)  # fmt: skip
    yield Job("scale", "scale.json", f"scripts/scale.py {on} {_scale(device, quick)}", 240)
    if device == "cpu":
        # as `make infer`, which names no device where there is no GPU
        yield Job("infer", "infer.json", f"infer --batch 10000 {on if driver_gpus() else ''}", 10,
                  text="infer.txt")  # fmt: skip
        return
    for name in SUITES:
        words = f"--suite {name} {on} --seconds {seconds} --watch 0.2"
        yield Job("conv", f"conv/{name}.json", f"conv {words}", 60)
    for name, only in ABLATIONS.items():
        words = f"--suite {name} --only {only} {on} --seconds {seconds / 4} --watch 0"
        yield Job("ablation", f"ablation/{name}.json", f"conv {words}", 60)
    words = f"--suite convnet2 --batch 64 --only {_BY_BEST} {on} --watch 0 --seconds {seconds / 4}"
    yield Job("conv", "again/convnet2-64.json", f"conv {words}", 20)
    yield Job("course", "course.json", f"compare --suite course {on} --plot {{picture}}", 60)
    words = "" if quick else "--suite convnet2"
    yield Job("shares", "shares.json", f"conv --shares {words} {on} --plot {{picture}}", 40)
    words = f"--images {500 if quick else 2000}"
    yield Job("counters", "counters.json", f"scripts/counters.py {words}", 60)
    for name, devices in NAMED.items():
        if "cuda" in devices:
            words = f"--plan {name} {on} --batch 10000 --timing"
            yield Job("plans", f"plans/{name}.json",
                      f"infer {{mnist}} --weights {{course}} {words}", 8)  # fmt: skip


def data() -> dict[str, Path | None]:
    """Return the external data folders, None for those that are missing."""
    paths: dict[str, Path | None] = {}
    for word, variable, name in (
        ("mnist", "LENETGPU_MNIST", "t10k-images-idx3-ubyte.gz"),
        ("course", "LENETGPU_COURSE", "model.hdf5"),
    ):
        path = Path(os.environ.get(variable, "")) / name
        paths[word] = path.resolve() if os.environ.get(variable) and path.is_file() else None
    return paths


def command_of(job: Job, paths: dict[str, Path | None]) -> list[str]:
    """Return the job's command with its paths; raise MeasureError if data is missing."""
    script = job.command.startswith("scripts/")
    words = [sys.executable] if script else [sys.executable, "-m", "lenetgpu"]
    for word in shlex.split(job.command) + ([] if script else ["--no-progress"]):
        name = word[1:-1] if word.startswith("{") else ""
        if name and paths[name] is None:
            folder = f"LENETGPU_{name.upper()}"
            raise MeasureError(f"{folder}: expected the folder of its files, found none there")
        words.append(str(paths[name]) if name else word)
    return [*words, "--json", str(paths["json"])]


def finished(document: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Return the document with its kernels' hashes and no path of this machine."""
    for key in ("data", "weights"):
        if key in document:
            document[key] = Path(document[key]).name
    if quick:
        document["quick"] = True
    document["kernels"] = kernels_of(document)
    return document


def take(job: Job, into: Path, paths: dict[str, Path | None], quick: bool) -> None:
    """Run one job and move its files to `into`; raise MeasureError if it failed."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"}
    with tempfile.TemporaryDirectory(prefix="lenetgpu-measure-") as folder:
        outputs = {"json": Path(folder) / "found.json", "picture": Path(folder) / "found.png"}
        command = command_of(job, paths | outputs)
        limit = max(180.0, 5 * job.seconds)
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=limit, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired as error:
            raise MeasureError(f"it ran past {limit:.0f} s") from error
        if done.returncode:
            output = (done.stderr + done.stdout).strip().splitlines() or ["it printed nothing"]
            raise MeasureError(f"exit code {done.returncode}; {output[-1][:160]}")
        try:
            document = finished(json.loads(outputs["json"].read_text()), quick)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MeasureError(f"expected its JSON, found {error!r}") from error
        write_atomically(into / job.target, (json.dumps(document, indent=1) + "\n").encode())
        if job.text:
            write_atomically(into / job.text, done.stdout.encode())
        if outputs["picture"].is_file():
            target = (into / job.target).with_suffix(".png")
            write_atomically(target, outputs["picture"].read_bytes())


def selected(device: str, only: str | None, quick: bool) -> list[Job]:
    """Return the jobs of the requested parts; raise LenetError for an unknown part."""
    jobs = list(jobs_of(device, quick))
    parts = list(dict.fromkeys(job.part for job in jobs))
    chosen = parts if only is None else only.split(",")
    for part in chosen:
        if part not in parts:
            raise LenetError(
                f"--only: expected some of {', '.join(parts)} on {device}, found {part!r}"
            )
    return [job for job in jobs if job.part in chosen]


def run(jobs: list[Job], into: Path, quick: bool, say: Say) -> list[str]:
    """Run every job; return the sentences of those that failed."""
    paths, failed = data(), []
    for number, job in enumerate(jobs, 1):
        say(f"[{number}/{len(jobs)}] {job.target}, about {job.seconds:.0f} s: {job.command}")
        try:
            take(job, into, paths, quick)
        except (MeasureError, LenetError) as error:
            failed.append(f"{job.target}: {error}")
            say(f"  FAILED: {error}")
    return failed


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda")
@click.option("--only", metavar="PARTS", help="some of peers,cells,conv,course,plans,...")
@click.option("--quick", is_flag=True, help="few samples, to see that all runs; not to be quoted")
@click.option("--into", type=click.Path(path_type=Path), default=MEASURED, help="folder of devices")
@click.option("--dry-run", is_flag=True, help="print what would be run")
def main(device: str, only: str | None, quick: bool, into: Path, dry_run: bool) -> None:
    """Measure all figures of the README and docs/ on one device."""
    try:
        gpu, _ = choose_device(device)
        jobs = selected("cpu" if gpu is None else "cuda", only, quick)
    except LenetError as error:
        click.echo(f"measure: error: {error}", err=True)
        sys.exit(2)
    if dry_run:
        for job in jobs:
            click.echo(f"{job.target:26} {job.seconds:4.0f} s  {job.command}")
        click.echo(f"about {sum(job.seconds for job in jobs) / 60:.0f} minutes")
        return
    folder = into.resolve() / folder_of(device_json(gpu))
    try:
        failed = run(jobs, folder, quick, click.echo)
    except KeyboardInterrupt:
        click.echo("interrupted: the files measured so far remain", err=True)
        sys.exit(130)
    for sentence in failed:
        click.echo(f"FAILED: {sentence}", err=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
