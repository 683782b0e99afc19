"""What each candidate errs on the same images."""

from __future__ import annotations

from math import isfinite
from typing import Protocol, runtime_checkable

from lenetgpu.gpu.faults import lacks_memory
from lenetgpu.measure.comparison import Candidate, Comparison
from lenetgpu.measure.rounds import BREAKS, Say, fail
from lenetgpu.measure.sampling.facts import Errors


@runtime_checkable
class Erring(Protocol):
    """A bench that can say what its outputs err on images that all benches get."""

    def errors(self) -> Errors:
        """Of one more run, against float64."""


def err_all(comparison: Comparison, say: Say) -> None:
    """Give each right candidate its `errors`, but for those whose work is worth one sample only.

    What leaves something that is no number is wrong. Without memory for it a note says so; Ctrl-C
    ends the comparison, whose times stay.
    """
    for candidate in comparison.candidates:
        if candidate.status != "right" or candidate.once:
            continue
        if not isinstance(candidate.bench, Erring):
            continue
        say(f"errors of {candidate.name}")
        try:
            _err(candidate, candidate.bench)
        except KeyboardInterrupt:
            comparison.interrupted = True
            return
        except BREAKS as error:
            if not lacks_memory(error):
                fail(candidate, error)
            else:
                candidate.note = _and(candidate.note, "no memory to tell its rms error")


def _err(candidate: Candidate, bench: Erring) -> None:
    errors = bench.errors()
    if isfinite(errors.rms) and isfinite(errors.largest):
        candidate.errors = errors
    else:
        candidate.status = "wrong"
        candidate.note = _and(candidate.note, "outputs NaN, infinite or unwritten in one more run")


def _and(note: str, more: str) -> str:
    return "; ".join(filter(None, (note, more)))
