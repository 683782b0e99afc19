"""`lenetgpu conv --model`: an ONNX model's convolutions, and files without any."""

import builtins
import json
from functools import partial
from pathlib import Path

import pytest
import terminal

from lenetgpu.files.convs import benchdnn, onnx_convs
from lenetgpu.files.models.onnx_parse import STRUCTURE, parsed
from lenetgpu.problems import Conv

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, shape_inference  # noqa: E402

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NET = sorted(path.name for path in LIGHT.glob("*.onnx"))


run = partial(terminal.run, "conv")


def tensor(name, *shape, kind=TensorProto.FLOAT):
    """Return a weight without values, as the parser leaves it when it skips them."""
    return TensorProto(name=name, dims=shape, data_type=kind)


def numbers(name, values):
    return helper.make_tensor(name, TensorProto.INT64, [len(values)], values)


def model(nodes, weights=(), size=("N", 3, 32, 32), kind=TensorProto.FLOAT, **more):
    """Return a model of these nodes that reads x, of `size`."""
    x = helper.make_tensor_value_info("x", kind, size)
    y = helper.make_tensor_value_info(nodes[-1].output[0], kind, None)
    graph = helper.make_graph(nodes, "net", [x], [y], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **more)


def written(folder, made):
    path = folder / "net.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], name=attributes.pop("name", output),
                            **attributes)  # fmt: skip


def conv(x, w, y, **attributes):
    return node("Conv", [x, w], y, **attributes)


def found(folder, nodes, weights=(), batch=None, **more):
    return onnx_convs.read(written(folder, model(nodes, weights, **more)), batch)


W = tensor("w", 8, 3, 3, 3)


def test_distinct_convolutions_of_a_model_are_rows(tmp_path):
    nodes = [
        node("Conv", ["x", "w", "b"], "a", pads=[1] * 4),
        node("Relu", ["a"], "r"),
        conv("r", "u", "e", pads=[1] * 4, strides=[2, 2]),
        conv("r", "u", "f", pads=[1] * 4, strides=[2, 2]),
    ]
    path = written(tmp_path, model(nodes, [W, tensor("b", 8), tensor("u", 8, 8, 3, 3)]))
    for words, options, note in (
        ((), "", "without its bias"),
        (("--epilogue",), " --bias --relu", "with its bias"),
    ):
        result = run("--model", path, "--batch", 2, "--list", "--json", "-", *words, code=0)
        document = json.loads(result.stdout)
        rows = [(row["label"], row["command"], row["count"]) for row in document["network"]["rows"]]
        assert rows == [
            ("a", f"lenetgpu conv 3,32,32,8,3,1,1{options} --batch 2", 1),
            ("e", "lenetgpu conv 8,32,32,8,3,2,1 --batch 2", 2),
        ]
        assert note in document["notes"][0]


@pytest.mark.parametrize("name", NET[:2])
def test_shapes_of_real_models_match_onnx_inference(name):
    path = LIGHT / name
    made = onnx_convs.read(path, None)
    inferred = shape_inference.infer_shapes(onnx.load(path), data_prop=True)
    sizes = {
        value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in [*inferred.graph.value_info, *inferred.graph.output]
    }
    nodes = [one for one in inferred.graph.node if one.op_type == "Conv"]
    assert len(made) == len(nodes) > 0
    for given, one in zip(made, nodes, strict=True):
        problem = given.problem
        assert [given.images, problem.M, problem.OH, problem.OW] == sizes[one.output[0]]


