"""Our own fp32 convolutions."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("direct", "one_channel", "winograd"))
