"""Variants that cover a span of consecutive stages in one launch."""

from lenetgpu.stages.fused import block

__all__ = ["block"]
