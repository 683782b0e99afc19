"""Steps between stages: pixels to floats, one layout to another."""

from lenetgpu.stages.support import relayout, scale

__all__ = ["relayout", "scale"]
