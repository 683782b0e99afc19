"""Convolutions of any strides, padding, dilation and groups on a GPU: naive, as yet."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("direct",))
