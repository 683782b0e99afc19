"""What else `scripts/fuzz.py` damages: pictures of each kind, and weights in others' forms.

Made by Pillow and by what writes weights here, damaged with their checksums made right again: a
PNG's chunks, a zip's members, an ONNX model's fields. What a form needs is imported before any case
is run, so that it counts as nothing that a file takes.
"""

from __future__ import annotations

import importlib
import io
import json
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import fuzz_mutations as mutations
import numpy as np
from fuzz_formats import Format, read_weights
from fuzz_mutations import Entry
from PIL import Image, features

from lenetgpu.errors import LenetError
from lenetgpu.files.models import forms
from lenetgpu.network import weight_shapes
from lenetgpu.pictures.as_mnist import as_it_is, as_mnist
from lenetgpu.pictures.read import read_grey

_BOMB = 64 << 20
_DEEP = 64
_PNG = b"\x89PNG\r\n\x1a\n"


def read_picture(path: Path) -> str:
    """Grey and pixels; AssertionError where they are not what the reader promises."""
    grey, notes, size = read_grey(path)
    assert grey.ndim == 2 and grey.size and grey.dtype == np.float32 and np.isfinite(grey).all()
    assert grey.min() >= -0.01 and grey.max() <= 255.01, (grey.min(), grey.max())
    said = [*notes]
    found = [as_it_is(grey, size)]
    try:
        found.append(as_mnist(grey))
    except LenetError as error:
        said.append(str(error))
    for each in found:
        assert each.pixels.shape == (28, 28) and each.pixels.dtype == np.uint8
        said += [*each.notes, str(zlib.crc32(each.pixels))]
    return " ".join([*said, str(zlib.crc32(grey))])


def _seven(height: int = 60, width: int = 44) -> Any:
    """Grey (height, width) uint8: a 7, dark on light."""
    y, x = np.mgrid[:height, :width]
    bar = (abs(y - 12) < 3) & (x > 8) & (x < width - 9)
    leg = (abs((width - 12) - (y - 12) * 0.35 - x) < 3) & (y >= 12) & (y < height - 9)
    return np.where(bar | leg, 20, 235).astype(np.uint8)


def _saved(image: Image.Image, form: str, **how: Any) -> bytes:
    made = io.BytesIO()
    image.save(made, form, **how)
    return made.getvalue()


def _of_modes(form: str, modes: str, **how: Any) -> list[bytes]:
    grey = Image.fromarray(_seven())
    found = []
    for mode in modes.split():
        image = grey.convert(mode)
        if mode in ("RGBA", "LA"):
            image.putalpha(Image.fromarray(255 - _seven()))
        found.append(_saved(image, form, **how))
    return found


def _turned() -> Any:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def _deep() -> Image.Image:
    return Image.fromarray(_seven().astype(np.uint16) * 257)


def _floats() -> Image.Image:
    return Image.fromarray(_seven().astype(np.float32) / 255)


def _frames() -> list[Image.Image]:
    return [Image.fromarray(_seven()), Image.fromarray(255 - _seven())]


def _pictures(kind: str) -> list[bytes]:
    first, *rest = _frames()
    several = {"save_all": True, "append_images": rest}
    grey = Image.fromarray(_seven())
    if kind == "png":
        extra = [
            _saved(_deep(), "PNG"),
            _saved(grey, "PNG", exif=_turned()),
            _saved(grey.convert("P"), "PNG", transparency=3),
            _saved(first, "PNG", **several),
        ]
        return _of_modes("PNG", "1 L LA RGB RGBA P") + extra  # fmt: skip
    if kind == "jpeg":
        extra = [_saved(grey, "JPEG", progressive=True), _saved(grey, "JPEG", exif=_turned())]
        return _of_modes("JPEG", "L RGB CMYK") + extra
    if kind == "tiff":
        found = _of_modes("TIFF", "1 L RGB RGBA P LAB") if features.check("libtiff") else []
        found += [_saved(image, "TIFF") for image in (_deep(), _floats(), grey.convert("I"))]
        if features.check("libtiff"):
            for way in ("tiff_deflate", "tiff_lzw", "packbits", "jpeg"):
                found.append(_saved(grey, "TIFF", compression=way))
            found.append(_saved(grey.convert("1"), "TIFF", compression="group4"))
        return [*found, _saved(first, "TIFF", **several), _saved(grey, "TIFF", exif=_turned())]
    if kind == "gif":
        return [*_of_modes("GIF", "1 L P RGB"), _saved(first, "GIF", **several)]
    if kind == "bmp":
        return _of_modes("BMP", "1 L P RGB RGBA")
    if kind == "webp":
        extra = [_saved(first, "WEBP", **several), _saved(grey, "WEBP", exif=_turned())]
        return (_of_modes("WEBP", "L RGBA") + _of_modes("WEBP", "RGBA", lossless=True) + extra
                if features.check("webp") else [])  # fmt: skip
    return [*_of_modes("PPM", "1 L RGB"), _saved(_deep(), "PPM"), _saved(_floats(), "PPM"),
            b"P2 3 2 255\n0 1 2\n3 4 255\n", b"P1\n# a\n3 2\n0 1 0 1 1 1\n"]  # fmt: skip


