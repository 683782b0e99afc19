"""Write the generated parts of docs/tutorial.md: code, counts, and what the commands print here.

    python scripts/tutorial.py            # run every command on this device, and write its outputs
    python scripts/tutorial.py --check    # run nothing; exit with 1 where the page is out of step

The steps are the files of docs/tutorial/. Outputs of the other device stay as they are; while no
GPU has run a step, its part says so, and for what its kernel was compiled.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import tutorial_counts
from measured import filled

from lenetgpu.cpu.threads import core_count, cpu_name, machine_load
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.software import software
from lenetgpu.network import STAGES
from lenetgpu.plan import choose_device
from lenetgpu.stages import outside

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "tutorial.md"
STEPS = "docs/tutorial"
STAGE = "conv2"
WIDTH = 100
EFFORT = {"cpu": "--batch 100 --seconds 5", "gpu": "--seconds 5"}
BUSY = 1.5
"""Threads a core that wanted to run, ours with them, from which on times say little."""
PENDING = "Not yet run on a GPU"


@dataclass(frozen=True)
class Run:
    """A command of the page: what it ends with, and the files that its output depends on."""

    name: str
    words: str
    files: tuple[str, ...]
    code: int = 0
    timed: bool = True

    def command(self, device: str) -> str:
        """What is typed on `device` (cpu, gpu)."""
        return f"lenetgpu {self.words} {EFFORT[device]}" if self.timed else f"lenetgpu {self.words}"

    @property
    def sources(self) -> list[Path]:
        """Its files with their kernels."""
        return [ROOT / f"{file}{end}" for file in self.files for end in (".py", ".cu")]

    @property
    def digest(self) -> str:
        """Tells versions of its files apart."""
        return hashlib.sha256(b"\0".join(p.read_bytes() for p in self.sources)).hexdigest()[:10]


def _step(name: str, file: str, code: int = 0) -> Run:
    path = f"{STEPS}/{file}"
    return Run(name, f"compare {STAGE} --with {path}.py --only {name}", (path,), code)


TEMPLATE = "lenetgpu/lab/start/conv"
ALL = tuple(f"step{number}" for number in range(1, 6))
RUNS = (
    Run("new", "variants --new conv mine/", (TEMPLATE,), timed=False),
    Run("step1", f"compare {STAGE} --with mine/ --only mine", (TEMPLATE,)),
    _step("wrong", "wrong/wrong", code=1),
    *(_step(name, name) for name in ALL[1:]),
    Run(
        "all",
        f"compare {STAGE} --with {STEPS}/ --only {','.join(ALL)},unrolled",
        tuple(f"{STEPS}/{name}" for name in ALL),
    ),
)


def _in_terminal(words: list[str], folder: Path) -> tuple[str, int]:
    """What `words` print to a terminal of WIDTH columns without colours, and the exit code."""
    here, there = os.openpty()
    env = os.environ | {"COLUMNS": str(WIDTH), "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    written = b""
    with subprocess.Popen(words, stdin=there, stdout=there, stderr=there, cwd=folder, env=env) as p:
        os.close(there)
        while True:
            try:
                part = os.read(here, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            written += part
    os.close(here)
    text = written.decode().replace("\r\n", "\n")
    lines = re.sub(r".*\r|\x1b\[[0-9;]*[mK]", "", text).split("\n")
    shown = "\n".join(_wrapped(line.rstrip()) for line in lines)
    return shown.strip("\n"), p.returncode


def _wrapped(line: str) -> str:
    """A line as the page shows it: one that a terminal would break is broken between words."""
    return line if len(line) <= WIDTH else textwrap.fill(line, WIDTH)


def _output(run: Run, device: str, folder: Path) -> str:
    """A part of the page: the command, what it printed, and on what."""
    typed = run.command(device)
    words = [sys.executable, "-m", *shlex.split(typed)]
    more = ["--no-progress"] if run.timed else []
    text, code = _in_terminal([*words, *more], folder)
    if code != run.code:
        raise click.ClickException(f"{typed}: expected exit code {run.code}, found {code}:\n{text}")
    return f"```\n$ {typed}\n{text}\n```\n\n{_caption(run, device)}"


def _caption(run: Run, device: str) -> str:
    gpu, _ = choose_device("auto" if device == "gpu" else "cpu")
    name = gpu.name if gpu is not None else f"{cpu_name()}, {core_count()} cores"
    commit = (software(None)["commit"] or "not recorded")[:10]
    ended = f"; exit code {run.code}" if run.code else ""
    date = datetime.date.today().isoformat()
    beside = _busy() if run.timed else ""
    return f"{name}, {date}, commit {commit}; files `{run.digest}`{ended}.{beside}"


def _busy() -> str:
    """A sentence where others kept the machine busy while a command ran."""
    load = machine_load()
    if load < BUSY:
        return ""
    return (
        f" Taken beside other work ({load:.1f} threads a core): take it again on a quiet machine."
    )


def _pending(run: Run) -> str:
    """What is said of kernels that no GPU has run; they are compiled for it."""
    kernels = []
    with outside.loaded([path for path in run.sources if path.suffix == ".py"]) as found:
        for variant in found:
            if variant.kernels is not None:
                problem = variant.laid_out(problem_of_stage())
                kernels += variant.kernels(problem, 1)
        archs = [arch for arch in nvrtc.ARCHITECTURES if nvrtc.supported(arch)]
        for kernel in kernels:
            for arch in archs:
                used = nvrtc.compile_kernel(kernel, arch).resources
                if used.spill_bytes or used.stack_bytes:
                    raise click.ClickException(f"{kernel.entry} for {arch} spills")
    names = ", ".join(f"`{kernel.entry}`" for kernel in kernels)
    verb = "is" if len(kernels) == 1 else "are"
    return (
        f"{PENDING}: {names} {verb} compiled for {archs[0]} to {archs[-1]} without spills; "
        f"files `{run.digest}`."
    )


def problem_of_stage() -> object:
    """The problem that every step solves."""
    return next(stage.problem for stage in STAGES if stage.name == STAGE)


def parts(text: str) -> Iterator[tuple[str, str]]:
    """(name, content) of the page's generated parts."""
    yield from re.findall(r"<!-- begin:([\w-]+) -->\n(.*?)<!-- end:\1 -->", text, re.DOTALL)


