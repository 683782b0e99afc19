"""An ONNX graph walked from its images to its scores: this network and nothing else.

What is accepted is what PyTorch's two exporters and our own make of it: Conv, Relu, AveragePool
twice, Flatten or Reshape, MatMul or Gemm, Relu, MatMul or Gemm. Before it, images may be divided by
255 and brought from NHWC to NCHW; behind it, labels or probabilities may be made of the scores.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.models import layouts
from lenetgpu.files.models.onnx_constants import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    UINT8,
    Constants,
    Dim,
    attributes,
    said,
)
from lenetgpu.network import CLASSES, FEATURE_COUNT, IMAGE_SHAPE, PIXEL_SCALE, stage

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

_FLOATS = (FLOAT, FLOAT16, DOUBLE, BFLOAT16)
_HEIGHT, _WIDTH, _ = IMAGE_SHAPE
_SHOWN = 80
"""Characters of an attribute."""
_PLAIN = {"dilations": ([1, 1],), "pads": ([0, 0, 0, 0],), "auto_pad": ("NOTSET", "VALID")}
CONV = _PLAIN | {"kernel_shape": ([5, 5],), "strides": ([1, 1],), "group": (1,)}
POOL = _PLAIN | {
    "kernel_shape": ([2, 2],), "strides": ([2, 2],), "ceil_mode": (0, 1),
    "count_include_pad": (0, 1),
}  # fmt: skip
GEMM = {"alpha": (1.0,), "beta": (1.0,), "transA": (0,), "transB": (0, 1)}
ENDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "Softmax": {"axis": (1, -1)},
    "LogSoftmax": {"axis": (1, -1)},
    "ArgMax": {"axis": (1, -1), "keepdims": (0, 1), "select_last_index": (0,)},
}
_NEEDED = {"AveragePool": ("kernel_shape", "strides"), "ArgMax": ("axis",)}
"""Attributes whose defaults are not this network's."""


class Graph:
    """The nodes by what they read, and where the way begins and has to end."""

    def __init__(self, path: Path, graph: Any, constants: Constants) -> None:
        self.path, self.nodes, self.constants = path, list(graph.node), constants
        self.readers: dict[str, list[int]] = defaultdict(list)
        for place, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.input):
                if node.op_type != "Shape":
                    self.readers[name].append(place)
        given = [one for one in graph.input if one.name not in constants.names()]
        if len(given) != 1 or len(graph.output) != 1:
            raise LenetError(
                f"{path}: expected a graph of one input and one output, found "
                f"{', '.join(one.name for one in given) or 'no input'} and "
                f"{', '.join(one.name for one in graph.output) or 'no output'}"
            )
        self.images, self.result = given[0], graph.output[0].name


