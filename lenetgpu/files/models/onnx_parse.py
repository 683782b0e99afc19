"""Parsing of untrusted ONNX models: bounded and pruned before protobuf, with inferred shapes.

An empty message takes two bytes of a file and some hundred bytes of memory, and a file may be
larger than memory. Fields that are not needed are skipped unread, and the rest is counted against
limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from lenetgpu.errors import unexpected
from lenetgpu.files.models.forms import damaged

FLOAT, UINT8, INT32, INT64, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 6, 7, 10, 11, 16
_INTS = 7  # type of an attribute
OWN = ("", "ai.onnx")  # names of the domain of ONNX's own operators
# Depth of nested graphs; numbers in a list of integers, and in all lists, each of which shape
# inference may take for a dimension; operators that pass lists on; those with filters or windows.
_DEEPEST, _LONGEST, _LISTED = 12, 1 << 17, 1 << 21
_PASSING = ("Add", "Cast", "Concat", "Gather", "Mul", "Slice", "Squeeze", "Sub", "Unsqueeze")
_WINDOWED = ("AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool", "QLinearConv")
_VARINT, _LONG, _BYTES, _SHORT = 0, 1, 2, 5
_SIZES = {_LONG: 8, _SHORT: 4}
_MODEL, _GRAPH, _NODE, _TENSOR, _ATTRIBUTE = "model", "graph", "node", "tensor", "attribute"
_VALUE, _FUNCTION, _PLAIN, _OPEN = "value", "function", "", "open"
# Fields that are parsed, by message, and the messages in them; `open` ones are copied unparsed.
_PARSED: dict[str, dict[int, str]] = {
    _MODEL: {7: _GRAPH, 8: _OPEN, 14: _OPEN, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 11: _VALUE, 12: _VALUE, 15: _OPEN},
    _NODE: {1: _PLAIN, 2: _PLAIN, 3: _PLAIN, 4: _PLAIN, 5: _ATTRIBUTE, 7: _PLAIN},
    _ATTRIBUTE: {
        **dict.fromkeys((1, 2, 3, 4, 7, 8, 20), _PLAIN),
        **dict.fromkeys((5, 10), _TENSOR),
        **dict.fromkeys((6, 11), _GRAPH),
    },
    _TENSOR: {**dict.fromkeys((1, 2, 4, 5, 7, 8, 9, 10, 14), _PLAIN), 13: _OPEN},
    _VALUE: {1: _PLAIN, 2: _OPEN},
    _FUNCTION: {1: _PLAIN, 7: _NODE, 10: _PLAIN},
}
_NUMBERS = (4, 5, 7, 9, 10)  # fields of a tensor's numbers


@dataclass(frozen=True)
class Limits:
    """Fields of a model, and bytes of each tensor, of everything else and of unparsed messages."""

    fields: int
    tensor: int
    copied: int
    unparsed: int = 1 << 19


WEIGHTS = Limits(fields=20_000, tensor=8 << 20, copied=9 << 20)
# limits for models of any size: shapes are read, weights are not
STRUCTURE = Limits(fields=400_000, tensor=1 << 12, copied=16 << 20)


def parsed(path: Path, file: BinaryIO, size: int, limits: Limits) -> Any:
    """Return the ModelProto of a file without large tensors; raise LenetError beyond `limits`."""
    import onnx

    data = _Pruned(path, file, limits).message(_MODEL, size, 0)
    try:
        return onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's own type, not a ValueError
        raise damaged(path, "ONNX", error) from error


class _Pruned:
    """The needed fields of a file, read once from its beginning."""

    def __init__(self, path: Path, file: BinaryIO, limits: Limits) -> None:
        self._path, self._file, self._limits = path, file, limits
        self._left = {"fields": limits.fields, "copied": limits.copied, "unparsed": limits.unparsed}

    def message(self, kind: str, end: int, depth: int) -> bytes:
        """Return the pruned message between the file's position and `end`."""
        if depth > _DEEPEST:
            raise damaged(self._path, "ONNX", "graphs within graphs without end")
        pruned = bytearray()
        while (start := self._file.tell()) < end:
            self._count("fields", 1)
            key = self._varint(end)
            number, wire = key >> 3, key & 7
            if wire not in (_VARINT, _BYTES, *_SIZES):
                raise damaged(self._path, "ONNX", f"a field of kind {wire} at byte {start:,}")
            first = self._varint(end) if wire in (_VARINT, _BYTES) else 0
            length = first if wire == _BYTES else _SIZES.get(wire, 0)
            body = self._file.tell()
            if body + length > end:
                where = f"at byte {body + length:,} of {end:,}"
                raise damaged(self._path, "ONNX", f"a {kind} that ends {where}")
            within = _PARSED[kind].get(number)
            large = kind == _TENSOR and number in _NUMBERS and length > self._limits.tensor
            if within is None or large:
                self._file.seek(body + length)
            elif wire == _BYTES and within not in (_PLAIN, _OPEN):
                inner = self.message(within, body + length, depth + 1)
                pruned += _encoded(key) + _encoded(len(inner)) + inner
            else:
                self._count("unparsed" if within == _OPEN else "copied", body + length - start)
                self._file.seek(start)
                pruned += self._file.read(body + length - start)
        return bytes(pruned)

    def _varint(self, end: int) -> int:
        number = shift = 0
        while shift < 70 and self._file.tell() < end and (byte := self._file.read(1)):
            number |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                return number
        raise damaged(self._path, "ONNX", f"a number without an end at byte {self._file.tell():,}")

    def _count(self, what: str, more: int) -> None:
        self._left[what] -= more
        if self._left[what] < 0:
            sizes = f"{self._limits.copied:,} bytes and {self._limits.unparsed:,} of types"
            expected = f"a model of at most {self._limits.fields:,} fields, {sizes}"
            raise unexpected(self._path, expected, "more")


