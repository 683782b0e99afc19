"""What is in a zip archive, held in memory: each file once, of a length that was looked at."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path

from lenetgpu.errors import LenetError
from lenetgpu.files.models.loaded import MOST_BYTES, damaged

_ENTRY = b"PK\1\2"
_END, _END_BYTES = b"PK\5\6", 22
"""How the last record begins, and its length before the comment, which its last two bytes give."""
_MOST_ENTRIES = 256
_ENCRYPTED = 0x2041
"""Bits of an entry that say so: its data, strongly, or the list of entries."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_RIGHTS = 0o644 << 16


def members(path: Path, data: bytes, form: str) -> tuple[dict[str, bytes], bytes]:
    """The archive's files by name, and its comment.

    LenetError where it is damaged or encrypted, or has more in it than MOST_BYTES.
    """
    entries = data.count(_ENTRY)
    if entries > _MOST_ENTRIES:
        raise LenetError(
            f"{path}: expected an archive of at most {_MOST_ENTRIES} files, found {entries:,}"
        )
    _require_whole(path, data, form)
    found: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            for info in opened.infolist():
                _require_plain(path, info, found)
                with opened.open(info) as file:
                    found[info.filename] = file.read(info.file_size)
                if len(found[info.filename]) != info.file_size:
                    raise damaged(path, form, f"{info.filename} is shorter than it should be")
            return found, opened.comment
    except (
        zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError, OverflowError,
        LookupError,
    ) as error:  # fmt: skip
        raise damaged(path, form, error) from error


def _require_whole(path: Path, data: bytes, form: str) -> None:
    """LenetError unless the archive's comment is the end of the file, as the last record says."""
    begins = data.rfind(_END) + _END_BYTES
    stated, left = int.from_bytes(data[begins - 2 : begins], "little"), len(data) - begins
    if _END in data and stated != left:
        raise damaged(path, form, f"a comment of {stated:,} bytes, {max(left, 0):,} left for it")


def _require_plain(path: Path, info: zipfile.ZipInfo, before: dict[str, bytes]) -> None:
    """LenetError unless a file may be inflated."""
    name = info.filename
    if name in before:
        raise LenetError(
            f"{path}: expected an archive of files with a name each, found {name} twice"
        )
    if ".." in name or name.startswith("/") or "\\" in name or ":" in name:
        raise LenetError(f"{path}: expected names in the archive, found the path {name}")
    if info.flag_bits & _ENCRYPTED:
        raise LenetError(f"{path}: expected an archive without a password, found {name} encrypted")
    if info.compress_type not in _METHODS:
        raise LenetError(
            f"{path}: expected an archive stored or deflated, "
            f"found {name} by method {info.compress_type}"
        )
    held = sum(map(len, before.values())) + info.file_size
    if held > MOST_BYTES:
        raise LenetError(
            f"{path}: expected at most {MOST_BYTES:,} bytes in the archive, found {held:,} or more"
        )


def packed(files: dict[str, bytes], comment: bytes = b"") -> bytes:
    """An archive of these files, uncompressed; the same bytes every time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)  # of the first day that a zip can name
            info.external_attr = _RIGHTS
            made.writestr(info, data)
        made.comment = comment
    return buffer.getvalue()
