"""The whole network in fp32 on CUDA cores."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__)
