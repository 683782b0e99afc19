"""Flip single bits in every kind of file that ships or is written, and load the result.

Each load is refused (a sentence), harmless (the same data), silent (other data) or broken (a
signal, another exception, no end within a minute). Loads run in child processes. The exit code is 1
if one was silent or broken.
"""

import gzip
import json
import os
import shutil
import signal
import struct
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np

from lenetgpu.errors import LenetError
from lenetgpu.files import assets, checksums
from lenetgpu.files.convert import convert_data, convert_weights
from lenetgpu.files.output import write_labels
from lenetgpu.files.source import load_dataset, open_source
from lenetgpu.files.weights import load_weights

OUTCOMES = ("refused", "harmless", "silent", "broken")
_LONGEST_S = 60
_FEW, _SOME = 3, 1_000


def _digits(count: int) -> Any:
    with open_source(assets.default_digits(), 0, count) as source:
        return source.whole()


def _idx(path: Path, count: int) -> Path:
    digits, pack = _digits(count), gzip.compress if path.suffix == ".gz" else bytes
    header = struct.pack(">4I", 2051, *digits.images.shape[:3])
    path.write_bytes(pack(header + digits.images.tobytes()))
    labels = path.with_name(path.name.replace("images", "labels"))
    header = struct.pack(">2I", 2049, len(digits))
    labels.write_bytes(pack(header + digits.labels.astype(np.uint8).tobytes()))
    return path


def _copy(source: Path, folder: Path) -> Path:
    return Path(shutil.copy(source, folder / source.name))


def _converted(folder: Path, source: Path) -> Path:
    convert_data(source, folder / "converted.h5")
    return folder / "converted.h5"


def _floats(folder: Path) -> Path:
    np.save(folder / "x.npy", _digits(_SOME).images.astype(np.float32) / 255)
    return _converted(folder, folder / "x.npy")


def _weights(folder: Path, ending: str = ".h5") -> Path:
    path = folder / f"weights{ending}"
    convert_weights(assets.default_weights(), path)
    return path


def _labels(folder: Path, count: int, asked: int | None) -> Path:
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((count, 10), np.float32)
    write_labels(folder / "labels.h5", scores.argmax(1), scores, asked)
    return folder / "labels.h5"


def _read_weights(path: Path) -> list[Any]:
    return list(load_weights(path).tensors.values())


def _read_images(path: Path) -> list[Any]:
    dataset = load_dataset(path)
    return [dataset.images, dataset.labels]


def _read_part(path: Path) -> list[Any]:
    """Read some images from the middle, as `--skip` and `--limit` do, last ones first."""
    with open_source(path, 137, 600) as source:
        images = np.empty((len(source), 28, 28, 1), source.dtype)
        for lo in reversed(range(0, len(source), 100)):
            source.read(lo, images[lo : lo + 100])
        return [images, source.labels]


def _read_labels(path: Path) -> list[Any]:
    """Read labels with h5py after `lenetgpu data verify`, as a user does."""
    sums = checksums.verify(path)
    if not sums or sums.without or not sums.has_root:
        raise LenetError(f"{path}: {sums.summary}")
    with h5py.File(path) as file:
        attributes = dict(file.attrs)
        return [
            *(file[name][...] for name in sorted(file)),
            np.array(sorted(attributes.items(), key=str)),
        ]


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], list[Any]]]] = {
    "weights that ship": (lambda f: _copy(assets.default_weights(), f), _read_weights),
    "digits that ship": (lambda f: _copy(assets.default_digits(), f), _read_images),
    "digits that ship, 600 of them": (lambda f: _copy(assets.default_digits(), f), _read_part),
    "weights convert": (_weights, _read_weights),
    "weights convert, safetensors": (lambda f: _weights(f, ".safetensors"), _read_weights),
    "weights convert, ONNX": (lambda f: _weights(f, ".onnx"), _read_weights),
    "weights convert, .npz": (lambda f: _weights(f, ".npz"), _read_weights),
    "data convert": (lambda f: _converted(f, _idx(f / "x-images", _SOME)), _read_images),
    "data convert, of gzip": (lambda f: _converted(f, _idx(f / "x-images.gz", 99)), _read_images),
    "data convert, of floats": (_floats, _read_images),
    "data convert, three images": (
        lambda f: _converted(f, _idx(f / "x-images", _FEW)),
        _read_images,
    ),
    "infer --output": (lambda f: _labels(f, 40_000, None), _read_labels),
    "infer --output, interrupted": (lambda f: _labels(f, _FEW, 9), _read_labels),
    "IDX in gzip": (lambda f: _idx(f / "x-images.gz", _SOME), _read_images),
}


