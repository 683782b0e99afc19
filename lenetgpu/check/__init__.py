"""Correctness checks against float64 references."""
