"""The whole network on the tensor cores of every GPU from sm_80 on."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__)
