"""conv1 to pool2 on a CPU, image by image in a core's own cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.network import FEATURES, Features
from lenetgpu.stages.conv.winograd import Rooms, filters_at_points
from lenetgpu.stages.registry import cpu, variant


@dataclass(frozen=True)
class Packed:
    """Filters of conv1 as the tile takes them, of conv2 at the 64 points, and a room a thread."""

    conv1: Any
    conv2: Any
    rooms: Rooms


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    from lenetgpu.cpu.tile import pack_weights
    from lenetgpu.stages.fused.winograd.kernel import ROOM

    return Packed(pack_weights(w[0][:, :, 0]), filters_at_points(w[1]), Rooms(ROOM))


@variant(
    kind=FEATURES,
    family="winograd",
    reads="NHWC",
    writes="NC",
    needs=cpu(),
    prepare=_prepare,
    raw_images=True,
    paper="report 3.4.1 on a CPU, as far as its cache holds",
)
def features(x: Any, w: Packed, y: Any, problem: Features) -> None:
    """conv1 by register tiles, conv2 by F(4x4,5x5), ReLU and mean behind both, every core."""
    import numpy as np

    from lenetgpu.stages.fused.winograd.kernel import features as of_images

    x = np.ascontiguousarray(x, np.uint8 if x.dtype == np.uint8 else np.float32)
    ends = x.ctypes.data, x.itemsize, w.conv1.ctypes.data, w.conv2.ctypes.data, y.ctypes.data
    w.rooms.run(len(x), lambda room, lo, hi: of_images(*ends, room, lo, hi))
