"""GPU runs in parts: passed tests are recorded, and `--rest` runs the others.

A line of tests/gpu-passed.jsonl holds a test, the hash of its file, its run, and the key of its
environment: the GPU, its software and every source that the receipt covers. A run with `--rest`
skips the tests whose file and key are unchanged, so that the parts together form a complete run
over the same sources. The receipt states the number of runs.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import receipt

PASSED = receipt.ROOT / "tests" / "gpu-passed.jsonl"
_SNAPSHOT = "gpu-passed.json"


def key(facts: dict[str, Any], root: Path = receipt.ROOT) -> str:
    """Return the key of the environment: a hash of `facts` and of the covered sources."""
    found = [facts, receipt.kernel_hashes(root), receipt.python_hashes(root)]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _file_hash(test: str, root: Path) -> str | None:
    path = root / test.partition("::")[0]
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def kept(key: str, path: Path = PASSED, root: Path = receipt.ROOT) -> dict[str, str]:
    """Return the tests that passed with `key` and whose files are unchanged, with their runs.

    An incomplete line, left by a killed run, is ignored.
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
    """A pytest plugin for the process that receives all reports; it records the tests that pass.

    `before` maps the tests that this run skips to the earlier runs that they passed in.
    """

    def __init__(self, key: str, before: dict[str, str], run: str, path: Path = PASSED) -> None:
        self._key, self._run, self._path = key, run, path
        self._found = dict(before)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Record a pass when the test body passes, and a failure of any phase."""
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
        """The number of tests that passed, in this run or earlier."""
        return len(self._found)

    @property
    def runs(self) -> int:
        """The number of runs in which these tests passed."""
        return len(set(self._found.values()))


def tell(before: dict[str, str]) -> None:
    """Write the tests to skip to a file for the other processes of this run."""
    (Path(os.environ["LENETGPU_CACHE"]) / _SNAPSHOT).write_text(json.dumps(sorted(before)))


def reported() -> set[str]:
    """Return the tests that this run skips."""
    path = Path(os.environ["LENETGPU_CACHE"]) / _SNAPSHOT
    return set(json.loads(path.read_text())) if path.is_file() else set()
