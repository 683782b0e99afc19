"""The sizes of an ONNX graph's values, worked out node by node: what the file says of them is not.

A node that is not listed here, or one of which something is not known, leaves its outputs open;
so does what reads them, and each names the node that began it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from lenetgpu.files.convs.described import Described
from lenetgpu.files.models.onnx_constants import Constants, attributes, said
from lenetgpu.problems import outputs

Size = tuple[int, ...]
_MOST_AXES, _MOST_SIDE = 8, 1 << 31
_AS_THE_FIRST = """
    Abs BatchNormalization Cast CastLike Ceil Celu Clip Cos CumSum DequantizeLinear Dropout Elu
    Erf Exp Floor Gelu GroupNormalization HardSigmoid HardSwish Hardmax Identity
    InstanceNormalization LRN LayerNormalization LeakyRelu Log LogSoftmax LpNormalization
    MeanVarianceNormalization Mish Neg Not PRelu QuantizeLinear Reciprocal Relu Round Selu Shrink
    Sigmoid Sign Sin Softmax Softplus Softsign Sqrt Tanh ThresholdedRelu"""
_TOGETHER = """
    Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum
    Where Xor"""
_FIRST, _BOTH = frozenset(_AS_THE_FIRST.split()), frozenset(_TOGETHER.split())
_AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
OWN = ("", "ai.onnx")
"""How ONNX's own operators are said to be."""


class OpenError(Exception):
    """The sizes of a node's outputs cannot be worked out."""


