"""Break the package on purpose, one place at a time, and check that a test fails.

CUDA's mutants are a short list, tests/mutants.json: a text of one file, its replacement, and
pytest's arguments for the tests that must fail. Python's are cosmic-ray's: a random sample of its
changes to check/, measure/, files/ and net/, each met by the fast tests that name the module. Each
change is applied to a copy of the checkout.

\b
    python scripts/mutants.py                       # CUDA, tested on a CPU
    python scripts/mutants.py --gpu                 # CUDA, tested on a GPU
    python scripts/mutants.py --sample 200 --seed 1 # Python
"""

import ast
import json
import os
import random
import re
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
LEAST = 0.9  # minimum share of killed Python mutants


def load() -> list[dict[str, Any]]:
    """Return the mutants: `name`, `file`, `old`, `new`, `gpu` and `tests` of each."""
    return json.loads(DATA.read_text())


def applied(mutant: dict[str, Any], text: str) -> str:
    """Return `text` with the change; raise ValueError unless `old` occurs exactly once."""
    if text.count(mutant["old"]) != 1:
        raise ValueError(f"{mutant['name']}: {mutant['old']!r} must occur once in {mutant['file']}")
    return text.replace(mutant["old"], mutant["new"])


def outcome(mutant: dict[str, Any] | None, tests: list[str]) -> str:
    """Run `tests` in a copy of the checkout with `mutant`: "killed", "survived" or a problem.

    A mutant of None runs the tests on the unchanged code.
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
            path.write_text(mutant.get("changed") or applied(mutant, path.read_text()))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, timeout=SECONDS, capture_output=True, text=True
            )
        except subprocess.TimeoutExpired:
            return "killed"
    if done.returncode in (1, 2, 3, 4) or done.returncode < 0:  # failed, or could not be imported
        return "killed"
    if done.returncode == 0 and " passed" in done.stdout:
        return "survived"
    return f"no test ran: {(done.stdout.strip().splitlines() or ['no output'])[-1]}"


SAMPLED = ("check", "measure", "files", "net")


def python_mutants(count: int, seed: int) -> list[dict[str, Any]]:
    """Return a random sample of cosmic-ray's changes, at different places of the package."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator, operator_names

    operators = [get_operator(n)() for n in operator_names() if not get_operator(n).arguments()]
    sites: dict[tuple[str, tuple[int, int]], list[tuple[Any, int]]] = {}
    for folder in SAMPLED:
        for path in sorted((ROOT / "lenetgpu" / folder).rglob("*.py")):
            text = path.read_text()
            nodes = list(ast_nodes(get_ast(text)))
            annotations = (
                getattr(node, name, None)
                for node in ast.walk(ast.parse(text))
                for name in ("annotation", "returns")
            )
            skipped = {found.lineno for found in annotations if found}  # changes have no effect
            for operator in operators:
                starts = (start for n in nodes for start, _ in operator.mutation_positions(n))
                for occurrence, start in enumerate(starts):
                    if start[0] not in skipped:
                        key = (str(path.relative_to(ROOT)), start)
                        sites.setdefault(key, []).append((operator, occurrence))
    rng = random.Random(seed)
    mutants = []
    for key in rng.sample(sorted(sites), min(count, len(sites))):
        operator, occurrence = rng.choice(sites[key])
        text = (ROOT / key[0]).read_text()
        changed = mutate_code(text, operator, occurrence)
        if changed is None or changed == text:
            continue
        line = key[1][0]
        mutants.append(
            {
                "name": f"{key[0]}:{line} {type(operator).__name__}",
                "file": key[0],
                "changed": changed,
                "was": text.splitlines()[line - 1].strip(),
                "now": (changed.splitlines() + [""] * line)[line - 1].strip(),
                "gpu": False,
                "tests": tests_of(key[0]),
            }
        )
    return mutants


def tests_of(file: str) -> list[str]:
    """Return pytest arguments for the fast tests that import or are named after a module."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    parent, _, last = module.rpartition(".")
    own = re.compile(rf"{module}\b|from {parent} import (\([^)]*|.*)\b{last}\b")
    files = sorted((ROOT / "tests").glob("test_*.py"), key=lambda path: path.stat().st_size)
    named = f"test_{last}", f"test_{parent.rpartition('.')[2]}"
    names = [p.name for p in files if p.name.startswith(named) or own.search(p.read_text())]
    always = ["test_infer.py", "test_cli.py"]
    return ["-m", "not slow and not gpu", *(f"tests/{n}" for n in dict.fromkeys(names + always))]


def judged(mutant: dict[str, Any]) -> str:
    result = outcome(mutant, mutant["tests"])
    if result == "killed":
        unbroken = outcome(None, mutant["tests"])
        if unbroken != "survived":
            return f"its tests do not pass unbroken ({unbroken})"
    return result


@click.command()
@click.option("--gpu", is_flag=True, help="those that only a GPU can notice")
@click.option("--sample", type=int, help="so many random changes to Python instead")
@click.option("--seed", default=1, show_default=True, help="of the sample")
@click.option("--jobs", default=2, show_default=True, help="how many at once")
@click.argument("names", nargs=-1)
def main(gpu: bool, sample: int | None, seed: int, jobs: int, names: tuple[str, ...]) -> None:
    """Apply mutants and run the tests that must notice them."""
    every = load() if sample is None else python_mutants(sample, seed)
    chosen = [m for m in every if m["gpu"] == gpu and (not names or m["name"] in names)]
    if not chosen:
        raise click.UsageError("no mutant has that name on this device")
    judge = judged if sample is None else lambda mutant: outcome(mutant, mutant["tests"])
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, result in zip(chosen, pool.map(judge, chosen), strict=True):
            click.echo(f"{result:10} {mutant['name']}")
            if result != "killed" and "was" in mutant:
                click.echo(f"    {mutant['was']}\n    {mutant['now']}")
            results.append(result)
    killed = results.count("killed")
    click.echo(f"{killed} of {len(results)} killed")
    sys.exit(killed < (1.0 if sample is None else LEAST) * len(results))


if __name__ == "__main__":
    main()
