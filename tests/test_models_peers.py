"""Weights to PyTorch and back: state_dict, safetensors, and PyTorch's ONNX exporters."""

import importlib.util
import os
from collections import OrderedDict

import model_files
import pytest
from terminal import run

from lenetgpu import LeNet, LenetError
from lenetgpu.files import assets
from lenetgpu.files.convert import convert_weights
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import about, load_weights
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

pytestmark = pytest.mark.peers
with_script = pytest.mark.skipif(
    importlib.util.find_spec("onnxscript") is None, reason="no onnxscript"
)


@pytest.fixture(scope="module")
def images():
    return load_dataset(assets.default_digits()).images


@pytest.fixture(scope="module")
def expected(images):
    pipeline = Pipeline(
        resolve("fp32", "cpu"), load_weights(assets.default_weights()), len(images), "uint8"
    )
    return pipeline.run(images).copy()


def lenet(bias=False):
    """Return the network as a PyTorch user would write it."""
    from torch import nn

    return nn.Sequential(OrderedDict([
        ("conv1", nn.Conv2d(1, 32, 5, bias=bias)), ("relu1", nn.ReLU()), ("pool1", nn.AvgPool2d(2)),
        ("conv2", nn.Conv2d(32, 64, 5, bias=bias)), ("relu2", nn.ReLU()),
        ("pool2", nn.AvgPool2d(2)), ("flatten", nn.Flatten()),
        ("fc1", nn.Linear(1024, 128, bias=bias)), ("relu3", nn.ReLU()),
        ("fc2", nn.Linear(128, 10, bias=bias)),
    ])).eval()  # fmt: skip


def labels(net, images):
    import torch

    floats = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        return torch.cat([net(part).argmax(1) for part in floats.split(1000)]).numpy()


@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_pytorch_module_gives_the_same_labels(tmp_path, images, expected, ending):
    """All 10,000 shipped digits must get the same label."""
    import torch

    path = tmp_path / f"lenet{ending}"
    assert convert_weights(assets.default_weights(), path) in ("PyTorch", "safetensors")
    if ending == ".safetensors":
        from safetensors.torch import load_file

        state = load_file(path)
    else:
        state = torch.load(path, weights_only=True)
    net = lenet()
    net.load_state_dict(state, strict=True)
    assert (labels(net, images) == expected).all()
    first = load_weights(assets.default_weights())
    assert load_weights(path).digest == first.digest
    convert_weights(path, tmp_path / "back.h5")
    assert load_weights(tmp_path / "back.h5").digest == first.digest
    whole = path.read_bytes()
    convert_weights(assets.default_weights(), path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("dtype", "ending"), [("bfloat16", ".pt"), ("float64", ".pt"), ("float16", ".safetensors")]
)
def test_trained_pytorch_module_loads(tmp_path, dtype, ending):
    """Any float type and any names are accepted, and biases of zero."""
    import torch
    from safetensors.torch import save_file

    net = lenet(bias=True)
    for name, one in net.named_parameters():
        one.data = torch.zeros_like(one) if "bias" in name else one.data
    net = net.to(getattr(torch, dtype))
    state = {f"module.{name}": tensor for name, tensor in net.state_dict().items()}
    path = tmp_path / f"theirs{ending}"
    (torch.save if ending == ".pt" else save_file)(state, path)
    found = load_weights(path).tensors
    again = lenet()
    stored = model_files.planar(found)
    again.load_state_dict({f"{n}.weight": torch.from_numpy(t) for n, t in stored.items()})
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, net.state_dict()[name].float()), name
    assert not about(path).sums


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model"])
def test_checkpoints_load_from_files_and_memory(tmp_path, images, expected, key):
    import torch

    net = lenet()
    shipped = model_files.planar(load_weights(assets.default_weights()).tensors)
    net.load_state_dict({f"{name}.weight": torch.tensor(t) for name, t in shipped.items()})
    adam = torch.optim.Adam(net.parameters()).state_dict()
    checkpoint = {"epoch": 3, key: net.state_dict(), "optimizer_state_dict": adam}
    torch.save(checkpoint, tmp_path / "x.pt")
    for weights in (tmp_path / "x.pt", checkpoint, net.state_dict()):
        with LeNet.load(weights, device=torch.device("cpu")) as loaded:
            assert (loaded(images) == expected).all()
    half = LeNet.load(net.bfloat16().state_dict(), device="cpu")
    assert (half(images) == expected).mean() > 0.99


