"""Deliberately wrong variants: the checker must reject each of them."""
