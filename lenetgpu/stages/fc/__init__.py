"""Fully connected layers, with ReLU where the stage has one: one file per family."""

from lenetgpu.stages.registry import import_all

import_all(__name__, __path__, ("serial", "tiled", "cublas"))
