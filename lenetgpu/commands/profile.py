"""The profile command: a plan's stages measured."""

from __future__ import annotations

from lenetgpu.commands.infer import infer
from lenetgpu.measure.document import stage_rows
from lenetgpu.measure.outcome import Request
from lenetgpu.show.profile import Profile


def profile(request: Request) -> Profile:
    """Run `request` with stage timing, ceilings and, where asked, a trace."""
    outcome = infer(request)
    return Profile(outcome, stage_rows(outcome.rows, len(outcome.dataset), outcome.limits))
