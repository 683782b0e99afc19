"""Convolutions from naive to fast: one file or folder per family."""

from functools import partial

from lenetgpu.stages.registry import variant

nchw = partial(variant, kind="conv", reads="NCHW", writes="NCHW")
