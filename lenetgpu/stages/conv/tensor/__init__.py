"""Any convolution on the tensor cores of every GPU from sm_80 on, at fp32 accuracy."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("mma", "wgmma"))
