"""ONNX graphs: this network in the ways that exporters write it, and nothing else."""

from __future__ import annotations

import model_files
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `models` brings it")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from lenetgpu import LenetError  # noqa: E402
from lenetgpu.files.weights import load_weights  # noqa: E402
from lenetgpu.network import weight_shapes  # noqa: E402

N = "n"


@pytest.fixture
def tensors(rng):
    return {n: rng.standard_normal(s, np.float32) for n, s in weight_shapes().items()}


class Net:
    """The graph that our own exporter makes, to be changed node by node before it is written."""

    def __init__(self, tensors):
        self.weights = dict(model_files.planar(tensors))
        self.images = ("x", TensorProto.FLOAT, [N, 1, 28, 28])
        self.outputs = ["y"]
        self.opsets = [("", 17)]
        self.nodes = []
        self.extra = {}
        at = "x"
        for kind, name, inputs, attributes in (
            ("Conv", "a1", ["conv1"], {"kernel_shape": [5, 5]}),
            ("Relu", "r1", [], {}),
            ("AveragePool", "p1", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ("Conv", "a2", ["conv2"], {"kernel_shape": [5, 5]}),
            ("Relu", "r2", [], {}),
            ("AveragePool", "p2", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
            ("Flatten", "f", [], {}),
            ("Gemm", "g1", ["fc1"], {"transB": 1}),
            ("Relu", "r3", [], {}),
            ("Gemm", "y", ["fc2"], {"transB": 1}),
        ):
            self.nodes.append(helper.make_node(kind, [at, *inputs], [name], name, **attributes))
            at = name

    def __getitem__(self, name):
        return next(node for node in self.nodes if node.name == name)

    def set(self, name, **attributes):
        """Replace a node's attributes of these names."""
        node = self[name]
        kept = [one for one in node.attribute if one.name not in attributes]
        del node.attribute[:]
        node.attribute.extend(kept)
        made = [helper.make_attribute(key, value) for key, value in attributes.items()]
        node.attribute.extend(made)

    def put(self, before, kind, *inputs, **attributes):
        """A new node between `before` and what it read."""
        node, name = self[before], f"new{len(self.nodes)}"
        self.nodes.insert(
            self.nodes.index(node),
            helper.make_node(kind, [node.input[0], *inputs], [name], name, **attributes),
        )
        node.input[0] = name

    def end(self, kind, *inputs, **attributes):
        """A new node behind the last one."""
        name = f"end{len(self.nodes)}"
        node = helper.make_node(kind, [self.outputs[0], *inputs], [name], name, **attributes)
        self.nodes.append(node)
        self.outputs = [name]

    def drop(self, name):
        """Leave a node out."""
        node = self[name]
        self.nodes.remove(node)
        for other in self.nodes:
            for place, read in enumerate(other.input):
                if read == node.output[0]:
                    other.input[place] = node.input[0]

    def matmul(self, name, weight):
        """A MatMul in place of a Gemm."""
        node = self[name]
        node.op_type = "MatMul"
        del node.attribute[:]
        self.weights[weight] = np.ascontiguousarray(self.weights[weight].T)

    def write(self, path, change=lambda model: None):
        found = self.weights | self.extra
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info(*self.images)],
            [helper.make_tensor_value_info(o, TensorProto.FLOAT, [N, 10]) for o in self.outputs],
            [numpy_helper.from_array(np.asarray(array), name) for name, array in found.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid(*one) for one in self.opsets]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        change(model)
        path.write_bytes(model.SerializeToString())
        return path


def scaled(net, kind, value, shape=()):
    net.extra["scale"] = np.full(shape, value, np.float32)
    net.put("a1", kind, "scale")


def bytes_scaled(net):
    net.images = ("x", TensorProto.UINT8, [N, 1, 28, 28])
    scaled(net, "Div", 255)
    net.put("new10", "Cast", to=TensorProto.FLOAT)


def from_nhwc(net):
    net.images = ("x", TensorProto.FLOAT, [N, 28, 28, 1])
    net.put("a1", "Transpose", perm=[0, 3, 1, 2])


def reshaped(*shape):
    def change(net):
        net.drop("f")
        net.extra["shape"] = np.array(shape, np.int64)
        net.put("g1", "Reshape", "shape")

    return change


def of_its_size(net):
    """x.view(x.size(0), -1), as the older exporter writes it."""
    net.drop("f")
    net.extra |= {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    at = net.nodes.index(net["g1"])
    for kind, inputs, name, attributes in (
        ("Shape", ["p2"], "s", {}), ("Gather", ["s", "zero"], "b", {"axis": 0}),
        ("Unsqueeze", ["b", "axes"], "u", {}), ("Concat", ["u", "rest"], "c", {"axis": 0}),
    ):  # fmt: skip
        net.nodes.insert(at, helper.make_node(kind, inputs, [name], name, **attributes))
        at += 1
    net.put("g1", "Reshape", "c")


def with_matmul(net):
    net.matmul("g1", "fc1")
    net.matmul("y", "fc2")


def turned(net):
    """MatMul of a Transpose of the weights, and the biases added apart."""
    with_matmul(net)
    net.weights["fc1"] = np.ascontiguousarray(net.weights["fc1"].T)
    node = helper.make_node("Transpose", ["fc1"], ["fc1.T"], "turn", perm=[1, 0])
    net.nodes.insert(0, node)
    net["g1"].input[1] = "fc1.T"
    net.extra["zeros"] = np.zeros(128, np.float32)
    net.put("r3", "Add", "zeros")


def from_constants(net):
    for name in ("conv1", "fc2"):
        tensor = numpy_helper.from_array(net.weights.pop(name), name)
        node = helper.make_node("Constant", [], [name], name + "!", value=tensor)
        net.nodes.insert(0, node)


def with_biases(net):
    for name, weight, size in (("a1", "conv1", 32), ("a2", "conv2", 64), ("g1", "fc1", 128)):
        net.extra[f"{weight}.bias"] = np.zeros(size, np.float32)
        net[name].input.append(f"{weight}.bias")


def of_halves(net):
    net.put("a1", "Cast", to=TensorProto.FLOAT16)
    net.end("Cast", to=TensorProto.FLOAT)
    net.weights = {n: t.astype(np.float16) for n, t in net.weights.items()}


def ends(*kinds):
    def change(net):
        for kind, attributes in kinds:
            net.end(kind, **attributes)

    return change


ACCEPTED = {
    "as we write it": lambda net: None,
    "attributes of their defaults": lambda net: (
        net.set("a1", strides=[1, 1], pads=[0] * 4, dilations=[1, 1], group=1, auto_pad="NOTSET"),
        net.set("p1", ceil_mode=1, count_include_pad=1, pads=[0] * 4, auto_pad="VALID"),
        net.set("g1", alpha=1.0, beta=1.0, transA=0),
        net.set("f", axis=1),
    ),
    "a batch of two": lambda net: setattr(net, "images", ("x", TensorProto.FLOAT, [2, 1, 28, 28])),
    "divided by 255": lambda net: scaled(net, "Div", 255),
    "times 1/255": lambda net: scaled(net, "Mul", 1 / 255, (1, 1, 1, 1)),
    "of bytes": bytes_scaled,
    "NHWC": from_nhwc,
    "reshaped to -1": reshaped(-1, 1024),
    "reshaped to 0": reshaped(0, -1),
    "reshaped to its size": of_its_size,
    "matmul": with_matmul,
    "transposed, zeros added": turned,
    "constants": from_constants,
    "zero biases": with_biases,
    "halves": of_halves,
    "identities": lambda net: (net.put("r1", "Identity"), net.end("Identity")),
    "softmax": ends(("Softmax", {"axis": -1})),
    "labels": ends(("LogSoftmax", {"axis": 1}), ("ArgMax", {"axis": 1, "keepdims": 0}),
                   ("Cast", {"to": TensorProto.INT32})),
}  # fmt: skip


@pytest.mark.parametrize("way", ACCEPTED)
def test_ways_to_write_this_network(tmp_path, tensors, way):
    if way == "halves":
        tensors = {n: t.astype(np.float16).astype(np.float32) for n, t in tensors.items()}
    net = Net(tensors)
    ACCEPTED[way](net)
    path = net.write(tmp_path / "x.onnx")
    if way != "halves":  # the checker infers no types through a Cast of the input
        onnx.checker.check_model(onnx.load(path))
    found = load_weights(path).tensors
    for name, tensor in tensors.items():
        assert found[name].tobytes() == tensor.tobytes(), name


def dropped(*names):
    return lambda net: [net.drop(name) for name in names]


def swapped(net):
    """The mean, then ReLU."""
    net["r1"].op_type, net["p1"].op_type = "AveragePool", "Relu"
    net["r1"].attribute.extend(net["p1"].attribute)
    del net["p1"].attribute[:]


def forked(net):
    net.nodes.append(helper.make_node("Relu", ["p1"], ["more"], "more"))


def beside(net):
    net.nodes.append(helper.make_node("Identity", ["fc1"], ["more"], "more"))


def skipped(net):
    """A residual."""
    net.put("r3", "Add", "g1")


def computed(net):
    net["a1"].input[1] = "w"
    net.nodes.insert(0, helper.make_node("Mul", ["conv1", "conv1"], ["w"], "w"))


def in_a_circle(net):
    net.drop("f")
    node = helper.make_node("Concat", ["c", "c"], ["c"], "c", axis=0)
    net.nodes.insert(0, node)
    net.put("g1", "Reshape", "c")


def biased(name, size, value=1.0):
    def change(net):
        net.extra["b"] = np.full(size, value, np.float32)
        net[name].input.append("b")

    return change


def of_domain(net):
    net["r1"].domain = "com.microsoft"
    net.opsets.append(("com.microsoft", 1))


def of_opset(number):
    return lambda net: setattr(net, "opsets", [("", number)])


REFUSED = {
    "strides": (lambda net: net.set("a1", strides=[2, 2]), "a1 (Conv): expected strides to be"),
    "padding": (lambda net: net.set("a2", pads=[2, 2, 2, 2]), "a2 (Conv): expected pads to be"),
    "same": (lambda net: net.set("a1", auto_pad="SAME_UPPER"), "NOTSET or VALID, found SAME_UPPER"),
    "dilated": (lambda net: net.set("a1", dilations=[2, 2]), "dilations to be [1, 1]"),
    "groups": (lambda net: net.set("a2", group=2), "group to be 1, found 2"),
    "unknown attribute": (lambda net: net.set("a1", magic=1), "magic to be no such attribute"),
    "a graph for a number": (
        lambda net: net.set("a1", group=numpy_helper.from_array(np.zeros(9))), "found a message",
    ),
    "strides of pool": (lambda net: net.set("p1", strides=[1, 1]), "p1 (AveragePool): expected st"),
    "no strides": (
        lambda net: net["p1"].attribute.pop(), "p1 (AveragePool): expected an attribute strides",
    ),
    "max": (
        lambda net: setattr(net["p1"], "op_type", "MaxPool"), "expected AveragePool, found MaxPool",
    ),
    "no ReLU": (dropped("r1"), "node p1 (AveragePool): expected Relu, found AveragePool"),
    "mean, then ReLU": (swapped, "node r1 (AveragePool): expected Relu, found AveragePool"),
    "no last ReLU": (dropped("r3"), "node y (Gemm): expected Relu, found Gemm"),
    "ReLU at the end": (ends(("Relu", {})), "expected the end, or Softmax, LogSoftmax, ArgMax, f"),
    "two labels": (ends(*[("ArgMax", {"axis": 1})] * 2), "expected the end, or"),
    "labels of images": (ends(("ArgMax", {"axis": 0})), "axis to be 1 or -1, found 0"),
    "labels of the default axis": (ends(("ArgMax", {})), "an attribute axis, found none"),
    "scores as bytes": (ends(("Cast", {"to": 3})), "expected the end, or"),
    "turned": (lambda net: net.set("f", axis=2), "axis to be 1 or -3, found 2"),
    "reshaped": (reshaped(-1, 512), "the shape [-1, 1024], found [-1, 512]"),
    "reshaped to zero": (reshaped(2, -1), "the shape [-1, 1024], found [2, -1]"),
    "reshaped in a circle": (in_a_circle, "the shape [-1, 1024], found another"),
    "scaled": (lambda net: scaled(net, "Div", 256), "expected the factor 255, found 256"),
    "scaled twice": (
        lambda net: (scaled(net, "Div", 255), scaled(net, "Div", 255)), "expected Conv, found Div",
    ),
    "scaled by image": (lambda net: net.put("a1", "Mul", "x"), "Mul): expected pixels by the con"),
    "shifted": (
        lambda net: (net.extra.update(m=np.float32(0.13)), net.put("a1", "Sub", "m")),
        "expected Conv, found Sub",
    ),
    "a bias": (biased("a1", 32), "found node a1 (Conv)'s b with 32 other values"),
    "a bias of fc2": (biased("y", 10), "found node y (Gemm)'s b with 10 other values"),
    "a bias that is none": (biased("y", 10, np.nan), "with 10 other values"),
    "alpha": (lambda net: net.set("g1", alpha=0.5), "alpha to be 1.0, found 0.5"),
    "transA": (lambda net: net.set("g1", transA=1), "transA to be 0, found 1"),
    "not transposed": (
        lambda net: net.set("g1", transB=0), "weights of shape 1024x128, found 128x1024",
    ),
    "residual": (skipped, "new10 (Add): expected no bias, or 128 constants, found g1"),
    "a fork": (forked, "alone to read p1, found node a2 (Conv), node more (Relu)"),
    "a node beside": (beside, "node more (Identity): expected nothing beside the network"),
    "weights that are computed": (computed, "a1 (Conv): expected weights that are constants"),
    "two outputs": (
        lambda net: net.outputs.append("r3"), "one input and one output, found x and y, r3",
    ),
    "ends early": (lambda net: setattr(net, "outputs", ["r3"]), "the output r3 to be 10 scores"),
    "another domain": (of_domain, "node r1 (com.microsoft.Relu): expected Relu"),
    "an old opset": (of_opset(6), "expected ONNX's opset 7 to "),
    "an opset to come": (of_opset(1_000_000), ", found 1,000,000"),
    "no opset": (lambda net: setattr(net, "opsets", [("x", 17)]), ", found 0"),
    "other images": (
        lambda net: setattr(net, "images", ("x", TensorProto.FLOAT, [N, 1, 32, 32])),
        "expected images (N, 1, 28, 28), found (N, 1, 32, 32)",
    ),
    "no shape": (
        lambda net: setattr(net, "images", ("x", TensorProto.FLOAT, None)), "28, 28), found ()",
    ),
    "images of text": (
        lambda net: setattr(net, "images", ("x", TensorProto.STRING, [N, 1, 28, 28])),
        "images of floats or bytes, found ONNX's type 8",
    ),
    "NHWC, not turned": (
        lambda net: setattr(net, "images", ("x", TensorProto.FLOAT, [N, 28, 28, 1])),
        "found (N, 28, 28, 1)",
    ),
    "turned otherwise": (
        lambda net: (from_nhwc(net), net.set("new10", perm=[0, 3, 2, 1])), "perm to be [0, 3, 1, 2]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", REFUSED)
def test_what_is_another_network(tmp_path, tensors, way):
    net = Net(tensors)
    change, words = REFUSED[way]
    change(net)
    path = net.write(tmp_path / "x.onnx")
    with pytest.raises(LenetError) as caught:
        load_weights(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "expected" in said and "found" in said
    assert words in said and "\n" not in said, said


def external(model):
    tensor = model.graph.initializer[0]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    tensor.ClearField("raw_data")


def external_only_by_name(model):
    model.graph.initializer[0].external_data.add(key="location", value="weights.bin")


def vast(model):
    del model.graph.initializer[0].dims[:]
    model.graph.initializer[0].dims.extend([1 << 40, 1 << 20])


def negative(model):
    model.graph.initializer[0].dims[0] = -32


def short(model):
    model.graph.initializer[0].raw_data = b"\0" * 12


def of_text(model):
    model.graph.initializer[0].data_type = TensorProto.STRING


def twice(model):
    model.graph.initializer.append(model.graph.initializer[0])


def made_twice(model):
    model.graph.node[3].output[0] = "a1"


def sparse(model):
    model.graph.sparse_initializer.add()


def function(model):
    model.functions.add(name="f", domain="x")


def without_output(model):
    del model.graph.node[1].output[:]


def typeless(model):
    model.graph.node[0].attribute[0].type = 0


def a_number_for_a_tensor(model):
    """As the shape of a Reshape."""
    model.graph.node[6].op_type = "Reshape"
    model.graph.node[6].input.append("shape")
    model.graph.node.append(helper.make_node("Constant", [], ["shape"], value=7))


def key_twice(model):
    for _ in range(2):
        model.metadata_props.add(key="a", value="b")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (external, "in this file, found it in another, which is not opened"),
        (external_only_by_name, "in this file, found it in another, which is not opened"),
        (vast, "of at most 262,144 numbers, found shape 1099511627776x1048576"),
        (negative, "numbers, found shape -32x1x5x5"),
        (short, "found a damaged one (tensor conv1"),
        (of_text, "of floats or integers, found ONNX's type 8"),
        (twice, "two initializers of one name"),
        (made_twice, "a value a1 that is made twice"),
        (sparse, "plain initializers, found a sparse one"),
        (function, "of ONNX's own operators, found a function f"),
        (without_output, "r1 (Relu): expected one output, found 0"),
        (typeless, "kernel_shape to be [5, 5], found a message"),
        (a_number_for_a_tensor, "the shape [-1, 1024], found another"),
        (key_twice, "metadata a that is there twice"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_messages_that_no_exporter_writes(tmp_path, tensors, change, words):
    path = Net(tensors).write(tmp_path / "x.onnx", change)
    with pytest.raises(LenetError) as caught:
        load_weights(path)
    assert words in str(caught.value), caught.value


@pytest.mark.parametrize("raw", [True, False])
def test_bfloat16_and_double(tmp_path, tensors, raw):
    upper = {n: (t.view(np.uint32) >> 16).astype(np.uint16) for n, t in tensors.items()}
    tensors = {n: (bits.astype(np.uint32) << 16).view(np.float32) for n, bits in upper.items()}

    def change(model):
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            tensor.ClearField("raw_data")
            if tensor.name == "fc2":
                tensor.data_type = TensorProto.DOUBLE
                tensor.double_data.extend(values.reshape(-1).tolist())
                continue
            tensor.data_type = TensorProto.BFLOAT16
            bits = values.view(np.uint32) >> 16
            if raw:
                tensor.raw_data = bits.astype("<u2").tobytes()
            else:
                tensor.int32_data.extend(bits.reshape(-1).tolist())

    found = load_weights(Net(tensors).write(tmp_path / "x.onnx", change)).tensors
    for name, tensor in tensors.items():
        assert found[name].tobytes() == tensor.tobytes(), name
