"""Argmax: scores to labels, the first of equal scores winning; one file per family."""
