"""Shapes and layouts as `-D` definitions, under the names that the kernels use."""

from __future__ import annotations

from typing import Any

from lenetgpu.problems import Conv


def map_defines(problem: Any) -> dict[str, int | str]:
    """An (H, W, C) map's shape and the layouts it is read and written in."""
    return {
        "CH": problem.C,
        "H": problem.H,
        "W": problem.W,
        "READS": problem.reads,
        "WRITES": problem.writes,
    }


def conv_defines(problem: Conv) -> dict[str, int | str]:
    """A plain convolution's shape and layouts: one stride, one padding, no dilation or groups."""
    assert not problem.wants, f"no names for {', '.join(sorted(problem.wants))}"
    filters = {"M": problem.M, "R": problem.R, "S": problem.S}
    window = {"STRIDE": problem.stride, "PAD": problem.pad}
    return map_defines(problem) | filters | window
