"""Implementations of every stage. Importing this package registers all variants and is cheap."""

from lenetgpu.stages import argmax, conv, fc, fused, pool, support
from lenetgpu.stages.registry import Variant, choices, families, find, variants

__all__ = [
    "Variant",
    "argmax",
    "choices",
    "conv",
    "families",
    "fc",
    "find",
    "fused",
    "pool",
    "support",
    "variants",
]
