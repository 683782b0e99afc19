"""The truth for the steps between stages."""

from __future__ import annotations

from typing import Any

from lenetgpu.arrays import np
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.problems import Relayout, Scale


def scale_reference(x: Any, problem: Scale) -> Any:
    """Pixels over 255 in float64, or floats as they are: (N, H, W, C)."""
    values = np.asarray(x, np.float64)
    return values / PIXEL_SCALE if problem.dtype == "uint8" else values


def relayout_reference(x: Any, problem: Relayout) -> Any:
    """Layouts move values and change none: (N, H, W, C)."""
    return np.asarray(x, np.float64)
