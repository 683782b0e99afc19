"""GPU runs in parts: a test that passed is written down, and `--rest` runs those that have not yet.

A line of tests/gpu-passed.jsonl is a test, the hash of its file, the run that it was in, and the
key of what it ran on: the GPU, its software and every source that the receipt covers. A run with
`--rest` leaves out the tests of which file and key are the same, so that together they are a whole
run over the same sources; the receipt says in how many runs.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import receipt

PASSED = receipt.ROOT / "tests" / "gpu-passed.jsonl"
_SNAPSHOT = "gpu-passed.json"


def key(facts: dict[str, Any], root: Path = receipt.ROOT) -> str:
    """What tests on a GPU ran on: `facts` of it and its software, and the covered sources."""
    found = [facts, receipt.kernel_hashes(root), receipt.python_hashes(root)]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _file_hash(test: str, root: Path) -> str | None:
    path = root / test.partition("::")[0]
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def kept(key: str, path: Path = PASSED, root: Path = receipt.ROOT) -> dict[str, str]:
    """The tests that passed on `key`, their files as they are, each with the run it passed in.

    A line that a killed run did not finish counts for nothing.
    """
    found: dict[str, str] = {}
    for text in path.read_text().splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if line["key"] != key or line["file"] != _file_hash(line["test"], root):
            continue
        found.pop(line["test"], None)
        if line["passed"]:
            found[line["test"]] = line["run"]
    return found


class Keeper:
    """A pytest plugin of the process that gets every report: it writes down what passes.

    `before`: the tests of earlier runs that this one leaves out, with their runs.
    """

    def __init__(self, key: str, before: dict[str, str], run: str, path: Path = PASSED) -> None:
        self._key, self._run, self._path = key, run, path
        self._found = dict(before)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """What passes when it is called, unless its end fails, has passed."""
        if report.failed or (report.when == "call" and report.passed):
            self._write(report.nodeid, report.passed)

    def _write(self, test: str, passed: bool) -> None:
        self._found.pop(test, None)
        if passed:
            self._found[test] = self._run
        line = {"test": test, "file": _file_hash(test, receipt.ROOT), "key": self._key,
                "run": self._run, "passed": passed}  # fmt: skip
        with open(self._path, "a") as file:
            file.write(json.dumps(line) + "\n")

    @property
    def passed(self) -> int:
        """Tests that passed, in this run or before."""
        return len(self._found)

    @property
    def runs(self) -> int:
        """Runs that these tests passed in."""
        return len(set(self._found.values()))


def tell(before: dict[str, str]) -> None:
    """Leave for the processes of this run what they are to leave out."""
    (Path(os.environ["LENETGPU_CACHE"]) / _SNAPSHOT).write_text(json.dumps(sorted(before)))


def told() -> set[str]:
    """The tests that this run leaves out."""
    path = Path(os.environ["LENETGPU_CACHE"]) / _SNAPSHOT
    return set(json.loads(path.read_text())) if path.is_file() else set()
