"""The whole network on Hopper's tensor cores (sm_90a)."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__)
