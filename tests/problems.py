"""Problems that every variant is checked on: the network's in every layout, and odd shapes."""

from dataclasses import replace
from typing import Any

from lenetgpu.check.warmup import network_problems
from lenetgpu.problems import Argmax, Conv, ConvPool, Fc, Pool, Relayout, Scale
from lenetgpu.stages import Variant

ODD: dict[str, list[Any]] = {
    "conv": [
        Conv(1, 1, 1, 1, 1, 1),
        Conv(11, 13, 3, 7, 3, 2, stride=2, pad=1),
        Conv(9, 7, 2, 5, 2, 2),
        Conv(17, 19, 5, 33, 7, 7, pad=3),
        Conv(40, 37, 1, 3, 5, 3, stride=3),
        Conv(6, 8, 4, 65, 3, 3, pad=1),
        Conv(13, 12, 6, 9, 3, 2, strides=(2, 1), pads=(1, 0, 2, 1), dilation=(1, 3), groups=3),
        Conv(10, 9, 5, 10, 3, 3, stride=2, pad=1, groups=5),
        Conv(9, 14, 3, 33, 3, 3, pad=2, dilation=(2, 2)),
        Conv(8, 7, 5, 10, 3, 3, pad=1, bias=True, relu=True),
        Conv(8, 7, 16, 20, 3, 3, pad=1, bias=True, relu=True, dtype="fp16"),
        Conv(13, 9, 3, 70, 5, 3, stride=2, pad=2, bias=True, dtype="bf16"),
        Conv(9, 8, 6, 9, 3, 2, strides=(2, 1), groups=3, bias=True, relu=True, dtype="fp16"),
        Conv(9, 8, 5, 10, 3, 3, pads=(1, 0, 2, 1), dilation=(2, 1), groups=5, dtype="bf16"),
    ],
    "pool": [Pool(2, 2, 1), Pool(6, 10, 7), Pool(14, 4, 33)],
    "conv_pool": [
        ConvPool(Conv(6, 6, 1, 1, 3, 3)),
        ConvPool(Conv(11, 15, 3, 7, 3, 3, stride=2, pad=1)),
        ConvPool(Conv(9, 7, 5, 70, 2, 2)),
        ConvPool(Conv(14, 30, 2, 33, 5, 3, pad=2)),
    ],
    "fc": [Fc(1, 1, relu=True), Fc(33, 31, relu=False), Fc(100, 65, relu=True)],
    "argmax": [Argmax(1), Argmax(2), Argmax(7), Argmax(33)],
    "scale": [Scale(5, 7, 3, "uint8"), Scale(1, 1, 1, "uint8")],
    "relayout": [Relayout(6, 4, 5, "", ""), Relayout(3, 5, 7, "", "")],
}


def in_layouts(variant: Variant, base: Any) -> list[Any]:
    """Return `base` in each layout pair that `variant` reads and writes and does not refuse."""
    if variant.kind == "argmax" or variant.kind == "fc":
        laid_out = [base]
    else:
        laid_out = [
            replace(base, reads=reads, writes=writes)
            for reads in variant.reads
            for writes in variant.writes
            if variant.kind != "relayout" or reads != writes
        ]
    return [problem for problem in laid_out if variant.refusal(problem) is None]


def all_problems(variant: Variant) -> list[Any]:
    """Return the network's problems and odd ones, in every layout."""
    odd = [problem for base in ODD.get(variant.kind, []) for problem in in_layouts(variant, base)]
    return network_problems(variant) + odd
