"""conv1 to pool2 on a CPU, image by image in a core's own cache."""

from __future__ import annotations

from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from lenetgpu.cpu.threads import parallel_ranges
from lenetgpu.network import FEATURES, PIXEL_SCALE, Features
from lenetgpu.stages.conv.winograd import PART, filters_at_points, rooms
from lenetgpu.stages.registry import cpu, variant


@dataclass(frozen=True)
class Packed:
    """Filters of conv1 as the tile takes them, of conv2 at the 64 points, and a room a thread."""

    conv1: Any
    conv2: Any
    rooms: SimpleQueue[Any]


def _prepare(w: Any, problem: Features, batch: int) -> Packed:
    from lenetgpu.cpu.tile import pack_weights
    from lenetgpu.stages.fused.winograd.kernel import workspace

    return Packed(pack_weights(w[0][:, :, 0]), filters_at_points(w[1]), rooms(workspace))


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

    images = x.reshape(len(x), -1)
    scale = np.float32(1 / PIXEL_SCALE if x.dtype == np.uint8 else 1)

    def part(lo: int, hi: int) -> None:
        room = w.rooms.get()
        try:
            of_images(images, scale, w.conv1, w.conv2, y, room, lo, hi)
        finally:
            w.rooms.put(room)

    parallel_ranges(len(x), part, least=PART)
