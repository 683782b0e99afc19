"""The lowest versions that pyproject.toml allows of what users install, as constraints for pip.

    python scripts/lowest.py > lowest.txt && pip install -e .[dev,isal] -c lowest.txt

`make test-lowest` runs the tests with them, on a Python that they were made for. What only the
tests use, and what needs a GPU, is not pinned.
"""

from __future__ import annotations

import re
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"
LISTS = ("dependencies", "plot", "report", "models", "cluster", "parquet", "isal")


def lowest(text: str) -> list[str]:
    """`name==version` of every lower bound in pyproject's `text` that a user without a GPU meets.

    Read by a pattern: Python 3.10, on which the lowest versions are tested, has no tomllib.
    Raises ValueError where one of LISTS is missing or a requirement in it has no lower bound.
    """
    pins = []
    for name in LISTS:
        found = re.search(rf"^{name} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
        if found is None:
            raise ValueError(f"pyproject.toml: expected a list {name}, found none")
        for requirement in re.findall(r'"([^"]+)"', found[1]):
            bound = re.fullmatch(r"([\w-]+)>=([\d.]+)(,.*)?", requirement)
            if bound is None:
                raise ValueError(f"{requirement}: expected NAME>=VERSION")
            pins.append(f"{bound[1]}=={bound[2]}")
    return pins


if __name__ == "__main__":
    print("\n".join(lowest(PYPROJECT.read_text())))
