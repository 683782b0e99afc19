"""The profile command: a plan's stages measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lenetgpu.files import assets
from lenetgpu.lab.infer import infer
from lenetgpu.lab.show.profile import Profile
from lenetgpu.measure.counters import document as counters_of
from lenetgpu.measure.counters.work import Images, Work
from lenetgpu.measure.document import stage_rows
from lenetgpu.measure.outcome import Outcome, Progress, Request
from lenetgpu.net.device import choose_device


def profile(request: Request, progress: Progress | None = None, counters: bool = False) -> Profile:
    """Run `request` with stage timing, ceilings and, where asked, a trace; Ctrl-C as in infer.

    `counters`: those of one pass of the plan's kernels follow, when every time is taken; Ctrl-C
    leaves them out. LenetError where they are asked for and there is no GPU.
    """
    if counters:
        counters_of.require_gpu(*choose_device(request.device, request.plan))
    outcome = infer(request, progress)
    found = Profile(outcome, stage_rows(outcome.rows, outcome.done, outcome.limits))
    if not counters or outcome.interrupted:
        return found
    try:
        return replace(found, counters=_counters(outcome))
    except KeyboardInterrupt:
        outcome.interrupted = True
        return found


def _counters(outcome: Outcome) -> dict[str, Any]:
    request, gpu = outcome.request, outcome.gpu
    assert gpu is not None
    images = Images(
        request.data or assets.default_digits(),
        request.weights or assets.default_weights(),
        outcome.batch,
        request.skip,
        request.chunk,
        request.transfers,
    )
    return counters_of.find([Work.of(outcome.plan)], images, gpu).as_json()
