"""The real MNIST, for users who have the internet and ask for it; pinned, offline first."""

from __future__ import annotations

import hashlib
import http.client
import threading
import urllib.request
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic

from lenetgpu.errors import LenetError
from lenetgpu.files.inflate import GZIP_MAGIC
from lenetgpu.store import write_atomically

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {  # of the uncompressed IDX files, which every packing of them shares
    "train-images-idx3-ubyte.gz": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
    ),
    "train-labels-idx1-ubyte.gz": (
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
    ),
    "t10k-images-idx3-ubyte.gz": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
    ),
    "t10k-labels-idx1-ubyte.gz": (
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
    ),
}
MAX_BYTES = 32 << 20
MAX_UNPACKED_BYTES = 64 << 20
_SILENT_S = 30
"""Seconds without a byte after which a server is given up."""
_ATTEMPT_S = 300.0
"""Seconds that a file may take from a mirror, however steadily it comes."""
_TOTAL_S = 900.0
"""Seconds that all files may take from all mirrors."""
_PIECE = 1 << 20
_BROKEN = (EOFError, OSError, ValueError, zlib.error, http.client.HTTPException)


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https, whatever a redirect or a mirror names."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler, urllib.request.UnknownHandler, urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler, urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler, urllib.request.HTTPErrorProcessor,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener


def _download(url: str, end: float) -> bytes:
    """What `url` gives before the clock says `end`; ValueError where its length is wrong."""
    with _opener().open(url, timeout=_SILENT_S) as reply:
        declared = reply.length
        if declared is not None and declared > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES:,} bytes, found {declared:,} announced")
        data = bytearray()
        while piece := reply.read1(_PIECE):
            data += piece
            if len(data) > MAX_BYTES:
                raise ValueError(f"expected at most {MAX_BYTES:,} bytes, found more")
            if monotonic() > end:
                raise TimeoutError("too late")
    if declared is not None and len(data) != declared:
        raise ValueError(f"expected {declared:,} bytes as announced, found {len(data):,}")
    return bytes(data)


def _in_time(url: str, seconds: float) -> bytes:
    """`_download` within `seconds`; TimeoutError where it takes longer, in whatever part of it.

    It runs in a thread, which is left behind then: a name server, a handshake or a header that
    comes byte by byte asks for no clock.
    """
    answers: SimpleQueue[bytes | Exception] = SimpleQueue()
    end = monotonic() + seconds

    def work() -> None:
        try:
            answers.put(_download(url, end))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=work, daemon=True, name="lenetgpu-download").start()
    late = TimeoutError(f"expected it within {seconds:,.0f} s, found it not whole")
    try:
        answer = answers.get(timeout=max(seconds, 0))
    except Empty:
        raise late from None
    if isinstance(answer, TimeoutError) and monotonic() > end:
        raise late
    if isinstance(answer, Exception):
        raise answer
    return answer


def _digest(packed: bytes) -> str:
    """SHA-256 of the unpacked file; ValueError, EOFError or zlib.error where it does not unpack.

    No more than MAX_UNPACKED_BYTES are inflated, and a piece of them is in memory at a time.
    """
    too_long = f"expected at most {MAX_UNPACKED_BYTES:,} bytes unpacked, found"
    if packed[: len(GZIP_MAGIC)] != GZIP_MAGIC:
        raise ValueError(f"expected a gzip file, found bytes that begin with {packed[:8]!r}")
    declared = int.from_bytes(packed[-4:], "little")
    if declared > MAX_UNPACKED_BYTES:
        raise ValueError(f"{too_long} {declared:,} announced")
    digest, length = hashlib.sha256(), 0
    while packed:
        inflater = zlib.decompressobj(wbits=31)
        while not inflater.eof:
            piece = inflater.decompress(packed, _PIECE)
            packed = inflater.unconsumed_tail
            if not piece and not packed and not inflater.eof:
                raise EOFError("expected a whole gzip file, found one that breaks off")
            length += len(piece)
            if length > MAX_UNPACKED_BYTES:
                raise ValueError(f"{too_long} more")
            digest.update(piece)
        packed = inflater.unused_data.lstrip(b"\0")  # padding
    return digest.hexdigest()


def _fault(path: Path, pinned: str) -> str | None:
    """What is wrong with the file that is there, "" if nothing; None where there is none."""
    try:
        if not path.exists():
            return None
        if not path.is_file():
            return "expected a file, found a folder or a device"
        size = path.stat().st_size
        if size > MAX_BYTES:
            return f"expected at most {MAX_BYTES:,} bytes, found {size:,}"
        return _other(_digest(path.read_bytes()), pinned)
    except _BROKEN as error:
        return str(error)


def _other(digest: str, pinned: str) -> str:
    """How a sum differs from the pinned one; "" where it does not."""
    return (
        "" if digest == pinned else f"SHA-256 {digest[:12]}... is not the pinned {pinned[:12]}..."
    )


def fetch_mnist(
    folder: Path,
    mirrors: tuple[str, ...] = MIRRORS,
    say: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Put MNIST's four files into `folder`, from the first mirror that has the pinned bytes.

    Files already there with the right SHA-256 are kept, others said and fetched again. Raises
    LenetError where no mirror gives the pinned bytes. A download that fails or is interrupted
    leaves no part of a file, and no folder that it made for nothing; a file that came whole and
    right stays, and is not fetched again next time. It ends after _TOTAL_S seconds at the latest.
    """
    made = _make(folder)
    end = monotonic() + _TOTAL_S
    try:
        return [_fetch(folder / name, mirrors, end, say) for name in SHA256]
    finally:
        for empty in made:
            with suppress(OSError):  # there is something in it
                empty.rmdir()


def _make(folder: Path) -> list[Path]:
    """Make `folder`: the folders that this made, the innermost first."""
    try:
        made = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LenetError(f"{folder}: expected a folder, found: {error.strerror}") from error
    return made


def _fetch(path: Path, mirrors: tuple[str, ...], end: float, say: Callable[[str], None]) -> Path:
    """One of the files, from the first mirror that has it before the clock says `end`."""
    name, pinned = path.name, SHA256[path.name]
    fault = _fault(path, pinned)
    if fault == "":
        say(f"{name}: already here")
        return path
    if fault is not None:
        say(f"{name}: already here, but {fault}; fetching it again")
    reasons = []
    for mirror in mirrors:
        left = end - monotonic()
        if left <= 0:
            reasons.append(f"{_TOTAL_S:,.0f} s gone before {mirror} was asked")
            break
        try:
            data = _in_time(mirror + name, min(_ATTEMPT_S, left))
            different = _other(_digest(data), pinned)
        except _BROKEN as error:
            reasons.append(f"{mirror}: {str(error) or type(error).__name__}")
            continue
        if not different:
            write_atomically(path, data)
            say(f"{name}: {len(data):,} bytes from {mirror}")
            return path
        reasons.append(f"{mirror}: {different}")
    kept = "" if fault is None else f"; the file that was there stays as it was: {fault}"
    raise LenetError(f"{name}: expected to download it, found {'; '.join(reasons)}{kept}")
