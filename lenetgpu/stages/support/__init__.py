"""Steps between stages: pixels to floats, one layout to another."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__)
