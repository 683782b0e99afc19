"""conv1 to pool2 on a CPU, one image at a time in the cache of each core."""

from types import SimpleNamespace
from typing import Any

from lenetgpu import network
from lenetgpu.arrays import np
from lenetgpu.cpu.jit import addresses, native
from lenetgpu.network import Features
from lenetgpu.stages.conv.winograd import Workspaces, filters_at_points
from lenetgpu.stages.registry import features_variant


def _prepare(w: Any, problem: Features, batch: int) -> SimpleNamespace:
    from lenetgpu.cpu.tile import pack_weights
    from lenetgpu.stages.fused.winograd import kernel

    run = native(kernel.FEATURES, kernel.__file__, network.__file__)
    return SimpleNamespace(
        conv1=pack_weights(w[0][:, :, 0]),
        conv2=filters_at_points(w[1]),
        workspaces=Workspaces(kernel.WORKSPACE),
        kernel=run,
    )


@features_variant(
    family="winograd",
    writes="NC",
    prepare=_prepare,
    paper="report 3.4.1 on a CPU, as far as its cache holds",
)
def features(x: Any, w: SimpleNamespace, y: Any, problem: Features) -> None:
    """conv1 by register tiles, conv2 by F(4x4,5x5), ReLU and mean after both, on all cores."""
    x = np.ascontiguousarray(x, np.uint8 if x.dtype == np.uint8 else np.float32)
    weights_and_output = addresses(w.conv1, w.conv2, y)
    pointers = *addresses(x), x.itemsize, *weights_and_output
    w.workspaces.run(len(x), lambda at, lo, hi: w.kernel(*pointers, at, lo, hi))
