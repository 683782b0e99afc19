"""Weight files that are damaged, hostile or of another network: one message, exit code 2."""

import gzip
import io
import json
import os
import pickle
import random
import re
import resource
import struct
import sys
import zipfile
from types import SimpleNamespace

import model_files
import numpy as np
import pytest
import terminal

from lenetgpu import LenetError
from lenetgpu.files.models import forms
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import about, load_weights

each_form = pytest.mark.parametrize("ending", list(model_files.FORMS))
MUTATIONS = 100


def refused(path, data, *parts):
    """Assert that `load_weights` and a command refuse `data` with one message that has `parts`."""
    path.write_bytes(data)
    with pytest.raises(LenetError) as caught:
        load_weights(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: expected") and "found" in said and "\n" not in said
    assert [part for part in parts if part not in said] == [], said
    done = terminal.run("weights", "verify", path)
    assert (done.exit_code, done.stderr) == (2, f"lenetgpu: error: {said}\n")


FORMS_OF_SHAPES = [
    (lambda t: {n: a for n, a in t.items() if n != "fc1"}, ["weights also for fc1 128x1024"]),
    (lambda t: t | {"ema.fc2": t["fc2"]}, ["one tensor for fc2", "ema.fc2"]),
    (lambda t: t | {"scale": np.ones((3, 3), np.float32)}, ["nothing else", "scale of shape 3x3"]),
    (
        lambda t: t | {"conv1": t["conv2"], "conv2": t["conv1"]},
        ["conv1 to have shape 5x5x1x32 or, in PyTorch's layout, 32x1x5x5, found 5x5x32x64"],
    ),
    (lambda t: t | {"fc2": t["fc2"].T.copy()}, ["all tensors in one layout", "fc2 in PyTorch's"]),
    (lambda t: t | {"fc1.bias": np.eye(1, 128, 5)[0]}, ["no biases", "fc1.bias with 1 other"]),
    (lambda t: t | {"b1": np.ones(32)}, ["no biases", "b1 with 32 other"]),
    (lambda t: t | {"fc2": t["fc2"].astype(np.int64)}, ["fc2", "int64"]),
]


@pytest.mark.parametrize("form", ["safetensors", "npz", "hdf5"])
@pytest.mark.parametrize(("change", "parts"), FORMS_OF_SHAPES)
def test_tensors_of_another_network_are_refused(tmp_path, tensors, form, change, parts):
    if form == "safetensors":
        parts = [part.replace("int64", "I64") for part in parts]
    data = getattr(model_files, form)(change(tensors))
    refused(tmp_path / "x", data, *parts)


FOREIGN = {
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "by git lfs pull"),
    "HTML": (b"\n<!DOCTYPE html>\n<html>", "a page in HTML or XML, as servers send with errors; d"),
    "pickle": (pickle.dumps([1]), "pickle, which "),
}


@pytest.mark.parametrize(("data", "words"), FOREIGN.values(), ids=FOREIGN)
def test_foreign_files_are_named(tmp_path, data, words):
    """In the place of weights, of data and of pictures; advice says what to do."""
    refused(tmp_path / "x", data, words)
    for command in (("data", "info"), ("infer",), ("data", "verify")):
        done = terminal.run(*command, tmp_path / "x")
        assert done.exit_code == 2 and words in done.stderr, command


def test_files_of_the_other_kind_are_named(tmp_path, tensors):
    for name, data, words in (
        ("x.onnx", b"\x08\x08\x12\x00", "a model in ONNX format, not images; --weights reads it"),
        ("x.npz", model_files.npz(tensors), "a zip archive (as .npz and .pt are); save its images"),
        ("x.pkl.gz", gzip.compress(pickle.dumps([bytes(99)])), "a pickle, which can run code"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(LenetError, match=re.escape(words)):
            load_dataset(tmp_path / name)
    refused(tmp_path / "x", model_files.npy(np.zeros((9, 28, 28), np.uint8)), "a single array")
    refused(tmp_path / "x", b"\x89PNG\r\n\x1a\n", "found a picture in PNG format")
    refused(tmp_path / "x", model_files.hdf5({"x": np.zeros((9, 28, 28))}), "found x of shape 9x28")
    for member, words in (("model/constants.pkl", "a TorchScript model; save torch.jit.load(FILE)"),
                          ("model.weights.h5", "a whole Keras model; save it by")):  # fmt: skip
        refused(tmp_path / "x", model_files.archive({"a/data.pkl": b"", member: b""}), words)


def entry(name="fc2", **changes):
    return lambda header: header[name].update(changes)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (entry(data_offsets=[0, 5120]), ["at bytes 0 to", "comes next"]),
        (entry(data_offsets=[-1, 5119]), ["no list of numbers from 0 on"]),
        (entry(dtype="F8_E4M3"), ["fc2 to be of type F64, F32, F16, BF16, found F8_E4M3"]),
        (entry(dtype="F64"), ["fc2 of 128x10 F64 in 5,120 bytes"]),
        (lambda header: header.pop("fc2"), ["the end at bytes", "comes next"]),
        (lambda header: header.update(__metadata__={"a": 1}), ["not text by name"]),
        (entry("fc1", shape=[2**31, 2**31]), ["fc1 to have shape", "2147483648x2147483648"]),
    ],
)
def test_invalid_safetensors_headers_are_refused(tmp_path, tensors, change, parts):
    refused(tmp_path / "x", model_files.safetensors(tensors, change), *parts)


