"""ReLU and 2x2 mean, naive to fast; one file per family."""

from lenetgpu.stages.registry import offer

_FAMILIES = {
    "serial": "serial",
    "mean": "basic fused layout",
    "looped": "basic fused layout",
    "tiled": "tiled",
    "unrolled": "unrolled cublas",
    "fft": "fft",
}
offer(__name__, __path__, "pool", _FAMILIES)
