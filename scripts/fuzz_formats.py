"""What `scripts/fuzz.py` damages: a format is how valid files are made, and how one is read.

A new one is an entry of FORMATS. `read` returns what was taken from the file as text or bytes, the
same for the same file, and raises LenetError for a file that it refuses; whatever else it does is a
finding.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fuzz_mutations as mutations
import h5py
import numpy as np
from fuzz_mutations import Entry, Mutation

from lenetgpu.files import hdf5
from lenetgpu.files.dataset import load_dataset
from lenetgpu.files.packed.write import pack_data
from lenetgpu.files.weights import load_weights
from lenetgpu.lab.earlier import load_earlier
from lenetgpu.measure import regression
from lenetgpu.network import weight_shapes

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs" / "measured"
HOSTILE = ROOT / "tests" / "hostile_hdf5.py"
_SMALL = 1 << 15
DIGITS = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8) * (
    np.random.default_rng(1).random((3, 28, 28)) < 0.2
).astype(np.uint8)
LABELS = np.array([3, 0, 9], np.uint8)


@dataclass(frozen=True)
class Format:
    """Files called `file`, with those of `beside` in the same folder.

    `seeds()` are valid files. With `summed`, a damaged file is refused or gives what a valid one
    does, unless `mutate` made its sums right.
    """

    name: str
    file: str
    seeds: Callable[[], list[Entry]]
    mutate: Mutation
    read: Callable[[Path], object]
    beside: Mapping[str, bytes] = field(default_factory=dict)
    summed: bool = False


def _hashed(*arrays: Any) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(b"none" if array is None else f"{array.dtype}{array.shape}".encode())
        found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def read_images(path: Path) -> str:
    """Images and labels whole; AssertionError where they are not what every reader promises."""
    data = load_dataset(path)
    assert data.images.shape[1:] == (28, 28, 1) and len(data) > 0
    assert data.images.dtype == np.uint8 or -0.01 < data.images.min() <= data.images.max() < 1.01
    if data.labels is not None:
        assert data.labels.shape == (len(data),) and set(data.labels.tolist()) <= set(range(10))
    return _hashed(data.images, data.labels)


def read_hdf5_images(path: Path) -> str:
    """Those of an HDF5 file, and its attributes."""
    hdf5.attributes(path)
    return read_images(path)


def read_weights(path: Path) -> str:
    """Every tensor; AssertionError where one has another shape or a number that is not finite."""
    tensors = load_weights(path).tensors
    assert {name: tensor.shape for name, tensor in tensors.items()} == weight_shapes()
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    return _hashed(*tensors.values())


def _hdf5(write: Callable[[h5py.File], None], **how: Any) -> Entry:
    made = io.BytesIO()
    with h5py.File(made, "w", **how) as file:
        write(file)
    return mutations.described(made.getvalue())


def hostile_files() -> list[Entry]:
    """What tests/hostile_hdf5.py writes, as far as it is small; none where it is not there."""
    if not HOSTILE.is_file():
        return []
    with tempfile.TemporaryDirectory() as folder:
        made = str(Path(folder) / "made")
        subprocess.run([sys.executable, str(HOSTILE), made], check=True, stdout=subprocess.PIPE)
        files = [path for path in sorted(Path(folder).rglob("*.h5")) if path.is_file()]
        small = [path.read_bytes() for path in files if path.stat().st_size < _SMALL]
    return [Entry(data, [(0, 4096)]) for data in small]


def image_files() -> list[Entry]:
    """Contiguous, compact, chunked; each filter; both generations of the format."""
    floats = DIGITS.astype(np.float32) / 255
    zipped = {"compression": "gzip", "shuffle": True, "fletcher32": True}

    def labelled(x: Any, y: Any = LABELS, **how: Any) -> Callable[[h5py.File], None]:
        def write(file: h5py.File) -> None:
            file.attrs["title"] = "three digits"
            file.create_dataset("x", data=x, track_times=False, **how)
            file.create_dataset("y", data=y, track_times=False)

        return write

    def compact(file: h5py.File) -> None:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_layout(h5py.h5d.COMPACT)
        space, kind = h5py.h5s.create_simple(DIGITS.shape), h5py.h5t.NATIVE_UINT8
        h5py.h5d.create(file.id, b"x", kind, space, plist).write(space, space, DIGITS)

    one_hot = np.eye(10, dtype="f4")[LABELS]
    return [
        _hdf5(labelled(DIGITS)),
        _hdf5(labelled(floats, LABELS.astype(">i8"))),
        _hdf5(labelled(floats.astype(">f8")[..., None], one_hot, chunks=(1, 14, 28, 1), **zipped)),
        _hdf5(labelled(DIGITS, one_hot, chunks=(1, 28, 28), compression="gzip")),
        _hdf5(labelled(DIGITS, chunks=(2, 28, 28), maxshape=(None, 28, 28), **zipped)),
        _hdf5(compact),
        _hdf5(labelled(DIGITS, chunks=(1, 28, 28), **zipped), libver="latest"),
        _hdf5(labelled(DIGITS, chunks=(1, 28, 28), maxshape=(9, 28, 28)), libver="latest"),
        _hdf5(labelled(floats, chunks=(1, 28, 28), maxshape=(None, 28, 28)), libver="latest"),
        _hdf5(labelled(DIGITS, chunks=(1, 28, 28), compression="gzip"), userblock_size=512),
        _hdf5(labelled(DIGITS, chunks=(2, 28, 28)), libver="earliest"),
        *hostile_files(),
    ]


def weight_files() -> list[Entry]:
    """Contiguous, of both generations; compressed with checksums."""

    def tensors(**how: Any) -> Callable[[h5py.File], None]:
        def write(file: h5py.File) -> None:
            for name, shape in weight_shapes().items():
                data = np.resize(np.linspace(-0.1, 0.1, 64, dtype="f4"), shape)
                file.create_dataset(name, data=data, track_times=False, **how)

        return write

    zipped = {"compression": "gzip", "shuffle": True, "fletcher32": True}
    return [
        _hdf5(tensors()),
        _hdf5(tensors(**zipped)),
        _hdf5(tensors(chunks=True, **zipped), libver="latest"),
    ]


def packed_files() -> list[Entry]:
    """With labels and without, as `data pack` writes them."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for labels in (True, False):
            source, target = Path(folder) / "in.h5", Path(folder) / "out.h5"
            with h5py.File(source, "w") as file:
                file["x"] = np.resize(DIGITS, (300, 28, 28))
                if labels:
                    file["y"] = np.resize(LABELS, 300)
            pack_data(source, target)
            found.append(mutations.described(target.read_bytes()))
    return found


