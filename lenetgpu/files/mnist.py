"""The real MNIST, for users who have the internet and ask for it; pinned, offline first."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path

from lenetgpu.errors import LenetError
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
_TIMEOUT_S = 30
_BROKEN = (EOFError, OSError, ValueError, zlib.error, http.client.HTTPException)


def _download(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as reply:
        data: bytes = reply.read(MAX_BYTES + 1)
    return data


def _digest(packed: bytes) -> str:
    """SHA-256 of the unpacked file; EOFError, OSError or zlib.error where it does not unpack."""
    with gzip.open(io.BytesIO(packed)) as file:
        return hashlib.sha256(file.read(MAX_UNPACKED_BYTES)).hexdigest()


def _fault(path: Path, pinned: str) -> str | None:
    """What is wrong with the file that is there, "" if nothing; None where there is none."""
    if not path.exists():
        return None
    try:
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
    right stays, and is not fetched again next time.
    """
    made = _make(folder)
    try:
        return [_fetch(folder / name, pinned, mirrors, say) for name, pinned in SHA256.items()]
    finally:
        for empty in made:
            if not any(empty.iterdir()):
                empty.rmdir()


def _make(folder: Path) -> list[Path]:
    """Make `folder`: the folders that this made, the innermost first."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LenetError(f"{folder}: expected a folder, found: {error.strerror}") from error
    return made


def _fetch(path: Path, pinned: str, mirrors: tuple[str, ...], say: Callable[[str], None]) -> Path:
    name = path.name
    fault = _fault(path, pinned)
    if fault == "":
        say(f"{name}: already here")
        return path
    if fault is not None:
        say(f"{name}: already here, but {fault}; fetching it again")
    reasons = []
    for mirror in mirrors:
        try:
            data = _download(mirror + name)
            different = _other(_digest(data), pinned)
        except _BROKEN as error:
            reasons.append(f"{mirror}: {error}")
            continue
        if not different:
            write_atomically(path, data)
            say(f"{name}: {len(data):,} bytes from {mirror}")
            return path
        reasons.append(f"{mirror}: {different}")
    kept = "" if fault is None else f"; the file that was there stays as it was: {fault}"
    raise LenetError(f"{name}: expected to download it, found {'; '.join(reasons)}{kept}")
