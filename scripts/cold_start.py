"""Fresh processes: `lenetgpu infer` on the digits that ship beside PyTorch, from exec to exit.

Caches are warm, Python's bytecode among them (in a folder of its own, for everybody): all run once
before. Then rounds of one process each, by the wall's clock; the processor time of a process is
kept beside it. What cannot be avoided stands in rows of its own: the interpreter, and the
libraries without us.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from beside import (
    LEAST_SAMPLES,
    OURS,
    Contestant,
    missing,
    options,
    summary,
    torch_version,
    without,
    write,
)

from lenetgpu.check.truth import reference_scores
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.rounds import interleave
from lenetgpu.measure.timing import cpu_ms
from lenetgpu.net.device import choose_device

ROOT = Path(__file__).resolve().parent.parent
FLOOR = "floor"
LONGEST_S = 120
_RIGHT = re.compile(r"(\d+) of (\d+)")


class ColdError(Exception):
    """Why a process is not what it should be, in a sentence."""


class Process:
    """Python with these words from exec to exit; `spent` are milliseconds of processor time.

    `folder` holds its bytecode: where packages lie may not be written to.
    """

    def __init__(self, folder: Path, *words: str) -> None:
        paths = filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.words, self.spent, self.said = words, list[float](), ""
        self.env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        self.env["PYTHONPATH"] = os.pathsep.join(paths)
        self.env["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")

    def run(self) -> None:
        """ColdError where it does not end well."""
        before = os.times()
        done = subprocess.run(
            [sys.executable, *self.words],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=LONGEST_S,
        )
        after = os.times()
        if done.returncode:
            words = (done.stderr.strip() or "it said nothing").splitlines()[-1]
            raise ColdError(f"exit code {done.returncode}: {words[:160]}")
        self.said = done.stdout
        children = (after.children_user, before.children_user), (
            after.children_system, before.children_system,
        )  # fmt: skip
        self.spent.append(1e3 * sum(now - then for now, then in children))

    def sample(self) -> float:
        """Wall milliseconds of one run."""
        return cpu_ms(self.run)


def ours(folder: Path, device: str) -> Iterator[Contestant]:
    """`infer` with its defaults, its labels looked at; then as it is timed, printing only."""
    process = Process(folder, "-m", "lenetgpu", "infer", "--device", device, "--no-progress")

    def labels() -> Any:
        target = folder / "labels.npy"
        Process(folder, *process.words, "--output", str(target)).run()
        process.run()
        return np.load(target)

    yield Contestant(f"{OURS} infer", OURS, "", process.sample, labels, keep=(process,))


def theirs(folder: Path, device: str, weights: Path) -> Iterator[Contestant]:
    """PyTorch's eager pass over the same digits and weights."""
    script = str(ROOT / "scripts" / "torch_cold.py")
    process = Process(folder, script, device, str(weights), str(assets.default_digits()))

    def right() -> Any:
        process.run()
        return process.said

    yield Contestant("torch eager", "torch", "", process.sample, right, keep=(process,))


def floors(folder: Path, device: str) -> Iterator[Contestant]:
    """The interpreter, and what has to be imported whatever is done."""
    libraries = "import numpy, h5py, llvmlite"
    if device == "cuda":
        libraries = "import numpy, h5py, cupy; cupy.cuda.runtime.free(0)"
    for name, code in (("Python alone", "pass"), (libraries, libraries)):
        process = Process(folder, "-c", code)
        yield Contestant(name, FLOOR, "", process.sample, process.run, keep=(process,))


def check(one: Contestant, truth: Any, labels: Any) -> None:
    """Run it once; facts of its labels: of PyTorch, which prints how many are right, that count."""
    found = one.labels()
    if one.maker == OURS:
        one.facts["flips"] = int((found != truth).sum())
        one.facts["correct"] = int((found == labels).sum())
    elif one.maker != FLOOR:
        counted = _RIGHT.search(found)
        if counted is None or int(counted[2]) != len(labels):
            raise ColdError(f"expected a count of {len(labels)} labels, found {found!r}")
        one.facts["correct"] = int(counted[1])
        one.facts["flips"] = abs(one.facts["correct"] - int((truth == labels).sum()))
    else:
        one.facts["flips"] = 0
    if not one.right:
        raise ColdError(f"{one.facts['flips']} labels differ from float64's")


def measure(contestants: list[Contestant], rounds: int) -> list[dict[str, Any]]:
    """Rounds of one fresh process each; a row each with the processor time beside the wall's."""
    for one in contestants:
        one.keep[0].spent.clear()
    interleave([(one.run, one.samples) for one in contestants], rounds)
    spent = {one.name: float(np.median(one.keep[0].spent)) for one in contestants}
    return [row | {"processor_ms": spent[row["name"]]} for row in summary(contestants)]


def phases(folder: Path, device: str) -> dict[str, Any]:
    """Where `infer` says that its time goes, and the plan that it took."""
    target = folder / "infer.json"
    words = ("-m", "lenetgpu", "infer", "--device", device, "--no-progress", "--json", str(target))
    Process(folder, *words).run()
    document = json.loads(target.read_text())
    times = {k: v for k, v in document["timing_ms"].items() if isinstance(v, float)}
    return {"phases_ms": times, "plan": document["plan"], "stages": []}


def _take(
    gpu: Gpu | None, weights: Path, rounds: int, folder: Path
) -> tuple[list[dict[str, Any]], list[Any], dict[str, Any]]:
    device = "cpu" if gpu is None else "cuda"
    dataset = load_dataset(assets.default_digits())
    truth = reference_scores(dataset.images, load_weights(weights))[1]
    lacking = without("torch")
    peers = [] if lacking else list(theirs(folder, device, weights))
    absent = missing(device, [], {"PyTorch": lacking} if lacking else {})
    contestants = [*ours(folder, device), *peers, *floors(folder, device)]
    for one in contestants:
        try:
            check(one, truth, dataset.labels)
        except ColdError as error:
            raise ColdError(f"{one.name}: {error}") from error
    return measure(contestants, rounds), absent, phases(folder, device)


@click.command()
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda")
@options(11, "as few rounds as are asked for")
def main(device: str, rounds: int, quick: bool, target: Path | None) -> None:
    """Time fresh processes of lenetgpu and PyTorch."""
    if rounds < LEAST_SAMPLES and not quick:
        click.echo(f"--rounds: expected at least {LEAST_SAMPLES}, found {rounds}", err=True)
        sys.exit(2)
    weights = assets.default_weights()
    try:
        gpu, _ = choose_device(device)
        with tempfile.TemporaryDirectory(prefix="lenetgpu-cold-") as folder:
            rows, absent, more = _take(gpu, weights, rounds, Path(folder))
    except (LenetError, ColdError) as error:
        click.echo(f"cold_start: error: {error}", err=True)
        sys.exit(2)
    for row in rows:
        click.echo(
            f"{row['name']:44} {row['median_ms']:8.0f} ms ({row['p05_ms']:.0f} to "
            f"{row['p95_ms']:.0f}), processor {row['processor_ms']:.0f} ms"
        )
    spent = ", ".join(f"{name} {ms:.0f}" for name, ms in more["phases_ms"].items())
    click.echo(f"infer says: {spent} ms")
    facts = {
        "data": assets.default_digits().name,
        "weights": weights.name,
        "quick": quick,
        "torch": torch_version(),
        "rows": rows,
        "not_measured": absent,
        **more,
    }
    write(target, "cold", gpu, facts)


if __name__ == "__main__":
    main()
