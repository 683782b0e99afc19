"""Variants that cover a span of consecutive stages."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("block", "cuda_cores", "mma", "wgmma", "winograd"))