def _encoded(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*data, number))


def attributes(node: Any) -> dict[str, Any]:
    """Return a node's attributes by name: numbers, lists, text, or ONNX's own messages."""
    from onnx import helper

    values = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        values[attribute.name] = list(value) if hasattr(value, "append") else value
    return values


def node_text(node: Any) -> str:
    """Return a node's name in messages: "node /0/Conv (Conv)"."""
    name = node.name or (node.output[0] if node.output else "without a name")
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"node {name} ({kind})"


def producers(path: Path, graph: Any) -> dict[str, Any]:
    """Return the node that produces each value; raise LenetError if two produce one."""
    nodes: dict[str, Any] = {}
    given = {tensor.name for tensor in graph.initializer}
    if len(given) != len(graph.initializer):
        raise damaged(path, "ONNX", "two initializers of one name")
    for node in graph.node:
        for name in filter(None, node.output):
            if name in nodes or name in given:
                raise damaged(path, "ONNX", f"a value {name} that is made twice")
            nodes[name] = node
    return nodes


def inferred(path: Path, model: Any, batch: int) -> dict[str, tuple[int, list[int | None]]]:
    """Return the element type and dimensions of each value, as ONNX infers them.

    An input's open first dimension becomes `batch`; other open dimensions are None, also those
    from branches and functions. Raises LenetError for lists too long for ONNX's inference.
    """
    import onnx
    from onnx import shape_inference

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.ir_version = max(copy.ir_version, 4)  # initializers need not be inputs
    for value in copy.graph.input:
        dims = value.type.tensor_type.shape.dim
        if dims and dims[0].dim_value < 1:
            dims[0].dim_value = batch
    for value in copy.graph.output:
        value.ClearField("type")
    copy.ClearField("functions")
    tensors = list(copy.graph.initializer)
    for node in copy.graph.node:
        for attribute in node.attribute:
            attribute.ClearField("g")
            attribute.ClearField("graphs")
            tensors.append(attribute.t)
        if node.op_type in _WINDOWED:
            _simplify(node)
    for tensor in (t for t in tensors if len(t.dims) == 1 and t.data_type in (INT32, INT64)):
        width = 4 if tensor.data_type == INT32 else 8
        count = len(tensor.raw_data) // width or len(tensor.int32_data) + len(tensor.int64_data)
        if not 0 <= tensor.dims[0] <= _LONGEST or count not in (0, tensor.dims[0]):
            raise damaged(path, "ONNX", f"{count:,} numbers in a list of {tensor.dims[0]:,}")
    known = {opset.domain for opset in copy.opset_import}
    for domain in {node.domain for node in copy.graph.node} - known - set(OWN):
        copy.opset_import.add(domain=domain, version=1)
    _require_short_lists(path, copy.graph, _types(shape_inference.infer_shapes(copy).graph))
    return _types(shape_inference.infer_shapes(copy, data_prop=True).graph)


def _types(graph: Any) -> dict[str, tuple[int, list[int | None]]]:
    """Return the element type and dimensions of a graph's values, where they are known."""
    values = {tensor.name: (tensor.data_type, list(tensor.dims)) for tensor in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        kind = value.type.tensor_type
        if kind.HasField("shape"):
            dims = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
            values.setdefault(value.name, (kind.elem_type, dims))
    return values


def _require_short_lists(path: Path, graph: Any, values: Mapping[str, tuple[int, Any]]) -> None:
    sizes = {name: prod(n or 0 for n in dims) for name, (_, dims) in values.items()}
    lists = {name: sizes[name] for name, (_, dims) in values.items() if len(dims) < 2}
    for node in graph.node:
        if node.op_type in _PASSING and all(n in lists or n not in sizes for n in node.input):
            lists.update((name, sizes.get(name, 0)) for name in node.output)
    if sum(lists.values()) > _LISTED:
        raise damaged(path, "ONNX", f"lists of more than {_LISTED:,} numbers")


def _simplify(node: Any) -> None:
    """Replace padding SAME, for which older ONNX loops, by 1x1 filters with as many outputs.

    Strides below 1, by which it divides, make the operator unknown.
    """
    given = {attribute.name: attribute for attribute in node.attribute}
    if "strides" in given and min(given["strides"].ints, default=1) < 1:
        node.domain = "unknown"
    if "pads" not in given and {"auto_pad", "strides"} <= given.keys():
        dropped, ones = ["auto_pad"], [1] * len(given["strides"].ints)
        if given["auto_pad"].s.startswith(b"SAME"):
            dropped += ["ceil_mode", "dilations", "kernel_shape"]
        kept = [a for name, a in given.items() if name not in dropped]
        del node.attribute[:]
        node.attribute.extend(kept)
        if "kernel_shape" in dropped:
            node.attribute.add(name="kernel_shape", type=_INTS, ints=ones)
