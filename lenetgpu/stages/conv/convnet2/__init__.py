"""cuda-convnet2's convolution, the paper's ladder on it, and its engines."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("ladder", "engines", "im2col"))
