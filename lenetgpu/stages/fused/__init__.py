"""Variants that cover a span of consecutive stages."""
