"""Hostile HDF5 files, written by `write_all`.

Each maker gets a file open for writing, and the paths of a file and of a FIFO that a reader must
not open. /x stands for images; the four weight arrays are further datasets. Families: FOREIGN files
refer to other files, BOMBS declare more than they hold, SHORT files hold chunks of too few bytes
(or too many), OTHER files are the rest. HEADERS, WHOLE and LENGTHS hold files that are patched or
generated as a whole.
"""

import os
import re
import struct
import zlib

import h5py
import numpy as np

SHAPE = (5, 28, 28)
WEIGHTS = {"conv1": (5, 5, 1, 32), "conv2": (5, 5, 32, 64), "fc1": (1024, 128), "fc2": (128, 10)}
SECRET = 77


def _virtual(file, source, first):
    """Create a virtual dataset as long as `source`'s; HDF5 opens `source` to get the length."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    spaces = []
    for _ in range(2):
        space = h5py.h5s.create_simple(SHAPE, (h5py.h5s.UNLIMITED, 28, 28))
        space.select_hyperslab((0, 0, 0), (first, 1, 1), block=(1 if first > 1 else 5, 28, 28))
        spaces.append(space)
    plist.set_virtual(spaces[0], os.fsencode(source), b"x", spaces[1])
    h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, spaces[0], plist)


def _references(file, kind):
    target = file.create_dataset("target", data=np.zeros(SHAPE, "u1"))
    made = file.create_dataset("x", SHAPE, kind)
    made[0, 0, 0] = target.regionref[:1] if kind is h5py.regionref_dtype else target.ref


def _through_a_group(file, secret, fifo):
    file["group/x"] = np.zeros(SHAPE, "u1")
    file["x"] = h5py.SoftLink("/group/x")


def _through_a_door(file, secret, fifo):
    file["door"] = h5py.ExternalLink(str(secret), "/")
    file["x"] = h5py.SoftLink("/door/x")


FOREIGN = {
    "external link": lambda f, s, p: f.__setitem__("x", h5py.ExternalLink(str(s), "/x")),
    "external link to a FIFO": lambda f, s, p: f.__setitem__("x", h5py.ExternalLink(str(p), "/x")),
    "soft through external": _through_a_door,
    "soft in a group": _through_a_group,
    "dangling link": lambda f, s, p: f.__setitem__("x", h5py.SoftLink("/nothing")),
    "external storage": lambda f, s, p: f.create_dataset(
        "x", SHAPE, "u1", external=[(str(s), 0, 5 * 784)]
    ),
    "virtual": lambda f, s, p: _virtual(f, s, 1),
    "virtual of any length": lambda f, s, p: _virtual(f, s, h5py.h5s.UNLIMITED),
    "region references": lambda f, s, p: _references(f, h5py.regionref_dtype),
    "object references": lambda f, s, p: _references(f, h5py.ref_dtype),
}


def _zeros(length):
    """Return `length` zeros in deflate's format, using little memory."""
    packer, data = zlib.compressobj(9), b""
    for at in range(0, length, 1 << 24):
        data += packer.compress(bytes(min(1 << 24, length - at)))
    return data + packer.flush()


def _deflated(file, name, shape, kind, chunk, data, **options):
    options = {"compression": "gzip", "maxshape": (None, *shape[1:])} | options
    made = file.create_dataset(name, shape, kind, chunks=chunk, **options)
    made.id.write_direct_chunk((0,) * len(shape), data)


def _one_vast_chunk(file, secret, fifo):
    _deflated(file, "x", (120_000, 28, 28), "u1", (120_000, 28, 28), _zeros(120_000 * 784))


def _many_in_one_place(file, secret, fifo, images=2_000):
    count, data = 60, _zeros(images * 784 * 4)
    options = {"chunks": (images, 28, 28), "compression": "gzip"}
    made = file.create_dataset("x", (count * images, 28, 28), "f4", **options)
    for number in range(count):
        made.id.write_direct_chunk((number * images, 0, 0), data if number == 0 else data[:100])


def _unwritten(file, secret, fifo):
    options = {"chunks": (1_000, 28, 28), "compression": "gzip"}
    file.create_dataset("x", (1 << 40, 28, 28), "u1", **options)[:10] = 1


def _labels(file, secret, fifo):
    count = 60_000_000
    _deflated(file, "x", (count, 28, 28), "u1", (1_000, 28, 28), _zeros(1_000 * 784))
    _deflated(file, "y", (count,), "u1", (count,), _zeros(count))


def _inflates_on(file, secret, fifo):
    _deflated(file, "x", SHAPE, "u1", SHAPE, _zeros(90 << 20))


