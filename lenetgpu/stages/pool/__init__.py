"""ReLU and 2x2 mean, naive to fast: one file per family."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("serial", "mean", "tiled"))
