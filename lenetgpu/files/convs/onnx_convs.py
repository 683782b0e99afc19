"""Convolutions of an ONNX model, in the order of computation.

Nothing is run, no weights are read, and no other file is opened.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, require_extra, unexpected
from lenetgpu.files.convs.described import Given, convolution
from lenetgpu.files.models import onnx_parse
from lenetgpu.files.models.forms import damaged
from lenetgpu.files.models.onnx_parse import FLOAT, OWN, attributes, node_text
from lenetgpu.files.regular import open_regular
from lenetgpu.problems import Conv, outputs

EXPECTED = "an ONNX model"
# Index of the filters among a node's inputs; the images are the first input.
_FILTERS = {"Conv": 1, "QLinearConv": 3, "ConvInteger": 1}
_TYPES = {onnx_parse.DOUBLE: "fp64", 2: "int8", 3: "int8"}
_DTYPES = {FLOAT: "fp32", onnx_parse.FLOAT16: "fp16", onnx_parse.BFLOAT16: "bf16"}
_AUTO = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")
# Spatial dimensions of a supported convolution; index of the bias among its inputs.
_SIDES, _BIAS = 2, 2


def read(
    path: Path, batch: int | None, epilogue: bool = False, inputs: Sequence[str] = ()
) -> list[Given]:
    """Return every convolution of a model for `batch` images, or for the model's own batch.

    An open batch counts as 1; `inputs` gives open sizes of the model's inputs, as x:1x3x224x224.
    With `epilogue` they have their bias, and ReLU if nothing else reads their sums. Raises
    LenetError if the file is damaged or has no convolutions, or if an input does not match.
    """
    require_extra(str(path), "onnx", "models")
    with open_regular(path, EXPECTED) as raw, open(raw.fileno(), "rb", closefd=False) as file:
        model = onnx_parse.parsed(path, file, os.fstat(raw.fileno()).st_size, onnx_parse.STRUCTURE)
    _set_sizes(path, model, inputs)
    try:
        convolutions = list(_Graph(path, model, batch, epilogue).convolutions())
    except LenetError:
        raise
    except Exception as error:  # fields of other types, and ONNX's own exceptions
        raise damaged(path, "ONNX", error) from error
    if not convolutions:
        raise LenetError(f"{path}: expected a model with convolutions, found none")
    return convolutions


def _set_sizes(path: Path, model: Any, inputs: Sequence[str]) -> None:
    """Set the open sizes of a model's inputs; LenetError for an unknown input or other sizes."""
    shapes = {value.name: value.type.tensor_type.shape for value in model.graph.input}
    own = {name: [dim.dim_value or "?" for dim in shape.dim] for name, shape in shapes.items()}
    for text in inputs:
        name, _, sizes = text.rpartition(":")
        form = "x".join(map(str, own.get(name) or ["?(x?)*"])).replace("?", "[1-9][0-9]{0,8}")
        if name not in own or not re.fullmatch(form, sizes):
            known = ", ".join(f"{name}:{'x'.join(map(str, dims))}" for name, dims in own.items())
            raise unexpected(f"{path}, --input", known, text)
        del shapes[name].dim[:]
        for size in sizes.split("x"):
            shapes[name].dim.add(dim_value=int(size))


