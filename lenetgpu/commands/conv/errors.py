"""What each candidate errs on the same images."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from lenetgpu.measure.comparison import Comparison
from lenetgpu.measure.rounds import BREAKS, Say, fail
from lenetgpu.measure.sampling.facts import Errors


@runtime_checkable
class Erring(Protocol):
    """A bench that can say what its outputs err on images that all benches get."""

    def errors(self) -> Errors:
        """Of one more run, against float64."""


def err_all(comparison: Comparison, say: Say) -> None:
    """Give each right candidate its `errors`, but for those whose work is worth one sample only."""
    for candidate in comparison.candidates:
        if candidate.status != "right" or candidate.once:
            continue
        if not isinstance(candidate.bench, Erring):
            continue
        say(f"errors of {candidate.name}")
        try:
            candidate.errors = candidate.bench.errors()
        except BREAKS as error:
            fail(candidate, error)
