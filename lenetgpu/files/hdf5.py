"""Opening of HDF5 files, which are untrusted input, and their creation.

The HDF5 library locates objects; it reads no data except compact data in an object's header. It
would follow soft links into other files, load plugins of filters, and trust the lengths of text:
objects that need these are refused. Bytes are read directly from the file and decoded here. A
decoded chunk must have its declared size, to the byte.
"""

import os
import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from types import FrameType
from typing import IO, Any, BinaryIO

from lenetgpu.arrays import Array, np
from lenetgpu.errors import ENDING, LenetError, first_line, unexpected
from lenetgpu.files.hdf5_trees import require_trees
from lenetgpu.files.models.forms import MAX_ATTRIBUTES, MAX_TEXT_BYTES
from lenetgpu.files.reading import check_memory
from lenetgpu.files.regular import MOST_RATIO, OpenFile, broken, inflated, open_regular

_MAX_NAME = 256
_MAX_OBJECTS, _MAX_DEPTH = 256, 8  # of weights; hard links can make a group its own member
_OWN_FILES = "/proc/self/fd"
MAX_CHUNK_BYTES = 1 << 30  # bytes of a chunk, at most
DEFLATE, SHUFFLE, FLETCHER = 1, 2, 3
_SMALL_BYTES = 16 << 20
_CHUNK_RATIO = 64  # a chunk above _SMALL_BYTES is at most this many times the file's size
_CHECKSUM_BYTES = 4

Refuse = Callable[[str], LenetError]
Accepts = Callable[[tuple[int, ...]], bool]
Corner = tuple[int, ...]
Slices = tuple[slice, ...]


def _library() -> Any:
    """Return the module h5py, with all plugin folders removed for the rest of the process."""
    # h5py queries all of `uname` on import, and Python would run a program to find `processor`
    uname = vars(platform.uname())
    unset = "h5py" not in sys.modules and "processor" not in uname
    if unset:
        uname["processor"] = ""
    try:
        import h5py
    finally:
        if unset:
            uname.pop("processor", None)
    for index in reversed(range(h5py.h5pl.size())):
        h5py.h5pl.remove(index)
    return h5py


h5py = _library()


@contextmanager
def later() -> Iterator[Callable[[], None]]:
    """Defer Ctrl-C, TERM, HUP and alarms until the yielded function is called or the block ends.

    HDF5 crashes at process exit if a read or write raised, h5py fails if a callback raised.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # Python runs signal handlers in the main thread only
        return
    numbers = [getattr(signal, name) for name in (*ENDING, "SIGALRM") if hasattr(signal, name)]
    previous = ((number, signal.getsignal(number)) for number in numbers)
    handlers = {number: handler for number, handler in previous if callable(handler)}
    pending: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number not in pending:
            pending.append(number)

    def interrupt() -> None:
        while pending:
            handlers[pending[0]](pending.pop(0), sys._getframe())

    try:
        for number in handlers:
            signal.signal(number, note)
        yield interrupt
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupt()


# results of a file's methods after an error, from their arguments
_AFTER_ERROR: dict[str, Callable[..., Any]] = {
    "tell": lambda: 0, "seek": lambda *_: 0, "read": bytes, "write": len, "truncate": int,
    "flush": lambda: None,
}  # fmt: skip


class _Patient:
    """A file that never raises, as HDF5 crashes if closing fails; `error` is the first error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        result_after_error = _AFTER_ERROR.get(name)
        if result_after_error is None:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if self.error is None:
                try:
                    return getattr(self._file, name)(*arguments)
                except OSError as error:
                    self.error = error
            return result_after_error(*arguments)

        return call


