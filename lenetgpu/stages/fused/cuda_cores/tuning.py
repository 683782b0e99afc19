"""Block sizes of the fp32 kernels, by the shared memory available to a block."""

from dataclasses import dataclass
from fractions import Fraction
from math import prod

from lenetgpu.arrays import Array, np
from lenetgpu.gpu.machines import current
from lenetgpu.gpu.nvrtc import Kernel

POINTS = 8
_FINITE = tuple(Fraction(point, 2) for point in (0, 2, -2, 4, -4, 1, -1))
_SIDE = 5


def filter_transform() -> Array:
    """Return G of F(4,5), (8, 5) float64: from 5 filter elements to the eight transform points."""
    rows = []
    for point in _FINITE:
        scale = prod(point - other for other in _FINITE if other != point)
        rows.append([float(point**power / scale) for power in range(_SIDE)])
    return np.array([*rows, [0.0] * (_SIDE - 1) + [1.0]])


GROUP = 8
TILES = 4 * GROUP
MAPS1, MAPS2 = 32, 64
_TILE_PITCH = MAPS2 // 2 + 4


@dataclass(frozen=True)
class Tuning:
    """Block sizes for the architectures `only`.

    `*_blocks` is the minimum blocks per SM; `*_bk` the channels or features that a pipeline stage
    holds; `conv2_buffers` the exchange buffers of a conv2 block.
    """

    conv1_blocks: int
    conv2_bk: int
    conv2_stages: int
    conv2_buffers: int
    classifier_images: int
    classifier_bk: int
    classifier_blocks: int
    only: tuple[str, ...]

    def kernel(self, module: str, entry: str, **defines: int | str) -> Kernel:
        """Return a kernel of the `.cu` file next to `module`, restricted to these architectures."""
        return Kernel.beside(module, entry, self.only, **defines)

    @property
    def conv2_bytes(self) -> int:
        """Dynamic shared memory of a conv2 block (stages and exchange), the largest of all."""
        pipeline = self.conv2_stages * ((self.conv2_bk + 1) * TILES + self.conv2_bk * MAPS2)
        return 4 * POINTS * (pipeline + self.conv2_buffers * TILES * _TILE_PITCH)


# Fields in their order: conv1's, three of conv2, three of the classifier.
SMALL = Tuning(2, 4, 2, 1, 32, 32, 1, only=("sm_75",))  # 62 KiB
MIDDLE = Tuning(3, 8, 2, 1, 32, 32, 1, only=("sm_80", "sm_86", "sm_89", "sm_120"))  # 86 KiB
LARGE = Tuning(5, 8, 5, 2, 40, 64, 2, only=("sm_90a", "sm_100"))  # 197 KiB
TUNINGS = (SMALL, MIDDLE, LARGE)


def tuning() -> Tuning:
    """Return the sizes for the current device: the largest that fit its shared memory."""
    limit = current().block_bytes
    return next((size for size in (LARGE, MIDDLE) if size.conv2_bytes <= limit), SMALL)
