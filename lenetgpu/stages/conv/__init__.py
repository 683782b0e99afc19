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
    "convnet2.ladder": "convnet2",
    "convnet2.engines": "convnet2",
    "convnet2.im2col": "convnet2",
    "tegra.slides": "texture",
    "texture": "texture",
    "prefetch.single_strict": "prefetch",
    "prefetch.single": "prefetch",
    "prefetch.strict": "prefetch",
    "prefetch.multi": "prefetch",
    "winograd": "winograd",
    "tuned.direct": "direct",
    "tuned.one_channel": "direct",
    "tuned.winograd": "winograd",
    "lenetgpu.dispatch.choose": "best",
    "tensor.mma": "tensor",
    "tensor.wgmma": "tensor",
    "tf32.mma": "tensor",
    "tf32.wgmma": "tensor",
    "windows": "",
}
offer(__name__, __path__, ("conv", CONV_POOL), _FAMILIES)