def test_shapes_are_inferred_from_the_graph(tmp_path):
    """Shapes come from values that the graph computes, with an open batch."""
    nodes = [node("Shape", ["x"], "z"), node("Gather", ["z", "i"], "n"),
             node("Concat", ["n", "s"], "c", axis=0), node("Reshape", ["x", "c"], "p"),
             conv("p", "w", "a", auto_pad="SAME_LOWER", strides=[2, 2]),
             conv("a", "v", "y")]  # fmt: skip
    weights = [numbers("i", [0]), numbers("s", [12, 16, 16]), tensor("w", 4, 12, 3, 3),
               tensor("v", 8, 4, 1, 1)]  # fmt: skip
    made = model(nodes, weights)
    made.graph.value_info.append(helper.make_tensor_value_info("x", 1, (9, 9, 9, 9)))
    made.graph.output.append(helper.make_tensor_value_info("p", 1, (9, 9, 9, 9)))
    first, given = onnx_convs.read(written(tmp_path, made), 3)
    assert first.problem == Conv(16, 16, 12, 4, 3, 3, 2, 1)
    assert (given.images, given.problem) == (3, Conv(8, 8, 4, 8, 1, 1))


@pytest.mark.parametrize(
    ("attributes", "shape"),
    [
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]},
         Conv(32, 32, 3, 8, 3, 3, 2, pads=(0, 0, 1, 1))),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, Conv(32, 32, 3, 8, 3, 3, 2, 1)),
        ({"pads": [1, 2, 3, 4]}, Conv(32, 32, 3, 8, 3, 3, pads=(1, 2, 3, 4))),
        ({"dilations": [2, 3]}, Conv(32, 32, 3, 8, 3, 3, dilation=(2, 3))),
    ],
)  # fmt: skip
def test_conv_attributes_follow_onnx(tmp_path, attributes, shape):
    (given,) = found(tmp_path, [conv("x", "w", "y", **attributes)], [W])
    assert (given.problem, given.why) == (shape, "")


@pytest.mark.parametrize(
    ("nodes", "weights", "more", "why"),
    [
        ([conv("x", "w", "y")], [W], {"size": ("N", 3, "height", 32)},
         "its sizes are open after input x of (N, 3, height, 32); set them with --input"),
        ([node("NonZero", ["x"], "z", name="odd"), node("Relu", ["z"], "r"),
          conv("r", "w", "y")], [W], {}, "its sizes are open after node odd (NonZero)"),
        ([conv("x", "w", "y")], [], {}, "its sizes are open after what nothing makes before"),

        ([conv("x", "w", "y")], [tensor("w", 8, 3, 3, 3, 3)], {"size": (1, 3, 4, 4, 4)},
         "3 spatial dimensions"),

        ([node("ConvTranspose", ["x", "w"], "y")], [tensor("w", 3, 8, 3, 3)], {}, "transposed"),
        ([conv("x", "w", "y")], [tensor("w", 8, 3, 3, 3, kind=TensorProto.DOUBLE)], {},
         "fp64 operands"),
        ([node("ConvInteger", ["x", "w"], "y")], [tensor("w", 8, 3, 3, 3, kind=TensorProto.INT8)],
         {}, "int8 operands"),
    ],
)  # fmt: skip
def test_unsupported_convolutions_give_the_reason(tmp_path, nodes, weights, more, why):
    (given,) = found(tmp_path, nodes, weights, **more)
    assert given.why == why


def test_convolutions_in_branches_and_functions_are_counted(tmp_path):
    made_there = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    inner = helper.make_graph([conv("x", "w", "z")], "then", [], [made_there])
    branch = helper.make_node("If", ["c"], ["y"], "choice", then_branch=inner, else_branch=inner)
    made = model([branch], [W])
    function = helper.make_function(
        "own", "Block", ["x", "w"], ["y"], [conv("x", "w", "y")],
        [helper.make_opsetid("", 17)],
    )  # fmt: skip
    made.functions.append(function)
    given = onnx_convs.read(written(tmp_path, made), None)
    assert [one.why for one in given] == [
        "in a branch of node choice (If)", "in a branch of node choice (If)", "in function Block",
    ]  # fmt: skip


def test_one_dimension_is_a_row_as_in_a_descriptor(tmp_path):
    made = conv("x", "w", "y", strides=[2], pads=[2, 1], dilations=[3], kernel_shape=[3])
    (given,) = found(tmp_path, [made], [tensor("w", 8, 3, 3)], size=(1, 3, 32))
    assert given.problem == benchdnn.read("--dir=FWD_D ic3oc8_iw32ow15kw3sw2dw2pw2").problem


