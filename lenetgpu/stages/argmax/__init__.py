"""Scores to labels, the first of equals: one file per family."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("serial", "scan"))
