"""Damage for `scripts/fuzz.py`: bytes, JSON trees, gzip from inside, and HDF5 by its structure.

A mutation takes a random generator and an `Entry` (bytes, and what is known of the valid file that
they come from) and gives other bytes.
"""

from __future__ import annotations

import io
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from gzip import compress
from random import Random
from typing import Any

import numpy as np

Spans = Sequence[tuple[int, int]]
LONGEST = 4 << 20
"""Bytes that a mutated file may have."""
_BOMB = 64 << 20
_WORDS = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000,
          0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_SIGNATURES = re.compile(rb"\x89HDF\r\n\x1a\n|OHDR|OCHK|BTHD|BTLF|BTIN|FRHP|FHDB|FADB|FAHD|EAHD|EAIB|EASB|EADB|FSHD")  # fmt: skip  # noqa: E501


@dataclass(frozen=True)
class Entry:
    """A file of the corpus.

    `hot` are the bytes that say what the rest is, `raw` the chunks of data (first byte, bytes) and
    `sums` the spans that four bytes of checksum follow, all of the valid file that it began as.
    """

    data: bytes
    hot: Spans = ()
    raw: Spans = ()
    sums: Spans = field(default=())


Mutation = Callable[[Random, Entry, Sequence[Entry]], bytes]


def _at(rng: Random, data: bytearray, hot: Spans) -> int:
    """A place in `data`, four times of five in what is hot."""
    spans = [(max(0, lo), min(hi, len(data))) for lo, hi in hot if lo < len(data) and hi > 0]
    if spans and rng.random() < 0.8:
        lo, hi = rng.choices(spans, [hi - lo for lo, hi in spans])[0]
        return rng.randrange(lo, hi)
    return rng.randrange(len(data))


def _write_number(rng: Random, data: bytearray, at: int) -> None:
    """0, the largest, the place itself, the file's end, a neighbour: 1 to 8 bytes, either order."""
    width = rng.choice((1, 2, 4, 4, 8, 8))
    at -= at % width if rng.random() < 0.7 else 0
    order = rng.choice(("little", "little", "big"))
    old = int.from_bytes(data[at : at + width], order)
    near = (at, len(data), old + 1, old - 1, old * 2, old ^ (1 << rng.randrange(8 * width)))
    value = rng.choice((*_WORDS, *near, rng.getrandbits(8 * width)))
    data[at : at + width] = (value % (1 << 8 * width)).to_bytes(width, order)


def damage(rng: Random, data: bytes, hot: Spans, others: Sequence[Entry]) -> bytes:
    """A few changes of bytes: numbers, bits, parts cut, doubled, moved or from another file."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if not made:
            break
        at, kind = _at(rng, made, hot), rng.randrange(12)
        length = rng.choice((1, 2, 4, 8, 16, 64, 512))
        if kind < 5:
            _write_number(rng, made, at)
        elif kind < 7:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == 7:
            del made[at : at + length if rng.random() < 0.5 else None]
        elif kind == 8 and len(made) < LONGEST:
            made[at:at] = made[at : at + length]
        elif kind == 9:
            to = _at(rng, made, hot)
            part = made[at : at + length]
            made[to : to + len(part)] = part
        elif kind == 10:
            made += rng.randbytes(length)
        else:
            other = rng.choice(others).data
            made[at : at + length] = other[at : at + length]
    return bytes(made[:LONGEST])


def of_bytes(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """`damage`, most of it where the header is."""
    return damage(rng, entry.data, entry.hot, others)


def of_gzip(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """The packed bytes damaged, or what is packed in them, a bomb behind it or a second member."""
    kind = rng.randrange(8)
    try:
        inside = zlib.decompress(entry.data, 31)
    except zlib.error:
        kind = 0
    if kind < 3:
        return damage(rng, entry.data, [(0, 32), (len(entry.data) - 16, len(entry.data))], others)
    if kind < 6:
        return compress(damage(rng, inside, entry.hot, [Entry(inside)]), 1, mtime=0)
    if kind == 6:
        return compress(inside + bytes(rng.choice((1, 784, 1 << 20, _BOMB))), 1, mtime=0)
    return entry.data + compress(inside[: rng.choice((0, 1, 784))], mtime=0)


def _places(node: Any) -> list[tuple[Any, Any]]:
    """(what holds it, its key) of each value in a tree of JSON."""
    found, todo = [], [node]
    while todo:
        holder = todo.pop()
        keys: Any = holder if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])
    return found


def of_json(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Values of the tree replaced, deleted or exchanged; at times its bytes, or a deep nest."""
    kind = rng.randrange(20)
    if kind == 0:
        return rng.choice((b"[", b'{"a":')) * rng.choice((10, 900, 100_000))
    try:
        tree = json.loads(entry.data)
    except (ValueError, RecursionError):
        kind = 1
    if kind < 4:
        return damage(rng, entry.data, (), others)
    odd = (None, True, 0, -1, 1.5, 1e308, 10**400, math.nan, math.inf, -math.inf, "", "nan", "1",
           "\x1b[31m\n", "\ud800", "x" * 5000, [], {}, [[]], [None], [1, 2], {"a": 1})  # fmt: skip
    for _ in range(rng.choice((1, 1, 2, 4))):
        places = _places(tree) if isinstance(tree, dict | list) else []
        if not places:
            return json.dumps(rng.choice(odd)).encode()
        holder, key = rng.choice(places)
        what = rng.randrange(6)
        if what == 0:
            del holder[key]
        elif what == 1:
            other, place = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
        elif what == 2 and isinstance(holder, dict):
            holder[rng.choice(("", "a", str(key) + "x"))] = holder.pop(key)
        else:
            holder[key] = deepcopy(rng.choice(odd))
    return json.dumps(tree).encode()


