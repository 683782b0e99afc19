"""ONNX models: extraction of this network's weights from a graph, and export of a runnable model.

A graph is walked from its scores back to its images. Accepted graphs are those of PyTorch's two
exporters and our own: Conv, Relu, AveragePool twice, Flatten or Reshape, MatMul or Gemm, Relu,
MatMul or Gemm. Before them, images may be divided by 255 and transposed from NHWC to NCHW; after
them, the scores may become labels or probabilities.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lenetgpu import __version__
from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError, require_extra, unexpected
from lenetgpu.files.models import forms, layouts
from lenetgpu.files.models import onnx_parse as parse
from lenetgpu.files.models.forms import ONNX, Model, damaged
from lenetgpu.files.models.layouts import by
from lenetgpu.files.models.onnx_parse import FLOAT, OWN, attributes, node_text
from lenetgpu.network import FEATURE_COUNT, IMAGE_SHAPE, PIXEL_SCALE, weight_shapes

FIRST_OPSET = 7  # older operator sets have other broadcasting rules
_SAYS = "A LeNet of 28x28 digits: images (batch, 1, 28, 28) of floats in 0..1, ten scores each."
_WRITTEN = """<ir_version: 8, opset_import: ["" : 17]>
lenet (float[batch, 1, 28, 28] images) => (float[batch, 10] scores) {
    sums1 = Conv <kernel_shape = [5, 5]> (images, conv1)
    maps1 = Relu (sums1)
    pool1 = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (maps1)
    sums2 = Conv <kernel_shape = [5, 5]> (pool1, conv2)
    maps2 = Relu (sums2)
    pool2 = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (maps2)
    features = Flatten (pool2)
    sums3 = Gemm <transB = 1> (features, fc1)
    hidden = Relu (sums3)
    scores = Gemm <transB = 1> (hidden, fc2)
}"""
_EXTERNAL = 1
_DEEPEST = 16  # nodes between a constant and its use, at most
_OPEN_BATCH = 7919  # stand-in for an open batch size: no shape has this number by accident
_HEIGHT, _WIDTH, _ = IMAGE_SHAPE
_SHOWN = 80  # characters of an attribute shown in messages
_FLOATS = (FLOAT, parse.FLOAT16, parse.DOUBLE, parse.BFLOAT16)
_CASTS = {FLOAT: "f4", parse.DOUBLE: "f8", parse.FLOAT16: "f2"}
_CASTS |= {parse.INT32: "i4", parse.INT64: "i8"}
_PLAIN = {"dilations": ([1, 1],), "pads": ([0, 0, 0, 0],), "auto_pad": ("NOTSET", "VALID")}
_POOL = {"kernel_shape": ([2, 2],), "strides": ([2, 2],)}
# Allowed values of attributes; operators that are not listed have none.
_ALLOWED: dict[str, dict[str, tuple[Any, ...]]] = {
    "Conv": _PLAIN | {"kernel_shape": ([5, 5],), "strides": ([1, 1],), "group": (1,)},
    "AveragePool": _PLAIN | _POOL | dict.fromkeys(("ceil_mode", "count_include_pad"), (0, 1)),
    "Gemm": {"alpha": (1.0,), "beta": (1.0,), "transA": (0,), "transB": (0, 1)},
    "Flatten": {"axis": (1, -3)},
    "Reshape": {"allowzero": (0, 1)},
    "Transpose": {"perm": ([0, 3, 1, 2],)},
    "Softmax": {"axis": (1, -1)},
    "LogSoftmax": {"axis": (1, -1)},
    "ArgMax": {"axis": (1, -1), "keepdims": (0, 1), "select_last_index": (0,)},
}
# required attributes: their defaults do not match this network
_NEEDED = {"AveragePool": tuple(_POOL), "ArgMax": ("axis",)}
_INPUTS = {"Conv": 3, "Gemm": 3, "MatMul": 2, "Reshape": 2, "Add": 2, "Div": 2, "Mul": 2}


def read(path: Path, data: bytes) -> Model:
    """Return the weights of a model's bytes; raise LenetError if damaged or another network."""
    require_extra(str(path), "onnx", "models")
    from onnx import defs

    model = parse.parsed(path, io.BytesIO(data), len(data), parse.WEIGHTS)
    try:
        opsets = {opset_id.domain: opset_id.version for opset_id in model.opset_import}
        opset, last = opsets.get("", opsets.get("ai.onnx", 0)), defs.onnx_opset_version()
        if not FIRST_OPSET <= opset <= last:
            raise unexpected(path, f"ONNX's opset {FIRST_OPSET} to {last}", f"{opset:,}")
        if model.functions or model.graph.sparse_initializer:
            expected = "ONNX's own operators and plain initializers"
            raise unexpected(path, expected, "functions or sparse ones")
        walk = _Walk(path, model)
        tensors = walk.weights()
        entries = {entry.key: entry.value for entry in model.metadata_props}
        if len(entries) < len(model.metadata_props):
            raise damaged(path, ONNX, "metadata of one name twice")
        summed = any(name.startswith("lenetgpu.") for name in entries)
        stored = {n: walk.read(tensor) for n, tensor in walk.tensors.items()} if summed else {}
        return Model(tensors, forms.compared(path, stored, entries), *forms.facts_of(entries))
    except LenetError:
        raise
    except Exception as error:  # fields of other types, and ONNX's own exceptions
        raise damaged(path, ONNX, error) from error