def test_open_sizes_are_set_by_input(tmp_path):
    path = written(tmp_path, model([conv("x", "w", "y")], [W], ("N", 3, "height", "width")))
    for batch, images in ((None, 2), (6, 6)):
        (given,) = onnx_convs.read(path, batch, inputs=["x:2x3x40x24"])
        assert (given.problem, given.images) == (Conv(40, 24, 3, 8, 3, 3), images)
    for text in ("x:2x3", "x:1x4x9x9", "z:1x3x9x9", "x:", "x:1x3x0x9"):
        result = run("--model", path, "--list", "--input", text)
        assert f"error: {path}, --input: expected x:?x3x?x?, found {text}" in result.output
    assert "40,24" in run("--model", path, "--list", "--input", "x:2x3x40x24").output


@pytest.mark.parametrize(("size", "batch", "images"), [("N", 5, 5), (4, None, 4), (4, 6, 6)])
def test_batch_is_the_models_or_as_requested(tmp_path, size, batch, images):
    (given,) = found(tmp_path, [conv("x", "w", "y")], [W], batch, size=(size, 3, 32, 32))
    assert given.images == images


@pytest.mark.parametrize(
    ("nodes", "weights", "words"),
    [
        ([conv("x", "w", "y")], [tensor("w", 8, 4, 3, 3)], "filters of 3 channels, found 4"),
        ([conv("x", "w", "y", group=2)], [W], "expected groups that divide C, found 2 of 3"),
        ([conv("x", "w", "y", strides=[0, 0])], [W], "expected a convolution's attributes"),
        ([conv("x", "w", "y", kernel_shape=[5, 5])], [W], "kernel_shape that its filters do not"),
        ([node("Conv", ["x"], "y")], [], "expected images and filters, found 1 inputs"),
        ([node("Relu", ["x"], "y")], [], "expected a model with convolutions, found none"),
        ([conv("x", "w", "y"), conv("x", "w", "y")], [W], "a value y that is made twice"),
        ([conv("x", "w", "y", auto_pad="SAME")], [W], "found auto_pad SAME"),
        *(([conv("x", "w", "y")], [W, TensorProto(name="i", dims=[1 << 31], data_type=kind)], words)
          for kind, words in ((1, "lists of more than 2,097,152 numbers"),
                              (7, "0 numbers in a list of 2,147,483,648"))),
    ],
)  # fmt: skip
def test_invalid_models_are_refused_in_one_sentence(tmp_path, nodes, weights, words):
    path = written(tmp_path, model(nodes, weights))
    terminal.refused(run("--model", path, "--list"), words)


def test_external_weights_are_not_opened(tmp_path, monkeypatch):
    """The model has their sizes; the file with their values need not exist."""
    far = TensorProto(name="w", dims=[8, 3, 3, 3], data_type=TensorProto.FLOAT, data_location=1)
    entry = far.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    path = written(tmp_path, model([conv("x", "w", "y")], [far]))
    opened = []
    plain = builtins.open

    def seen(name, *more, **how):
        opened.append(name)
        return plain(name, *more, **how)

    monkeypatch.setattr(builtins, "open", seen)
    (given,) = onnx_convs.read(path, None)
    assert given.problem == Conv(32, 32, 3, 8, 3, 3)
    assert not any("passwd" in str(name) for name in opened)


def test_values_of_large_weights_are_skipped_in_every_field(tmp_path):
    kinds = ("float", "int32", "int64", "double", "uint64")
    values = {f"{kind}_data": [1] * 5000 for kind in kinds} | {"name": "w", "raw_data": bytes(5000)}
    path = written(tmp_path, model([conv("x", "w", "y")], [TensorProto(**values)]))
    with path.open("rb") as file:
        made = parsed(path, file, path.stat().st_size, STRUCTURE)
    assert list(made.graph.initializer) == [TensorProto(name="w")]


