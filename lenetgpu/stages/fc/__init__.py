"""Fully connected layers, with ReLU if the stage has one; one file per family."""

from lenetgpu.stages.registry import offer

_FAMILIES = {
    "serial": "serial",
    "tiled": "tiled",
    "apart": "tiled",
    "cublas": "blas cublas unrolled",
    "valid_conv": "unrolled fft",
}
offer(__name__, __path__, "fc", _FAMILIES)