@pytest.mark.parametrize(
    ("head", "body", "parts"),
    [
        (2**63, b"{}", ["a header of at most 2 bytes, found one of 9,223,372,036,854,775,808"]),
        (500_000, b'{"a":' + b"[" * 499_995, ["damaged"]),
        (4, b'{"\xff"', ["damaged"]),
        (23, b'{"fc1": {}, "fc1": {}} ', ["a name that is there twice"]),
    ],
)
def test_truncated_safetensors_are_refused(tmp_path, head, body, parts):
    refused(tmp_path / "x", struct.pack("<Q", head) + body, *parts)


def with_flag(data, bit):
    """Return an archive with this flag set for every file in its directory."""
    changed = bytearray(data)
    at = -1
    while (at := changed.find(b"PK\1\2", at + 1)) >= 0:
        changed[at + 8] |= bit
    return bytes(changed)


class Harm:
    def __reduce__(self):
        return os.system, ("echo harmed > harmed",)


def test_invalid_archives_are_refused(tmp_path, tensors, monkeypatch):
    """Bombs, pickles, passwords, duplicate names, methods that require much memory."""
    monkeypatch.chdir(tmp_path)
    path, first = tmp_path / "x", {"conv1.npy": model_files.npy(tensors["conv1"])}
    bomb = np.zeros((128, 1 << 18), np.float32)
    refused(path, model_files.npz({"conv1": tensors["conv1"], "fc1": bomb}), "bytes in the archive")
    many = {f"{n}.npy": b"" for n in range(300)}
    refused(path, model_files.archive(many), "an archive of at most 256 files, found 300")
    pickled = model_files.npy(np.array([Harm()], object))
    refused(path, model_files.archive({"conv1.npy": pickled}), "conv1 to hold floats, found object")
    assert not (tmp_path / "harmed").exists()
    refused(path, model_files.archive(first | {"note.txt": b"hello"}), "found note.txt")
    refused(path, model_files.archive({"note.txt": b""}), "of *.npy or */data.pkl, found note.txt")
    refused(path, with_flag(model_files.npz(tensors), 1), "encrypted")
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        refused(path, model_files.archive(first, method), f"conv1.npy by method {method}")
    twice = io.BytesIO()
    with zipfile.ZipFile(twice, "w") as made, pytest.warns(UserWarning, match="Duplicate"):
        for _ in range(2):
            made.writestr("conv1.npy", first["conv1.npy"])
    refused(path, twice.getvalue(), "found conv1.npy twice")
    refused(path, model_files.archive({"conv1.npy": b"\x93NUMPY\1\0"}), "a damaged header")
    short = model_files.npy(tensors["fc2"])[:-4]
    refused(path, model_files.archive({"fc2.npy": short}), "fc2 of 128x10 float32 in 5,116 bytes")


def test_every_byte_of_archive_comment_is_verified(tmp_path, tensors):
    """Changing or cutting the comment, which holds the checksums, is detected."""
    path = model_files.written(tmp_path, ".npz", tensors, {"who": "a test"})
    whole = path.read_bytes()
    begins = whole.rindex(b"PK\5\6") + 22
    for at in (begins - 2, begins, len(whole) - 1):
        changed = bytearray(whole)
        changed[at] ^= 4
        refused(path, bytes(changed), "damaged")
    refused(path, whole[:-30], f"found a damaged one (a comment of {len(whole) - begins}")
    refused(path, whole + b"\n", "left for it")


def test_oversized_files_are_refused(tmp_path, tensors):
    """Reading does not wait for a FIFO or device either."""
    data = model_files.safetensors(tensors)
    refused(tmp_path / "x", data + bytes(9 << 20), "in at most 8,388,608 bytes, found 10,")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        found = "a folder; name a file" if path == tmp_path else "a device"
        terminal.refused(terminal.run("weights", "info", path), f"found {found}")