def _entries(kind: str) -> Callable[[], list[Entry]]:
    return lambda: [Entry(data, [(0, 256)]) for data in _pictures(kind)]


def of_png(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """A chunk damaged, doubled, moved or new, its CRC right; what is deflated from inside."""
    chunks = _chunks(entry.data)
    if not chunks or rng.random() < 0.2:
        return mutations.of_bytes(rng, entry, others)
    for _ in range(rng.choice((1, 1, 2))):
        at, kind = rng.randrange(len(chunks)), rng.randrange(8)
        name, data = chunks[at]
        if kind < 3 and data:
            data = mutations.damage(rng, data, (), [Entry(data)])
        elif kind == 3 and name == b"IDAT":
            data = _inflated_again(rng, data)
        elif kind == 4:
            chunks.insert(rng.randrange(len(chunks) + 1), chunks[at])
        elif kind == 5:
            chunks.insert(rng.randrange(len(chunks) + 1), _odd_chunk(rng))
        elif kind == 6 and name == b"IHDR" and len(data) == 13:
            size = rng.choice((0, 1, 9, 1 << 14, 1 << 20, (1 << 31) - 1, 1 << 31))
            data = struct.pack(">I", size) + data[4:] if rng.random() < 0.5 else (
                data[:4] + struct.pack(">I", size) + data[8:])  # fmt: skip
        else:
            name = bytes([name[0] ^ 32, *name[1:]])
        if at < len(chunks) and kind not in (4, 5):
            chunks[at] = name, data
    return _PNG + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], len(_PNG)
    while data.startswith(_PNG) and at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def _inflated_again(rng: Random, data: bytes) -> bytes:
    try:
        inside = zlib.decompress(data)
    except zlib.error:
        return data
    others = (mutations.damage(rng, inside, (), [Entry(inside)]), inside[: len(inside) // 2],
              inside * 3, b"", bytes(_BOMB))  # fmt: skip
    return zlib.compress(rng.choice(others), 1)


def _odd_chunk(rng: Random) -> tuple[bytes, bytes]:
    packed = zlib.compress(bytes(rng.choice((10, _BOMB))), 9)
    return rng.choice(((b"zTXt", b"a\0\0" + packed), (b"iCCP", b"a\0\0" + packed),
                       (b"iTXt", b"a\0\1\0\0\0" + packed), (b"eXIf", rng.randbytes(40)),
                       (b"tRNS", rng.randbytes(9)), (b"PLTE", rng.randbytes(30)),
                       (b"acTL", rng.randbytes(8)), (b"fcTL", rng.randbytes(26)),
                       (b"IEND", b"")))  # fmt: skip


def _tensors() -> dict[str, Any]:
    return {
        name: np.resize(np.linspace(-0.1, 0.1, 64, dtype="f4"), shape)
        for name, shape in weight_shapes().items()
    }


def _model(form: str) -> Callable[[], list[Entry]]:
    def made() -> list[Entry]:
        tensors = _tensors()
        data = forms.written(Path("w"), form, tensors, {"who": "the fuzzer", "seed": 1})
        raw = [(at, at + t.nbytes) for t in tensors.values()
               if (at := data.find(t.tobytes())) >= 0]  # fmt: skip
        edges = [0, *(edge for span in sorted(raw) for edge in span), len(data)]
        hot = [(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
        return [Entry(data, hot, raw)]

    return made


def of_safetensors(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """The header as JSON, its length right or not; or bytes."""
    length = int.from_bytes(entry.data[:8], "little")
    header = entry.data[8 : 8 + length]
    if rng.random() < 0.3 or len(header) != length:
        return mutations.of_bytes(rng, entry, others)
    made = mutations.of_json(rng, Entry(header), [Entry(header)])
    if rng.random() < 0.3:
        try:
            tree = json.loads(made)
            tree.pop("__metadata__", None)  # so that damage is not refused for its checksums
            made = json.dumps(tree).encode()
        except (ValueError, AttributeError, TypeError, RecursionError):
            pass
    said = rng.choice((len(made),) * 8 + (0, 1 << 63, len(made) + 8))
    return said.to_bytes(8, "little") + made + entry.data[8 + length :]


def of_npz(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """A member damaged, renamed, doubled or a bomb, the zip right again; or the zip's bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(entry.data)) as source:
            members = [(name, source.read(name)) for name in source.namelist()]
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, NotImplementedError, EOFError,
            RuntimeError, struct.error):  # fmt: skip
        members = []
    if not members or rng.random() < 0.3:
        tail = (len(entry.data) - 600, len(entry.data))
        return mutations.damage(rng, entry.data, [*entry.hot, tail], others)
    at = rng.randrange(len(members))
    name, data = members[at]
    kind = rng.randrange(6)
    if kind < 3:
        members[at] = name, mutations.of_npy(rng, Entry(data, [(0, 128)]), [Entry(data)])
    elif kind == 3:
        members[at] = rng.choice(("../x.npy", "", "/etc/x.npy", "\x1b[31m.npy", name * 40)), data
    elif kind == 4:
        members.insert(rng.randrange(len(members)), (name, data))
    else:
        members[at] = name, data[:200] + bytes(rng.choice((8, _BOMB)))
    made = io.BytesIO()
    way = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", way) as file:
        warnings.simplefilter("ignore")  # of a name twice
        for name, data in members:
            file.writestr(zipfile.ZipInfo(name or "a"), data)
    return made.getvalue()


def of_onnx(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """A field of the model of another value; or bytes."""
    onnx: Any = importlib.import_module("onnx")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(entry.data)
    except Exception:  # protobuf's own error, by whichever of its makes
        return mutations.of_bytes(rng, entry, others)
    if rng.random() < 0.3:
        return mutations.of_bytes(rng, entry, others)
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, onnx, model)
    return bytes(model.SerializeToString())


def _change(rng: Random, onnx: Any, model: Any) -> None:
    graph = model.graph
    odd = rng.choice((0, 1, -1, 10**6, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1))
    tensors, nodes = list(graph.initializer), list(graph.node)
    kind = rng.randrange(10)
    if kind < 3 and tensors:
        tensor = rng.choice(tensors)
        if kind == 0 and tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = odd
        elif kind == 1:
            tensor.data_type = odd % (1 << 31)
        else:
            tensor.raw_data = tensor.raw_data[: rng.randrange(64)] * rng.choice((0, 1, 3))
    elif kind == 3 and tensors:
        tensor = rng.choice(tensors)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", rng.choice(("/etc/passwd", "../x", "w.onnx"))),
                           ("offset", str(odd)), ("length", str(odd))):  # fmt: skip
            tensor.external_data.add(key=key, value=value)
    elif kind < 6 and nodes:
        node = rng.choice(nodes)
        if kind == 4:
            node.op_type = rng.choice(("Conv", "Relu", "If", "Loop", "", "\x1b[31m", "Identity"))
        elif node.attribute:
            attribute = rng.choice(list(node.attribute))
            attribute.i = odd
            if attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = odd
    elif kind == 6 and nodes:
        graph.node.remove(rng.choice(nodes))
    elif kind == 7 and nodes:
        graph.node.add().CopyFrom(rng.choice(nodes))
    elif kind == 8 and nodes:
        node = rng.choice(nodes)
        names = node.input if rng.random() < 0.5 else node.output
        if names:
            names[rng.randrange(len(names))] = rng.choice([*rng.choice(nodes).output, ""])
    else:
        attribute = graph.node.add(op_type="If", name="deep").attribute.add(name="then_branch")
        for _ in range(rng.choice((1, _DEEP))):
            attribute.type = onnx.AttributeProto.GRAPH
            attribute = attribute.g.node.add(op_type="If").attribute.add(name="then_branch")


def _formats() -> Iterable[Format]:
    for kind in ("png", "jpeg", "tiff", "gif", "bmp", "webp", "pnm"):
        if _pictures(kind):
            mutate = of_png if kind == "png" else mutations.of_bytes
            yield Format(f"picture-{kind}", f"x.{kind}", _entries(kind), mutate, read_picture)
    known = ((forms.SAFETENSORS, "numpy", of_safetensors), (forms.NPZ, "numpy", of_npz),
             (forms.ONNX, "onnx", of_onnx))  # fmt: skip
    for form, needs, mutate in known:
        try:
            importlib.import_module(needs)
        except ImportError:
            continue
        yield Format(f"weights-{form.strip('.').lower()}", "w", _model(form), mutate, read_weights)


FORMATS = {entry.name: entry for entry in _formats()}
