"""Download of MNIST on request, checked against pinned SHA-256 digests."""

import gzip
import hashlib
import http.client
import io
import os
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.regular import read_whole
from lenetgpu.store import write_atomically

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
SHA256 = {  # of the uncompressed IDX files, so any gzip compression of them passes
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
MAX_BYTES = 32 << 20
MAX_UNPACKED_BYTES = 64 << 20
_SILENT_S = 30  # seconds without a byte until a server is given up
_ATTEMPT_S = 300.0  # seconds that a file may take from one mirror
_PIECE = 1 << 20
_BROKEN = (EOFError, OSError, ValueError, zlib.error, http.client.HTTPException)


def _download(url: str) -> bytes:
    begun, data = time.monotonic(), bytearray()
    with urllib.request.urlopen(url, timeout=_SILENT_S) as reply:
        declared = reply.length
        if (declared or 0) > MAX_BYTES:
            raise ValueError(f"expected at most {MAX_BYTES:,} bytes, found {declared}")
        while piece := reply.read1(_PIECE):
            data += piece
            if len(data) > MAX_BYTES:
                raise ValueError(f"expected at most {MAX_BYTES:,} bytes, found more")
            if time.monotonic() - begun > _ATTEMPT_S:
                raise TimeoutError(f"not complete after {_ATTEMPT_S:,.0f} s")
    if declared is not None and len(data) != declared:
        raise ValueError(f"expected {declared:,} bytes as announced, found {len(data):,}")
    return bytes(data)


def _require_pinned(packed: bytes, pinned: str) -> None:
    """Raise one of _BROKEN unless a file unpacks to the pinned bytes."""
    digest, length = hashlib.sha256(), 0
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        while piece := file.read(_PIECE):
            length += len(piece)
            if length > MAX_UNPACKED_BYTES:
                raise ValueError(f"expected at most {MAX_UNPACKED_BYTES:,} bytes unpacked")
            digest.update(piece)
    if digest.hexdigest() != pinned:
        found = digest.hexdigest()[:12]
        raise ValueError(f"SHA-256 {found}... is not the pinned {pinned[:12]}...")


def fetch_mnist(
    folder: Path, mirrors: tuple[str, ...] = MIRRORS, say: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Put MNIST's four files into `folder`, from the first mirror that has the pinned bytes.

    Existing files with the right SHA-256 stay; others are reported and replaced. Raises
    LenetError if no mirror gives the pinned bytes; no partial file is left.
    """
    return [_fetch(folder / f"{name}.gz", mirrors, say) for name in SHA256]


def _fetch(path: Path, mirrors: tuple[str, ...], say: Callable[[str], None]) -> Path:
    name, pinned, note = path.name, SHA256[path.stem], ""
    try:
        _require_pinned(read_whole(path, "a file", MAX_BYTES, "a file of"), pinned)
        say(f"{name}: already here")
        return path
    except (LenetError, *_BROKEN) as error:
        if os.path.lexists(path):
            say(f"{name}: already here, but {error}; fetching it again")
            note = f"; the file that was there stays as it was: {error}"
    nearest = next(folder for folder in path.parents if folder.exists())
    try:
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        reason = f"cannot write into {nearest}: {error.strerror}"
        raise LenetError(f"{path.parent}: {reason}") from error
    reasons = []
    for mirror in mirrors:
        try:
            data = _download(mirror + name)
            _require_pinned(data, pinned)
        except _BROKEN as error:
            reasons.append(f"{mirror}: {str(error) or type(error).__name__}")
            continue
        write_atomically(path, data)
        say(f"{name}: {len(data):,} bytes from {mirror}")
        return path
    raise LenetError(f"{name}: expected to download it, found {'; '.join(reasons)}{note}")
