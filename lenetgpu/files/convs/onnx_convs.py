"""The convolutions of an ONNX model, in the order that it computes them.

Nothing is run, no weight is read, and no other file is opened.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError, require_extra
from lenetgpu.files.convs.described import Given
from lenetgpu.files.convs.onnx_bones import Bones
from lenetgpu.files.convs.onnx_sizes import OWN, OpenError, Sizes, described, places
from lenetgpu.files.models.loaded import damaged
from lenetgpu.files.models.onnx_constants import FLOAT, Constants, attributes, said
from lenetgpu.files.regular import open_regular

EXPECTED = "an ONNX model"
_READ = ("Conv", "QLinearConv", "ConvInteger")
_DOUBLE = 11
_TYPES = {_DOUBLE: "fp64", 2: "int8", 3: "int8"}
"""ONNX's numbers of what filters may be of."""
_DTYPES = {FLOAT: "fp32", 10: "fp16", 16: "bf16"}
_TYPE_FROM = {"CastLike": 1, "DequantizeLinear": 1, "Where": 1}
"""Whose outputs are of the type of another input than the first."""
_SIDES = 2
_BIAS = 2
"""The place of a bias among a convolution's inputs."""


def read(path: Path, batch: int | None, epilogue: bool = False) -> list[Given]:
    """Every convolution of a model, of `batch` images, or of as many as it has, one where open.

    Each is alone, or with `epilogue` has its bias, and ReLU where nothing else reads its sums.
    LenetError where the file is damaged, is no model, or has none.
    """
    require_extra(str(path), "onnx", "models")
    import onnx

    with open_regular(path, EXPECTED) as raw, open(raw.fileno(), "rb", closefd=False) as file:
        bones = Bones(path, file, os.fstat(raw.fileno()).st_size).read()
    try:
        model = onnx.ModelProto.FromString(bones)
    except Exception as error:  # protobuf's, which is no ValueError
        raise damaged(path, "ONNX", error) from error
    try:
        found = list(_found(path, model, batch, epilogue))
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # fields of other types
        raise damaged(path, "ONNX", error) from error
    if not found:
        raise LenetError(f"{path}: expected a model with convolutions, found none")
    return found


def _found(path: Path, model: Any, batch: int | None, epilogue: bool) -> Iterator[Given]:
    graph = model.graph
    constants = Constants(path, graph)
    sizes = Sizes(constants)
    for tensor in graph.initializer:
        sizes.known[tensor.name] = tuple(tensor.dims)
    own = _begin(graph, sizes, batch)
    kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    kinds |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    followed = _followed(graph) if epilogue else None
    for node in graph.node:
        if node.op_type in _READ and node.domain in OWN:
            given = _given(path, node, sizes, kinds)
            yield _scaled(given if followed is None else _fused(given, node, followed), own, batch)
        elif "Conv" in node.op_type:
            kind = "transposed" if node.op_type == "ConvTranspose" else f"operator {node.op_type}"
            yield Given(None, _name(node), (kind,))
        sizes.take(node)
        kinds |= dict.fromkeys(node.output, _made_type(node, kinds))
        for inner in _within(node):
            yield Given(None, _name(inner), (f"in a branch of {said(node)}",))
    for function in model.functions:
        for node in function.node:
            if "Conv" in node.op_type:
                yield Given(None, _name(node), (f"in function {function.name}",))


def _begin(graph: Any, sizes: Sizes, batch: int | None) -> int:
    """Note the sizes of the model's inputs; how many images it is for, 0 where that is open."""
    own = 0
    for value in graph.input:
        if value.name in sizes.known:
            continue
        dims = value.type.tensor_type.shape.dim
        size = [dim.dim_value if dim.HasField("dim_value") else 0 for dim in dims]
        if size and size[0] < 1:
            size[0] = batch or 1
        elif size:
            own = own or size[0]
        if size and min(size) > 0:
            sizes.known[value.name] = tuple(size)
            sizes.constants.shapes[value.name] = list(size)
        else:
            shown = ", ".join(
                str(n) if n > 0 else (dim.dim_param or "?")
                for n, dim in zip(size, dims, strict=True)
            )
            sizes.why[value.name] = f"input {value.name} of ({shown})"
    return own