def of_npy(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """The header's text with another type, shape or order, its length kept or not; or bytes."""
    header = re.match(rb"\x93NUMPY..(..)([^\n]*\n)", entry.data, re.DOTALL)
    if header is None or rng.random() < 0.5:
        return of_bytes(rng, entry, others)
    odd = (b"'|O'", b"'<f8'", b"'>u2'", b"'<c16'", b"'|V784'", b"'<U3'", b"[('a','<f4')]", b"(",
           b"(9223372036854775807, 28, 28)", b"(-1, 28, 28)", b"(28, 28)", b"((),)", b"True",
           b"1e9", b"()" * 900, b"\xff", b"[" * 3000, b"lambda: 0", b"-" * 9000 + b"1")  # fmt: skip
    text = header[2]
    for part in rng.sample(re.findall(rb"'[^']*'|\([^)]*\)|\w+", text), 2):
        text = text.replace(part, rng.choice(odd), 1)
    length = len(text).to_bytes(4, "little")[:2] if rng.random() < 0.8 else header[1]
    return entry.data[: header.start(1)] + length + text + entry.data[header.end() :]


def _rotated(x: Any, by: int) -> Any:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def lookup3(data: bytes, lengths: Any) -> Any:
    """HDF5's checksum of metadata, of the first n bytes of `data` for each n of `lengths`."""
    lengths = np.asarray(lengths, np.int64)
    a, b, c = (np.uint32(0xDEADBEEF) + lengths.astype(np.uint32) for _ in range(3))
    padded = data + bytes(12)
    for at in range(0, int(lengths.max()), 12):
        left = lengths - at
        words = np.frombuffer(padded[at : at + 12].ljust(12, b"\0"), np.uint8)
        kept = np.where(np.arange(12) < left[:, None], words, 0).astype(np.uint8).view("<u4")
        here, last = left > 0, (left > 0) & (left <= 12)
        a, b, c = (np.where(here, x + kept[:, k], x) for k, x in enumerate((a, b, c)))
        x, y, z = a, b, c
        for by in (4, 6, 8, 16, 19, 4):
            x = (x - z) ^ _rotated(z, by)
            z = z + y
            x, y, z = y, z, x
        f, g, h = a, b, c
        for by in (14, 11, 25, 16, 4, 14, 24):
            h = (h ^ g) - _rotated(g, by)
            f, g, h = g, h, f
        mixed = here & ~last
        a, b = np.where(mixed, x, a), np.where(mixed, y, b)
        c = np.where(mixed, z, np.where(last, g, c))
    return c


def described(data: bytes) -> Entry:
    """An HDF5 file with its chunks, its metadata, and what of these has a checksum."""
    import h5py

    raw: list[tuple[int, int]] = []
    with h5py.File(io.BytesIO(data), "r") as file:
        items: list[Any] = []
        file.visititems(lambda _, item: items.append(item))
        for item in (item for item in items if isinstance(item, h5py.Dataset)):
            if item.chunks:
                found = map(item.id.get_chunk_info, range(item.id.get_num_chunks()))
                raw += [(chunk.byte_offset, chunk.size) for chunk in found]
            elif item.id.get_offset() is not None:
                raw.append((item.id.get_offset(), item.id.get_storage_size()))
    edges = [0, *(edge for at, size in sorted(raw) for edge in (at, at + size)), len(data)]
    hot = [(lo, hi) for lo, hi in zip(edges[::2], edges[1::2], strict=True) if lo < hi]
    sums = []
    for match in _SIGNATURES.finditer(data):
        lo = match.start()
        if not any(first <= lo < last for first, last in hot):
            continue
        tries = np.arange(8, min(len(data) - lo - 4, 1100))
        if len(tries):
            block = data[lo : lo + 1104]
            kept = [struct.unpack_from("<I", block, n)[0] for n in tries]
            sums += [(lo, lo + int(n)) for n in tries[lookup3(block, tries) == kept]]
    return Entry(data, hot, raw, sums)


def of_hdf5(rng: Random, entry: Entry, others: Sequence[Entry]) -> bytes:
    """Metadata damaged, their checksums made right again as a rule; or a chunk, from inside."""
    if entry.raw and rng.random() < 0.2:
        return _other_chunk(rng, entry)
    made = bytearray(damage(rng, entry.data, entry.hot, others))
    if rng.random() < 0.85:
        sums_made_right(made, entry)
    return bytes(made)


def sums_made_right(made: bytearray, entry: Entry) -> None:
    """Make the checksums of the metadata right that are not as in `entry`."""
    for lo, hi in entry.sums:
        if hi + 4 <= len(made) and made[lo:hi] != entry.data[lo:hi]:
            made[hi : hi + 4] = struct.pack("<I", int(lookup3(bytes(made[lo:hi]), [hi - lo])[0]))


def _other_chunk(rng: Random, entry: Entry) -> bytes:
    """A chunk that inflates to less, to more, to something else; or its bytes damaged."""
    at, size = rng.choice(entry.raw)
    stored, made = entry.data[at : at + size], bytearray(entry.data)
    try:
        inside = zlib.decompress(stored)
    except zlib.error:
        return damage(rng, entry.data, [(at, at + size)], [entry])
    others = (inside[: len(inside) // 2], inside + inside, bytes(_BOMB), b"", rng.randbytes(64))
    packed = zlib.compress(rng.choice(others), 9)[:size]
    made[at : at + len(packed)] = packed
    return bytes(made)
