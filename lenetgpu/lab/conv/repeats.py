"""Do runs of one candidate on the same images agree to the bit?"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from lenetgpu.check.judge import array_module
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.rounds import BREAKS, Say, fail

RUNS = 5
SAME, OTHERS = "same", "others"


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


def _repeat(candidate: Candidate, bench: Repeatable) -> None:
    first, most = bench.one_output(), 0
    for _ in range(RUNS - 1):
        most = max(most, differing(first, bench.one_output()))
    candidate.bits = OTHERS if most else SAME
    if most and bench.repeats:
        candidate.status = "wrong"
        candidate.note = f"{most:,} of {first.size:,} values differ between runs on the same images"
    elif not bench.repeats:
        said = (
            f"runs need not agree to the bit: {f'{most:,} values differ' if most else 'these do'}"
        )
        candidate.note = "; ".join(filter(None, (candidate.note, said)))


def repeat_all(comparison: Comparison, say: Say) -> None:
    """Run what is right `RUNS` times more on the same images: a candidate gets `bits`.

    One whose runs differ is wrong, unless it says that they need not agree: then a note says it.
    """
    for candidate in comparison.candidates:
        if candidate.status != "right" or not isinstance(candidate.bench, Repeatable):
            continue
        say(f"repeating {candidate.name}")
        try:
            _repeat(candidate, candidate.bench)
        except BREAKS as error:
            fail(candidate, error)
