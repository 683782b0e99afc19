"""Weights in safetensors, ONNX and .npz: round trips, foreign files, and the commands."""

import importlib.util

import model_files
import numpy as np
import pytest
from terminal import refused, run

from lenetgpu import LenetError
from lenetgpu.files import assets, checksums, sums
from lenetgpu.files.convert import convert_weights
from lenetgpu.files.models import forms, layouts
from lenetgpu.files.weights import load_weights
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

ENDINGS = list(model_files.FORMS)
each_form = pytest.mark.parametrize("ending", ENDINGS)


def same(found, expected):
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == np.float32 and found[name].flags["C_CONTIGUOUS"]
        assert found[name].tobytes() == np.ascontiguousarray(tensor).tobytes(), name


@each_form
def test_round_trip_reproduces_the_file(tmp_path, ending):
    """Every bit survives the round trip, provenance included."""
    shipped, way = assets.default_weights(), tmp_path / f"way{ending}"
    convert_weights(shipped, tmp_path / "straight.h5")
    assert convert_weights(shipped, way) == model_files.FORMS[ending]
    assert convert_weights(way, tmp_path / "round.h5") == "HDF5"
    assert (tmp_path / "round.h5").read_bytes() == (tmp_path / "straight.h5").read_bytes()
    first = way.read_bytes()
    convert_weights(tmp_path / "round.h5", way)
    assert way.read_bytes() == first
    assert load_weights(way).digest == load_weights(shipped).digest


@pytest.mark.parametrize("layout", ["ours", "PyTorch's"])
@pytest.mark.parametrize("form", ["safetensors", "npz", "hdf5"])
def test_both_layouts_load_under_our_names(tmp_path, tensors, form, layout):
    suffix = "" if form == "safetensors" else ".weight"
    stored = tensors if layout == "ours" else model_files.planar(tensors)
    data = getattr(model_files, form)({n + suffix: t for n, t in stored.items()})
    (tmp_path / "x").write_bytes(data)
    same(load_weights(tmp_path / "x").tensors, tensors)


def test_exported_weights_have_pytorch_layout(tmp_path, tensors):
    """Compares with the safetensors library and with an element-by-element conversion."""
    library = pytest.importorskip("safetensors.numpy", reason="the extra `models` brings it")
    path = model_files.written(tmp_path, ".safetensors", tensors, {"who": "a test"})
    found = library.load_file(path)
    expected = {f"{name}.weight": t for name, t in model_files.planar(tensors).items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor)
    library.save_file(found, tmp_path / "theirs.safetensors")
    same(load_weights(tmp_path / "theirs.safetensors").tensors, tensors)


@pytest.mark.parametrize(("form", "dtype"), [("npz", ">f2"), ("npz", "g"), ("safetensors", "<f8")])
def test_any_float_type_loads(tmp_path, tensors, form, dtype):
    tensors = {name: t.astype(np.float16).astype(np.float32) for name, t in tensors.items()}
    stored = {name: t.astype(dtype) for name, t in tensors.items()}
    if form == "npz":
        stored = {name: np.asfortranarray(t) for name, t in stored.items()}
    (tmp_path / "x").write_bytes(getattr(model_files, form)(stored))
    same(load_weights(tmp_path / "x").tensors, tensors)
    done = run("weights", "verify", tmp_path / "x")
    assert done.stdout.startswith(f"{tmp_path / 'x'}: valid; reads ")
    assert done.stdout.endswith(f" of the 10,000 digits that ship; {sums.NONE}\n")


def test_verify_counts_digits_and_warns(tmp_path, shipped_weights):
    """Weights in another layout are valid, but read few digits."""
    tensors = shipped_weights.tensors
    for change, words in (
        ({}, "reads 9,822 of the 10,000 digits that ship"),
        ({"fc1": layouts.rows_by_channel(tensors["fc1"])}, "few digits are read"),
        ({"conv2": tensors["conv2"][::-1, ::-1]}, "few digits are read"),
    ):
        (tmp_path / "x").write_bytes(model_files.npz(tensors | change))
        done = run("weights", "verify", tmp_path / "x")
        assert done.exit_code == 0 and words in done.output
        assert ("warning" in done.stderr) == bool(change)


KERAS = {
    "save_weights": "layers/conv2d_{n}/vars/0",
    "save_weights, Keras 2": "conv2d_{n}/conv2d_{n}/kernel:0",
    "save": "model_weights/conv2d_{n}/sequential/conv2d_{n}/kernel",
}


@pytest.mark.parametrize("name", KERAS.values(), ids=KERAS)
def test_keras_files_load(tmp_path, tensors, name):
    """The optimizer's state, which has the kernels' shapes, is not read."""
    arrays = {name.format(n=n): tensor for n, tensor in enumerate(tensors.values())}
    for n, tensor in enumerate(tensors.values()):
        bias = name.format(n=n).replace("kernel", "bias").replace("vars/0", "vars/1")
        arrays[bias] = np.zeros(tensor.shape[-1], np.float32)
        arrays[f"optimizer/vars/{n + 2}"] = arrays[f"optimizer_weights/m{n}"] = tensor
    arrays["optimizer/vars/0"] = arrays["optimizer_weights/iteration"] = np.int64(3)
    (tmp_path / "x").write_bytes(model_files.hdf5(arrays))
    same(load_weights(tmp_path / "x").tensors, tensors)
    arrays[bias][0] = 1
    (tmp_path / "x").write_bytes(model_files.hdf5(arrays))
    with pytest.raises(LenetError, match=f"no biases.*found {bias} with 1 other"):
        load_weights(tmp_path / "x")


