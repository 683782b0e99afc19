"""Variants that are wrong on purpose: the checker must reject each of them."""
