"""Atomic file writes, temporary files, and JSON text."""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from lenetgpu.errors import LenetError, first_line

_PREFIX = ".lenetgpu."
_BLOCK = 1 << 20
LIVING: set[Path] = set()  # this process' temporary files, to remove on a sudden exit
TEMPORARY = r"\.lenetgpu\.[0-9a-f]{16}"  # pattern of temporary files' names


def write_atomically(path: Path, data: bytes, lasting: bool = True) -> None:
    """Write `data` to `path`, links followed; to a file through a temporary file.

    With `lasting`, the data are on the disk when this returns. Raises LenetError on failure.
    """
    with placing(path):
        resolved(path).parent.mkdir(parents=True, exist_ok=True)
        with Temporary.beside(path) as temporary:
            temporary.file.write(data)
            temporary.put(path, lasting)


@contextmanager
def placing(path: Path) -> Iterator[None]:
    """Convert write errors in the block to LenetError; h5py may raise them as RuntimeError."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        reason = first_line(getattr(error, "strerror", None) or str(error), "?")
        raise LenetError(f"{path}: cannot be written: {reason}") from error


def known_by(file: IO[bytes]) -> tuple[int, str]:
    """Return the size in bytes and SHA-256 of an open file; raise OSError if it cannot be read."""
    digest = hashlib.sha256()
    file.flush()
    file.seek(0)
    while block := file.read(_BLOCK):
        digest.update(block)
    return file.tell(), digest.hexdigest()


def sizes(folder: Path, names: Iterable[str] | None = None) -> dict[str, int]:
    """Return the sizes in bytes of the files in `folder`, or of those of `names` that exist."""
    sizes_by_name = {}
    for name in os.listdir(folder) if names is None else names:
        with suppress(OSError):  # it does not exist
            facts = os.stat(folder / name)
            if stat.S_ISREG(facts.st_mode):
                sizes_by_name[name] = facts.st_size
    return sizes_by_name


def json_text(document: Any, indent: int | None = None) -> str:
    """Return `document` as JSON, with null for NaN and infinity."""
    try:
        return json.dumps(document, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(document), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def resolved(path: Path) -> Path:
    """Follow links; raise OSError for a link loop, and for a file whose name was deleted."""
    try:
        target = path.resolve()
    except RuntimeError as error:  # a loop, before Python 3.13
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from error
    if path.exists() and not target.exists():  # /proc/self/fd/N without a name
        if path.is_file():
            raise OSError(errno.ENOENT, "a file that was deleted")
        return path
    return target


def is_device(target: Path) -> bool:
    """Return True if `target` exists and is not a file: a device or pipe, written to directly."""
    return target.exists() and not target.is_file()


class Temporary(AbstractContextManager["Temporary"]):
    """A new empty file in `folder`, which is renamed to its target or removed with the block.

    Its mode is 0600, and it is locked while the process lives: unlocked files of killed
    processes are removed before the next one is created. Raises OSError if it cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        _sweep_once(folder)

        def private(name: str, flags: int) -> int:
            return os.open(name, flags | os.O_NOFOLLOW, 0o600)

        while True:
            self.path = folder / (_PREFIX + os.urandom(8).hex())
            LIVING.add(self.path)
            try:
                self.file = open(self.path, "x+b", opener=private)  # noqa: SIM115
            except OSError:
                LIVING.discard(self.path)
                raise
            if _locked(self.file.fileno()):
                return
            self.drop()

    @classmethod
    def beside(cls, path: Path) -> "Temporary":
        """Return a temporary file in `path`'s folder, or in the system's for a device or pipe."""
        target = resolved(path)
        return cls(Path(tempfile.gettempdir()) if is_device(target) else target.parent)

    def __exit__(self, *_: object) -> None:
        self.drop()

    def put(self, path: Path, lasting: bool = True) -> None:
        """Rename it to `path`, with links resolved; copy its bytes to a device or pipe."""
        target = resolved(path)
        if is_device(target):
            self.file.flush()
            with self.path.open("rb") as source, target.open("wb") as device:
                shutil.copyfileobj(source, device)
        else:
            self.publish(target, lasting)

    def publish(self, target: Path, lasting: bool = True, private: bool = False) -> None:
        """Close it and rename it to `target`, with that file's mode, or with `private` 0600.

        `lasting`: its bytes are flushed to disk before, and its name after.
        """
        self.file.flush()
        handle = self.file.fileno()
        if not private:
            _give_rights(handle, target)
        if lasting:
            os.fsync(handle)
        os.replace(self.path, target)
        self.drop()
        if lasting:
            _sync_folder(target.parent)

    def drop(self) -> None:
        """Close and remove it; once renamed, only close it."""
        with suppress(OSError):  # a failed write fails again here
            self.file.close()
        with suppress(FileNotFoundError):
            self.path.unlink()
        LIVING.discard(self.path)


def _locked(handle: int) -> bool:
    """Lock a new file; return False if another process swept it first."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return os.fstat(handle).st_nlink > 0


def sweep(folder: Path) -> None:
    """Remove the temporary files of killed processes from `folder`."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if re.fullmatch(TEMPORARY, entry.name):
                with suppress(OSError):  # it is another user's, locked or gone
                    _remove_orphan(Path(entry.path))


_sweep_once = cache(sweep)


def _remove_orphan(path: Path) -> None:
    """Remove this user's temporary file if no process locks it; raise OSError if one does."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(facts, os.lstat(path)):  # it was not renamed meanwhile
            path.unlink()
    finally:
        os.close(handle)


def _give_rights(handle: int, target: Path) -> None:
    """Copy the mode, and if permitted the owner and group, of the file that is replaced."""
    try:
        old = target.stat()
    except FileNotFoundError:
        os.fchmod(handle, 0o666 & ~_umask())
        return
    new = os.fstat(handle)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with suppress(PermissionError):
            os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))


def _umask() -> int:
    """Return the process' umask, if possible without changing it for every thread."""
    with suppress(OSError):
        if line := re.search(r"^Umask:\s*([0-7]+)$", Path("/proc/self/status").read_text(), re.M):
            return int(line[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Flush the folder's names to disk, if the file system supports it and it can be read."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
