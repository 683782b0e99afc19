"""Implementations of every stage. Importing this package registers all variants and is cheap."""

from lenetgpu.stages import argmax, conv, fc, fused, pool, support  # noqa: F401
from lenetgpu.stages.registry import Variant, choices, families, find, variants

__all__ = ["Variant", "choices", "families", "find", "variants"]