class _Walk:
    """The walk back from the scores: `_at` is the value that was reached."""

    def __init__(self, path: Path, model: Any) -> None:
        self._path, graph = path, model.graph
        self._producers = parse.producers(path, graph)
        self.tensors = {tensor.name: tensor for tensor in graph.initializer}
        inputs = [value for value in graph.input if value.name not in self.tensors]
        if len(inputs) != 1 or len(graph.output) != 1:
            names, results = (", ".join(v.name for v in side) for side in (inputs, graph.output))
            found = f"{names or 'no input'} and {results or 'no output'}"
            raise unexpected(path, "a graph of one input and one output", found)
        self._images, self._at = inputs[0].name, graph.output[0].name
        kind = inputs[0].type.tensor_type.elem_type
        if kind not in (*_FLOATS, parse.UINT8):
            raise unexpected(path, "images of floats or bytes", f"ONNX's type {kind}")
        self._steps = len(graph.node)
        self._shapes = parse.inferred(path, model, _OPEN_BATCH)

    def weights(self) -> dict[str, Array]:
        """Return the tensors by our names, in our layouts; raise LenetError for another network."""
        self._labels()
        tensors = {"fc2": self._linear("fc2")}
        self._back_through("Relu")
        tensors["fc1"] = self._linear("fc1")
        self._producer("Flatten or Reshape")
        flat = self._at
        self._back_through("Flatten", "Reshape")
        for name in ("conv2", "conv1"):
            self._back_through("AveragePool")
            self._back_through("Relu")
            tensors[name] = self._conv(name)
        images = self._at
        self._preparation()
        self._require_shape(images, [1, _HEIGHT, _WIDTH])
        self._require_shape(flat, [FEATURE_COUNT])
        return layouts.from_torch({name: tensors[name] for name in weight_shapes()})

    def _refuse(self, node: Any, expected: str, found: str) -> LenetError:
        return unexpected(f"{self._path}: {node_text(node)}", expected, found + layouts.ANOTHER)

    def _skip_casts(self) -> Any | None:
        """Go back through identities and float casts; return the node before them, or None."""
        while (node := self._producers.get(self._at)) is not None:
            cast = node.op_type == "Cast" and attributes(node).get("to") in _FLOATS
            if node.domain not in OWN or not (node.op_type == "Identity" or cast):
                return node
            self._back_over(node)
        return None

    def _back_over(self, node: Any) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise damaged(self._path, ONNX, "a circle of nodes")
        self._at = node.input[0]

    def _producer(self, expected: str) -> Any:
        node = self._skip_casts()
        if node is None:
            raise unexpected(self._path, f"{expected} to make {self._at}", "no node")
        return node

    def _back_through(self, *kinds: str) -> tuple[Any, dict[str, Any]]:
        """Go back through a node of one of these kinds; return it and its attributes."""
        wanted = " or ".join(kinds)
        node = self._producer(wanted)
        if node.domain not in OWN or node.op_type not in kinds:
            raise self._refuse(node, wanted, node.op_type)
        given, allowed = attributes(node), _ALLOWED.get(node.op_type, {})
        for name, value in given.items():
            if value not in allowed.get(name, ()):
                values = " or ".join(map(str, allowed.get(name, ("no such attribute",))))
                raise self._refuse(node, f"{name} to be {values}", str(value)[:_SHOWN])
        for name in _NEEDED.get(node.op_type, ()):
            if name not in given:
                raise self._refuse(node, f"an attribute {name}", "none")
        most = _INPUTS.get(node.op_type, 1)
        if not 1 <= len(node.input) <= most or node.output[0] != self._at:
            raise self._refuse(node, f"1 to {most} inputs and one output", ", ".join(node.input))
        self._at = node.input[0]
        return node, given

    def _labels(self) -> None:
        """Go back through nodes after the scores: probabilities, then labels of any type."""
        ends = ["Softmax", "LogSoftmax", "ArgMax"]
        wanted = f"MatMul, Gemm, {', '.join(ends)}"
        casts = []
        while (node := self._producer(wanted)).op_type in (*ends, "Cast") and node.domain in OWN:
            if node.op_type == "Cast":
                casts.append(node)
                self._back_over(node)
                continue
            self._back_through(node.op_type)
            ends, casts = (ends[:2], []) if node.op_type == "ArgMax" else ([], casts)
        if casts:
            raise self._refuse(casts[0], "scores of floats", "a cast to another type")

    def _require_shape(self, name: str, shape: list[int]) -> None:
        found = self._shapes.get(name, (0, []))[1]
        if found != [*self._shapes.get(self._images, (0, []))[1][:1], *shape]:
            shown, wanted = (
                ", ".join("N" if n == _OPEN_BATCH else str(n or "?") for n in dims)
                for dims in (found, [_OPEN_BATCH, *shape])
            )
            raise unexpected(f"{self._path}: {name}", f"the shape ({wanted})", f"({shown})")

    def _constant(self, name: str, depth: int = 0) -> Array | None:
        """Return a constant of numbers; None if it is computed from anything else."""
        if name in self.tensors:
            return self.read(self.tensors[name])
        node = self._producers.get(name)
        if node is None or node.domain not in OWN or depth > _DEEPEST:
            return None
        given = attributes(node)
        if node.op_type == "Constant" and len(given) == 1:
            (value,) = given.values()
            return self.read(value) if hasattr(value, "data_type") else np.array(value, "f4")
        if node.op_type not in ("Identity", "Transpose", "Cast") or len(node.input) != 1:
            return None
        array = self._constant(node.input[0], depth + 1)
        if array is None or node.op_type == "Identity":
            return array
        if node.op_type == "Cast":
            return array.astype(_CASTS[given["to"]])
        return array.transpose(given.get("perm"))

    def read(self, tensor: Any) -> Array:
        from onnx import numpy_helper

        what = f"{self._path}: expected tensor {tensor.name}"
        if tensor.data_location == _EXTERNAL or tensor.external_data:
            raise LenetError(f"{what} in this file, found it in another, which is not opened")
        if tensor.data_type not in (*_CASTS, parse.BFLOAT16):
            raise LenetError(f"{what} of floats or integers, found ONNX's type {tensor.data_type}")
        if min(tensor.dims, default=0) < 0:
            raise damaged(self._path, ONNX, f"tensor {tensor.name} of a negative size")
        try:
            array = np.asarray(numpy_helper.to_array(tensor))
        except Exception as error:
            raise damaged(self._path, ONNX, f"tensor {tensor.name}: {error}") from error
        return array.astype(np.float32) if tensor.data_type == parse.BFLOAT16 else array

    def _weights_of(self, node: Any, shape: tuple[int, ...]) -> Array:
        name = node.input[1] if len(node.input) > 1 else "none"
        weights = self._constant(name)
        if weights is None or weights.dtype.kind != "f":
            raise self._refuse(node, "weights that are constants", name)
        if weights.shape != shape:
            raise self._refuse(node, f"weights of shape {by(shape)}", by(weights.shape))
        return weights

    def _require_no_bias(self, node: Any, name: str, size: int) -> None:
        if not name:
            return
        bias = self._constant(name)
        if bias is None or bias.shape not in ((size,), (1, size), (1, size, 1, 1)):
            raise self._refuse(node, f"no bias, or {size} constants", name)
        layouts.require_no_bias(self._path, f"{node_text(node)}'s {name}", bias)

    def _product(self, size: int, *kinds: str) -> tuple[Any, dict[str, Any]]:
        """Go back as `_back_through` does, also through biases of `size` zeros."""
        node = self._producer("Add")
        if node.op_type == "Add" and node.domain in OWN and len(node.input) == 2:
            data, bias = node.input
            if self._constant(bias) is None:
                data, bias = bias, data
            self._require_no_bias(node, bias, size)
            self._at = data
        node, given = self._back_through(*kinds)
        for bias in node.input[2:]:
            self._require_no_bias(node, bias, size)
        return node, given

    def _conv(self, name: str) -> Array:
        shape = layouts.torch_shapes()[name]
        node, _ = self._product(shape[0], "Conv")
        return self._weights_of(node, shape)

    def _linear(self, name: str) -> Array:
        size, depth = layouts.torch_shapes()[name]
        node, given = self._product(size, "MatMul", "Gemm")
        turned = given.get("transB", 0) == 1
        weights = self._weights_of(node, (size, depth) if turned else (depth, size))
        return weights if turned else weights.T

    def _preparation(self) -> None:
        """Go back through preparation of the images: a scale, NHWC to NCHW."""
        scales, kinds = ("Div", "Mul"), ["Div", "Mul", "Transpose"]
        while (node := self._skip_casts()) is not None:
            if node.op_type not in kinds or node.domain not in OWN:
                raise self._refuse(node, f"{', '.join(kinds) or 'nothing'} on images", node.op_type)
            if node.op_type in scales:
                self._scale(node)
                kinds = [kind for kind in kinds if kind not in scales]
            else:
                self._back_through(node.op_type)
                kinds.remove(node.op_type)
        if self._at != self._images:
            raise LenetError(f"{self._path}: expected the input {self._images}, found {self._at}")

    def _scale(self, node: Any) -> None:
        """Raise LenetError unless a node divides pixels by 255, or multiplies by its inverse."""
        divided = node.op_type == "Div"
        factor = PIXEL_SCALE if divided else 1 / PIXEL_SCALE
        inputs = list(node.input)
        if not divided and inputs and self._constant(inputs[0]) is not None:
            inputs.reverse()
        constant = self._constant(inputs[1]) if len(inputs) == 2 else None
        if constant is None or constant.size != 1 or constant.ndim > 4:
            raise self._refuse(node, f"pixels by the constant {factor:g}", ", ".join(node.input))
        if not abs(float(constant.item()) / factor - 1) < 1e-3:
            raise self._refuse(node, f"the factor {factor:g}", f"{float(constant.item()):g}")
        self._at = inputs[0]


def written(path: Path, tensors: Mapping[str, Array], facts: Mapping[str, object]) -> bytes:
    """Return a model of float32 tensors, with checksums; equal tensors give equal bytes."""
    from onnx import helper, numpy_helper, parser

    stored = layouts.to_torch(tensors)
    model = parser.parse_model(_WRITTEN)
    for node in model.graph.node:
        node.name = node.output[0]
        node.input[:] = [name + layouts.SUFFIX if name in tensors else name for name in node.input]
    for name, tensor in stored.items():
        model.graph.initializer.append(numpy_helper.from_array(tensor.astype("<f4"), name))
    model.producer_name, model.producer_version = "lenetgpu", __version__
    model.doc_string = _SAYS
    helper.set_model_props(model, forms.stated(stored, facts))
    return bytes(model.SerializeToString(deterministic=True))
