"""ReLU and 2x2 mean, naive to fast: one file per family."""

from lenetgpu.stages.pool import mean, serial, tiled

__all__ = ["mean", "serial", "tiled"]