def _checksum(data):
    """Return HDF5's checksum of metadata, Jenkins' lookup3."""
    full = 0xFFFFFFFF
    a = b = c = (0xDEADBEEF + len(data)) & full

    def turned(x, bits):
        return (x << bits | x >> (32 - bits)) & full

    while True:
        x, y, z = struct.unpack("<3I", data[:12].ljust(12, b"\0"))
        a, b, c, data = (a + x) & full, (b + y) & full, (c + z) & full, data[12:]
        if not data:
            break
        for bits in (4, 6, 8, 16, 19, 4):
            a, b, c = b, (c + b) & full, ((a - c) & full) ^ turned(c, bits)
    for bits in (14, 11, 25, 16, 4, 14, 24):
        a, b, c = b, ((c ^ b) - turned(b, bits)) & full, a
    return b


def _dense(path):
    """Return a file with links and attributes in heaps, indexed by B-trees."""
    with h5py.File(path, "w", libver="latest") as file:
        for number in range(20):
            file[f"group {number}"] = np.zeros(1)
            file.attrs[f"attribute {number}"] = number
        file["x"] = np.zeros(SHAPE, "u1")
    return bytearray(path.read_bytes())


def _patched(path, signature, length, at, form, value):
    """Write a file with a field at `at` changed in every header of `signature`, checksums valid."""
    data, place = _dense(path), -1
    while (place := data.find(signature, place + 1)) >= 0:
        struct.pack_into(form, data, place + at, value)
        end = place + length - 4
        struct.pack_into("<I", data, end, _checksum(bytes(data[place:end])))
    path.write_bytes(data)


HEADERS = {
    "B-tree nodes of 4 GiB": (b"BTHD", 38, 6, "<I", (1 << 32) - 16),
    "B-trees of 65,535 levels": (b"BTHD", 38, 12, "<H", 65_535),
    "a heap of no blocks": (b"FRHP", 146, 110, "<H", 0),
    "a heap of blocks of no bytes": (b"FRHP", 146, 112, "<Q", 0),
    "a heap of vast blocks": (b"FRHP", 146, 120, "<Q", 1 << 40),
    "a heap with filters": (b"FRHP", 146, 7, "<H", 12),
}


def _free_for_ever(path):
    """Write a file with a heap of names whose first free block links to itself."""
    with h5py.File(path, "w", libver="earliest") as file:
        file["x"] = np.zeros(SHAPE, "u1")
    data = bytearray(path.read_bytes())
    _, free, place = struct.unpack_from("<3Q", data, data.index(b"HEAP") + 8)
    struct.pack_into("<Q", data, place + free, free)
    path.write_bytes(data)


def _narrow(path):
    """Write a valid file with 4-byte addresses; the package reads 8-byte addresses only."""
    sizes = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    sizes.set_sizes(4, 4)
    with h5py.File(h5py.h5f.create(os.fsencode(path), fcpl=sizes)) as file:
        file["x"] = np.zeros(SHAPE, "u1")


def _said_length(name, change):
    """Return a maker of an unfiltered chunk whose length in the index is wrong."""

    def make(path):
        with h5py.File(path, "w", libver="earliest") as file:
            for other, shape in (WEIGHTS if name in WEIGHTS else {"x": SHAPE}).items():
                kind = "f4" if other in WEIGHTS else "u1"
                chunks = shape if other == name else None
                file.create_dataset(other, data=np.ones(shape, kind), chunks=chunks)
            file["room behind it"] = np.zeros(100_000, "u1")
            length = file[name].id.get_chunk_info(0).size
        data = bytearray(path.read_bytes())
        (place,) = (
            found.start() + 24
            for found in re.finditer(rb"TREE\x01", data)
            if struct.unpack_from("<I", data, found.start() + 24) == (length,)
        )
        struct.pack_into("<I", data, place, change(length))
        path.write_bytes(data)

    return make


# HDF5 reads as many bytes as the index says into a buffer of the chunk's size.
LENGTHS = {
    f"{name} {said}": _said_length(name, change)
    for name in ("x", "fc2")
    for said, change in {
        "of fewer bytes": lambda n: n - 1,
        "of bytes without end": lambda n: n + 90_000,
    }.items()
}
WHOLE = {"names that are free for ever": _free_for_ever, "addresses of 4 bytes": _narrow}


