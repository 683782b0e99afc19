"""Any convolution at fp32 accuracy by three products of TF32, in one launch."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("mma", "wgmma"))
