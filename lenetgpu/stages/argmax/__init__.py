"""Scores to labels, the first of equals: one file per family."""

from lenetgpu.stages.registry import offer, refuse

_FAMILIES = {
    "scan": "serial numpy reduction thread",
    "tiled": "tiled",
    "unrolled": "unrolled cublas",
    "cublas": "cublas",
}
offer(__name__, __path__, "argmax", _FAMILIES)
refuse("argmax", "fft", "an FFT is for sums of products, and the largest of K scores is no sum")