def _compressed_bomb(file, secret, fifo):
    """Write a dataset with two deflate filters, a million to one."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_chunk((1 << 20, 28, 28))
    plist.set_deflate(9)
    plist.set_deflate(9)
    space = h5py.h5s.create_simple((1 << 20, 28, 28))
    made = h5py.h5d.create(file.id, b"x", h5py.h5t.STD_U8LE, space, plist)
    made.write_direct_chunk((0, 0, 0), zlib.compress(_zeros((1 << 20) * 784), 9))


def _blank(count, chunk, kind):
    """Return a maker of images that are all zeros and all stored, at the highest compression."""

    def make(file, secret, fifo):
        data = _zeros(chunk * 784 * np.dtype(kind).itemsize)
        options = {"chunks": (chunk, 28, 28), "compression": "gzip", "shuffle": kind != "u1"}
        made = file.create_dataset("x", (count, 28, 28), kind, **options)
        for lo in range(0, count, chunk):
            made.id.write_direct_chunk((lo, 0, 0), data)

    return make


BOMBS = {
    "blank images": _blank(84_000, 21_000, "u1"),
    "more blank images": _blank(105_000, 21_000, "u1"),
    "one vast chunk": _one_vast_chunk,
    "chunks that are cut short": _many_in_one_place,
    "unwritten": _unwritten,
    "labels": _labels,
    "a chunk that inflates on": _inflates_on,
    "deflated twice": _compressed_bomb,
}


def _short(name, packed):
    """Return a maker of dataset `name` in one chunk; `packed(length)` gives (filters, bytes)."""

    def make(file, secret, fifo):
        shape = WEIGHTS.get(name, SHAPE if name == "x" else SHAPE[:1])
        kind = "f4" if name in WEIGHTS else "u1"
        if name in file:
            del file[name]
        options, data = packed(int(np.prod(shape)) * np.dtype(kind).itemsize)
        made = file.create_dataset(name, shape, kind, chunks=shape, **options)
        made.id.write_direct_chunk((0,) * len(shape), data)

    return make


_GZIP, _SHUFFLE, _SUM = {"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True}
_BAD_CHUNKS = {
    "inflates to one byte less": lambda n: (_GZIP, zlib.compress(bytes(n - 1))),
    "inflates to one byte more": lambda n: (_GZIP, zlib.compress(bytes(n + 1))),
    "is cut": lambda n: (_GZIP, zlib.compress(bytes(range(256)) * (n // 256 + 1))[:-5]),
    "shuffled and short": lambda n: (_SHUFFLE, bytes(max(1, n - 1))),
    "has a checksum and no data": lambda n: (_SUM, bytes(4)),
    "has a wrong checksum": lambda n: (_SUM, bytes(n) + b"\1\0\0\0"),
}
SHORT = {
    f"{name} {said}": _short(name, packed)
    for name in ("x", "fc2")
    for said, packed in _BAD_CHUNKS.items()
}


def _typed(kind):
    return lambda file, secret, fifo: file.create_dataset("x", SHAPE, kind)


def _deep(file, secret, fifo):
    group = file
    for _ in range(2_000):
        group = group.create_group("x")


OTHER = {
    "text of variable length": _typed(h5py.string_dtype()),
    "arrays of variable length": _typed(h5py.vlen_dtype(np.uint8)),
    "a compound": _typed(np.dtype([("hidden", "u1")])),
    "lzf": lambda f, s, p: f.create_dataset("x", SHAPE, "u1", chunks=SHAPE, compression="lzf"),
    "bounded growth": lambda f, s, p: f.create_dataset(
        "x", SHAPE, "u1", chunks=SHAPE, maxshape=(9, 28, 28)
    ),
    "deep groups": _deep,
    "a type": lambda f, s, p: f.__setitem__("x", np.dtype("u1")),
}

FAMILIES = {"foreign": FOREIGN, "bombs": BOMBS, "short": SHORT, "other": OTHER}


def write(path, make, secret, fifo):
    """Write one hostile file; return its path."""
    with h5py.File(path, "w") as file:
        for name, shape in WEIGHTS.items():
            file[name] = np.zeros(shape, "f4") if name == "fc1" else np.ones(shape, "f4")
        make(file, secret, fifo)
    return path


def small(path, make, secret, fifo):
    """Write one hostile file without weights; return its path."""
    with h5py.File(path, "w") as file:
        make(file, secret, fifo)
    return path


def bait(folder):
    """Write a file of SECRET images and a FIFO, which no hostile file may make a reader open."""
    secret, fifo = folder / "secret.h5", folder / "fifo"
    with h5py.File(secret, "w") as file:
        file["x"] = np.full(SHAPE, SECRET, "u1")
    os.mkfifo(fifo)
    return secret, fifo


def write_all(folder):
    """Write every file of the corpus, named by family and name; return the paths."""
    folder.mkdir(parents=True)
    secret, fifo = bait(folder)
    found = []
    for family, makers in FAMILIES.items():
        for name, make in makers.items():
            path = folder / f"{family} {name}.h5".replace(" ", "-").replace(",", "")
            form = write if re.search("weights|fc|conv", name) else small
            found.append(form(path, make, secret, fifo))
    for name, changes in HEADERS.items():
        found.append(folder / f"headers {name}.h5".replace(" ", "-").replace(",", ""))
        _patched(found[-1], *changes)
    for family, makers in {"whole": WHOLE, "lengths": LENGTHS}.items():
        for name, make in makers.items():
            found.append(folder / f"{family} {name}.h5".replace(" ", "-"))
            make(found[-1])
    return found
