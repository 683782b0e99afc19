"""ONNX models: their bytes to weights, and weights to a model that ONNX Runtime runs.

The graph is walked by `onnx_graph`, constants are read by `onnx_constants`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu import __version__
from lenetgpu.errors import LenetError
from lenetgpu.files.models import layouts, metadata
from lenetgpu.files.models.loaded import Model, damaged
from lenetgpu.files.models.onnx_bounds import require_bounded
from lenetgpu.files.models.onnx_constants import Constants
from lenetgpu.files.models.onnx_graph import Graph, Walk
from lenetgpu.network import CLASSES, IMAGE_SHAPE, STAGES

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FORM = "ONNX"
OPSET = 17
_IR = 8
"""The version of the form that came with the opset."""
FIRST_OPSET = 7
"""Before it, operators broadcast otherwise."""
IMAGES, SCORES, BATCH = "images", "scores", "batch"
_SAYS = "A LeNet of 28x28 digits: images (batch, 1, 28, 28) of floats in 0..1, ten scores each."


def require_onnx(path: Path) -> None:
    """LenetError unless the package onnx is installed; it is not imported."""
    if importlib.util.find_spec("onnx") is None:
        raise LenetError(
            f"{path}: expected the package onnx for an ONNX model, found it not installed; "
            "pip install 'lenetgpu[models]'"
        )


def read(path: Path, data: bytes) -> Model:
    """The weights of a model's bytes; LenetError where it is damaged or another network."""
    model = _parsed(path, data)
    opsets = {one.domain: one.version for one in model.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    last = _last_opset()
    if not FIRST_OPSET <= opset <= last:
        raise LenetError(f"{path}: expected ONNX's opset {FIRST_OPSET} to {last}, found {opset:,}")
    if model.functions:
        raise LenetError(
            f"{path}: expected a graph of ONNX's own operators, "
            f"found a function {model.functions[0].name}"
        )
    constants = Constants(path, model.graph)
    try:
        tensors = Walk(path, Graph(path, model.graph, constants)).weights()
    except (ValueError, TypeError) as error:  # attributes of a type that they do not have
        raise damaged(path, FORM, error) from error
    entries: dict[str, str] = {}
    for entry in model.metadata_props:
        if entry.key in entries:
            raise damaged(path, FORM, f"metadata {entry.key} that is there twice")
        entries[entry.key] = entry.value
    sums = metadata.compared(path, constants.initializers(entries), entries)
    return Model(tensors, sums, *metadata.facts_of(entries))


def _parsed(path: Path, data: bytes) -> Any:
    require_onnx(path)
    import onnx

    require_bounded(path, data)
    try:
        model = onnx.ModelProto.FromString(data)
        names = list(_names(model))
    except Exception as error:  # protobuf's, which is no ValueError
        raise damaged(path, FORM, error) from error
    if not all(isinstance(name, str) for name in names):
        raise damaged(path, FORM, "text that is not UTF-8")
    return model


def _last_opset() -> int:
    """The latest that the package knows: a later one may change what an operator does."""
    from onnx import defs

    return int(defs.onnx_opset_version())


def _names(model: Any) -> Iterator[object]:
    """All text of a model that is looked at; bytes where it is none."""
    graph = model.graph
    for entry in (*model.metadata_props, *model.opset_import):
        yield from (entry.key, entry.value) if hasattr(entry, "key") else (entry.domain,)
    for named in (*graph.initializer, *graph.input, *graph.output, *model.functions):
        yield named.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.t.name)


def written(path: Path, tensors: Mapping[str, Array], facts: Mapping[str, object]) -> bytes:
    """A model of float32 tensors, with checksums; the same bytes every time."""
    require_onnx(path)
    from onnx import TensorProto, helper, numpy_helper

    stored = layouts.to_torch(tensors)
    height, width, channels = IMAGE_SHAPE
    shapes: dict[str, list[str | int | None]] = {
        IMAGES: [BATCH, channels, height, width],
        SCORES: [BATCH, CLASSES],
    }
    images, scores = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    )
    graph = helper.make_graph(
        _nodes(), "lenet", [images], [scores],
        [numpy_helper.from_array(tensor.astype("<f4"), name) for name, tensor in stored.items()],
    )  # fmt: skip
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=_IR,
        producer_name="lenetgpu", producer_version=__version__, doc_string=_SAYS,
    )  # fmt: skip
    helper.set_model_props(model, metadata.stated(stored, facts))
    return bytes(model.SerializeToString(deterministic=True))


def _nodes() -> list[Any]:
    """A node a stage but argmax, ReLU and flatten beside them."""
    from onnx import helper

    made, at = [], IMAGES

    def add(kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        nonlocal at
        out = SCORES if name == "fc2" else f"{name}.out"
        made.append(helper.make_node(kind, [at, *inputs], [out], name, **attributes))
        at = out

    for stage in STAGES:
        weight = (stage.name + layouts.SUFFIX,) if stage.weight else ()
        if stage.kind == "conv":
            add("Conv", stage.name, *weight, kernel_shape=[5, 5])
            add("Relu", f"{stage.name}.relu")
        elif stage.kind == "pool":
            add("AveragePool", stage.name, kernel_shape=[2, 2], strides=[2, 2])
        elif stage.kind == "fc":
            if stage.name == "fc1":
                add("Flatten", "flatten")
            add("Gemm", stage.name, *weight, transB=1)
            if stage.name == "fc1":
                add("Relu", "fc1.relu")
    return made
