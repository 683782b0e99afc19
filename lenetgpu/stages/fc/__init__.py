"""Fully connected layers, with ReLU where the stage has one: one file per family."""

from lenetgpu.stages.fc import gemm, serial, tiled

__all__ = ["gemm", "serial", "tiled"]
