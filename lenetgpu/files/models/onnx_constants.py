"""What is known of an ONNX graph without running it: its constants, and shapes made of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.models.layouts import by
from lenetgpu.files.models.loaded import damaged, from_bfloat16

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FLOAT, UINT8, INT32, INT64, FLOAT16, DOUBLE, BFLOAT16 = 1, 2, 6, 7, 10, 11, 16
"""ONNX's numbers of the types that are read."""
_TYPES = {FLOAT: "f4", DOUBLE: "f8", FLOAT16: "f2", INT32: "i4", INT64: "i8"}
_MOST_ITEMS = 1 << 18
_EXTERNAL = 1
_DEEPEST = 16
"""Nodes between a constant and what it is used for."""
_OF_SHAPES = ("Shape", "Gather", "Concat", "Unsqueeze", "Squeeze", "Identity", "Cast")
_MOST_DIMS = 8
Dim = int | None
"""Of a shape: None is the number of images, where the graph leaves it open."""


def attributes(node: Any) -> dict[str, Any]:
    """A node's attributes by name: numbers, lists of numbers, text, or ONNX's own messages."""
    from onnx import helper

    found = {}
    for one in node.attribute:
        value = helper.get_attribute_value(one)
        found[one.name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        if isinstance(found[one.name], (list, tuple)) or hasattr(value, "append"):
            found[one.name] = list(value)
    return found


def said(node: Any) -> str:
    """A node as sentences name it: "node /0/Conv (Conv)"."""
    name = node.name or (node.output[0] if node.output else "without a name")
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"node {name} ({kind})"


def _by(shape: tuple[int, ...]) -> str:
    """A shape in a sentence, "32x1x5x5" or its number of dimensions."""
    return f"{len(shape)} dimensions" if len(shape) > _MOST_DIMS else f"shape {by(shape)}"


class Constants:
    """Initializers and nodes of a graph that give the same whatever the images are.

    `used` holds the places of the nodes that were asked for.
    """

    def __init__(self, path: Path, graph: Any) -> None:
        self.path = path
        self.used: set[int] = set()
        self.shapes: dict[str, list[Dim]] = {}
        """Of values on the way from the images to the scores, by name."""
        self._numbers: dict[str, list[Dim] | None] = {}
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        self.made_by: dict[str, tuple[int, Any]] = {}
        for place, node in enumerate(graph.node):
            for name in node.output:
                if name in self.made_by or name in self._tensors:
                    raise damaged(path, "ONNX", f"a value {name} that is made twice")
                if name:
                    self.made_by[name] = place, node
        if len(self._tensors) != len(graph.initializer):
            raise damaged(path, "ONNX", "two initializers of one name")
        if graph.sparse_initializer:
            raise LenetError(f"{path}: expected plain initializers, found a sparse one")

    def names(self) -> set[str]:
        """Those of the initializers."""
        return set(self._tensors)

    def initializers(self, entries: Mapping[str, str]) -> dict[str, Array]:
        """All initializers where the metadata `entries` have checksums, else none of them."""
        if not any(name.startswith("lenetgpu.") for name in entries):
            return {}
        return {name: self._read(tensor) for name, tensor in self._tensors.items()}

    def tensor(self, name: str, depth: int = 0) -> Array | None:
        """A constant of numbers; None where it is none, or made of what is not listed here."""
        if name in self._tensors:
            return self._read(self._tensors[name])
        place, node = self.made_by.get(name, (0, None))
        if node is None or node.domain or depth > _DEEPEST:
            return None
        given = attributes(node)
        found: Array | None
        if node.op_type == "Constant":
            found = self._constant(node, given)
        elif node.op_type not in ("Identity", "Transpose", "Cast") or len(node.input) != 1:
            return None
        else:
            found = self.tensor(node.input[0], depth + 1)
        if found is None:
            return None
        if node.op_type == "Transpose":
            axes = given.get("perm", list(range(found.ndim))[::-1])
            if sorted(axes) != list(range(found.ndim)):
                return None
            found = found.transpose(axes)
        if node.op_type == "Cast":
            if given.get("to") not in _TYPES:
                return None
            found = found.astype(_TYPES[given["to"]])
        self.used.add(place)
        return found

    def _constant(self, node: Any, given: dict[str, Any]) -> Array | None:
        import numpy as np

        if list(given) == ["value"] and hasattr(given["value"], "data_type"):
            return self._read(given["value"])
        if list(given) in (["value_int"], ["value_ints"]):
            return np.array(next(iter(given.values())), np.int64)
        if list(given) in (["value_float"], ["value_floats"]):
            return np.array(next(iter(given.values())), np.float32)
        return None

    def _read(self, tensor: Any) -> Array:
        """The numbers of one of ONNX's tensors; LenetError where they are not in this file."""
        import numpy as np
        from onnx import numpy_helper

        what, shape = f"{self.path}: expected tensor {tensor.name}", tuple(tensor.dims)
        if tensor.data_location == _EXTERNAL or tensor.external_data:
            raise LenetError(f"{what} in this file, found it in another, which is not opened")
        if tensor.data_type not in (*_TYPES, BFLOAT16):
            raise LenetError(f"{what} of floats or integers, found ONNX's type {tensor.data_type}")
        if any(size < 0 for size in shape) or prod(shape) > _MOST_ITEMS:
            raise LenetError(f"{what} of at most {_MOST_ITEMS:,} numbers, found {_by(shape)}")
        try:
            if tensor.data_type != BFLOAT16:
                return np.asarray(numpy_helper.to_array(tensor))
            if tensor.raw_data:
                halves = np.frombuffer(tensor.raw_data, "<u2")
            else:
                halves = np.array(tensor.int32_data, np.int64).astype(np.uint16)
            return from_bfloat16(halves).reshape(shape)
        except (ValueError, TypeError, OverflowError) as error:
            raise damaged(self.path, "ONNX", f"tensor {tensor.name}: {error}") from error

    def numbers(self, name: str, depth: int = 0) -> list[Dim] | None:
        """A shape, or a part of one, that the graph works out; None where it is something else."""
        if name not in self._numbers:
            self._numbers[name] = None  # of what is made of itself
            self._numbers[name] = self._worked_out(name, depth) if depth <= _DEEPEST else None
        return self._numbers[name]

    def _worked_out(self, name: str, depth: int) -> list[Dim] | None:
        place, node = self.made_by.get(name, (0, None))
        kind = "" if node is None or node.domain else node.op_type
        if node is None or kind not in _OF_SHAPES or not node.input:
            found = self.tensor(name, depth)
            if found is None or found.dtype.kind != "i" or found.size > _MOST_DIMS:
                return None
            return [int(number) for number in found.reshape(-1)]
        given = attributes(node)
        if kind == "Shape":
            parts = [self.shapes.get(node.input[0])]
        else:
            parts = [self.numbers(one, depth + 1) for one in node.input[:_MOST_DIMS]]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts) or sum(map(len, known)) > _MOST_DIMS:
            return None
        self.used.add(place)
        if kind == "Shape":
            return known[0][given.get("start", 0) : given.get("end")]
        if kind == "Gather":
            return _gathered(known) if given.get("axis", 0) == 0 else None
        return [number for part in known for number in part] if kind == "Concat" else known[0]


def _gathered(parts: list[list[Dim]]) -> list[Dim] | None:
    """The first list's items at the places that the second names."""
    if len(parts) != 2:
        return None
    values, places = parts
    if not all(at is not None and -len(values) <= at < len(values) for at in places):
        return None
    return [values[at] for at in places if at is not None]