def test_non_onnx_files_are_refused_in_one_sentence(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    for data in (b"", b"\x89PNG\r\n\x1a\n" + bytes(99), b"hello there"):
        path.write_bytes(data)
        terminal.refused(run("--model", path), f"{path}: expected")
    for wrong in (tmp_path, tmp_path / "none"):
        terminal.refused(run("--model", wrong), "expected an ONNX model, found")
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    terminal.refused(run("--model", path), "pip install 'lenetgpu[models]'")


FOLLOWED = [
    ([conv("x", "w", "y"), node("Relu", ["y"], "z")], (False, True)),
    ([node("Conv", ["x", "w", "b"], "y"), node("Relu", ["y"], "z")], (True, True)),
    ([node("Conv", ["x", "w", "b"], "y"), node("Relu", ["y"], "r"), node("Add", ["y", "r"], "z")],
     (True, False)),
    ([conv("x", "w", "y"), helper.make_node("Relu", ["y"], ["z"], domain="own")], (False, False)),
    ([conv("x", "w", "y"), node("Relu", ["y"], "z"), helper.make_node(
        "If", ["c"], ["f"], "choice",
        then_branch=helper.make_graph([node("Neg", ["y"], "n")], "then", [], [
            helper.make_tensor_value_info("n", TensorProto.FLOAT, None)]),
        else_branch=helper.make_graph([node("Neg", ["x"], "n")], "else", [], [
            helper.make_tensor_value_info("n", TensorProto.FLOAT, None)]))], (False, False)),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "epilogue"), FOLLOWED, ids=range(len(FOLLOWED)))
def test_epilogue_option_reads_bias_and_relu(tmp_path, nodes, epilogue):
    """ReLU counts if nothing else reads the sums: no other node, no branch, and not the caller."""
    weights = [W, tensor("b", 8), tensor("a number", kind=TensorProto.INT64)]
    path = written(tmp_path, model(nodes, weights))
    (alone,), (whole,) = onnx_convs.read(path, None), onnx_convs.read(path, None, True)
    assert (alone.problem.bias, alone.problem.relu) == (False, False)
    assert (whole.problem.bias, whole.problem.relu) == epilogue


HALF, WIDE = TensorProto.FLOAT16, TensorProto.DOUBLE


@pytest.mark.parametrize(
    ("makes", "kind", "dtype", "why"),
    [
        ([node("Constant", [], "w", value=tensor("v", 8, 3, 3, 3, kind=HALF))], 1, "fp16", ()),
        ([node("Cast", ["h"], "w", to=TensorProto.FLOAT)], HALF, "fp32", ()),
        ([node("Cast", ["f"], "w", to=HALF)], 1, "fp16", ()),
        ([node("CastLike", ["f", "h"], "w")], 1, "fp16", ()),
        ([node("DequantizeLinear", ["i", "s"], "w")], 1, "fp32", ()),
        ([node("ConstantOfShape", ["to"], "w", value=numbers("v", [1]))], HALF, "fp32",
         ("other operands",)),
        ([], HALF, "fp16", ()),
    ],
)  # fmt: skip
def test_filter_type_follows_the_graph(tmp_path, makes, kind, dtype, why):
    """Filters need not be initializers: constants, casts and inputs of the model count too."""
    kinds = {"f": TensorProto.FLOAT, "h": HALF, "i": TensorProto.INT8}
    weights = [tensor(name, 8, 3, 3, 3, kind=of) for name, of in kinds.items()]
    weights += [tensor("s"), numbers("to", [8, 3, 3, 3])]
    made = model([*makes, conv("x", "w", "y")], weights, kind=kind)
    if not makes:
        made.graph.input.append(helper.make_tensor_value_info("w", HALF, (8, 3, 3, 3)))
    (given,) = onnx_convs.read(written(tmp_path, made), None)
    assert (given.others, given.problem.dtype) == (why, dtype)
