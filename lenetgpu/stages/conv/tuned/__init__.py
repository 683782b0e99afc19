"""Our own fp32 convolutions and the model that chooses between them."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("direct", "one_channel", "winograd", "choose"))
