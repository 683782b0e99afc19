"""Single images at the least latency, and whether what answers them fits the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from lenetgpu.check.fit import judged, looked_at
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.network import CLASSES
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan, resolve

_AS_EXACT = ("fp32", "fp16x3")


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
    plan: Plan, weights: Weights, dtype: str, make: Callable[[int], Pipeline]
) -> One | None:
    """The quickest way of single host images of `dtype` through `plan` on the current GPU.

    A recorded pass of the pipeline that `make(1)` gives; for a plan as exact as fp32 the resident
    kernel, launched for one image, where it is to be had and fits `weights`. None where neither is.
    """
    from lenetgpu.stages.fused.resident import Once
    from lenetgpu.streaming import OneImage

    if plan.precision in _AS_EXACT and dtype == "uint8":
        try:
            once = Once(weights)
            check_resident(once, weights)
            return once
        except LenetError:  # not this GPU, or not these weights: the plan itself then
            pass
    try:
        return OneImage(make)
    except LenetError:
        return None
