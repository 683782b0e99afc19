"""Steps between stages: pixels to floats, one layout to another."""

from lenetgpu.stages.registry import offer

offer(__name__, __path__, ("scale", "relayout"), {})
