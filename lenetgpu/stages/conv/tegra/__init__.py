"""The Tegra X1 slides' convolution as they give it, and their analysis."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("slides",))
