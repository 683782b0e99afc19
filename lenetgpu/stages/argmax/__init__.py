"""Argmax: scores to labels, the first of equal scores winning; one file per family."""

from lenetgpu.stages.registry import offer

_FAMILIES = {
    "scan": "serial numpy reduction thread",
    "tiled": "tiled",
    "unrolled": "unrolled cublas",
    "cublas": "cublas",
}
offer(__name__, __path__, "argmax", _FAMILIES)