class Viewed:
    """Builder of the same network with `view`, byte input and labels; imports PyTorch on use."""

    @staticmethod
    def made(net):
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.net = net

            def forward(self, x):
                features = self.net[:6](x / 255)
                scores = self.net[7:](features.view(features.size(0), -1))
                return torch.log_softmax(scores, 1).argmax(1)

        return Net().eval()


@pytest.mark.parametrize("made", [lambda net: net, Viewed.made], ids=["plain", "viewed"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dynamo", [False, pytest.param(True, marks=with_script)])
@pytest.mark.filterwarnings("ignore")
def test_pytorch_onnx_export_round_trips_bitwise(tmp_path, tensors, dynamo, dynamic, made):
    import torch

    pytest.importorskip("onnx", reason="the extra `models` brings it")
    net = lenet(bias=True)
    stored = {f"{n}.weight": torch.from_numpy(t) for n, t in model_files.planar(tensors).items()}
    net.load_state_dict(stored, strict=False)
    for name, one in net.named_parameters():
        one.data = torch.zeros_like(one) if "bias" in name else one.data
    options = {"dynamo": dynamo}
    if dynamo:
        options["external_data"] = False
        if dynamic:
            options["dynamic_shapes"] = ({0: torch.export.Dim("n")},)
    elif dynamic:
        options |= {"input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}}
    path = tmp_path / "theirs.onnx"
    torch.onnx.export(made(net), (torch.zeros(2, 1, 28, 28),), path, **options)
    found = load_weights(path).tensors
    for name, tensor in tensors.items():
        assert found[name].tobytes() == tensor.tobytes(), name


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def refused(path, *parts):
    with pytest.raises(LenetError) as caught:
        load_weights(path)
    said = str(caught.value)
    assert "\n" not in said and [part for part in parts if part not in said] == [], said
    done = run("weights", "info", path)
    assert (done.exit_code, done.stderr) == (2, f"lenetgpu: error: {said}\n")


def test_malicious_pickle_is_not_executed(tmp_path):
    import torch

    path, harmed = tmp_path / "harm.pt", tmp_path / "harmed"
    torch.save({"conv1.weight": Harm(harmed)}, path)
    refused(path, "found a whole model or other Python objects (posix.system); save model.state")
    assert not harmed.exists()
    torch.load(path, weights_only=False)
    assert harmed.exists(), "the file would have harmed"


def test_invalid_state_dicts_are_refused(tmp_path, tensors):
    import torch

    path = tmp_path / "x.pt"
    state = {name: torch.from_numpy(t) for name, t in model_files.planar(tensors).items()}
    torch.save(lenet(), path)
    refused(path, "found a whole model or other Python objects (torch.nn.")
    torch.jit.script(lenet()).save(path)
    refused(path, "found a TorchScript model; save torch.jit.load(FILE).state_dict() by torch.save")
    torch.save(torch.nn.Conv2d(1, 6, 5).state_dict(), path)
    refused(path, "found weight of shape 6x1x5x5: another network; train the one in docs/")
    for found, words in (
        ([1, 2], "tensors by name, found list"),
        ({"epoch": 3, "net": state}, "found int under epoch; save model.state_dict() alone"),
        (state | {"fc2": state["fc2"].to_sparse()}, "fc2 to be a plain tensor of floats"),
        (state | {"fc2": state["fc2"].to(torch.int32)}, "of floats, found torch.int32"),
        (state | {"fc2": state["fc2"].to("meta")}, "on meta"),
        (state | {"more": state["fc2"]}, "one tensor for fc2"),
        (state | {"b": torch.ones(10)}, "no biases"),
    ):
        torch.save(found, path)
        refused(path, words)
    torch.save(state, path, _use_new_zipfile_serialization=False)
    refused(path, "found a bare pickle, which is not read")
