"""What `compare` and `conv` are both asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.measure.comparison import LEAST_ROUNDS
from lenetgpu.measure.rounds import Effort
from lenetgpu.measure.timing import hold_events
from lenetgpu.net.device import choose_device
from lenetgpu.stages import Variant, outside

LONGEST_S = 1e9
"""Of what a comparison may be given: sums and shares of it are finite."""


def check_effort(effort: Effort, watch: float) -> None:
    """Raise LenetError unless rounds can be run by it, and candidates watched for `watch` s."""
    if not 0 <= watch <= LONGEST_S:
        raise LenetError(
            f"--watch: expected a finite time from 0 to {LONGEST_S:g} s, found {watch:g}"
        )
    if not 0 < effort.seconds <= LONGEST_S:
        raise LenetError(
            f"--seconds: expected a finite time above 0 and up to {LONGEST_S:g} s, "
            f"found {effort.seconds:g}"
        )
    if effort.rounds is not None and effort.rounds < LEAST_ROUNDS:
        raise LenetError(f"--rounds: expected at least {LEAST_ROUNDS}, found {effort.rounds}")
    if effort.warmup is not None and effort.warmup < 0:
        raise LenetError(f"--warmup: expected at least 0 runs, found {effort.warmup}")


@contextmanager
def guests(files: tuple[Path, ...], device: str) -> Iterator[list[Variant]]:
    """The variants of `files` from outside, loaded when CuPy's clocks are already held."""
    if files and choose_device(device)[0] is not None:
        hold_events()
    with outside.loaded(files) as found:
        yield found


def check_gate(percent: float | None, against: Path | None) -> None:
    """Raise LenetError unless both are there, and `percent` is one, or neither is."""
    if percent is not None and not 0 <= percent < math.inf:
        raise LenetError(f"--fail-on-regression: expected a percentage from 0, found {percent:g}")
    if (percent is None) != (against is None):
        raise LenetError("--fail-on-regression PCT and --against FILE go together")


def gate_note(earlier: dict[str, Any], percent: float, lost: list[str]) -> str:
    """What the gate went by, and how it ended."""
    timed = sum(
        "median_ms" in entry
        for part in earlier.get("cases", [earlier])
        for entry in part["candidates"]
    )
    found = f"{len(lost)} sentences follow" if lost else f"none lost more than {percent:g} %"
    return f"gate: {timed} timed candidates of {earlier.get('date', 'an undated file')}, {found}"
