"""Scores to labels, the first of equals: one file per family."""

from lenetgpu.stages.argmax import scan, serial

__all__ = ["scan", "serial"]
