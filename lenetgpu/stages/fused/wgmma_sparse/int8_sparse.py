"""Images to pool2's features, conv2 in bytes with 2:4 sparse filters on sparse wgmma (sm_90a)."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.fused.split import of_pixels
from lenetgpu.stages.fused.wgmma import fp16_features as fp16
from lenetgpu.stages.fused.wgmma.int8_features import on_gpu, run
from lenetgpu.stages.fused.wgmma_sparse.pack import pack
from lenetgpu.stages.fused.wgmma_sparse.prune import pruned
from lenetgpu.stages.registry import hopper, variant

_BARRIER_BYTES = 8
_SLOTS = 2
_MAP_BYTES = 12 * 12 * 32 + 4 * 16
"""Of an image: half of what two have, whose planes lie four cells apart."""


@dataclass(frozen=True)
class Roles(fp16.Tiling):
    """As its base; the last warpgroup multiplies, each of the others has two rooms for maps."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block."""
        producers = self.groups - 1
        plain = fp16.Tiling(producers, self.images, 0, 0, _SLOTS * self.map_bytes)
        held, wanted = producers + 2, 2 * producers * _SLOTS + 1
        return plain.shared_bytes + (wanted - held) * _BARRIER_BYTES


TILING = Roles(4, 2, 0, 0, _MAP_BYTES)


def kernel(uint8: bool) -> Kernel:
    """The kernel for such pixels."""
    return Kernel.beside(__file__, "sparse_features", **fp16.defines(uint8, TILING))


@variant(
    kind=FEATURES,
    family="wgmma_sparse_int8",
    writes="F16",
    needs=hopper(),
    precision="int8s",
    prepare=lambda w, problem, batch: on_gpu(pack(w[0], pruned(w[0], w[1]))),
    kernels=of_pixels(kernel),
)
def features(x: Any, w: SimpleNamespace, y: Any, problem: Features) -> None:
    """conv1 to pool2 in one persistent kernel on wgmma, conv2 in bytes with 2:4 sparse filters."""
    run(kernel(x.dtype == "uint8"), TILING, x, w, y)
