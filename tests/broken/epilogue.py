"""Convolutions with bias, ReLU and 16-bit types that get one of them wrong, and a correct one."""

from dataclasses import replace

import numpy as np

from lenetgpu.layouts import narrowed, widened
from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import cpu, variant


def ends(family):
    """Register a convolution of `family` with bias, ReLU, fp16 and bf16."""
    return variant(kind="conv", family=family, reads="NHWC", writes="NHWC", needs=cpu(),
                   takes="bias relu fp16 bf16")  # fmt: skip


def sums(x, w, problem, biased=lambda bias: bias):
    """Return reference outputs in float32, unrounded; `biased` replaces the bias."""
    filters, bias = w
    return reference(x, (filters, biased(bias)), problem).astype(np.float32)


@ends("ends")
def no_bias(x, w, y, problem):
    """Omit the bias."""
    y[...] = narrowed(sums(x, w, problem, biased=np.zeros_like), problem.dtype)


@ends("ends")
def one_bias(x, w, y, problem):
    """Add the first map's bias to every map."""
    y[...] = narrowed(sums(x, w, problem, biased=lambda of: of[:1].repeat(len(of))), problem.dtype)


@ends("ends")
def relu_first(x, w, y, problem):
    """Apply ReLU before the bias."""
    made = sums(x, w, problem, biased=np.zeros_like)
    y[...] = narrowed(made + widened(w[1]).astype("f"), problem.dtype)


@ends("ends")
def towards_zero(x, w, y, problem):
    """Truncate instead of rounding."""
    made = sums(x, w, problem)
    cut = made.view("uint32") & (0xFFFFE000 if problem.dtype == "fp16" else 0xFFFF0000)
    y[...] = narrowed(cut.astype("uint32").view("float32"), problem.dtype)


@ends("ends")
def rounded_twice(x, w, y, problem):
    """Round the sums, add the bias, and round again."""
    alone = sums(x, w, replace(problem, relu=False), biased=np.zeros_like)
    half = widened(narrowed(alone, problem.dtype)).astype("f")
    y[...] = narrowed(np.maximum(half + widened(w[1]).astype("f"), 0), problem.dtype)


@ends("twin")
def as_it_is(x, w, y, problem):
    """Compute the correct output."""
    y[...] = narrowed(sums(x, w, problem), problem.dtype)
