"""Formats that `scripts/fuzz.py` damages: valid files, a mutation and a reader each.

`read` returns the content of a file as text, the same for the same file, and raises LenetError for
a refused file. Anything else is a finding.
"""

import contextlib
import gzip
import hashlib
import io
import json
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
import onnx
from PIL import Image

from lenetgpu.errors import LenetError
from lenetgpu.files import hdf5
from lenetgpu.files.convs import benchdnn, miopen, onnx_convs
from lenetgpu.files.models import forms
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import load_weights
from lenetgpu.lab.documents import load_earlier
from lenetgpu.measure import regression
from lenetgpu.network import weight_shapes
from lenetgpu.pictures.as_mnist import as_it_is, as_mnist
from lenetgpu.pictures.read import read_grey

ROOT = Path(__file__).resolve().parent.parent
Spans = Sequence[tuple[int, int]]
_LONGEST, _BOMB = 4 << 20, 64 << 20
_WORDS = (0, 1, 2, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
          1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A file; `hot` are the bytes of its structure, `sums` the spans before a checksum."""

    data: bytes
    hot: Spans = ()
    sums: Spans = ()


Mutation = Callable[[Random, Entry, Sequence[Entry]], bytes]


@dataclass(frozen=True)
class Format:
    """Files named `file`, with those of `beside` in the same folder.

    With `summed`, a damaged file must be refused or give the data of a valid one.
    """

    name: str
    file: str
    seeds: Callable[[], list[Entry]]
    mutate: Mutation
    read: Callable[[Path], object]
    beside: Mapping[str, bytes] = field(default_factory=dict)
    summed: bool = False


# damage


def damage(rng: Random, data: bytes, hot: Spans = ()) -> bytes:
    """Change numbers and bits, cut, double or move parts, mostly in `hot` spans."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not damaged:
            break
        lo, hi = rng.choice(hot) if hot and rng.random() < 0.8 else (0, len(damaged))
        lo = min(max(lo, 0), len(damaged) - 1)
        at = rng.randrange(lo, max(lo + 1, min(hi, len(damaged))))
        kind, length = rng.randrange(12), rng.choice((1, 2, 4, 8, 16, 64, 512))
        if kind < 5:
            width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
            at -= at % width if rng.random() < 0.7 else 0
            old = int.from_bytes(damaged[at : at + width], order)
            near = (at, len(damaged), old + 1, old - 1, old * 2, rng.getrandbits(64))
            value = rng.choice((*_WORDS, *near)) % (1 << 8 * width)
            damaged[at : at + width] = value.to_bytes(width, order)
        elif kind < 8:
            damaged[at] ^= 1 << rng.randrange(8)
        elif kind == 8:
            del damaged[at : at + length if rng.random() < 0.5 else None]
        elif kind == 9 and len(damaged) < _LONGEST:
            damaged[at:at] = damaged[at : at + length]
        else:
            damaged[at : at + length] = rng.randbytes(length)
    return bytes(damaged)


def of_bytes(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Damage bytes, most of them where the header is; or join two files."""
    if rng.random() < 0.05:
        other = rng.choice(others).data
        return (
            entry.data[: rng.randrange(len(entry.data) + 1)]
            + other[rng.randrange(len(other) + 1) :]
        )
    return damage(rng, entry.data, entry.hot)


def of_gzip(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Damage the compressed or the uncompressed bytes, or add a bomb."""
    try:
        content = zlib.decompress(entry.data, 31)
    except zlib.error:
        return of_bytes(rng, entry, others)
    more = bytes(rng.choice((0, 1, 784, _BOMB)))
    packed = gzip.compress(damage(rng, content, [(0, 16)]) + more, 1, mtime=0)
    return packed if rng.random() < 0.7 else of_bytes(rng, entry, others)


def of_json(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Replace, delete or exchange values of the tree; sometimes bytes, or deep nesting."""
    odd = (None, True, 0, -1, 1.5, 1e308, 10**400, float("nan"), float("inf"), "", "nan", "1",
           "\x1b[31m\n", "\ud800", "x" * 5000, [], {}, [[]], [None], [1, 2], {"a": 1})  # fmt: skip
    try:
        tree = json.loads(entry.data)
    except (ValueError, RecursionError):
        tree = None
    if tree is None or rng.random() < 0.2:
        deep = rng.choice((b"[", b'{"a":')) * rng.choice((10, 900, 100_000))
        return deep if rng.random() < 0.2 else damage(rng, entry.data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        nodes, todo = [], [tree]
        while todo:
            holder = todo.pop()
            for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
                nodes.append((holder, key))
                todo += [holder[key]] if isinstance(holder[key], dict | list) else []
        if not nodes:
            return json.dumps(rng.choice(odd)).encode()
        holder, key = rng.choice(nodes)
        other, other_key = rng.choice(nodes)
        change = rng.randrange(6)
        if change == 0:
            del holder[key]
        elif change == 1:
            holder[key] = deepcopy(other[other_key])
        elif change == 2 and isinstance(holder, dict):
            holder[rng.choice(("", "a", f"{key}x"))] = holder.pop(key)
        else:
            holder[key] = deepcopy(rng.choice(odd))
    return json.dumps(tree).encode()


def of_npy(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Give the header's text another type, shape or order; or damage bytes."""
    header = re.match(rb"\x93NUMPY..(..)([^\n]*\n)", entry.data, re.DOTALL)
    if header is None or rng.random() < 0.5:
        return damage(rng, entry.data, [(0, 128)])
    odd = (b"'|O'", b"'<f8'", b"'>u2'", b"'<c16'", b"'|V784'", b"[('a','<f4')]", b"(", b"()" * 900,
           b"(9223372036854775807, 28, 28)", b"(-1, 28, 28)", b"1e9", b"[" * 3000)  # fmt: skip
    parts = re.findall(rb"'[^']*'|\([^)]*\)|\w+", header[2]) or [b"{"]
    text = header[2].replace(rng.choice(parts), rng.choice(odd), 1)
    length = len(text).to_bytes(4, "little")[:2] if rng.random() < 0.8 else header[1]
    return entry.data[: header.start(1)] + length + text + entry.data[header.end() :]


def lookup3(data: bytes, lengths: Any) -> Any:
    """Return HDF5's metadata checksum of the first n bytes of `data` for each n."""

    def turned(x: Any, by: int) -> Any:
        return (x << np.uint32(by)) | (x >> np.uint32(32 - by))

    lengths = np.asarray(lengths, np.int64)
    a, b, c = (np.uint32(0xDEADBEEF) + lengths.astype(np.uint32) for _ in range(3))
    for at in range(0, int(lengths.max()), 12):
        left = lengths - at
        words = np.frombuffer(data[at : at + 12].ljust(12, b"\0"), np.uint8)
        block = np.where(np.arange(12) < left[:, None], words, 0).astype(np.uint8).view("<u4")
        active, last = left > 0, (left > 0) & (left <= 12)
        a, b, c = (np.where(active, x + block[:, k], x) for k, x in enumerate((a, b, c)))
        x, y, z, f, g, h = a, b, c, a, b, c
        for by in (4, 6, 8, 16, 19, 4):
            x, y, z = y, z + y, (x - z) ^ turned(z, by)
        for by in (14, 11, 25, 16, 4, 14, 24):
            f, g, h = g, (h ^ g) - turned(g, by), f
        mixed = active & ~last
        a, b = np.where(mixed, x, a), np.where(mixed, y, b)
        c = np.where(mixed, z, np.where(last, g, c))
    return c


def described(data: bytes) -> Entry:
    """Return an HDF5 file with its metadata spans and checksummed spans."""
    raw: list[tuple[int, int]] = []
    with h5py.File(io.BytesIO(data), "r") as file:
        items: list[Any] = []
        file.visititems(lambda _, item: items.append(item))
        for item in (item for item in items if isinstance(item, h5py.Dataset)):
            if item.chunks:
                chunks = map(item.id.get_chunk_info, range(item.id.get_num_chunks()))
                raw += [(chunk.byte_offset, chunk.byte_offset + chunk.size) for chunk in chunks]
            elif (at := item.id.get_offset()) is not None:
                raw.append((at, at + item.id.get_storage_size()))
    edges, sums = [0, *(edge for span in sorted(raw) for edge in span), len(data)], []
    hot = [(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
    for match in re.finditer(rb"\x89HDF\r\n\x1a\n|[OBFAES][A-Z]{3}", data):
        lo = match.start()
        tries = np.arange(8, min(len(data) - lo - 4, 1100))
        if len(tries) and any(first <= lo < last for first, last in hot):
            stored = [struct.unpack_from("<I", data, lo + n)[0] for n in tries]
            sums += [
                (lo, lo + int(n)) for n in tries[lookup3(data[lo : lo + 1104], tries) == stored]
            ]
    return Entry(data, hot, sums)


def of_hdf5(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Damage metadata, usually with corrected checksums; sometimes chunks."""
    damaged = bytearray(damage(rng, entry.data, entry.hot if rng.random() < 0.9 else ()))
    if rng.random() < 0.85:
        correct_sums(damaged, entry)
    return bytes(damaged)


def correct_sums(damaged: bytearray, entry: Entry) -> None:
    """Correct the checksums of metadata that differs from `entry`."""
    for lo, hi in entry.sums:
        if hi + 4 <= len(damaged) and damaged[lo:hi] != entry.data[lo:hi]:
            damaged[hi : hi + 4] = struct.pack(
                "<I", int(lookup3(bytes(damaged[lo:hi]), [hi - lo])[0])
            )


def of_safetensors(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Damage the JSON header, with or without a correct length, sometimes without checksums."""
    length = int.from_bytes(entry.data[:8], "little")
    header = entry.data[8 : 8 + length]
    if rng.random() < 0.3 or len(header) != length:
        return of_bytes(rng, entry, others)
    text = of_json(rng, Entry(header), others)
    with_sums = text
    try:
        tree = json.loads(text)
        tree.pop("__metadata__", None)
        text = json.dumps(tree).encode() if rng.random() < 0.4 else with_sums
    except (ValueError, AttributeError, TypeError, RecursionError):
        pass
    stated = rng.choice((len(text),) * 8 + (0, 1 << 63, len(text) + 8))
    return stated.to_bytes(8, "little") + text + entry.data[8 + length :]


def of_npz(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Damage, rename or double a member, or make it a bomb; the zip stays valid."""
    try:
        with zipfile.ZipFile(io.BytesIO(entry.data)) as source:
            members = [(name, source.open(name).read(_LONGEST)) for name in source.namelist()]
    except Exception:  # of a file that went further
        members = []
    if not members or rng.random() < 0.3:
        return damage(rng, entry.data, [*entry.hot, (len(entry.data) - 600, len(entry.data))])
    at, kind = rng.randrange(len(members)), rng.randrange(6)
    name, data = members[at]
    if kind < 3:
        members[at] = name, of_npy(rng, Entry(data), others)
    elif kind == 3:
        members[at] = rng.choice(("../x.npy", "a", "\x1b[31m.npy", name * 40)), data
    elif kind == 4:
        members.insert(rng.randrange(len(members)), (name, data))
    else:
        members[at] = name, data[:200] + bytes(rng.choice((8, _BOMB)))
    archive, method = io.BytesIO(), rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(), zipfile.ZipFile(archive, "w", method, compresslevel=1) as file:
        warnings.simplefilter("ignore")  # of a name twice
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name), data, method, 1)
    return archive.getvalue()


def of_onnx(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Change a few fields of the model; or damage bytes."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(entry.data)
    except Exception:  # protobuf's own error, by whichever of its makes
        return of_bytes(rng, entry, others)
    graph = model.graph
    if rng.random() < 0.3 or not graph.node or not graph.initializer:
        return of_bytes(rng, entry, others)
    for _ in range(rng.choice((1, 1, 2, 3))):
        odd = rng.choice((0, 1, -1, 10**6, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1))
        tensor, node = rng.choice(graph.initializer), rng.choice(graph.node)
        other, kind = rng.choice(graph.node), rng.randrange(10)
        attribute = rng.choice([*node.attribute, onnx.AttributeProto()])
        if kind == 0 and tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = odd
        elif kind == 1:
            tensor.data_type = odd % (1 << 31)
        elif kind == 2:
            tensor.raw_data = tensor.raw_data[: rng.randrange(64)] * rng.choice((0, 1, 3))
        elif kind == 3:
            tensor.data_location = 1
            tensor.external_data.add(key="location", value=rng.choice(("/etc/passwd", "../x")))
        elif kind == 4:
            node.op_type = rng.choice(("Conv", "Relu", "If", "Loop", "", "\x1b[31m", "Reshape",
                                       other.op_type))  # fmt: skip
        elif kind == 5:
            attribute.i = odd
            if attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = odd
        elif kind == 6:
            graph.node.add().CopyFrom(node) if rng.random() < 0.5 else graph.node.remove(node)
            if not graph.node:
                break
        elif kind == 7 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*other.output, ""])
        elif kind == 8 and node.output:
            node.output[0] = rng.choice([*other.output, ""])
        else:
            inner = graph.node.add(op_type="If", name="deep").attribute.add(name="then_branch")
            for _ in range(rng.choice((1, 5, 64))):
                inner.type = onnx.AttributeProto.GRAPH
                inner = inner.g.node.add(op_type="If").attribute.add(name="then_branch")
    return bytes(model.SerializeToString())


# readers


def _hashed(*arrays: Any) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(b"none" if array is None else f"{array.dtype}{array.shape}".encode())
        sha.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def read_images(path: Path) -> str:
    """Read images and labels; raise AssertionError if they break a reader's guarantees."""
    if path.suffix == ".h5":
        hdf5.attributes(path)
    data = load_dataset(path)
    assert data.images.shape[1:] == (28, 28, 1) and len(data) > 0
    assert data.images.dtype == np.uint8 or -0.01 < data.images.min() <= data.images.max() < 1.01
    if data.labels is not None:
        assert data.labels.shape == (len(data),) and set(data.labels.tolist()) <= set(range(10))
    return _hashed(data.images, data.labels)


def read_weights(path: Path) -> str:
    """Read every tensor; raise AssertionError if one has another shape or is not finite."""
    tensors = load_weights(path).tensors
    assert {name: tensor.shape for name, tensor in tensors.items()} == weight_shapes()
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    return _hashed(*tensors.values())


def read_picture(path: Path) -> str:
    """Read grey and digit; raise AssertionError if they break the reader's guarantees."""
    grey, notes, size = read_grey(path)
    assert grey.ndim == 2 and grey.size and grey.dtype == np.float32 and np.isfinite(grey).all()
    assert grey.min() >= -0.01 and grey.max() <= 255.01, (grey.min(), grey.max())
    words, digits = [*notes, str(zlib.crc32(grey))], [as_it_is(grey, size)]
    try:
        digits.append(as_mnist(grey))
    except LenetError as error:
        words.append(str(error))
    for digit in digits:
        assert digit.pixels.shape == (28, 28) and digit.pixels.dtype == np.uint8
        words += [*digit.notes, str(zlib.crc32(digit.pixels))]
    return " ".join(words)


def read_line(path: Path) -> str:
    line = path.read_bytes().decode("latin-1")
    convolutions = (miopen if "MIOpen" in line else benchdnn).read(line)
    return str(convolutions)


def read_earlier(path: Path) -> str:
    """Use a file as `--against` does: read it, compare it, look for regressions."""
    text = path.read_bytes()
    stage = re.search(rb'"what": "(\w+)"', text)
    command = "conv" if b'"cases"' in text else "compare"
    earlier = load_earlier(
        path, command, stage[1].decode() if stage and command[2] == "m" else None
    )
    now = {"device": "NVIDIA H200", "baseline": earlier.get("baseline"), "cold_l2": False}
    lost = regression.regressions(earlier, earlier, 3.0)
    if command == "conv":
        now["cases"] = [(case["shape"], case["images"]) for case in earlier["cases"]]
    regression.check_earlier(earlier, str(path), now)
    return str(lost)


# valid files

DIGITS = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8) * (
    np.random.default_rng(1).random((3, 28, 28)) < 0.2
).astype(np.uint8)
LABELS = np.array([3, 0, 9], np.uint8)
TENSORS = {name: np.resize(np.linspace(-0.1, 0.1, 64, dtype="f4"), shape)
           for name, shape in weight_shapes().items()}  # fmt: skip


def _plain(*files: bytes, hot: int = 64) -> Callable[[], list[Entry]]:
    return lambda: [Entry(data, [(0, hot)]) for data in files]


def hdf5_files(*ways: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> list[Entry]:
    """Make a file of each (arrays by name, options of data sets, options of the file)."""
    entries = []
    for arrays, set_options, file_options in ways:
        buffer = io.BytesIO()
        with h5py.File(buffer, "w", **file_options) as file:
            file.attrs["title"] = "three digits"
            for name, array in arrays.items():
                options = set_options if array.ndim > 2 or "y" not in arrays else {}
                file.create_dataset(name, data=array, track_times=False, **options)
        entries.append(described(buffer.getvalue()))
    return entries


def image_files() -> list[Entry]:
    """Make contiguous and chunked files with each filter, in both generations of HDF5."""
    floats, latest = DIGITS.astype(np.float32) / 255, {"libver": "latest"}
    zipped = {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": (1, 28, 28)}
    one_hot, plain = np.eye(10, dtype="f4")[LABELS], {"x": DIGITS, "y": LABELS}
    return hdf5_files(
        (plain, {}, {}), ({"x": floats, "y": LABELS.astype(">i8")}, {}, {}),
        ({"x": floats.astype(">f8"), "y": one_hot}, zipped, {}),
        (plain, {"chunks": (2, 28, 28), "maxshape": (None, 28, 28)}, {}), (plain, zipped, latest),
        (plain, {"chunks": (1, 28, 28), "maxshape": (9, 28, 28)}, latest),
        ({"x": floats}, {"chunks": (1, 28, 28), "maxshape": (None, 28, 28)}, latest),
        (plain, zipped, {"userblock_size": 512}),
    )  # fmt: skip


def weight_files() -> list[Entry]:
    zipped = {"compression": "gzip", "shuffle": True, "fletcher32": True, "chunks": True}
    latest = {"libver": "latest"}
    return hdf5_files((TENSORS, {}, {}), (TENSORS, zipped, {}), (TENSORS, zipped, latest))


def model_files(form: str) -> list[Entry]:
    data = forms.written(Path("w"), form, TENSORS, {"who": "the fuzzer", "seed": 1})
    spans = [(at, at + t.nbytes) for t in TENSORS.values() if (at := data.find(t.tobytes())) >= 0]
    edges = [0, *(edge for span in sorted(spans) for edge in span), len(data)]
    return [Entry(data, list(zip(edges[::2], edges[1::2], strict=True)))]


def npy_files() -> list[Entry]:
    """Make arrays of each accepted type and shape, and a version 2 header."""
    entries = []
    for array, version in ((DIGITS, (1, 0)), (DIGITS[..., None] / 255.0, (1, 0)), (DIGITS, (2, 0)),
                           (DIGITS[:, None].astype(">f4") / 255, (1, 0))):  # fmt: skip
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, array, version=version)
        entries.append(Entry(buffer.getvalue(), [(0, 128)]))
    return entries


def earlier_files() -> list[Entry]:
    """Take stored results of `compare` and `conv` with a few candidates each."""
    entries, folder = [], ROOT / "docs" / "measured" / "nvidia-h200"
    for path in sorted([*folder.glob("cells/*.json"), *folder.glob("conv/*.json")])[:6]:
        document = json.loads(path.read_text())
        for part in document.get("cases", [document]):
            part["candidates"] = part["candidates"][:3]
        document |= {"cases": document["cases"][:2]} if "cases" in document else {}
        entries.append(Entry(json.dumps(document).encode()))
    return entries


def picture_files(form: str) -> list[Entry]:
    """Make pictures of a 7 in Pillow's `form`: every mode, rotated, multi-frame, compressed."""
    y, x = np.mgrid[:60, :44]
    ink = ((abs(y - 12) < 3) & (x > 8) & (x < 35)) | (
        (abs(32 - (y - 12) * 0.35 - x) < 3) & (y >= 12) & (y < 51)
    )
    grey = Image.fromarray(np.where(ink, 20, 235).astype(np.uint8))
    exif, array = Image.Exif(), np.asarray(grey)
    exif[0x0112] = 6
    images = [(grey.convert(mode), {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK")]
    images += [(Image.fromarray(array.astype(np.uint16) * 257), {}), (grey, {"exif": exif}),
               (Image.fromarray(array.astype(np.float32) / 255), {}), (grey, {"progressive": True}),
               (grey, {"save_all": True, "append_images": [grey.transpose(1)]}),
               (grey.convert("RGBA"), {"lossless": True})]  # fmt: skip
    ways = ("tiff_deflate", "tiff_lzw", "packbits", "jpeg") if form == "TIFF" else ()
    images += [(grey, {"compression": way}) for way in ways]
    images += [(grey.convert("1"), {"compression": "group4"})] if ways else []
    files = [b"P2 3 2 255\n0 1 2\n3 4 255\n"] if form == "PPM" else []
    for image, settings in images:
        buffer = io.BytesIO()
        with contextlib.suppress(OSError, ValueError, KeyError):  # a form has not every mode
            image.save(buffer, form, **settings)
            files.append(buffer.getvalue())
    return [Entry(data, [(0, 256)]) for data in dict.fromkeys(files)]


def convolution_models() -> list[Entry]:
    """Make a model of two convolutions with shapes inferred between them."""
    node, tensor = onnx.helper.make_node, onnx.helper.make_tensor
    nodes = [node("Conv", ["x", "w", "b"], ["a"], "a", pads=[1] * 4), node("Relu", ["a"], ["r"]),
             node("Shape", ["r"], ["s"]), node("Gather", ["s", "i"], ["n"]),
             node("Concat", ["n", "t"], ["c"], axis=0), node("Reshape", ["r", "c"], ["p"]),
             node("Conv", ["p", "v"], ["y"], "y", auto_pad="SAME_UPPER")]  # fmt: skip
    x, y = (onnx.helper.make_tensor_value_info(name, 1, shape)
            for name, shape in (("x", ("N", 3, 16, 16)), ("y", None)))  # fmt: skip
    weights = [tensor("w", 1, [8, 3, 3, 3], bytes(864), raw=True), tensor("b", 1, [8], [0.0] * 8),
               tensor("i", 7, [1], [0]), tensor("t", 7, [3], [32, 8, 8]),
               tensor("v", 1, [4, 32, 1, 1], bytes(512), raw=True)]  # fmt: skip
    graph = onnx.helper.make_graph(nodes, "net", [x], [y], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    return [Entry(model.SerializeToString())]


def _formats() -> Iterator[Format]:
    x, y = "t-images-idx3-ubyte", "t-labels-idx1-ubyte"
    idx, labels = (np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes()
                   for magic, array in ((2051, DIGITS), (2049, LABELS)))  # fmt: skip
    packed, beside = partial(gzip.compress, mtime=0), {y: labels}
    yield Format("hdf5-images", "x.h5", image_files, of_hdf5, read_images)
    yield Format("hdf5-weights", "w.h5", weight_files, of_hdf5, read_weights)
    yield Format("idx", x, _plain(idx, hot=16), of_bytes, read_images, beside)
    yield Format("idx-gzip", f"{x}.gz", _plain(packed(idx)), of_gzip, read_images, beside)
    read_beside = lambda path: read_images(path.with_name(x))  # noqa: E731
    yield Format("idx-labels", y, _plain(labels, hot=8), of_bytes, read_beside, {x: idx})
    yield Format("idx-labels-gzip", f"{y}.gz", _plain(packed(labels)), of_gzip, read_beside,
                 {x: idx})  # fmt: skip
    yield Format("npy", "x.npy", npy_files, of_npy, read_images)
    yield Format("against", "a.json", earlier_files, of_json, read_earlier)
    for form in ("PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP", "PPM"):
        seeds = partial(picture_files, form)
        yield Format(f"picture-{form.lower()}", "x", seeds, of_bytes, read_picture)
    for form, mutate in ((forms.SAFETENSORS, of_safetensors), (forms.NPZ, of_npz),
                         (forms.ONNX, of_onnx)):  # fmt: skip
        yield Format(f"weights-{form.strip('.').lower()}", "w", partial(model_files, form), mutate,
                     read_weights)  # fmt: skip
    yield Format("convs-onnx", "net.onnx", convolution_models, of_onnx,
                 lambda path: str(onnx_convs.read(path, None, True)))  # fmt: skip
    lines = (
        b'--mb=4 --dir=FWD_B g2mb1ic8ih9oc4oh9kh3sh1dh0ph1n"a"',
        b"./bin/MIOpenDriver conv -n 2 -c 8 -H 9 -W 9 -k 4 --pad_h 1 -q 1 -F 1 -b 1",
    )
    yield Format("convs-lines", "line", _plain(*lines), of_bytes, read_line)


FORMATS = {form.name: form for form in _formats()}
