"""The Pascal paper's convolutions (Chang et al.), planner beside kernel."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("single_strict", "single", "strict", "multi"))
