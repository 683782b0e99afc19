"""ONNX graphs: this network as various exporters write it, and refusal of anything else."""

import model_files
import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra `models` brings it")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from lenetgpu import LenetError  # noqa: E402
from lenetgpu.files.weights import load_weights  # noqa: E402

N = "n"


class Net:
    """The graph that our own exporter writes; tests change it node by node before writing."""

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
        """Insert a new node between `before` and its first input."""
        node, name = self[before], f"new{len(self.nodes)}"
        self.nodes.insert(
            self.nodes.index(node),
            helper.make_node(kind, [node.input[0], *inputs], [name], name, **attributes),
        )
        node.input[0] = name

    def end(self, kind, *inputs, **attributes):
        """Append a node after the last one."""
        name = f"end{len(self.nodes)}"
        node = helper.make_node(kind, [self.outputs[0], *inputs], [name], name, **attributes)
        self.nodes.append(node)
        self.outputs = [name]

    def drop(self, name):
        """Remove a node and connect its readers to its input."""
        node = self[name]
        self.nodes.remove(node)
        for other in self.nodes:
            for place, read in enumerate(other.input):
                if read == node.output[0]:
                    other.input[place] = node.input[0]

    def matmul(self, name, weight):
        """Turn a Gemm into a MatMul."""
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


def with_matmul(net):
    net.matmul("g1", "fc1")
    net.matmul("y", "fc2")


def turned(net):
    """Use MatMul on a transpose of the weights, and add the biases in a separate node."""
    with_matmul(net)
    net.weights["fc1"] = np.ascontiguousarray(net.weights["fc1"].T, np.float64)
    node = helper.make_node("Transpose", ["fc1"], ["fc1.T64"], "turn", perm=[1, 0])
    cast = helper.make_node("Cast", ["fc1.T64"], ["fc1.T"], "cast", to=TensorProto.FLOAT)
    net.nodes[:0] = node, cast
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
    "matmul": with_matmul,
    "transposed, zeros added": turned,
    "constants": from_constants,
    "zero biases": with_biases,
    "identities": lambda net: (net.put("r1", "Identity"), net.end("Identity")),
    "nodes that nothing reads": lambda net: (
        net.nodes.append(helper.make_node("Relu", ["p1"], ["more"], "more")),
        net.nodes.append(helper.make_node("Identity", ["fc1"], ["other"], "other")),
    ),
    "softmax": ends(("Softmax", {"axis": -1})),
    "labels": ends(("LogSoftmax", {"axis": 1}), ("ArgMax", {"axis": 1, "keepdims": 0}),
                   ("Cast", {"to": TensorProto.INT32})),
}  # fmt: skip


@pytest.mark.parametrize("way", ACCEPTED)
def test_accepted_onnx_graphs(tmp_path, tensors, way):
    net = Net(tensors)
    ACCEPTED[way](net)
    path = net.write(tmp_path / "x.onnx")
    onnx.checker.check_model(onnx.load(path))
    found = load_weights(path).tensors
    for name, tensor in tensors.items():
        assert found[name].tobytes() == tensor.tobytes(), name


def biased(name, size, value=1.0):
    def change(net):
        net.extra["b"] = np.full(size, value, np.float32)
        net[name].input.append("b")

    return change


REFUSED = {
    "strides": (lambda net: net.set("a1", strides=[2, 2]), "a1 (Conv): expected strides to be"),
    "unknown attribute": (lambda net: net.set("a1", magic=1), "magic to be no such attribute"),
    "no strides": (
        lambda net: net["p1"].attribute.pop(), "p1 (AveragePool): expected an attribute strides",
    ),
    "max": (
        lambda net: setattr(net["p1"], "op_type", "MaxPool"), "expected AveragePool, found MaxPool",
    ),
    "no ReLU": (lambda net: net.drop("r1"), "node a1 (Conv): expected Relu, found Conv"),
    "labels of images": (ends(("ArgMax", {"axis": 0})), "axis to be 1 or -1, found 0"),
    "scores as bytes": (ends(("Cast", {"to": 3})), "(Cast): expected scores of floats"),
    "reshaped": (reshaped(-1, 512), "new9: expected the shape (N, 1024), found (15838, 512)"),
    "scaled": (lambda net: scaled(net, "Div", 256), "expected the factor 255, found 256"),
    "shifted": (
        lambda net: (net.extra.update(m=np.float32(0.13)), net.put("a1", "Sub", "m")),
        "(Sub): expected Div, Mul, Transpose on images",
    ),
    "a bias": (biased("a1", 32), "found node a1 (Conv)'s b with 32 other values"),
    "residual": (
        lambda net: net.put("r3", "Add", "g1"), "new10 (Add): expected no bias, or 128 constants",
    ),
    "a second output": (
        lambda net: net["r3"].output.insert(0, "a"), "r3 (Relu): expected 1 to 1 inputs and one",
    ),
    "two outputs": (
        lambda net: net.outputs.append("r3"), "one input and one output, found x and y, r3",
    ),
    "other images": (
        lambda net: setattr(net, "images", ("x", TensorProto.FLOAT, [N, 1, 32, 32])),
        "x: expected the shape (N, 1, 28, 28), found (N, 1, 32, 32)",
    ),
    "a circle": (
        lambda net: (net.put("a1", "Identity"), net["new10"].input.__setitem__(0, "new10")),
        "a circle of nodes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", REFUSED)
def test_onnx_graphs_of_other_networks_are_refused(tmp_path, tensors, way):
    net = Net(tensors)
    change, words = REFUSED[way]
    change(net)
    path = net.write(tmp_path / "x.onnx")
    with pytest.raises(LenetError) as caught:
        load_weights(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and "expected" in said and "found" in said
    assert words in said and "\n" not in said, said


def first(**changes):
    def change(model):
        for name, value in changes.items():
            setattr(model.graph.initializer[0], name, value)

    return change


def external(model):
    tensor = model.graph.initializer[0]
    tensor.external_data.add(key="location", value="/etc/passwd")
    tensor.ClearField("raw_data")


def of_dims(*dims):
    return lambda model: model.graph.initializer[0].dims.__setitem__(slice(0, len(dims)), dims)


def key_twice(model):
    for _ in range(2):
        model.metadata_props.add(key="a", value="b")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (external, "in this file, found it in another, which is not opened"),
        (of_dims(1 << 40, 1 << 20), "found a damaged one (tensor conv1"),
        (of_dims(-32), "found a damaged one (tensor conv1 of a negative size"),
        (first(raw_data=b"\0" * 12), "found a damaged one (tensor conv1"),
        (first(data_type=TensorProto.STRING), "of floats or integers, found ONNX's type 8"),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "initializers of one name"),
        (lambda m: m.graph.node[3].output.__setitem__(0, "a1"), "a value a1 that is made twice"),
        (lambda m: m.graph.sparse_initializer.add(), "found functions or sparse ones"),
        (lambda m: m.graph.node[1].ClearField("output"), "found a damaged one"),
        (key_twice, "metadata of one name twice"),
    ],
)
def test_malformed_onnx_messages_are_refused(tmp_path, tensors, change, words):
    path = Net(tensors).write(tmp_path / "x.onnx", change)
    with pytest.raises(LenetError) as caught:
        load_weights(path)
    assert words in str(caught.value), caught.value


@pytest.mark.parametrize("raw", [True, False])
def test_onnx_bfloat16_and_double_load(tmp_path, tensors, raw):
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