def test_safetensors_bfloat16_loads(tmp_path, tensors):
    upper = {n: (t.view(np.uint32) >> 16).astype("<u2") for n, t in tensors.items()}
    (tmp_path / "x").write_bytes(model_files.safetensors(upper))
    wide = {n: (t.astype(np.uint32) << 16).view(np.float32) for n, t in upper.items()}
    same(load_weights(tmp_path / "x").tensors, wide)


def test_tensors_are_matched_by_shape(tmp_path, tensors):
    stored = dict(zip(model_files.TORCH_NAMES, model_files.planar(tensors).values(), strict=True))
    stored = dict(reversed(stored.items()))
    biases = {f"b{size}.bias": np.zeros(size, np.float32) for size in (32, 64, 128, 10)}
    (tmp_path / "x").write_bytes(model_files.safetensors(stored | biases))
    same(load_weights(tmp_path / "x").tensors, tensors)


@each_form
def test_checksums_are_written_and_verified(tmp_path, tensors, ending):
    """`weights info` shows provenance without the checksums."""
    facts = {"who": "a test", checksums.ATTRIBUTE: "x"}
    path = model_files.written(tmp_path, ending, tensors, facts)
    for command in ("weights", "data"):
        done = run(command, "verify", path)
        assert (done.exit_code, done.output.count("checksums match (4 tensors)")) == (0, 1)
    shown = run("weights", "info", path).output
    assert f"form          {model_files.FORMS[ending]}\n" in shown and "a test" in shown
    assert "sha256" not in shown
    data = path.read_bytes()
    assert data.count(b"a test") == 1
    path.write_bytes(data.replace(b"a test", b"a tesT"))
    with pytest.raises(LenetError, match="expected its metadata to have the SHA-256"):
        load_weights(path)


def test_header_length_is_not_mistaken_for_pickle(tmp_path, tensors):
    """A length of 640 begins with the bytes 80 02, like a pickle of protocol 2."""
    length = 640
    data = model_files.safetensors(tensors)
    at = 8 + int.from_bytes(data[:8], "little")
    path = tmp_path / "x"
    path.write_bytes(length.to_bytes(8, "little") + data[8:at].ljust(length) + data[at:])
    same(load_weights(path).tensors, tensors)


def test_onnx_runtime_gives_the_same_labels(tmp_path, shipped_weights, digits):
    """All 10,000 shipped digits get the same labels in fp32 from ONNX Runtime and from our plan."""
    onnx = pytest.importorskip("onnx", reason="the extra `models` brings it")
    runtime = pytest.importorskip("onnxruntime", reason="the extra `peers` brings it")
    path = tmp_path / "lenet.onnx"
    convert_weights(assets.default_weights(), path)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)]
    assert model.producer_name == "lenetgpu" and model.doc_string
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (given,), (made,) = session.get_inputs(), session.get_outputs()
    assert (given.name, given.shape, made.name, made.shape) == (
        "images", ["batch", 1, 28, 28], "scores", ["batch", 10],
    )  # fmt: skip
    images = digits.images
    floats = images.transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
    (scores,) = session.run(None, {"images": floats})
    pipeline = Pipeline(resolve("fp32", "cpu"), shipped_weights, len(images), "uint8")
    labels = pipeline.run(images)
    assert (scores.argmax(1) == labels).all()
    largest = np.abs(scores).max()
    assert np.abs(pipeline.scores(len(images)) - scores).max() <= 1e-5 * largest


def test_convert_help_and_unknown_formats(tmp_path, weight_file):
    shown = " ".join(run("weights", "convert", "--help").output.split())
    assert all(ending in shown for ending in forms.ENDINGS)
    for name in ("x", "x.npy", "x.onnx.gz"):
        done = run("weights", "convert", weight_file, tmp_path / name)
        refused(done, "expected a name ending in .h5, .hdf5, .saf")
        assert not (tmp_path / name).exists()
    (tmp_path / "x").write_bytes(b"neither")
    words = f"{tmp_path / 'x'}: expected weights in HDF5, safetensors, PyT"
    refused(run("weights", "info", tmp_path / "x"), words, "found 7 bytes in no known format\n")


@pytest.mark.parametrize("module", ["onnx", "torch"])
def test_missing_package_is_one_sentence(tmp_path, weight_file, monkeypatch, module):
    path = tmp_path / {"onnx": "x.onnx", "torch": "x.pt"}[module]
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == module else find(name)
    )
    words = "which is not installed; pip install"
    refused(run("weights", "convert", weight_file, path), words)
    assert not path.exists()
    head = {"onnx": b"\x08\x04\x3a\x00", "torch": model_files.archive({"x/data.pkl": b"."})}
    path.write_bytes(head[module])
    refused(run("infer", "--weights", path, "--limit", 2, "--device", "cpu"), words)
