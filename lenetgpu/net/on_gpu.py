"""Images that lie on the GPU to labels that lie there, in the order of their owner's stream."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from lenetgpu.check.finite import require_finite
from lenetgpu.gpu.graph import new_stream
from lenetgpu.net.images import Taken
from lenetgpu.net.outside import mark_outside
from lenetgpu.network import CLASSES
from lenetgpu.pipeline import Pipeline


class DeviceRunner:
    """One pipeline for callers with images on its GPU, who take turns on it in stream order.

    Nobody waits on the host: a caller's stream waits for the work of the caller before.
    """

    def __init__(self, make: Callable[[], Pipeline], index: int) -> None:
        import cupy

        self._index, self._lock = index, threading.Lock()
        self._held: deque[tuple[Any, Any]] = deque()
        with cupy.cuda.Device(index), new_stream() as stream:
            self._pipeline = make()
            self._free = cupy.cuda.Event(disable_timing=True)
            self._free.record(stream)
            stream.synchronize()

    def run(self, taken: Taken) -> tuple[Any, Any]:
        """Fresh labels (n,) int32 and scores (n, 10) float32 or None, queued on the current stream.

        The GPU is current. Float images that leave 0..1 or are NaN get label -1 and NaN scores.
        Scores are waited for and looked at only where the weights' bound is beyond float32:
        LenetError where one is.
        """
        import cupy

        pixels = taken.pixels()
        wanted, size = self._pipeline.with_scores, self._pipeline.batch
        labels = cupy.empty(taken.count, "int32")
        scores = cupy.empty((taken.count, CLASSES), "float32") if wanted else None
        stream = cupy.cuda.get_current_stream()
        with self._lock:
            stream.wait_event(self._free)
            for lo in range(0, taken.count, size):
                part = slice(lo, min(lo + size, taken.count))
                labels[part] = self._pipeline.run(pixels[part])
                if scores is not None:
                    scores[part] = self._pipeline.held_scores(part.stop - lo)
            self._free.record(stream)
            self._hold(taken, stream)
        if scores is not None and not self._pipeline.bounded:
            require_finite(scores.get(), self._pipeline.plan)
        if taken.dtype != "uint8":
            mark_outside(pixels, labels, scores)
        return labels, scores

    def _hold(self, taken: Taken, stream: Any) -> None:
        """Keep images whose owner may use their memory in another order than `stream`'s."""
        import cupy

        while self._held and self._held[0][0].done:
            self._held.popleft()
        if taken.home.in_other_order:
            read = cupy.cuda.Event(disable_timing=True)
            read.record(stream)
            self._held.append((read, taken.raw))
