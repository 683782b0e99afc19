"""Convolutions, naive to fast: one file per family."""

from lenetgpu.stages.registry import import_all

_FIRST = (
    "serial", "direct", "unrolled", "tiled", "fft", "cublas", "convnet2", "texture", "prefetch",
    "winograd", "tuned",
)  # fmt: skip
import_all(__name__, __path__, _FIRST)
