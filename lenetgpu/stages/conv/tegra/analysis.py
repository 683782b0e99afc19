"""The Tegra X1 slides' analysis of a layer: their formulas, worked out from the problem.

H and W are the padded input's: so the slides' tables come out (layer 1's 31.8 and layer 6's 0.027
apart, see docs/convolutions.md). The slides' K, P and Q are M, OH and OW here.
"""

from __future__ import annotations

from lenetgpu.problems import FLOAT_BYTES, Conv


def inputs(problem: Conv) -> int:
    """C x H x W, the padding counted."""
    return problem.C * (problem.H + 2 * problem.pad) * (problem.W + 2 * problem.pad)


def coefficients(problem: Conv) -> int:
    """K x C x R x S."""
    return problem.M * problem.depth


def math(problem: Conv) -> int:
    """K x C x P x Q x R x S multiply-adds."""
    return problem.M * problem.depth * problem.OH * problem.OW


def math_per_byte(problem: Conv) -> float:
    """#1: multiply-adds over the bytes of inputs, coefficients and outputs, each moved once."""
    outputs = problem.M * problem.OH * problem.OW
    return math(problem) / (FLOAT_BYTES * (inputs(problem) + coefficients(problem) + outputs))


def input_per_coefficient(problem: Conv) -> float:
    """#3: C x H x W over K x C x R x S."""
    return inputs(problem) / coefficients(problem)
