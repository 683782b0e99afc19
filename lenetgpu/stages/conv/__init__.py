"""Convolutions from naive to fast: one file or folder per family."""

from functools import partial

from lenetgpu.network import CONV_POOL
from lenetgpu.stages.registry import offer, variant

nchw = partial(variant, kind="conv", reads="NCHW", writes="NCHW")
_FAMILIES = {
    "serial": "serial",
    "direct": "direct tiled",
    "grouped.direct": "direct",
    "unrolled": "unrolled cublas",
    "course.maps": "direct",
    "course.image": "unrolled",
    "tiled": "tiled",
    "fft": "fft",
    "cublas": "cublas",
    **dict.fromkeys(("convnet2.ladder", "convnet2.engines", "convnet2.im2col"), "convnet2"),
    **dict.fromkeys(("tegra.slides", "texture"), "texture"),
    **{f"prefetch.{name}": "prefetch" for name in ("single_strict", "single", "strict", "multi")},
    "winograd": "winograd",
    **dict.fromkeys(("tuned.direct", "tuned.one_channel"), "direct"),
    "tuned.winograd": "winograd",
    "lenetgpu.dispatch.choose": "best",
    **dict.fromkeys(("tensor.mma", "tensor.wgmma", "tf32.mma", "tf32.wgmma"), "tensor"),
    "windows": "",
}
offer(__name__, __path__, ("conv", CONV_POOL), _FAMILIES)
