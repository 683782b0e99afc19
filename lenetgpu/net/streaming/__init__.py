"""Host to host: images in host memory or a file to labels, copies and reading under kernels."""

from __future__ import annotations

from lenetgpu.net.streaming.costs import costs_of
from lenetgpu.net.streaming.schedule import Costs, Schedule, best_schedule, predicted_ms
from lenetgpu.net.streaming.streamer import Streamer, host_results, pinned_copy

__all__ = [
    "Costs",
    "Schedule",
    "Streamer",
    "best_schedule",
    "costs_of",
    "host_results",
    "pinned_copy",
    "predicted_ms",
]
