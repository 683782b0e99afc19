"""The range of each precision, and a check that no image leaves it with some weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lenetgpu.errors import LenetError

_HALF = 65504.0
LARGEST = dict.fromkeys(("fp32", "tf32x3", "tf32"), 2.0**100) | dict.fromkeys(
    ("fp16x3", "fp16", "fp16w", "int8", "int8s"), _HALF
)
"""The largest value of a stage, by precision: fp16's end; of float32 less, for sums on the way
(transforms of Winograd and Fourier, and a score's 128 products)."""
_SUMMED = "fc2"
"""Its sums are float32 in every plan."""


def require_room(what: str, stages: Iterable[tuple[str, str]], reach: Mapping[str, float]) -> None:
    """LenetError unless the `reach` of each of `stages` (name, precision) is what its numbers hold.

    `what` begins the sentence, which names the first stage that is not. NaN is held by nothing.
    """
    for name, precision in stages:
        most = reach.get(name, 0.0)
        if not most <= LARGEST["fp32" if name == _SUMMED else precision]:
            raise LenetError(
                f"{what}: expected weights with which {name} stays within {precision}'s range for "
                f"every image, found up to {most:.1e}"
            )
