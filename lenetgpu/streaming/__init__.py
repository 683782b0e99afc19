"""Host to host: images in host memory or a file to labels, copies and reading under kernels."""

from __future__ import annotations

from lenetgpu.streaming.streamer import Streamer, host_results, pinned_copy

__all__ = ["Streamer", "host_results", "pinned_copy"]