@contextmanager
def new_hdf5(target: IO[bytes]) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Create an HDF5 file in `target`, open for reading and writing; yield it and a check.

    The check, also made at the end of the block, raises OSError if a write failed, and delivers
    pending signals. HDF5 no longer uses `target` after the block.
    """
    target.truncate(0)
    patient = _Patient(target)
    with later() as interrupt:

        def check() -> None:
            interrupt()
            if patient.error is not None:
                raise patient.error

        with h5py.File(patient, "w") as file:
            yield file, check
    check()
    target.flush()


class Untrusted:
    """An HDF5 file open for reading; `find` and `attribute` return only checked objects."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._file = path, file
        self.id = file.id  # handle of the root group; lookups through it follow unchecked links
        self._handle: int = file.id.get_vfd_handle()
        self.size: int = file.id.get_filesize()  # bytes when the file was opened

    def refuse(self, name: str, expected: str, found: str) -> LenetError:
        """Return the error for a dataset that is not as expected."""
        return LenetError(f"{self.path}: expected dataset /{name} to be {expected}, found {found}")

    def holds(self, name: str, expected: str = "a dataset of this file") -> bool:
        """Return True if something has that name; raise LenetError for a link that is not hard."""
        if not self.id.links.exists(name.encode()):
            return False
        kind = self.id.links.get_info(name.encode()).type
        if kind != h5py.h5l.TYPE_HARD:
            kinds = {h5py.h5l.TYPE_SOFT: "a soft link", h5py.h5l.TYPE_EXTERNAL: "an external link"}
            found = f"{kinds.get(kind, 'a link of an unknown kind')} at /{name}"
            raise self.refuse(name, expected, found)
        return True

    def names(self, most: int) -> list[str]:
        """Return the first `most` names in the root group; invalid UTF-8 becomes surrogates."""
        names = _names(self.id.links.iterate, most)
        return [name.decode("utf-8", "surrogateescape") for name in names]

    def datasets(self, but: tuple[str, ...] = ()) -> list[str]:
        """Return the paths of datasets, also in groups but `but`; LenetError for soft links."""
        found, groups, left = list[str](), [("", self.id)], _MAX_OBJECTS
        for path, group in groups:
            names = _names(group.links.iterate, left + 1)
            left -= len(names)
            if left < 0 or path.count("/") > _MAX_DEPTH:
                raise unexpected(
                    self.path, f"at most {_MAX_OBJECTS} objects, {_MAX_DEPTH} deep", "more"
                )
            for name in (path + name.decode() for name in names):
                self.holds(name)
                kind = h5py.h5o.get_info(self.id, name.encode()).type
                if kind == h5py.h5o.TYPE_DATASET:
                    found.append(name)
                elif kind == h5py.h5o.TYPE_GROUP and name not in but:
                    groups.append((f"{name}/", h5py.h5g.open(self.id, name.encode())))
        return found

    def check_size(self) -> None:
        """Raise LenetError if the file became shorter: HDF5 reads zeros past its end. No lock."""
        size = os.fstat(self._handle).st_size
        if size < self.size:
            found = f"{size:,}: the file became shorter while it was read"
            raise unexpected(self.path, f"a file of {self.size:,} bytes", found)

    def bytes(self) -> OpenFile:
        """Return the same file that HDF5 has open, even if another file now has its name."""
        handle: BinaryIO = os.fdopen(os.dup(self._handle), "rb", buffering=0)
        return OpenFile(self.path, handle)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@contextmanager
def open_hdf5(path: Path) -> Iterator[Untrusted]:
    """Open `path` for reading; raise LenetError if it is missing or not HDF5."""
    with closing(open_file(path)) as file, readable(path):
        yield file
        file.check_size()


def open_file(path: Path) -> Untrusted:
    """Open `path` for reading; the caller closes it. Raises LenetError like `open_hdf5`."""
    with open_regular(path, "an HDF5 file") as opened:
        require_trees(path, opened)
        same = f"{_OWN_FILES}/{opened.fileno()}"
        try:
            file = h5py.File(same if os.path.exists(same) else path, "r", driver="sec2")
        except OSError as error:
            size = os.fstat(opened.fileno()).st_size
            kind = "an empty file" if size == 0 else f"{size} bytes that HDF5 cannot open"
            if isinstance(error, BlockingIOError):
                kind = "one that another process has locked for writing"
            raise LenetError(f"{path}: expected an HDF5 file, found {kind}") from error
        if not os.path.sameopenfile(opened.fileno(), file.id.get_vfd_handle()):
            file.close()
            raise LenetError(f"{path}: expected one file, found another in its place")
        return Untrusted(path, file)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert every HDF5 exception in the block to a LenetError for a damaged file."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
        reason = first_line(error)
        raise unexpected(path, "a readable HDF5 file", f"a damaged one ({reason})") from error


