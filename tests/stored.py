"""Image files in every supported form, and the images that a source should return."""

import gzip
import struct
from concurrent.futures import ThreadPoolExecutor

import h5py
import numpy as np

COUNT = 61
DEFLATE = {"compression": "gzip", "compression_opts": 1}


def hdf5(path, **datasets):
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file[name] = data
    return path


def h5(path, images, labels=None, **options):
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=images, **options)
        if labels is not None:
            file["y"] = labels
    return path


def idx_file(path, images, labels=None):
    pack = gzip.compress if path.suffix == ".gz" else bytes
    path.write_bytes(pack(struct.pack(">4I", 2051, *images.shape) + images.tobytes()))
    if labels is not None:
        beside = path.with_name(path.name.replace("images", "labels").replace("idx3", "idx1"))
        beside.write_bytes(pack(struct.pack(">2I", 2049, len(labels)) + labels.tobytes()))
    return path


def npy(path, images):
    np.save(path, images)
    return path


def as_read(images):
    """Return stored images as a source returns them."""
    kind = np.uint8 if images.dtype == np.uint8 else np.float32
    return images.astype(kind).reshape(-1, 28, 28, 1)


def parts(source, sizes):
    """Return all of a source's images, read in parts of these sizes, cyclically."""
    found = np.full((len(source), 28, 28, 1), 7, source.dtype)
    lo = turn = 0
    while lo < len(source):
        hi = min(len(source), lo + sizes[turn % len(sizes)])
        source.read(lo, found[lo:hi])
        lo, turn = hi, turn + 1
    return found


def in_any_order(source, size, threads=4, seed=0):
    """Return all of a source's images, read by several threads in a shuffled order."""
    found = np.full((len(source), 28, 28, 1), 7, source.dtype)
    order = np.random.default_rng(seed).permutation(range(0, len(source), size))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda lo: source.read(lo, found[lo : lo + size]), order))
    return found


MAKERS = {
    "contiguous": lambda folder, x, y: h5(folder / "x.h5", x, y),
    "chunked": lambda folder, x, y: h5(folder / "x.h5", x, y, chunks=(7, 28, 28), **DEFLATE),
    "idx": lambda folder, x, y: idx_file(folder / "x-images", x, y),
    "idx.gz": lambda folder, x, y: idx_file(folder / "x-images.gz", x, y),
    "npy": lambda folder, x, y: npy(folder / "x.npy", x),
}


def direct(path, data, mask=0, **options):
    """Write a file whose only chunk has the bytes `data`; return its path."""
    with h5py.File(path, "w") as file:
        item = file.create_dataset("x", (7, 28, 28), "u1", chunks=(7, 28, 28), **options)
        item.id.write_direct_chunk((0, 0, 0), data, mask)
    return path
