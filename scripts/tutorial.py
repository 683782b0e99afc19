"""Write the outputs of the commands in docs/tutorial.md, run on this device in order.

Outputs of other devices stay; a part says so if the files of a step changed since a GPU ran it.
"""

import datetime
import hashlib
import os
import pty
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

import click
from measured import ROOT, filled

from lenetgpu.cpu.threads import core_count, cpu_name, machine_load
from lenetgpu.gpu.software import software
from lenetgpu.plan import choose_device

PAGE, STEPS = ROOT / "docs" / "tutorial.md", "docs/tutorial"
WIDTH = 100
EFFORT = {"cpu": "--batch 100 --seconds 5", "gpu": "--seconds 5"}
BUSY = 1.5  # runnable threads per core, ours included, above which times are unreliable


@dataclass(frozen=True)
class Run:
    """A command of the page with its exit code and the files that its output depends on."""

    name: str
    words: str
    files: tuple[str, ...]
    code: int = 0
    timed: bool = True

    def command(self, device: str) -> str:
        return f"lenetgpu {self.words}" + (f" {EFFORT[device]}" if self.timed else "")

    @property
    def digest(self) -> str:
        sources = [ROOT / f"{file}{end}" for file in self.files for end in (".py", ".cu")]
        return hashlib.sha256(b"\0".join(p.read_bytes() for p in sources)).hexdigest()[:10]


def _step(name: str, file: str, code: int = 0) -> Run:
    path = f"{STEPS}/{file}"
    return Run(name, f"compare conv2 --with {path}.py --only {name}", (path,), code)


TEMPLATE = "lenetgpu/lab/start/conv"
ALL = tuple(f"step{number}" for number in range(1, 6))
RUNS = (
    Run("new", "variants --new conv mine/", (TEMPLATE,), timed=False),
    Run("step1", "compare conv2 --with mine/ --only mine", (TEMPLATE,)),
    _step("wrong", "wrong/wrong", code=1),
    *(_step(name, name) for name in ALL[1:]),
    Run("all", f"compare conv2 --with {STEPS}/ --only {','.join(ALL)},unrolled",
        tuple(f"{STEPS}/{name}" for name in ALL)),
)  # fmt: skip


def output(run: Run, device: str, folder: Path) -> str:
    """Run a command in `folder`; return it with its output, device and date."""
    typed = run.command(device)
    words = [sys.executable, "-m", *shlex.split(typed), *(["--no-progress"] if run.timed else [])]
    written: list[bytes] = []

    def read(terminal: int) -> bytes:
        written.append(os.read(terminal, 1 << 16))
        return written[-1]

    prefix = ["env", "-C", str(folder), f"COLUMNS={WIDTH}", "TERM=dumb", f"PYTHONPATH={ROOT}"]
    code = os.waitstatus_to_exitcode(pty.spawn([*prefix, *words], read))
    if code != run.code:
        raise click.ClickException(f"{typed}: expected exit code {run.code}, found {code}")
    said = b"".join(written).decode().replace("\r\n", "\n")
    lines = [line.rstrip() for line in re.sub(r".*\r|\x1b\[[0-9;]*[mK]", "", said).split("\n")]
    text = "\n".join(ln if len(ln) <= WIDTH else textwrap.fill(ln, WIDTH) for ln in lines)
    gpu, _ = choose_device("auto" if device == "gpu" else "cpu")
    name = gpu.name if gpu is not None else f"{cpu_name()}, {core_count()} cores"
    commit = (software(None)["commit"] or "not recorded")[:10]
    said = f"{name}, {datetime.date.today()}, commit {commit}; files `{run.digest}`"
    said += f"; exit code {run.code}." if run.code else "."
    if run.timed and (load := machine_load()) >= BUSY:
        said += f" Other work ran meanwhile ({load:.1f} threads per core): measure again."
    return f"```\n$ {typed}\n{text.strip(chr(10))}\n```\n\n{said}"


def part(text: str, name: str) -> str:
    return text.partition(f"<!-- begin:{name} -->\n")[2].partition(f"<!-- end:{name} -->")[0]


def stale(text: str) -> list[str]:
    """Return the parts that show another command or changed files."""
    names = []
    for run in RUNS:
        for device in ("cpu", "gpu") if run.timed else ("cpu",):
            content = part(text, f"{run.name}-{device}")
            is_current = f"$ {run.command(device)}\n" in content or content.startswith(
                "Not yet run on a GPU"
            )
            if not is_current or f"files `{run.digest}`" not in content:
                names.append(f"{run.name}-{device}")
    return names


@click.command()
@click.option("--only", help="Only the commands of these names, with commas between.")
def main(only: str | None) -> None:
    """Run the commands of docs/tutorial.md on this device and write their outputs."""
    text = PAGE.read_text()
    device = "cpu" if choose_device("auto")[0] is None else "gpu"
    chosen = only.split(",") if only else [run.name for run in RUNS]
    with tempfile.TemporaryDirectory(prefix="lenetgpu-") as folder:
        shutil.copytree(ROOT / STEPS, Path(folder) / STEPS)
        for run in RUNS:
            if run.name in chosen or run.name == "new":
                click.echo(run.command(device))
                content = output(run, device, Path(folder))
                if run.timed or device == "cpu":
                    text = filled(PAGE.name, text, f"{run.name}-{device}", content)
            if run.timed and f"{run.name}-gpu" in stale(text):
                placeholder = f"Not yet run on a GPU; files `{run.digest}`."
                text = filled(PAGE.name, text, f"{run.name}-gpu", placeholder)
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
