"""Mark results of GPU float images outside 0..1, without waiting for their values."""

from math import log2, prod
from pathlib import Path
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.files.reading import FAINTEST
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.net.images import SLACK
from lenetgpu.network import CLASSES, IMAGE_SHAPE

_THREADS = 128
OUTSIDE = Kernel(
    Path(__file__).with_name("outside.cu"),
    "mark_outside",
    (
        ("FLOATS", prod(IMAGE_SHAPE)),
        ("CLASSES", CLASSES),
        ("SLACK", SLACK),
        ("FAINTEST", round(log2(FAINTEST))),
        ("THREADS", _THREADS),
    ),
)


def mark_outside(images: Any, labels: Any, scores: Any) -> None:
    """Set label -1 and NaN scores for float32 images outside 0..1 or too faint (`FAINTEST`).

    `images` (n, 28, 28, 1), `labels` (n,) int32 and `scores` (n, 10) float32 or None are device
    arrays. The kernel is queued on the current stream.
    """
    scores_or_null = np.int64(0) if scores is None else scores
    if len(images):
        launch(OUTSIDE, (len(images),), (_THREADS,), (images, labels, scores_or_null))