def still() -> dict[str, str]:
    """The parts that are made without running anything."""
    return tutorial_counts.parts(ROOT / STEPS, problem_of_stage())


def stale(text: str) -> list[str]:
    """Sentences on what of the page is not in step with the files and the commands."""
    held, found = dict(parts(text)), []
    for name, content in still().items():
        if held.get(name) != content + "\n":
            found.append(f"{name}: expected what the files say, found other text")
    for run in RUNS:
        for device in ("cpu", "gpu") if run.timed else ("cpu",):
            part = held.get(f"{run.name}-{device}", "")
            waits = device == "gpu" and part.startswith(PENDING)
            if not waits and f"$ {run.command(device)}\n" not in part:
                found.append(f"{run.name}-{device}: expected the output of {run.command(device)}")
            if f"files `{run.digest}`" not in part:
                found.append(f"{run.name}-{device}: its files have changed since")
    return found


@click.command()
@click.option("--check", is_flag=True, help="Run nothing and exit with 1 where the page is stale.")
@click.option("--only", help="Run only the commands of these names, with commas between.")
def main(check: bool, only: str | None) -> None:
    """Write the generated parts of docs/tutorial.md, or look whether they are in step."""
    text = PAGE.read_text()
    if check:
        found = stale(text)
        for line in found:
            click.echo(f"docs/tutorial.md, {line}; run scripts/tutorial.py")
        sys.exit(1 if found else 0)
    device = "cpu" if choose_device("auto")[0] is None else "gpu"
    wanted = only.split(",") if only else [run.name for run in RUNS]
    with tempfile.TemporaryDirectory(prefix="lenetgpu-") as made:
        folder = Path(made)
        shutil.copytree(ROOT / STEPS, folder / STEPS, ignore=shutil.ignore_patterns("__pycache__"))
        for run in RUNS:
            if run.name in wanted or run.name == "new":
                click.echo(run.command(device))
                if run.timed or device == "cpu":
                    text = filled(
                        "docs/tutorial.md",
                        text,
                        f"{run.name}-{device}",
                        _output(run, device, folder),
                    )
                else:
                    _output(run, device, folder)
            if run.timed and device == "cpu" and waits(text, run):
                text = filled("docs/tutorial.md", text, f"{run.name}-gpu", _pending(run))
    for name, content in still().items():
        text = filled("docs/tutorial.md", text, name, content)
    PAGE.write_text(text)


def waits(text: str, run: Run) -> bool:
    """Whether no GPU has run what the files of `run` are now."""
    part = dict(parts(text)).get(f"{run.name}-gpu", "")
    return not part.startswith("```") or f"files `{run.digest}`" not in part


if __name__ == "__main__":
    main()