class Walk:
    """From node to node: `at` is the value that was reached, `shape` its dimensions."""

    def __init__(self, path: Path, graph: Graph) -> None:
        self._path, self._graph = path, graph
        self._constants = graph.constants
        self._seen: set[int] = set()
        self._at: str = graph.images.name
        kind = graph.images.type.tensor_type
        if kind.elem_type not in (*_FLOATS, UINT8):
            raise LenetError(
                f"{path}: expected images of floats or bytes, found ONNX's type {kind.elem_type}"
            )
        self._shape: list[Dim] = [_dim(dim) for dim in kind.shape.dim]
        self._constants.shapes[self._at] = self._shape

    def weights(self) -> dict[str, Array]:
        """The four tensors by our names, in our layouts; LenetError where it is another network.

        The sentence names the node, what was expected and what was found.
        """
        self._start()
        found = {}
        for conv, pool in (("conv1", "pool1"), ("conv2", "pool2")):
            found[conv] = self._conv(conv)
            self._relu()
            self._node("AveragePool", POOL)
            self._reach(list(stage(pool).problem.out_shape))
        self._flatten()
        found["fc1"] = self._linear("fc1")
        self._relu()
        found["fc2"] = self._linear("fc2")
        self._end()
        return layouts.from_torch(found)

    def _reach(self, shape: list[int]) -> None:
        """Note what an image becomes there: (H, W, C), or (n,)."""
        inner = shape if len(shape) == 1 else [shape[2], shape[0], shape[1]]
        self._shape = [self._shape[0], *inner]
        self._constants.shapes[self._at] = self._shape

    def _refuse(self, node: Any, expected: str, found: str) -> LenetError:
        return LenetError(f"{self._path}: {said(node)}: expected {expected}, found {found}")

    def _next(self, expected: str) -> Any:
        """The one node that reads what was reached, its place taken; LenetError where none does."""
        places = [at for at in self._graph.readers[self._at] if at not in self._seen]
        if len(places) != 1:
            nodes = ", ".join(said(self._graph.nodes[at]) for at in places[:4]) or "no node"
            raise LenetError(
                f"{self._path}: expected {expected} alone to read {self._at}, found {nodes}"
            )
        return self._graph.nodes[places[0]]

    def _pass(self, node: Any) -> None:
        """Go on to what a node makes."""
        made = [name for name in node.output if name]
        if len(made) != 1 or made[0] != node.output[0]:
            raise self._refuse(node, "one output", f"{len(made)}")
        self._seen.add(self._graph.constants.made_by[node.output[0]][0])
        self._at = node.output[0]
        self._constants.shapes[self._at] = self._shape

    def _skip(self, expected: str) -> Any:
        """`_next`, behind nodes that change nothing."""
        for _ in range(len(self._graph.nodes)):
            node = self._next(expected)
            cast = node.op_type == "Cast" and attributes(node).get("to") in _FLOATS
            if node.domain or not (node.op_type == "Identity" or cast):
                return node
            self._pass(node)
        raise LenetError(f"{self._path}: expected {expected}, found a circle of nodes")

    def _checked(self, node: Any, allowed: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
        """A node's attributes; LenetError for one that this network does not have."""
        given = attributes(node)
        for name, value in given.items():
            if value not in allowed.get(name, ()):
                wanted = " or ".join(map(str, allowed.get(name, ("no such attribute",))))
                found = value if isinstance(value, (int, float, str, list)) else "a message"
                raise self._refuse(node, f"{name} to be {wanted}", f"{found}"[:_SHOWN])
        for name in _NEEDED.get(node.op_type, ()):
            if name not in given:
                raise self._refuse(node, f"an attribute {name}", "none")
        return given

    def _node(self, kind: str, allowed: dict[str, tuple[Any, ...]], inputs: int = 1) -> Any:
        """The next node, of that kind; it reads what was reached first, and `inputs` at most."""
        node = self._skip(kind)
        if node.domain or node.op_type != kind:
            raise self._refuse(node, kind, _kind(node))
        self._checked(node, allowed)
        if node.input[0] != self._at or not 1 <= len(node.input) <= inputs:
            raise self._refuse(
                node, f"{self._at} first of at most {inputs} inputs", ", ".join(node.input)
            )
        self._pass(node)
        return node

    def _relu(self) -> None:
        self._node("Relu", {})

    def _tensor(self, node: Any, place: int, shape: tuple[int, ...]) -> Array:
        """The constant of this shape that a node reads."""
        found = self._constants.tensor(node.input[place])
        if found is None or found.dtype.kind != "f":
            raise self._refuse(node, "weights that are constants", f"{node.input[place]}")
        if found.shape != shape:
            raise self._refuse(
                node, f"weights of shape {layouts.by(shape)}", layouts.by(found.shape)
            )
        return found

    def _no_bias(self, node: Any, place: int, size: int) -> None:
        """LenetError unless a node has no such input, or zeros."""
        if len(node.input) <= place or not node.input[place]:
            return
        bias = self._constants.tensor(node.input[place])
        if bias is None or bias.shape not in ((size,), (1, size), (1, size, 1, 1)):
            raise self._refuse(node, f"no bias, or {size} constants", f"{node.input[place]}")
        layouts.require_no_bias(self._path, f"{said(node)}'s {node.input[place]}", bias)

    def _added(self, size: int) -> None:
        """Skip an addition of zeros behind a node that has no place for a bias."""
        if not self._graph.readers[self._at]:
            return
        node = self._next("Relu or the end")
        if node.domain or node.op_type != "Add" or len(node.input) != 2:
            return
        self._no_bias(node, 1 if node.input[0] == self._at else 0, size)
        self._pass(node)

    def _conv(self, name: str) -> Array:
        shape = layouts.torch_shapes()[name]
        node = self._node("Conv", CONV, 3)
        weights = self._tensor(node, 1, shape) if len(node.input) > 1 else None
        if weights is None:
            raise self._refuse(node, "weights", "none")
        self._no_bias(node, 2, shape[0])
        problem = stage(name).problem
        self._reach(list(problem.out_shape))
        self._added(shape[0])
        return weights

    def _linear(self, name: str) -> Array:
        """Weights (out, in) of a MatMul or Gemm."""
        node = self._skip("MatMul or Gemm")
        size, depth = layouts.torch_shapes()[name]
        if node.op_type == "Gemm" and not node.domain:
            turned = self._checked(node, GEMM).get("transB", 0) == 1
            self._node("Gemm", GEMM, 3)
        else:
            turned = False
            self._node("MatMul", {}, 2)
        if len(node.input) < 2:
            raise self._refuse(node, "weights", "none")
        weights = self._tensor(node, 1, (size, depth) if turned else (depth, size))
        self._no_bias(node, 2, size)
        self._reach([size])
        self._added(size)
        return weights if turned else weights.T

    def _start(self) -> None:
        """What may happen to images before the first convolution: scaled, NHWC to NCHW, shaped."""
        wanted, scaled = [1, _HEIGHT, _WIDTH], False
        for _ in range(len(self._graph.nodes)):
            node = self._skip("Conv")
            if node.domain or node.op_type == "Conv":
                break
            if node.op_type in ("Div", "Mul") and not scaled:
                self._scale(node)
                scaled = True
            elif node.op_type == "Transpose":
                self._checked(node, {"perm": ([0, 3, 1, 2],)})
                if self._shape[1:] != [_HEIGHT, _WIDTH, 1]:
                    raise self._refuse(node, f"images (N, {_HEIGHT}, {_WIDTH}, 1)", self._said())
                self._shape = [self._shape[0], *wanted]
            else:
                raise self._refuse(node, "Conv", node.op_type)
            self._pass(node)
        if self._shape[1:] != wanted or len(self._shape) != 4:
            raise LenetError(
                f"{self._path}: input {self._graph.images.name}: expected images "
                f"(N, 1, {_HEIGHT}, {_WIDTH}), found {self._said()}"
            )

    def _said(self) -> str:
        shape = ", ".join("N" if size is None else str(size) for size in self._shape)
        return f"({shape})"

    def _scale(self, node: Any) -> None:
        """LenetError unless a node divides bytes' values by 255, or multiplies by its inverse."""
        others = [name for name in node.input if name != self._at]
        by = self._constants.tensor(others[0]) if len(others) == 1 else None
        divided = node.op_type == "Div"
        factor = PIXEL_SCALE if divided else 1 / PIXEL_SCALE
        first = node.input[0] == self._at or not divided
        if by is None or by.size != 1 or by.ndim > 4 or not first:
            raise self._refuse(node, f"pixels by the constant {factor:g}", ", ".join(node.input))
        if not abs(float(by.reshape(-1)[0]) / factor - 1) < 1e-3:
            raise self._refuse(node, f"the factor {factor:g}", f"{float(by.reshape(-1)[0]):g}")

    def _flatten(self) -> None:
        """From pool2's output to its 1,024 features, C, H, W."""
        node = self._skip("Flatten or Reshape")
        if node.op_type == "Flatten" and not node.domain:
            self._node("Flatten", {"axis": (1, -3)})
        else:
            self._node("Reshape", {"allowzero": (0, 1)}, 2)
            shape = self._constants.numbers(node.input[1]) if len(node.input) == 2 else None
            given = attributes(node)
            if shape is None or not self._flattens(shape, given.get("allowzero", 0) == 1):
                found = "another" if shape is None else f"{shape}"
                raise self._refuse(node, f"the shape [-1, {FEATURE_COUNT}]", found)
        self._reach([FEATURE_COUNT])

    def _flattens(self, shape: list[Dim], zero_is_zero: bool) -> bool:
        """Whether a Reshape to that keeps images apart."""
        if len(shape) != 2:
            return False
        first, second = shape
        if first == 0 and zero_is_zero:
            return False
        kept = first is None or first == 0 or first == self._shape[0]
        return (second == FEATURE_COUNT and (kept or first == -1)) or (second == -1 and kept)

    def _end(self) -> None:
        """Scores, or what is made of them by nodes of ENDS; nothing is left over behind."""
        left, wanted = dict(ENDS), f"the end, or {', '.join(ENDS)}"
        while self._graph.readers[self._at]:
            node = self._next(wanted)
            to = attributes(node).get("to") if node.op_type == "Cast" else None
            kept = node.op_type == "Identity" or to in _FLOATS or (to is not None and not left)
            if node.domain or not kept:
                if node.domain or node.op_type not in left:
                    raise self._refuse(node, wanted, _kind(node))
                self._checked(node, left[node.op_type])
                left = {} if node.op_type == "ArgMax" else {"ArgMax": ENDS["ArgMax"]}
            self._pass(node)
        used = self._seen | self._constants.used
        for place, node in enumerate(self._graph.nodes):
            if place not in used and (node.op_type != "Constant" or node.domain):
                raise self._refuse(node, "nothing beside the network", _kind(node))
        if self._at != self._graph.result:
            raise LenetError(
                f"{self._path}: expected the output {self._graph.result} to be {CLASSES} scores, "
                f"found the network to end at {self._at}"
            )


def _kind(node: Any) -> str:
    """A node's operator, and whose it is where it is not ONNX's own."""
    return f"{node.op_type} of {node.domain}" if node.domain else str(node.op_type)


def _dim(dim: Any) -> Dim:
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
