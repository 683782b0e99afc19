"""The truth for a span: the composition of its stages' references."""

from __future__ import annotations

from typing import Any

from lenetgpu.problems import ConvPool
from lenetgpu.stages.conv.reference import reference as conv_reference
from lenetgpu.stages.pool.reference import reference as pool_reference


def conv_pool_reference(x: Any, w: Any, problem: ConvPool) -> Any:
    """Convolution, ReLU, 2x2 mean in float64: (N, H, W, C) -> (N, OH/2, OW/2, M)."""
    return pool_reference(conv_reference(x, w, problem.conv), problem.pool)