class Sizes:
    """Of every value by name, as far as they are known; nodes are taken in the graph's order."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.known: dict[str, Size] = {}
        self.why: dict[str, str] = {}

    def of(self, name: str) -> Size:
        """The size of a value; OpenError where it is not known, saying why."""
        if name in self.known:
            return self.known[name]
        raise OpenError(self.why.get(name, "what nothing makes before"))

    def numbers(self, node: Any, place: int, attribute: str = "") -> list[int]:
        """The whole numbers that a node is given as an input, or as an attribute before it was."""
        given = attributes(node)
        if attribute in given:
            return [int(number) for number in given[attribute]]
        name = node.input[place] if place < len(node.input) else ""
        found = self.constants.numbers(name) if name else None
        if found is None or None in found:
            raise OpenError(said(node))
        return [number for number in found if number is not None]

    def take(self, node: Any) -> None:
        """Note the sizes of what a node makes."""
        try:
            if node.domain not in OWN:
                raise OpenError(said(node))
            made = self._made(node)
            bad = [s for s in made if len(s) > _MOST_AXES or any(n < 0 for n in s)]
            if bad or any(side >= _MOST_SIDE for size in made for side in size):
                raise OpenError(said(node))
        except OpenError as error:
            for name in node.output:
                self.why[name] = str(error)
            return
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
            for name in node.output:
                self.why[name] = said(node)
            return
        for name, size in zip(node.output, made, strict=False):
            self.known[name] = size
            self.constants.shapes[name] = list(size)
        for name in node.output[len(made) :]:
            self.why[name] = said(node)

    def _made(self, node: Any) -> list[Size]:
        kind = node.op_type
        if kind == "Constant":
            ((name, value),) = attributes(node).items()
            listed = (len(value),) if isinstance(value, list) else ()
            return [tuple(value.dims) if name == "value" else listed]
        if kind in _FIRST:
            return [self.of(node.input[0])]
        if kind in _BOTH:
            return [broadcast([self.of(name) for name in node.input])]
        if kind not in _RULES:
            raise OpenError(said(node))
        return _RULES[kind](self, node)


def broadcast(sizes: Sequence[Size]) -> Size:
    """The size of values taken together element by element; ValueError where they do not fit."""
    axes = max(map(len, sizes))
    sides = list(zip(*((1,) * (axes - len(size)) + size for size in sizes), strict=True))
    for side in sides:
        if len({*side} - {1}) > 1:
            raise ValueError("sizes that do not fit")
    return tuple(max(side) if 0 not in side else 0 for side in sides)


def _window(size: Size, given: dict[str, Any], taps: Sequence[int]) -> list[Size]:
    """Of each side: its size, the filter's span, stride, padding before and behind, dilation."""
    sides = len(size) - 2
    strides = given.get("strides") or [1] * sides
    far = given.get("dilations") or [1] * sides
    pads = given.get("pads") or [0] * 2 * sides
    if sides < 1 or any(len(p) != sides for p in (strides, far, taps)) or len(pads) != 2 * sides:
        raise ValueError("lists of another length")
    if min(*strides, *far, *taps) < 1 or min(pads) < 0:
        raise ValueError("numbers that are too small")
    found: list[Size] = []
    auto = given.get("auto_pad", "NOTSET")
    if auto not in _AUTO:
        raise ValueError(f"auto_pad {auto}")
    for side, (n, k, stride, dilation) in enumerate(zip(size[2:], taps, strides, far, strict=True)):
        span, before, behind = (k - 1) * dilation + 1, pads[side], pads[sides + side]
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            whole = max(0, (-(-n // stride) - 1) * stride + span - n)
            before = whole // 2 if auto == "SAME_UPPER" else whole - whole // 2
            behind = whole - before
        elif auto == "VALID":
            before = behind = 0
        found.append((n, span, stride, before, behind, dilation))
    return found


def described(size: Size, filters: Size, node: Any) -> Described:
    """A convolution of two sides, (images, C, H, W) by (M, C over groups, R, S).

    ValueError where its lists have other lengths than that, or numbers below what they can be.
    """
    given = attributes(node)
    rows, columns = sides = _window(size, given, filters[2:])
    if list(given.get("kernel_shape") or filters[2:]) != list(filters[2:]):
        raise ValueError("a kernel_shape that its filters do not have")
    (n, c, h, w), (m, _, r, s) = size, filters
    high, wide = (outputs(side[0], side[1], side[2], side[3] + side[4]) for side in sides)
    return Described(
        n, h, w, c, m, r, s, (high, wide), (rows[2], columns[2]), (rows[3], columns[3]),
        (rows[5], columns[5]), int(given.get("group", 1)),
    )  # fmt: skip


def _convolved(sizes: Sizes, node: Any) -> list[Size]:
    size, filters = (sizes.of(node.input[at]) for at in places(node))
    sides = _window(size, attributes(node), filters[2:])
    return [(size[0], filters[0], *(outputs(n, k, by, a + b) for n, k, by, a, b, _ in sides))]


def places(node: Any) -> tuple[int, int]:
    """Which inputs of a convolution are its images and its filters."""
    return (0, 3) if node.op_type == "QLinearConv" else (0, 1)


def _transposed(sizes: Sizes, node: Any) -> list[Size]:
    size, filters, given = sizes.of(node.input[0]), sizes.of(node.input[1]), attributes(node)
    if given.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in given:
        raise OpenError(said(node))
    more = given.get("output_padding") or [0] * (len(size) - 2)
    sides = _window(size, given, filters[2:])
    made = [
        (n - 1) * stride + span - before - behind + extra
        for (n, span, stride, before, behind, _), extra in zip(sides, more, strict=True)
    ]
    return [(size[0], filters[1] * int(given.get("group", 1)), *made)]


def _pooled(sizes: Sizes, node: Any) -> list[Size]:
    size, given = sizes.of(node.input[0]), attributes(node)
    made = []
    for n, span, stride, before, behind, _ in _window(size, given, given["kernel_shape"]):
        out = outputs(n, span, stride, before + behind)
        if given.get("ceil_mode", 0) and (n + before + behind - span) % stride:
            if out * stride >= n + before:  # a window of padding alone, which not all count
                raise OpenError(said(node))
            out += 1
        made.append(out)
    return [(*size[:2], *made)] * len(node.output)


def _globally(sizes: Sizes, node: Any) -> list[Size]:
    size = sizes.of(node.input[0])
    return [(*size[:2], *(1 for _ in size[2:]))]


def _flattened(sizes: Sizes, node: Any) -> list[Size]:
    size, axis = sizes.of(node.input[0]), int(attributes(node).get("axis", 1))
    axis += len(size) if axis < 0 else 0
    return [(prod(size[:axis]), prod(size[axis:]))]


def _reshaped(sizes: Sizes, node: Any) -> list[Size]:
    size, wanted = sizes.of(node.input[0]), sizes.numbers(node, 1, "shape")
    if not attributes(node).get("allowzero", 0):
        wanted = [size[at] if side == 0 else side for at, side in enumerate(wanted)]
    if wanted.count(-1) > 1 or min(wanted, default=1) < -1:
        raise ValueError("more than one open side")
    rest = prod(side for side in wanted if side != -1)
    made = tuple(prod(size) // rest if side == -1 else side for side in wanted)
    if prod(made) != prod(size):
        raise ValueError("another number of values")
    return [made]


def _turned(sizes: Sizes, node: Any) -> list[Size]:
    size = sizes.of(node.input[0])
    order = attributes(node).get("perm") or list(range(len(size)))[::-1]
    if sorted(order) != list(range(len(size))):
        raise ValueError("no order of its axes")
    return [tuple(size[axis] for axis in order)]


def _joined(sizes: Sizes, node: Any) -> list[Size]:
    parts = [list(sizes.of(name)) for name in node.input]
    axis = int(attributes(node)["axis"])
    rest = [[*part[:axis], *part[axis:][1:]] for part in parts]
    if any(one != rest[0] for one in rest):
        raise ValueError("sizes that do not fit")
    parts[0][axis] = sum(part[axis] for part in parts)
    return [tuple(parts[0])]


def _multiplied(sizes: Sizes, node: Any) -> list[Size]:
    given = attributes(node)
    a, b = (sizes.of(name) for name in node.input[:2])
    a = a[::-1] if given.get("transA", 0) else a
    b = b[::-1] if given.get("transB", 0) else b
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ValueError("sizes that do not fit")
    return [(*broadcast([a[:-2], b[:-2]]), a[-2], b[-1])]


def _padded(sizes: Sizes, node: Any) -> list[Size]:
    size = sizes.of(node.input[0])
    if len(node.input) > 3 and node.input[3]:
        raise OpenError(said(node))
    pads = sizes.numbers(node, 1, "pads")
    before, behind = pads[: len(size)], pads[len(size) :]
    return [tuple(sum(side) for side in zip(size, before, behind, strict=True))]


def _reduced(sizes: Sizes, node: Any) -> list[Size]:
    size, given = sizes.of(node.input[0]), attributes(node)
    every = len(node.input) < 2 and "axes" not in given
    axes = range(len(size)) if every else sizes.numbers(node, 1, "axes")
    gone = {axis % len(size) for axis in axes}
    kept = [1 if at in gone else side for at, side in enumerate(size)]
    if not given.get("keepdims", 1):
        kept = [side for at, side in enumerate(size) if at not in gone]
    return [tuple(kept)]


def _squeezed(sizes: Sizes, node: Any) -> list[Size]:
    size = sizes.of(node.input[0])
    gone = {axis % len(size) for axis in sizes.numbers(node, 1, "axes")}
    if any(size[axis] != 1 for axis in gone):
        raise ValueError("a side that is not 1")
    return [tuple(side for at, side in enumerate(size) if at not in gone)]


def _unsqueezed(sizes: Sizes, node: Any) -> list[Size]:
    size, axes = sizes.of(node.input[0]), sizes.numbers(node, 1, "axes")
    made = list(size)
    for axis in sorted(axis % (len(size) + len(axes)) for axis in axes):
        made.insert(axis, 1)
    return [tuple(made)]


def _halved(sizes: Sizes, node: Any) -> list[Size]:
    """Split into parts that are said, or as many as there are outputs."""
    size, given = sizes.of(node.input[0]), attributes(node)
    axis, count = int(given.get("axis", 0)), len(node.output)
    if "split" in given or len(node.input) > 1:
        parts = sizes.numbers(node, 1, "split")
    else:
        part = -(-size[axis] // count)
        parts = [part] * (count - 1) + [size[axis] - part * (count - 1)]
    if sum(parts) != size[axis]:
        raise ValueError("parts that are not the whole")
    made = [list(size) for _ in parts]
    for one, part in zip(made, parts, strict=True):
        one[axis] = part
    return [tuple(one) for one in made]


def _sliced(sizes: Sizes, node: Any) -> list[Size]:
    size = sizes.of(node.input[0])
    starts, ends = sizes.numbers(node, 1, "starts"), sizes.numbers(node, 2, "ends")
    fourth = "axes" in attributes(node) or (len(node.input) > 3 and node.input[3])
    axes = sizes.numbers(node, 3, "axes") if fourth else list(range(len(starts)))
    steps = sizes.numbers(node, 4) if len(node.input) > 4 else [1] * len(starts)
    made = list(size)
    for axis, *ends_of in zip(axes, starts, ends, steps, strict=True):
        made[axis] = len(range(size[axis])[slice(*ends_of)])
    return [tuple(made)]


def _resized(sizes: Sizes, node: Any) -> list[Size]:
    """By sizes that are said, or by scales that are constants."""
    size = sizes.of(node.input[0])
    if len(node.input) > 3 and node.input[3]:
        made = sizes.numbers(node, 3)
    else:
        place = 2 if len(node.input) > 2 else 1
        scales = attributes(node).get("scales")
        if scales is None:
            found = sizes.constants.tensor(node.input[place])
            if found is None:
                raise OpenError(said(node))
            scales = [float(scale) for scale in found.reshape(-1)]
        made = [int(side * scale) for side, scale in zip(size, scales, strict=True)]
    if len(made) != len(size) or any(name in attributes(node) for name in ("axes", "policy")):
        raise OpenError(said(node))
    return [tuple(made)]


def _filled(sizes: Sizes, node: Any) -> list[Size]:
    return [tuple(sizes.numbers(node, 0))]


def _shape(sizes: Sizes, node: Any) -> list[Size]:
    given = attributes(node)
    return [(len(sizes.of(node.input[0])[given.get("start", 0) : given.get("end")]),)]


_RULES: dict[str, Callable[[Sizes, Any], list[Size]]] = {
    "Conv": _convolved, "QLinearConv": _convolved, "ConvInteger": _convolved,
    "ConvTranspose": _transposed, "MaxPool": _pooled, "AveragePool": _pooled, "LpPool": _pooled,
    "GlobalAveragePool": _globally, "GlobalMaxPool": _globally, "Flatten": _flattened,
    "Reshape": _reshaped, "Transpose": _turned, "Concat": _joined, "Gemm": _multiplied,
    "MatMul": _multiplied, "Pad": _padded, "ReduceMean": _reduced, "ReduceMax": _reduced,
    "ReduceSum": _reduced, "Squeeze": _squeezed, "Unsqueeze": _unsqueezed, "Split": _halved,
    "Slice": _sliced, "Resize": _resized, "Upsample": _resized,
    "Shape": _shape, "ConstantOfShape": _filled,
}  # fmt: skip
