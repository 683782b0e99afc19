"""Variants that cover a span of consecutive stages."""

from lenetgpu.stages.fused import (
    block,
    classifier,
    features,
    plain_classifier,
    plain_features,
    split_classifier,
    split_features,
)

__all__ = [
    "block",
    "classifier",
    "features",
    "plain_classifier",
    "plain_features",
    "split_classifier",
    "split_features",
]
