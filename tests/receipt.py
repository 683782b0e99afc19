"""Receipt of a GPU run: the tests, their environment, and hashes of the covered sources.

Covered are the kernels with the headers that they include, and the Python code that packs, plans
and launches: the package without the folders of `_APART`, which only request or display results.
Kernels are hashed byte by byte. Python files are hashed by syntax tree without docstrings, so that
changes to prose, comments and formatting do not invalidate the receipt.

    python tests/receipt.py                                check that the receipt holds
    python tests/receipt.py --unrun "reason" FILES...      list changed files as not run since

FILES may include folders, whose valid entries stay. A header stands for the kernels that include
it.
"""

import argparse
import ast
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lenetgpu.gpu.nvrtc import source_files, source_hash

ROOT = Path(__file__).resolve().parent.parent
RECEIPT = ROOT / "tests" / "gpu-receipt.json"
SHOWN = 20  # changed files that are named
_APART = {"cli", "lab", "jobs", "pictures", "__main__.py"}
_OF_NO_EFFECT = {"ctx", "kind", "type_comment"}


def kernel_hashes(root: Path = ROOT) -> dict[str, str]:
    """Map every kernel source of the package to the hash of its text and headers."""
    sources = sorted((root / "lenetgpu").rglob("*.cu"))
    return {path.relative_to(root).as_posix(): source_hash(path) for path in sources}


def covered(root: Path = ROOT) -> list[Path]:
    """Return the Python files that GPU results depend on."""
    package = root / "lenetgpu"
    found = sorted(package.rglob("*.py"))
    return [path for path in found if path.relative_to(package).parts[0] not in _APART]


def _plain(node: Any) -> Any:
    """Return a syntax tree as lists, independent of the Python version.

    Docstrings, positions and empty fields are omitted.
    """
    if isinstance(node, list):
        return [_plain(item) for item in node if not _is_prose(item)]
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty texts to some
        node = ast.JoinedStr([part for part in node.values if getattr(part, "value", None) != ""])
    fields = (
        (name, value)
        for name, value in ast.iter_fields(node)
        if name not in _OF_NO_EFFECT and value is not None and value != []
    )
    return [type(node).__name__, *([name, _plain(value)] for name, value in fields)]


def _is_prose(node: Any) -> bool:
    """Return True if a statement is a bare string, such as a docstring."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def python_hash(path: Path) -> str:
    """Return the SHA-256 of a Python file's syntax tree without docstrings."""
    text = json.dumps(_plain(ast.parse(path.read_text())))
    return hashlib.sha256(text.encode()).hexdigest()


def python_hashes(root: Path = ROOT) -> dict[str, str]:
    """Map every covered Python file to its hash."""
    return {path.relative_to(root).as_posix(): python_hash(path) for path in covered(root)}


@dataclass(frozen=True)
class State:
    """Files that differ from the receipt: `changed` are not listed in it, `unrun` are."""

    changed: tuple[str, ...]
    unrun: tuple[str, ...]


def compared(receipt: dict[str, Any], root: Path = ROOT) -> State:
    """Compare the sources below `root` with a receipt.

    A file matches its hash in the receipt, or has an entry in `unrun` with its current hash
    (null: deleted) and a reason; otherwise it counts as changed.
    """
    ran = receipt["kernels"] | receipt.get("python", {})
    now = kernel_hashes(root) | python_hashes(root)
    changed, unrun = [], []
    for path in sorted(ran.keys() | now.keys()):
        if ran.get(path) == now.get(path):
            continue
        entry = receipt.get("unrun", {}).get(path)
        excused = entry is not None and entry["hash"] == now.get(path) and entry["reason"].strip()
        (unrun if excused else changed).append(path)
    return State(tuple(changed), tuple(unrun))


def fresh(facts: dict[str, Any], root: Path = ROOT) -> dict[str, Any]:
    """Return the receipt of a run just finished: `facts` and the hashes of the current sources."""
    hashes = {"unrun": {}, "kernels": kernel_hashes(root), "python": python_hashes(root)}
    return facts | hashes


