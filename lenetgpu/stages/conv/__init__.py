"""Convolutions, naive to fast: one file per family."""

from lenetgpu.network import CONV_POOL
from lenetgpu.stages.registry import offer

_FAMILIES = {
    "serial": "serial",
    "direct": "direct tiled",
    "grouped": "direct",
    "unrolled": "unrolled cublas",
    "course": "direct unrolled",
    "tiled": "tiled",
    "fft": "fft",
    "cublas": "cublas",
    "convnet2": "convnet2",
    "tegra": "texture",
    "texture": "texture",
    "prefetch": "prefetch",
    "winograd": "winograd",
    "tuned": "direct winograd",
    "lenetgpu.dispatch.choose": "best",
    "tensor": "tensor",
    "tf32": "tensor",
    "windows": "",
}
offer(__name__, __path__, ("conv", CONV_POOL), _FAMILIES)
