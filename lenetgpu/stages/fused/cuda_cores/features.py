"""Images to pool2's features in fp32 on CUDA cores: Winograd convolutions, no tensor cores."""

from types import SimpleNamespace
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import Features
from lenetgpu.stages.fused.cuda_cores import conv1, conv2
from lenetgpu.stages.fused.cuda_cores.tuning import TUNINGS, tuning
from lenetgpu.stages.registry import features_variant, of_shape


def _prepare(w: Any, problem: Features, batch: int) -> SimpleNamespace:
    return SimpleNamespace(
        conv1={dtype: cupy.asarray(packed) for dtype, packed in conv1.pack(w[0]).items()},
        conv2=cupy.asarray(conv2.pack(w[1])),
        tiles=cupy.empty(conv1.tiles_shape(batch), cupy.float32),
    )


def _kernels(problem: Features) -> tuple[Kernel, ...]:
    first = [conv1.kernel(dtype, size) for size in TUNINGS for dtype in ("uint8", "float32")]
    return (*first, *map(conv2.kernel, TUNINGS))


@features_variant(
    family="cuda_cores_fp32",
    also="plain.features",
    writes="F32",
    prepare=_prepare,
    kernels=of_shape(_kernels),
)
def features(x: Any, w: SimpleNamespace, y: Any, problem: Features) -> None:
    """conv1 by Winograd F(4,5) along x, conv2 by F(4x4,5x5), ReLU and mean, on CUDA cores."""
    size = tuning()
    conv1.run(x, w.conv1, w.tiles, size)
    conv2.run(w.tiles, w.conv2, y, len(x), size)