def _made_type(node: Any, kinds: dict[str, int]) -> int:
    """ONNX's number of the type of a node's outputs, 0 where it is not known.

    Floats stay what they are; what makes others of whole numbers is not looked into.
    """
    if node.op_type in ("Constant", "ConstantOfShape"):
        given = attributes(node)
        return int(given["value"].data_type if "value" in given else FLOAT)
    if node.op_type == "Cast":
        return int(attributes(node).get("to", 0))
    place = _TYPE_FROM.get(node.op_type, 0)
    kind = kinds.get(node.input[place], 0) if place < len(node.input) else 0
    return kind if kind in (*_DTYPES, _DOUBLE) else 0


def _name(node: Any) -> str:
    return str(node.name or (node.output[0] if node.output else "without a name"))


def _given(path: Path, node: Any, sizes: Sizes, kinds: dict[str, int]) -> Given:
    """LenetError where it is no convolution: channels that do not fit, a filter too large."""
    where = f"{path}: {said(node)}"
    others = []
    image, filters = places(node)
    if len(node.input) <= filters:
        raise LenetError(f"{where}: expected images and filters, found {len(node.input)} inputs")
    kind = kinds.get(node.input[filters]) or kinds.get(node.input[image]) or FLOAT
    if node.op_type != "Conv" or kind not in _DTYPES:
        others.append(f"{_TYPES.get(kind, 'int8' if node.op_type != 'Conv' else 'other')} operands")
    try:
        size, taps = sizes.of(node.input[image]), sizes.of(node.input[filters])
    except OpenError as error:
        return Given(None, _name(node), (*others, f"its sizes are open behind {error}"))
    if len(size) != _SIDES + 2:
        return Given(None, _name(node), (*others, f"{len(size) - 2} spatial dimensions"))
    try:
        asked = described(size, taps, node)
    except (ValueError, TypeError) as error:
        raise LenetError(f"{where}: expected a convolution's attributes, found {error}") from error
    asked.require(where)
    if taps[1] * asked.groups != asked.C:
        raise LenetError(
            f"{where}: expected filters of {asked.C // asked.groups} channels, found {taps[1]}"
        )
    asked = replace(asked, dtype=_DTYPES.get(kind, "fp32"))
    return Given(asked, _name(node), tuple(others))


def _followed(graph: Any) -> set[str]:
    """The values of a graph that one ReLU reads and nothing else, within no branch either."""
    read = Counter(value.name for value in graph.output)
    todo, alone = list(graph.node), set[str]()
    while todo:
        node = todo.pop()
        read.update(node.input)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                todo += inner.node
                read.update(value.name for value in inner.output)
    for node in graph.node:
        if node.op_type == "Relu" and node.domain in OWN:
            alone |= {name for name in node.input if read[name] == 1}
    return alone


def _fused(given: Given, node: Any, followed: set[str]) -> Given:
    """A convolution with the bias that its node has, and the ReLU that reads it alone."""
    if given.asked is None or node.op_type != "Conv":
        return given
    bias = len(node.input) > _BIAS and bool(node.input[_BIAS])
    asked = replace(given.asked, bias=bias, relu=node.output[0] in followed)
    return replace(given, asked=asked)


def _scaled(given: Given, own: int, batch: int | None) -> Given:
    """For `batch` images where the model is for `own`."""
    if given.asked is None or batch is None or not own:
        return given
    images = given.asked.images * batch // own
    return replace(given, asked=replace(given.asked, images=max(1, images)))


def _within(node: Any) -> Iterator[Any]:
    """Convolutions in the graphs that a node holds."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                if "Conv" in inner.op_type:
                    yield inner
                yield from _within(inner)