@contextmanager
def flipped(path: Path, bit: int) -> Iterator[None]:
    """Invert one bit of `path` for the duration of the block."""
    with path.open("r+b", buffering=0) as file:
        file.seek(bit // 8)
        old = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))
        try:
            yield
        finally:
            file.seek(bit // 8)
            file.write(bytes([old]))


def same(data: list[Any], expected: list[Any]) -> bool:
    pairs = zip(map(np.asarray, data), map(np.asarray, expected), strict=True)
    facts = [(a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()) for a, b in pairs]
    return all(facts)


def outcome(path: Path, read: Callable[[Path], list[Any]], expected: list[Any]) -> str:
    """Return the outcome of loading `path`."""
    signal.alarm(_LONGEST_S)
    try:
        return "harmless" if same(read(path), expected) else "silent"
    except LenetError:
        return "refused"
    except Exception:
        return "broken"
    finally:
        signal.alarm(0)


def _in_child(todo: list[int], tell: Callable[[int], str]) -> list[str]:
    """Return the outcomes that a child reported for the first of `todo` before it ended."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(into, "w", buffering=1) as pipe:
            for bit in todo:
                pipe.write(tell(bit) + "\n")
        os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        words = pipe.read().split()
    os.waitpid(child, 0)
    return words


def flips(
    path: Path, read: Callable[[Path], list[Any]], count: int, seed: int
) -> tuple[Counter[str], dict[str, list[int]]]:
    """Return the outcomes of `count` flips, and the bits with silent or broken ones."""
    expected, whole = read(path), path.read_bytes()
    bits = np.random.default_rng(seed).integers(0, 8 * len(whole), count).tolist()

    def tell(bit: int) -> str:
        with flipped(path, bit):
            return outcome(path, read, expected)

    outcomes: list[str] = []
    while len(outcomes) < count:
        outcomes += _in_child(bits[len(outcomes) :], tell)
        if len(outcomes) < count:
            outcomes.append("broken")
            path.write_bytes(whole)
    wrong = {
        name: [bit for bit, result in zip(bits, outcomes, strict=True) if result == name]
        for name in ("silent", "broken")
    }
    return Counter(outcomes), wrong


@click.command()
@click.option("--flips", "count", default=1_000, show_default=True, help="of each file")
@click.option("--seed", default=1, show_default=True)
@click.option("--only", multiple=True, type=click.Choice(list(KINDS)), help="of these files")
@click.option("--json", "as_json", is_flag=True)
def main(count: int, seed: int, only: tuple[str, ...], as_json: bool) -> None:
    """Flip bits and report the outcomes."""
    rows = []
    for kind in only or KINDS:
        make, read = KINDS[kind]
        with tempfile.TemporaryDirectory() as folder:
            path = make(Path(folder))
            counts, wrong = flips(path, read, count, seed)
            rows.append(
                {"file": kind, "bytes": path.stat().st_size, "flips": count}
                | {name: counts[name] for name in OUTCOMES}
                | {"bits": wrong}
            )
        if not as_json:
            counted = ", ".join(f"{counts[name]} {name}" for name in OUTCOMES)
            click.echo(f"{kind:30} {path.name}, {rows[-1]['bytes']:,} bytes: {counted} {wrong}")
    if as_json:
        click.echo(json.dumps(rows))
    raise SystemExit(any(row["silent"] or row["broken"] for row in rows))


if __name__ == "__main__":
    main()
