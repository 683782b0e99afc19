"""Right candidates run again on the same images: their errors, and their bits."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol, runtime_checkable

from lenetgpu.check.judge import Errors, array_module
from lenetgpu.gpu.faults import lacks_memory
from lenetgpu.measure.rounds import BREAKS, Candidate, Comparison, Say, fail

RUNS = 5
SAME, OTHERS = "same", "others"


@runtime_checkable
class Erring(Protocol):
    """A bench that can say what its outputs err on images that all benches get."""

    def errors(self) -> Errors:
        """Of one more run, against float64."""


@runtime_checkable
class Repeatable(Protocol):
    """A bench whose work can be done once more, aside from its samples.

    `repeats`: it says that two runs agree to the bit.
    """

    repeats: bool

    def one_output(self) -> Any:
        """A copy of what one more run on the first of the timed images leaves."""


def differing(first: Any, again: Any) -> int:
    """How many values of two arrays of one device, of one type of floats, have other bits."""
    np, bits = array_module(first), f"uint{8 * first.itemsize}"
    return int(np.count_nonzero(first.reshape(-1).view(bits) != again.reshape(-1).view(bits)))


def err_all(comparison: Comparison, say: Say) -> None:
    """Give each right candidate its `errors`, but for those whose work is worth one sample only.

    What leaves something that is no number is wrong. Without memory for it a note says so; Ctrl-C
    ends the comparison, whose times stay.
    """

    def err(candidate: Candidate) -> None:
        if candidate.once or not isinstance(candidate.bench, Erring):
            return
        say(f"errors of {candidate.name}")
        errors = candidate.bench.errors()
        if isfinite(errors.rms) and isfinite(errors.largest):
            candidate.errors = errors
        else:
            candidate.status = "wrong"
            _note(candidate, "outputs NaN, infinite or unwritten in one more run")

    try:
        _each_right(comparison, err, "no memory to tell its rms error")
    except KeyboardInterrupt:
        comparison.interrupted = True


def repeat_all(comparison: Comparison, say: Say) -> None:
    """Run what is right `RUNS` times more on the same images: a candidate gets `bits`.

    One whose runs differ is wrong, unless it says that they need not agree: then a note says it.
    """

    def repeat(candidate: Candidate) -> None:
        bench = candidate.bench
        if not isinstance(bench, Repeatable):
            return
        say(f"repeating {candidate.name}")
        first, most = bench.one_output(), 0
        for _ in range(RUNS - 1):
            most = max(most, differing(first, bench.one_output()))
        candidate.bits = OTHERS if most else SAME
        if most and bench.repeats:
            candidate.status = "wrong"
            candidate.note = (
                f"{most:,} of {first.size:,} values differ between runs on the same images"
            )
        elif not bench.repeats:
            found = f"{most:,} values differ" if most else "these do"
            _note(candidate, f"runs need not agree to the bit: {found}")

    _each_right(comparison, repeat)


def _each_right(
    comparison: Comparison, run: Callable[[Candidate], None], without_memory: str = ""
) -> None:
    """Run each right candidate again; who breaks has failed, who lacks memory gets a note."""
    for candidate in comparison.candidates:
        try:
            if candidate.status == "right":
                run(candidate)
        except BREAKS as error:
            if without_memory and lacks_memory(error):
                _note(candidate, without_memory)
            else:
                fail(candidate, error)


def _note(candidate: Candidate, more: str) -> None:
    candidate.note = "; ".join(filter(None, (candidate.note, more)))
