"""The profile command: a plan's stages measured."""

from __future__ import annotations

from lenetgpu.commands.infer import infer
from lenetgpu.measure.document import stage_rows
from lenetgpu.measure.outcome import Progress, Request
from lenetgpu.show.profile import Profile


def profile(request: Request, progress: Progress | None = None) -> Profile:
    """Run `request` with stage timing, ceilings and, where asked, a trace; Ctrl-C as in infer."""
    outcome = infer(request, progress)
    return Profile(outcome, stage_rows(outcome.rows, outcome.done, outcome.limits))