def write(receipt: dict[str, Any], path: Path = RECEIPT) -> None:
    """Write the receipt to a file, one entry per line."""
    path.write_text(json.dumps(receipt, indent=1) + "\n")


def read(path: Path = RECEIPT) -> dict[str, Any] | None:
    """Return the receipt in a file, or None if there is no file."""
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def sentences(receipt: dict[str, Any] | None, root: Path = ROOT) -> tuple[bool, list[str]]:
    """Return True if the receipt holds, and lines that describe its state."""
    if receipt is None:
        return False, ["No GPU has run these sources: run `make test-gpu` on one."]
    state = compared(receipt, root)
    where = f"{receipt['device']}, driver {receipt['driver']}, {receipt['date']}"
    if state.changed:
        return False, [
            f"{len(state.changed)} files changed since the run on {where}:",
            *(f"  {path}" for path in state.changed[:SHOWN]),
            *(["  ..."] if len(state.changed) > SHOWN else []),
            "Run `make test-gpu` on a GPU and commit tests/gpu-receipt.json, or say why not: "
            'python tests/receipt.py --unrun "reason" FILES...',
        ]
    since = len(state.unrun)
    rest = f"; {since} file{'s' * (since > 1)} changed since, listed as unrun" if since else ""
    runs = f" in {receipt['runs']} runs" if receipt.get("runs", 1) > 1 else ""
    failing = receipt.get("known_failures", {})
    beside = f", {len(failing)} known to fail" if failing else ""
    ran = f"{receipt['tests_passed']} tests{runs}{beside}"
    return True, [f"GPU receipt holds: {ran} on {where}{rest}"]


def _meant(names: Iterable[str], state: State, root: Path) -> Iterator[str]:
    """Yield the changed files that the names stand for; raise ValueError for a name without any."""
    for name in names:
        target = (Path.cwd() / name).resolve()
        meant = [path for path in state.unrun if (root / path) == target]
        meant += [
            path
            for path in state.changed
            if (root / path).is_relative_to(target)
            or (target.suffix == ".cuh" and (root / path).is_file() and path.endswith(".cu")
                and target in (header.resolve() for header in source_files(root / path)))
        ]  # fmt: skip
        if not meant:
            raise ValueError(f"{name}: expected a covered file that changed, found none")
        yield from meant


def list_unrun(
    receipt: dict[str, Any], reason: str, names: Iterable[str], root: Path = ROOT
) -> list[str]:
    """Add the changed files that `names` stand for to the receipt; return their paths.

    Obsolete entries are removed. Raises ValueError for a blank reason or a name that stands for
    no changed file.
    """
    if not reason.strip():
        raise ValueError("--unrun: expected a reason, found none")
    state = compared(receipt, root)
    meant = sorted(set(_meant(names, state, root)))
    now = kernel_hashes(root) | python_hashes(root)
    kept = {path: receipt["unrun"][path] for path in state.unrun}
    listed = kept | {path: {"hash": now.get(path), "reason": reason} for path in meant}
    receipt["unrun"] = dict(sorted(listed.items()))
    return meant


def main(arguments: list[str] | None = None, path: Path = RECEIPT, root: Path = ROOT) -> int:
    """List files as unrun if asked; return 0 if the receipt at `path` holds for `root`, else 1."""
    parser = argparse.ArgumentParser(description="whether the GPU receipt holds")
    parser.add_argument("--unrun", metavar="REASON", help="list FILES as changed but not run")
    parser.add_argument("files", nargs="*")
    asked = parser.parse_args(arguments)
    if asked.files and asked.unrun is None:
        parser.error("FILES: expected --unrun REASON beside them, found none")
    receipt = read(path)
    if asked.unrun is not None and receipt is not None:
        try:
            for name in list_unrun(receipt, asked.unrun, asked.files, root):
                print(f"unrun: {name}")
        except ValueError as error:
            parser.error(str(error))
        write(receipt, path)
    holds, lines = sentences(receipt, root)
    print(*lines, sep="\n")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