def test_pickles_are_not_read(tmp_path, monkeypatch):
    """A bare pickle is refused, and one in an archive if PyTorch is too old to read it safely."""
    refused(tmp_path / "x", b"\x80\x02}q\0.", "found a bare pickle, which is not read")
    data = model_files.archive({"x/data.pkl": b"\x80\x02}."})
    torch = type(sys)("torch")
    torch.__version__ = "2.9.1+cpu"
    torch.__spec__ = "there"
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: "there")
    refused(tmp_path / "x", data, "expected PyTorch 2.10 or later", "found 2.9.1+cpu")
    torch.__version__, torch.Tensor = "2.10.0", bytes
    torch.nn = SimpleNamespace(Parameter=bytes)
    torch.load = lambda file, map_location, weights_only: {"x": 1} if weights_only else None
    refused(tmp_path / "x", data, "tensors by name, found int under x")


@each_form
def test_mutated_files_are_refused_or_read_correctly(tmp_path, tensors, ending):
    """Flipped bits, cut bytes and overwritten runs give a message or exactly the same weights."""
    path = model_files.written(tmp_path, ending, tensors, {"who": "a test"})
    whole, expected = path.read_bytes(), load_weights(path).digest
    known = about(path).facts
    draw = random.Random(14)
    body = [at for at in range(len(whole)) if at < 1500 or at > len(whole) - 4000]
    count = 0
    for number in range(MUTATIONS):
        data = bytearray(whole)
        at = draw.choice(body) if number % 4 else draw.randrange(len(whole))
        if number % 10 == 9:
            data = data[:at]
        elif number % 10 == 8:
            data[at : at + 40] = draw.randbytes(40)
        else:
            data[at] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            found = load_weights(path)
        except LenetError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)
            count += 1
            continue
        assert found.digest == expected, (number, at)
        if about(path).sums:
            assert about(path).facts == known, (number, at)
    assert count > MUTATIONS * 0.6, count


@pytest.mark.parametrize("lost", ["lenetgpu.sha256.fc1", "lenetgpu.sha256"])
def test_incomplete_checksums_are_refused(tmp_path, tensors, lost):
    stored = model_files.planar(tensors)
    sums = forms.stated(stored, {"who": "a test"})
    del sums[lost]
    data = model_files.safetensors(stored, lambda header: header.update(__metadata__=sums))
    refused(tmp_path / "x", data, "expected a checksum of" if "fc1" in lost else "its metadata to")


def field(number, data):
    def varint(value):
        return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)

    return varint(number << 3 | 2) + varint(len(data)) + data


def nested(depth):
    data = b""
    for _ in range(depth):
        data = field(1, field(5, field(6, data)))
    return field(7, data)


EMPTY = forms.MOST_BYTES // 2 - 64
BOMBS = {
    "nodes": field(7, b"\x0a\0" * EMPTY),
    "initializers": field(7, b"\x2a\0" * EMPTY),
    "types": field(7, field(11, field(2, b"\x0a\0" * EMPTY))),
}


def test_provenance_longer_than_a_comment_is_refused(tmp_path, tensors):
    def written(letters):
        forms.written(tmp_path / "x.npz", forms.NPZ, tensors, {"note": "x" * letters})

    left = 65_535 - len(json.dumps(forms.stated(tensors, {"note": ""})))
    written(left)
    with pytest.raises(LenetError, match="comment of 65,535 bytes holds, found 65,536;"):
        written(left + 1)


NO_MESSAGES = [
    (b"\x08\x08\x3a\x05\0", "a model that ends at byte 9 of 5"),
    (b"\x08\x08\x3a\x02\x0a\x05", "a graph that ends at byte 11 of 6"),
    (b"\x08\x08\x3a" + b"\x80" * 12, "a number without an end"),
    (b"\x08\x08\x3a\x01\x0b", "a field of kind 3"),
    (b"\x08\x08" + nested(20), "graphs within graphs without end"),
]


@pytest.mark.parametrize(("data", "part"), NO_MESSAGES, ids=range(len(NO_MESSAGES)))
def test_invalid_onnx_messages_are_refused(tmp_path, data, part):
    refused(tmp_path / "x", data, f"found a damaged one ({part}")


@pytest.mark.parametrize("what", BOMBS)
def test_memory_exhausting_models_are_refused(tmp_path, what):
    """8 MiB of empty messages would expand to gigabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = "of at most 20,000 fields, 9,437,184 bytes and 524,288 of types"
    refused(tmp_path / "x", b"\x08\x08" + BOMBS[what], most)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