def _idx(magic: int, array: Any) -> bytes:
    return np.array([magic, *array.shape], ">u4").tobytes() + array.tobytes()


IDX, IDX_LABELS = _idx(2051, DIGITS), _idx(2049, LABELS)


def _plain(*files: bytes, hot: int = 64) -> Callable[[], list[Entry]]:
    return lambda: [Entry(data, [(0, hot)]) for data in files]


def npy_files() -> list[Entry]:
    """Of each type and shape that is taken, and a header of the second version."""
    found = []
    for array in (DIGITS, DIGITS[..., None] / 255.0, DIGITS[:, None].astype(">f4") / 255):
        made = io.BytesIO()
        np.save(made, array)
        found.append(Entry(made.getvalue(), [(0, 128)]))
    made = io.BytesIO()
    np.lib.format.write_array(made, DIGITS, version=(2, 0))
    return [*found, Entry(made.getvalue(), [(0, 128)])]


def earlier_files() -> list[Entry]:
    """Results of `compare` and `conv` as they are kept, of a few candidates."""
    found = []
    folder = MEASURED / "nvidia-h200"  # where read_earlier is
    for path in sorted([*folder.glob("cells/*.json"), *folder.glob("conv/*.json")])[:6]:
        document = json.loads(path.read_text())
        for part in document.get("cases", [document]):
            part["candidates"] = part["candidates"][:3]
        if "cases" in document:
            document["cases"] = document["cases"][:2]
        found.append(Entry(json.dumps(document).encode()))
    return found


def read_earlier(path: Path) -> str:
    """What `--against` does with a file: it is read, compared, and looked at for regressions."""
    text = path.read_bytes()
    named = re.search(rb'"what": "(\w+)"', text)
    command = "conv" if b'"cases"' in text else "compare"
    what = named[1].decode() if named and command == "compare" else None
    earlier = load_earlier(path, command, what)
    now = {"device": "NVIDIA H200", "reference": earlier.get("reference"), "cold_l2": False}
    lost = regression.regressions(earlier, earlier, 3.0)
    if command == "conv":
        now["cases"] = [(case["shape"], case["images"]) for case in earlier["cases"]]
    regression.check_earlier(earlier, str(path), now)
    return str(lost)


def _of_images(name: str, file: str, seeds: Any, mutate: Mutation, **more: Any) -> Format:
    return Format(name, file, seeds, mutate, read_images, **more)


_X, _Y = "t-images-idx3-ubyte", "t-labels-idx1-ubyte"
_SHORT, _GZ = {"hot": 16}, gzip.compress
_ALL = (
    Format("hdf5-images", "x.h5", image_files, mutations.of_hdf5, read_hdf5_images),
    Format("hdf5-weights", "w.h5", weight_files, mutations.of_hdf5, read_weights),
    _of_images("packed", "p.h5", packed_files, mutations.of_hdf5, summed=True),
    _of_images("idx", _X, _plain(IDX, **_SHORT), mutations.of_bytes, beside={_Y: IDX_LABELS}),
    replace(
        _of_images("idx-labels", _Y, _plain(IDX_LABELS, hot=8), mutations.of_bytes),
        beside={_X: IDX}, read=lambda path: read_images(path.with_name(_X)),
    ),
    _of_images("idx-gzip", f"{_X}.gz", _plain(_GZ(IDX, mtime=0), **_SHORT), mutations.of_gzip,
               beside={_Y: IDX_LABELS}),
    replace(
        _of_images("idx-labels-gzip", f"{_Y}.gz", _plain(_GZ(IDX_LABELS, mtime=0), hot=8),
                   mutations.of_gzip),
        beside={_X: IDX}, read=lambda path: read_images(path.with_name(_X)),
    ),
    _of_images("npy", "x.npy", npy_files, mutations.of_npy),
    Format("against", "a.json", earlier_files, mutations.of_json, read_earlier),
)  # fmt: skip
FORMATS = {entry.name: entry for entry in _ALL}