def attributes(path: Path) -> dict[str, str | None]:
    """Return the root group's attributes as text; None for those that `text_of` rejects."""
    with open_hdf5(path) as file:
        texts: dict[str, str | None] = dict.fromkeys(attribute_names(file))
        for name in texts:
            with suppress(LenetError):
                texts[name] = text_of(file, name, path)
    return texts


def attribute_names(holder: Any) -> list[str]:
    """Return the names of at most MAX_ATTRIBUTES attributes, without reading the attributes."""
    names = _names(partial(h5py.h5a.iterate, holder.id), MAX_ATTRIBUTES)
    return [name[:_MAX_NAME].decode("utf-8", "replace") for name in names]


def _names(iterate: Callable[[Any], Any], most: int) -> list[bytes]:
    names: list[bytes] = []

    def note(name: bytes) -> bool | None:
        names.append(name)
        return True if len(names) >= most else None

    with later():
        iterate(note)
    return names


def attribute(holder: Any, name: str, path: object) -> tuple[np.dtype[Any], Array]:
    """Return the type of an attribute of a file or dataset, and its elements as stored.

    Raises LenetError unless it holds numbers or text of fixed length, at most MAX_TEXT_BYTES.
    """
    opened = h5py.h5a.open(holder.id, name.encode())
    kind, space = opened.get_type(), opened.get_space()
    code, length = kind.get_class(), space.get_simple_extent_npoints() * kind.get_size()
    fixed = code in (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.ENUM)
    fixed = fixed or (code == h5py.h5t.STRING and not kind.is_variable_str())
    if not fixed or not 0 < length == opened.get_storage_size() <= MAX_TEXT_BYTES:
        expected = f"numbers or text of fixed length, at most {MAX_TEXT_BYTES:,} bytes"
        raise unexpected(path, f"attribute {name} to be {expected}", "another type or size")
    raw = np.zeros(space.get_simple_extent_dims(), f"V{kind.get_size()}")
    opened.read(raw, mtype=kind)
    return kind.dtype, raw


def text_of(holder: Any, name: str, path: object) -> str:
    """Return an attribute that is one number or text; raise LenetError like `attribute`."""
    dtype, raw = attribute(holder, name, path)
    if raw.size != 1:
        raise unexpected(path, f"one number or text in attribute {name}", f"{raw.size:,}")
    if dtype.kind in "SO":
        return raw.tobytes().split(b"\0")[0].decode("utf-8", "replace")
    return str(raw.view(dtype).reshape(-1)[0])