class _Graph:
    def __init__(self, path: Path, model: Any, batch: int | None, epilogue: bool) -> None:
        self._path, self._model, self._graph = path, model, model.graph
        self._made_by = onnx_parse.producers(path, model.graph)
        self._values = onnx_parse.inferred(path, model, batch or 1)
        self._followed = _read_by_relu(model.graph) if epilogue else None
        weights = {tensor.name for tensor in model.graph.initializer}
        shapes = [v.type.tensor_type.shape.dim for v in model.graph.input if v.name not in weights]
        own = next((dims[0].dim_value for dims in shapes if dims and dims[0].dim_value > 0), 0)
        self._scale = (batch, own) if batch and own else (1, 1)

    def convolutions(self) -> Iterator[Given]:
        """Yield the convolutions of the graph, of its branches and of the model's functions."""
        for node in self._graph.node:
            if node.op_type in _FILTERS and node.domain in OWN:
                yield self._given(node)
            elif "Conv" in node.op_type:
                transposed = node.op_type == "ConvTranspose"
                yield _refused(node, "transposed" if transposed else f"operator {node.op_type}")
            for branch in _branches(node):
                for graph in _within(branch):
                    yield from _all_refused(graph, f"in a branch of {node_text(node)}")
        for function in self._model.functions:
            yield from _all_refused(function, f"in function {function.name}")

    def _given(self, node: Any) -> Given:
        """Return a node's convolution; raise LenetError if its channels or filters do not fit."""
        where, others = f"{self._path}: {node_text(node)}", []
        position = _FILTERS[node.op_type]
        if len(node.input) <= position:
            raise unexpected(where, "images and filters", f"{len(node.input)} inputs")
        names = node.input[0], node.input[position]
        kinds = [self._values.get(name, (0, []))[0] for name in names]
        kind = kinds[1] or kinds[0] or FLOAT
        if node.op_type != "Conv" or kind not in _DTYPES:
            other = "int8" if node.op_type != "Conv" else "other"
            others.append(f"{_TYPES.get(kind, other)} operands")
        unknown = next((name for name in names if self._size(name) is None), None)
        if unknown is not None:
            return _refused(node, *others, f"its sizes are open after {self._why_open(unknown)}")
        size, filters = (self._size(name) or [] for name in names)
        if len(size) not in (_SIDES + 1, _SIDES + 2):
            return _refused(node, *others, f"{len(size) - 2} spatial dimensions")
        problem = _convolution(where, size, filters, attributes(node))
        if filters[1] != problem.each[0]:
            raise unexpected(where, f"filters of {problem.each[0]} channels", f"{filters[1]}")
        batch, own = self._scale
        problem = replace(problem, dtype=_DTYPES.get(kind, "fp32"))
        if self._followed is not None and node.op_type == "Conv":
            bias = len(node.input) > _BIAS and bool(node.input[_BIAS])
            problem = replace(problem, bias=bias, relu=node.output[0] in self._followed)
        return Given(problem, max(1, size[0] * batch // own), _name(node), tuple(others))

    def _size(self, name: str) -> list[int] | None:
        dims = self._values.get(name, (0, [None]))[1]
        return None if None in dims else [n for n in dims if n is not None]

    def _why_open(self, name: str) -> str:
        """Describe the node or the input where a value's unknown size originates."""
        seen = set[str]()
        while name in self._made_by and name not in seen:
            seen.add(name)
            node = self._made_by[name]
            unknown = [operand for operand in node.input if operand and self._size(operand) is None]
            if not unknown:
                return node_text(node)
            name = unknown[0]
        for value in self._graph.input:
            if value.name == name:
                dims = value.type.tensor_type.shape.dim
                shown = [str(d.dim_value or d.dim_param or "?") for d in dims]
                return f"input {name} of ({', '.join(shown)}); set them with --input"
        return "what nothing makes before"


def _convolution(
    where: str, size: Sequence[int], filters: Sequence[int], given: dict[str, Any]
) -> Conv:
    (images, c, *extent), m, sides = size, filters[0], list(filters[2:])
    count, auto = len(extent), given.get("auto_pad", "NOTSET")
    strides, dilation = ([*(given.get(of) or [1] * count)] for of in ("strides", "dilations"))
    pads, kernel = [*(given.get("pads") or [0] * 2 * count)], given.get("kernel_shape") or sides
    wrong = None
    if any(len(p) != count for p in (strides, dilation, sides)) or len(pads) != 2 * count:
        wrong = "lists of another length"
    elif min(*strides, *dilation, *sides) < 1 or min(pads) < 0:
        wrong = "numbers that are too small"
    elif list(kernel) != sides:
        wrong = "a kernel_shape that its filters do not have"
    elif auto not in _AUTO:
        wrong = f"auto_pad {auto}"
    if wrong is not None:
        raise LenetError(f"{where}: expected a convolution's attributes, found {wrong}")
    if count < _SIDES:  # one row, as in a descriptor of columns only
        extent, sides, strides, dilation = ([1, *of] for of in (extent, sides, strides, dilation))
        pads = [0, pads[0], 0, pads[1]]
    out, before = [], []
    for at, (n, k, stride, far) in enumerate(zip(extent, sides, strides, dilation, strict=True)):
        span, both = (k - 1) * far + 1, (pads[at], pads[_SIDES + at])
        if auto == "VALID":
            both = (0, 0)
        elif auto != "NOTSET":
            padding = max(0, (-(-n // stride) - 1) * stride + span - n)
            both = (padding // 2, padding - padding // 2)
            both = both if auto == "SAME_UPPER" else both[::-1]
        out.append(outputs(n, span, stride, sum(both)))
        before.append(both[0])
    groups = int(given.get("group", 1))
    pairs = (tuple(sides), tuple(out), tuple(strides), tuple(before), tuple(dilation))
    return convolution(where, (images, *extent, c, m), *pairs, groups)  # type: ignore[arg-type]


def _name(node: Any) -> str:
    return str(node.name or (node.output[0] if node.output else "without a name"))


def _refused(node: Any, *others: str) -> Given:
    return Given(None, name=_name(node), others=others)


def _all_refused(graph: Any, why: str) -> Iterator[Given]:
    return (_refused(node, why) for node in graph.node if "Conv" in node.op_type)


def _within(graph: Any) -> Iterator[Any]:
    """Yield a graph and every graph of its branches."""
    yield graph
    for node in graph.node:
        for branch in _branches(node):
            yield from _within(branch)


def _branches(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        yield from (attribute.g, *attribute.graphs)


def _read_by_relu(graph: Any) -> set[str]:
    """Return a graph's values that one ReLU reads and nothing else, not even in a branch."""
    read = Counter[str]()
    for part in _within(graph):
        read.update(value.name for value in part.output)
        read.update(name for node in part.node for name in node.input)
    relus = [node for node in graph.node if node.op_type == "Relu" and node.domain in OWN]
    return {name for node in relus for name in node.input if read[name] == 1}
