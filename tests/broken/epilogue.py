"""Convolutions that take a bias, ReLU and halves and get one thing of it wrong; and one, none."""

from dataclasses import replace

import numpy as np

from lenetgpu.layouts import narrowed, widened
from lenetgpu.stages.reference import conv_reference as reference
from lenetgpu.stages.registry import cpu, variant


def ends(family):
    """Registers a convolution of `family` for all that happens at both ends of its sums."""
    return variant(kind="conv", family=family, reads="NHWC", writes="NHWC", needs=cpu(),
                   takes="bias relu fp16 bf16")  # fmt: skip


def sums(x, w, problem, biased=lambda bias: bias):
    """The truth in float32, before it is rounded; `biased`: what is added in place of the bias."""
    filters, bias = w
    return reference(x, (filters, biased(bias)), problem).astype(np.float32)


@ends("ends")
def no_bias(x, w, y, problem):
    """Nothing is added."""
    y[...] = narrowed(sums(x, w, problem, biased=np.zeros_like), problem.dtype)


@ends("ends")
def one_bias(x, w, y, problem):
    """The first map's, for every map."""
    y[...] = narrowed(sums(x, w, problem, biased=lambda of: of[:1].repeat(len(of))), problem.dtype)


@ends("ends")
def relu_first(x, w, y, problem):
    """ReLU, then the bias."""
    made = sums(x, w, problem, biased=np.zeros_like)
    y[...] = narrowed(made + widened(w[1]).astype("f"), problem.dtype)


@ends("ends")
def towards_zero(x, w, y, problem):
    """The bits that are too many are cut off."""
    made = sums(x, w, problem)
    cut = made.view("uint32") & (0xFFFFE000 if problem.dtype == "fp16" else 0xFFFF0000)
    y[...] = narrowed(cut.astype("uint32").view("float32"), problem.dtype)


@ends("ends")
def rounded_twice(x, w, y, problem):
    """Sums are rounded, then the bias is added and they are rounded once more."""
    alone = sums(x, w, replace(problem, relu=False), biased=np.zeros_like)
    half = widened(narrowed(alone, problem.dtype)).astype("f")
    y[...] = narrowed(np.maximum(half + widened(w[1]).astype("f"), 0), problem.dtype)


@ends("twin")
def as_it_is(x, w, y, problem):
    """As it is to be."""
    y[...] = narrowed(sums(x, w, problem), problem.dtype)
