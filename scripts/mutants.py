"""Break CUDA code on purpose, one place at a time, and see that a test notices.

tests/mutants.json lists the changes: a text of one file, its replacement, and pytest's arguments
for the tests that must fail. Each is applied to a copy of the checkout. Python's mutants are
mutmut's (CONTRIBUTING.md).

    python scripts/mutants.py          # those that a CPU can notice
    python scripts/mutants.py --gpu    # the others, on a GPU
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "mutants.json"
FOLDERS = ("lenetgpu", "tests", "scripts", "weights", "data", "pyproject.toml")
SECONDS = 600


def load() -> list[dict[str, Any]]:
    """Return the mutants: `name`, `file`, `old`, `new`, `gpu` and `tests` of each."""
    found: list[dict[str, Any]] = json.loads(DATA.read_text())
    return found


def applied(mutant: dict[str, Any], text: str) -> str:
    """Return `text` with the change; ValueError unless `old` occurs exactly once."""
    if text.count(mutant["old"]) != 1:
        raise ValueError(f"{mutant['name']}: {mutant['old']!r} must occur once in {mutant['file']}")
    return text.replace(mutant["old"], mutant["new"])


def outcome(mutant: dict[str, Any] | None, tests: list[str]) -> str:
    """Run `tests` in a copy of the checkout with `mutant` applied; "killed", "survived" or why not.

    None as the mutant runs the tests unbroken.
    """
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy = Path(name)
        for entry in FOLDERS:
            if (ROOT / entry).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / entry, copy / entry, ignore=ignored)
            else:
                shutil.copy2(ROOT / entry, copy / entry)
        if mutant is not None:
            path = copy / mutant["file"]
            path.write_text(applied(mutant, path.read_text()))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, timeout=SECONDS, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            return "killed"
    if done.returncode == 1:
        return "killed"
    if done.returncode == 0 and " passed" in done.stdout:
        return "survived"
    return f"no test ran: {(done.stdout.strip().splitlines() or ['no output'])[-1]}"


def judged(mutant: dict[str, Any]) -> str:
    """Return what became of a mutant whose tests pass without it."""
    unbroken = outcome(None, mutant["tests"])
    if unbroken != "survived":
        return f"its tests do not pass unbroken ({unbroken})"
    return outcome(mutant, mutant["tests"])


@click.command()
@click.option("--gpu", is_flag=True, help="those that only a GPU can notice")
@click.option("--jobs", default=2, show_default=True, help="how many at once")
@click.argument("names", nargs=-1)
def main(gpu: bool, jobs: int, names: tuple[str, ...]) -> None:
    """Apply each mutant of tests/mutants.json and run the tests that must notice it."""
    chosen = [m for m in load() if m["gpu"] == gpu and (not names or m["name"] in names)]
    if not chosen:
        raise click.UsageError("no mutant has that name on this device")
    with ThreadPoolExecutor(jobs) as pool:
        results = pool.map(judged, chosen)
        found = []
        for mutant, result in zip(chosen, results, strict=True):
            click.echo(f"{result:10} {mutant['name']}")
            found.append(result)
    killed = found.count("killed")
    click.echo(f"{killed} of {len(found)} killed")
    sys.exit(killed != len(found))


if __name__ == "__main__":
    main()
