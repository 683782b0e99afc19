"""Single images at the least latency, and whether what answers them fits the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from lenetgpu.check.fit import judged, looked_at
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.faults import lacks_memory
from lenetgpu.network import CLASSES
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan, resolve

_AS_EXACT = ("fp32", "fp16x3", "tf32x3")


class One(Protocol):
    """What answers single images, for one caller at a time."""

    def label(self, image: Any) -> int:
        """The label of `image`, (28, 28) or (28, 28, 1)."""

    def scores(self) -> Any:
        """The ten scores (10,) float32 of the last one."""


def check_resident(net: One, weights: Weights) -> None:
    """LenetError unless the resident kernel gives what float64 does with `weights`."""
    import numpy as np

    asked = looked_at()
    labels = np.empty(len(asked), np.int32)
    scores = np.empty((len(asked), CLASSES), np.float32)
    for index in range(len(asked)):
        labels[index] = net.label(asked[index, :, :, 0])
        scores[index] = net.scores()
    plan = replace(resolve("fp32", "cuda"), name="resident")
    judged(plan, weights, "uint8", scores, labels)


def one_image(
    plan: Plan, weights: Weights, dtype: str, chosen: bool, make: Callable[[int], Pipeline]
) -> One | None:
    """The quickest way of single host images of `dtype` through `plan` on the current GPU.

    A recorded pass of the pipeline that `make(1)` gives. Where the plan was `chosen` for its
    precision, and that is fp32's: the resident kernel, launched for one image, if it is to be had
    and fits `weights`. None where neither is, or memory does not suffice.
    """
    from lenetgpu.net.streaming import OneImage

    found: One | None = None
    if chosen and plan.precision in _AS_EXACT and dtype == "uint8":
        found = _had(lambda: _once(weights))
    return found or _had(lambda: OneImage(make))


def _once(weights: Weights) -> One:
    from lenetgpu.stages.fused.resident import Once

    once = Once(weights)
    check_resident(once, weights)
    return once


def _had(make: Callable[[], One]) -> One | None:
    """What `make` gives, None where this GPU, the weights or the memory left do not allow it."""
    try:
        return make()
    except Exception as error:
        if not isinstance(error, LenetError) and not lacks_memory(error):
            raise
    return None