@dataclass(frozen=True)
class Stored:
    """A checked dataset of numbers in this very file; no data have been read."""

    file: Untrusted
    name: str
    expected: str
    id: Any
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...] | None
    filters: tuple[int, ...]  # codes in the order of writing
    offset: int | None  # position in the file of contiguous data; None for other data

    @property
    def path(self) -> Path:
        """The file's path."""
        return self.file.path

    @property
    def where(self) -> str:
        """The dataset's name in messages."""
        return f"dataset /{self.name}"

    @property
    def bytes(self) -> int:
        """The declared size in bytes, before filters."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def piece(self) -> tuple[int, ...]:
        """The shape of one read: a chunk, or all of a compact dataset."""
        return self.chunks or self.shape

    @property
    def piece_bytes(self) -> int:
        """The size of a whole piece in bytes, before filters."""
        return prod(self.piece) * self.dtype.itemsize

    @property
    def parts(self) -> int:
        """The number of pieces that cover the dataset."""
        return prod(-(-n // c) for n, c in zip(self.shape, self.piece, strict=True))

    def whole_chunks(self, least: int) -> int:
        """Return the number of rows, at least `least`, rounded up to whole chunks."""
        rows = self.chunks[0] if self.chunks else 1
        return max(1, -(-least // rows)) * rows

    def refuse(self, found: str) -> LenetError:
        """Return the error for this dataset if it is not as expected."""
        return self.file.refuse(self.name, self.expected, found)

    def cuts(self, lo: int, hi: int) -> Iterator[tuple[Corner, Slices, Slices]]:
        """Yield (a piece's first element, its position in rows lo to hi, its part in the piece)."""
        rows, *tail = self.piece
        ends = self.shape[1:]
        tails = [range(0, n, c) for n, c in zip(ends, tail, strict=True)]
        for corner in product(range(lo // rows * rows, hi, rows), *tails):
            begin, end = max(corner[0], lo), min(corner[0] + rows, hi)
            sizes = [min(c, n - at) for at, n, c in zip(corner[1:], ends, tail, strict=True)]
            to = [slice(at, at + size) for at, size in zip(corner[1:], sizes, strict=True)]
            part = (slice(begin - corner[0], end - corner[0]), *map(slice, sizes))
            yield corner, (slice(begin - lo, end - lo), *to), part

    def read_piece(self, corner: Corner) -> Array:
        """Return the whole piece whose first element is `corner`, as `dtype`."""
        if self.chunks is None:  # compact: the only data HDF5 reads
            require_written(self)
            data = np.empty(self.shape, self.dtype)
            self.id.read(h5py.h5s.ALL, h5py.h5s.ALL, data)
            return data
        data, mask = _raw(self, corner)
        applied = [code for at, code in enumerate(self.filters) if not mask >> at & 1]
        while applied:
            code = applied.pop()
            if code == FLETCHER:
                data = _checked(self, data, corner)
            elif code == DEFLATE:
                length = self.piece_bytes + _CHECKSUM_BYTES * applied.count(FLETCHER)
                data = _inflated(self, data, length, corner)
            else:
                planes = _sized(self, data, corner).reshape(self.dtype.itemsize, -1)
                data = np.ascontiguousarray(planes.T).reshape(-1)
        return _sized(self, data, corner).view(self.dtype).reshape(self.piece)


def find(file: Untrusted, name: str, expected: str, accepts: Accepts, kinds: str) -> Stored:
    """Return dataset `name` of this very file; no data are read.

    `accepts` checks the shape, `kinds` are the allowed NumPy kinds (as "fiu"), `expected`
    describes both in words. Raises LenetError for another or an impossible dataset.
    """
    refuse = partial(file.refuse, name, expected)
    if not file.holds(name, expected):
        names = ", ".join(f"/{key}" for key in file.names(8)) or "nothing"
        raise refuse(f"no such dataset (the file holds {names})")
    item, plist = _dataset(file.id, name.encode(), refuse)
    space = item.get_space()
    shape = item.shape if space.is_simple() else None
    if shape is None or not accepts(shape):
        raise refuse(f"shape {shape}")
    dtype = _dtype(item.get_type(), refuse)
    if dtype.kind not in kinds:
        raise refuse(f"type {dtype}")
    filters = _filters(plist, dtype.itemsize, refuse)
    chunked = plist.get_layout() == h5py.h5d.CHUNKED
    if filters and not chunked:
        raise refuse("filters on data that are not in chunks")
    most = space.get_simple_extent_dims(maxdims=True)
    free = None, h5py.h5s.UNLIMITED
    if chunked and any(end not in (n, *free) for n, end in zip(shape, most, strict=True)):
        # HDF5 derives the length of the chunk index from it, and reads past a shorter index
        raise refuse(f"shape {shape} that may grow to {most}")
    chunks = tuple(plist.get_chunk()) if chunked else None
    offset = None if chunked else item.get_offset()
    stored = Stored(file, name, expected, item, shape, dtype, chunks, filters, offset)
    _require_possible_size(stored)
    if chunked and not filters:
        _require_chunks(stored)
    return stored


def _dataset(group: Any, name: bytes, refuse: Refuse) -> tuple[Any, Any]:
    """Return HDF5's handles of a dataset of numbers and of its creation properties."""
    # its shape is not queried: for a virtual dataset, HDF5 would open other files
    if h5py.h5o.get_info(group, name).type != h5py.h5o.TYPE_DATASET:
        raise refuse("a group or a type")
    dataset = h5py.h5d.open(group, name)
    plist = dataset.get_create_plist()
    inside = h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED
    if plist.get_layout() not in inside or plist.get_external_count():
        raise refuse("data stored in other files")
    if dataset.get_type().get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        raise refuse("a type that is not read as numbers")
    return dataset, plist


def _dtype(kind: Any, refuse: Refuse) -> np.dtype[Any]:
    dtype: np.dtype[Any] = kind.dtype
    byte = kind.get_size() == 1 and (kind.get_precision(), kind.get_offset()) == (8, 0)
    same = (byte and dtype.kind in "iu") or kind.equal(h5py.h5t.py_create(dtype))
    if dtype.itemsize != kind.get_size() or not same:
        raise refuse(f"numbers of {kind.get_size():,} bytes that NumPy has no type for")
    return dtype


def _filters(plist: Any, width: int, refuse: Refuse) -> tuple[int, ...]:
    """Return the filters: deflate, shuffle by the element width, Fletcher; each at most once."""
    applied: list[int] = []
    for index in range(plist.get_nfilters()):
        code, _, values, _ = plist.get_filter(index)
        if code not in (DEFLATE, SHUFFLE, FLETCHER):
            raise refuse(f"filter {code}, which is none of gzip, shuffle and fletcher32")
        if code in applied:
            raise refuse(f"filter {code} twice")
        if code == SHUFFLE and tuple(values[:1]) != (width,):
            raise refuse(f"a shuffle by {list(values)} bytes of elements of {width}")
        applied.append(int(code))
    return tuple(applied)


def _require_possible_size(item: Stored) -> None:
    size, length = item.file.size, item.bytes
    if item.chunks:
        most = min(MAX_CHUNK_BYTES, max(_SMALL_BYTES, _CHUNK_RATIO * size))
        if item.piece_bytes > most:
            raise item.refuse(f"chunks of {item.piece_bytes:,} bytes, more than {most:,}")
        if length > size * (MOST_RATIO if DEFLATE in item.filters else 1):
            raise item.refuse(f"{length:,} bytes, more than a file of {size:,} can hold")
    elif item.offset is not None and item.offset + length > size:
        found = f"that it ends at byte {item.offset + length:,} of {size:,}"
        raise unexpected(item.path, f"{item.where} to lie within the file", found)


def _require_chunks(item: Stored) -> None:
    """Raise LenetError unless every chunk of an unfiltered dataset has the full chunk size."""
    # HDF5 reads the bytes its index states into h5py's buffer: fewer leave it unset, more overflow
    sizes: list[int] = []

    def note(chunk: Any) -> bool | None:
        sizes.append(chunk.size)
        return True if chunk.size != item.piece_bytes or len(sizes) > item.parts else None

    with later():
        item.id.chunk_iter(note)
    if sizes and sizes[-1] != item.piece_bytes:
        raise item.refuse(f"a chunk of {sizes[-1]:,} bytes, where all have {item.piece_bytes:,}")
    if len(sizes) > item.parts:
        raise item.refuse(f"more than {item.parts:,} chunks")


def require_written(item: Stored) -> None:
    """Raise LenetError if a part of a dataset was never written, or if chunks overlap."""
    stored_bytes = int(item.id.get_storage_size())
    if item.chunks is None:
        if item.offset is None and stored_bytes != item.bytes:
            raise item.refuse("1 of 1 parts not written")
        return
    if missing := max(0, item.parts - item.id.get_num_chunks()):
        raise item.refuse(f"{missing:,} of {item.parts:,} parts not written")
    if stored_bytes > item.file.size:
        raise item.refuse(f"chunks of {stored_bytes:,} bytes in a file of {item.file.size:,}")


def read_array(file: Untrusted, name: str, expected: str, accepts: Accepts, kinds: str) -> Array:
    """Return dataset `name` whole, in native byte order; arguments and LenetError as in `find`."""
    item = find(file, name, expected, accepts, kinds)
    require_written(item)
    check_memory(f"{item.path}: {item.where}", item.bytes, file.size if item.filters else None)
    array = read_rows(item, 0, item.shape[0])
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def read_rows(item: Stored, lo: int, hi: int) -> Array:
    """Return rows lo to hi (hi - lo, ...) of a dataset; raise LenetError if it is damaged."""
    rows: Array = np.empty((hi - lo, *item.shape[1:]), item.dtype)
    with readable(item.path):
        if item.offset is None:
            for corner, to, part in item.cuts(lo, hi):
                rows[to] = item.read_piece(corner)[part]
        else:
            with closing(item.file.bytes()) as file:
                row = prod(item.shape[1:]) * item.dtype.itemsize
                file.read_into(rows.reshape(-1).view(np.uint8).data, item.offset + lo * row)
    return rows


def _refuse(item: Stored, corner: Corner, expected: str, found: str) -> LenetError:
    chunk = f"a chunk {expected} at image {corner[0]:,}"
    return unexpected(item.path, f"{item.where} to have {chunk}", found)


def _raw(item: Stored, corner: Corner) -> tuple[Array, int]:
    """Return a chunk's bytes as stored, and the mask of filters that were skipped."""
    from h5py._hl.base import phil

    buffer = np.empty(min(item.piece_bytes * 17 // 16 + 4096, item.file.size), np.uint8)
    try:
        with phil:  # h5py before 3.16 takes no lock here, and HDF5 has none
            mask, data = item.id.read_direct_chunk(corner, out=buffer)
    except (ValueError, RuntimeError, OSError) as error:
        expected = f"of at most {len(buffer):,} bytes in the file"
        found = f"one that cannot be read ({first_line(error)})"
        raise _refuse(item, corner, expected, found) from error
    item.file.check_size()
    return buffer[: len(data)], int(mask)


def _inflated(item: Stored, data: Array, length: int, corner: Corner) -> Array:
    try:
        content, ended = inflated(data, length + 1)
    except broken() as error:
        raise _refuse(item, corner, "that inflates", f"a damaged one ({error})") from error
    if len(content) != length or not ended:
        found = "more" if len(content) > length else f"{len(content):,}"
        found = "no end after them" if len(content) == length else found
        raise _refuse(item, corner, f"that inflates to {length:,} bytes", found)
    return np.frombuffer(content, np.uint8)


def _checked(item: Stored, data: Array, corner: Corner) -> Array:
    body, stored = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    computed = fletcher32(body)
    checksum = stored.view("<u4")[0] if len(stored) == _CHECKSUM_BYTES else "none"
    if checksum != computed:
        raise _refuse(item, corner, f"whose checksum is {computed}", str(checksum))
    return np.ascontiguousarray(body)


def _sized(item: Stored, data: Array, corner: Corner) -> Array:
    if len(data) != item.piece_bytes:
        raise _refuse(item, corner, f"of {item.piece_bytes:,} bytes", f"{len(data):,}")
    return data


def fletcher32(data: Array) -> int:
    """Return HDF5's Fletcher checksum of bytes (n,), padded to big-endian words of 16 bits."""
    words = np.zeros(-(-len(data) // 2), ">u2")
    words.view(np.uint8)[: len(data)] = data
    first, second, step = 0, 0, 1 << 14
    falling = np.arange(step, 0, -1, dtype=np.uint64)
    for lo in range(0, len(words), step):
        part = words[lo : lo + step].astype(np.uint64)
        second += len(part) * first + int(part @ falling[step - len(part) :])
        first += int(part.sum())
    high, low = (total % 65535 or (65535 if total else 0) for total in (second, first))
    return high << 16 | low
