"""Scores that are no numbers are no answer: the run ends in a sentence that names the image."""

from __future__ import annotations

from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.plan import Plan


def first_not_finite(scores: Any) -> int | None:
    """The first row of `scores` (n, 10), a NumPy array, with NaN or infinity in it, or None."""
    import numpy as np

    finite = np.isfinite(scores)
    return None if finite.all() else int(np.argmin(finite.all(1)))


def refused(plan: Plan, image: int) -> LenetError:
    """What is raised for the scores of image number `image`."""
    return LenetError(
        f"plan {plan.name} ({plan.precision}): expected finite scores of every image, found NaN or "
        f"infinity in those of image {image:,} (from 0)"
    )


def require_finite(scores: Any, plan: Plan, first: int = 0) -> None:
    """LenetError unless `scores` (n, 10) of `plan` are; `first` is the number of their first image.

    None, of a run without scores, is accepted.
    """
    bad = None if scores is None else first_not_finite(scores)
    if bad is not None:
        raise refused(plan, first + bad)
