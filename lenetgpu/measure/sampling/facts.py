"""What a bench checks against, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.check.judge import Verdict
from lenetgpu.check.truth import reference_stages
from lenetgpu.files.weights import Weights

CHECK_IMAGES = 500


@dataclass(frozen=True)
class Checked:
    """Error against float64 on real digits and on fresh random input.

    `largest` is the largest absolute difference, `flips` the labels that differ from float64's
    among `images` (None where there are no labels), `first_bad` the first wrong stage where one is.
    """

    verdict: Verdict
    largest: float
    flips: int | None
    images: int
    first_bad: str | None = None


@dataclass(frozen=True)
class Errors:
    """What a candidate errs on the same images as every other, against float64.

    `largest` is the largest error over the largest output, `rms` the root mean square of all errors
    over that of all outputs; of halves one rounding is in both.
    """

    images: int
    largest: float
    rms: float


@dataclass(frozen=True)
class Truth:
    """Real digits with the float64 output of every stage, shared by all candidates."""

    images: Any
    weights: Weights
    stages: dict[str, Any]

    @property
    def labels(self) -> Any:
        """Float64's labels."""
        return self.stages["argmax"]


def truth(images: Any, weights: Weights) -> Truth:
    """The float64 truth for the first CHECK_IMAGES of `images`."""
    few = images[:CHECK_IMAGES]
    return Truth(few, weights, reference_stages(few, weights))
