"""Convolutions, naive to fast: one file per family."""

from lenetgpu.stages.conv import direct, fft, gemm, serial, tiled, unrolled

__all__ = ["direct", "fft", "gemm", "serial", "tiled", "unrolled"]
