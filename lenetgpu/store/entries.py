"""The cache: entries of bytes, each with a digest of its name and bytes.

The cache holds machine code and pickles. Folders and files that another user owns or can write are
not used. A damaged or renamed entry counts as missing: its content is computed again.
"""

import json
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from glob import glob
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import lenetgpu
from lenetgpu.errors import LenetError, one_line
from lenetgpu.store import TEMPORARY, Temporary

T = TypeVar("T")
KERNELS = "kernels"
# kinds of entries, a folder each
KINDS = (
    KERNELS, "nvrtc", "cpu", "numba", "verified", "fits", "auto", "schedule", "ceilings", "tuned",
)  # fmt: skip
SUFFIX, CUBIN = ".entry", ".cubin"
MOST_BYTES = 64 << 20
_FORMAT = b"lenetgpu cache 1 "
_LOCK, _LOCK_S = "lock", 600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NAMES = re.compile(rf".+(\.kept|{re.escape(SUFFIX)}|{re.escape(CUBIN)})|{TEMPORARY}")


def cache_root() -> Path | None:
    """Return LENETGPU_CACHE or the user's cache folder, existing or not; None without a home."""
    if override := os.environ.get("LENETGPU_CACHE"):
        return Path(override)
    from platformdirs import user_cache_path

    with suppress(RuntimeError):
        path = user_cache_path("lenetgpu")
        return path if path.is_absolute() else None
    return None


def folder(kind: str, make: bool = False) -> Path | None:
    """Return the private folder of one of KINDS; if it is not usable, report why and return None.

    With `make` it is created, accessible to its owner only.
    """
    root = cache_root()
    if root is None:
        tell("no folder", "expected a home or LENETGPU_CACHE, found neither")
        return None
    path = root
    try:
        for path in (root, root / kind):
            if make:
                _make(path)
            _require_folder(path, follow=path == root)
        return path
    except OSError as error:
        if make or not isinstance(error, FileNotFoundError):
            tell(path, _reason(error))
        return None


@cache
def settle_cupy() -> None:
    """Make CuPy cache kernels in memory if its folder is not private or not writable."""
    try:
        path = Path(os.environ.get("CUPY_CACHE_DIR") or Path.home() / ".cupy" / "kernel_cache")
        _make(path)
        _require_folder(path)
        if not os.access(path, os.W_OK):
            raise OSError("expected a folder to write to, found it read-only")
    except (OSError, RuntimeError) as error:
        tell("CuPy's cache", str(error))
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(0o700)


def _require_folder(path: Path, follow: bool = True) -> None:
    """Raise OSError unless `path` (with `follow`, its link target) is a private folder of ours."""
    facts = path.stat(follow_symlinks=follow)
    if not stat.S_ISDIR(facts.st_mode):
        raise OSError(f"expected a folder, found {'a link' if path.is_symlink() else 'none'}")
    _require_ours(facts)


def _require_ours(facts: os.stat_result) -> None:
    if facts.st_uid != os.geteuid():
        raise OSError(f"expected owner uid {os.geteuid()}, found {facts.st_uid}")
    if facts.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(facts.st_mode)
        raise OSError(f"expected no write access for others, found mode {mode:04o}")


def _read_ours(path: Path) -> bytes:
    """Return the bytes of a file that is ours alone; follow no link and wait for no FIFO."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError("expected a file, found none")
        _require_ours(facts)
        if facts.st_size > MOST_BYTES:
            raise OSError(f"expected {MOST_BYTES:,} bytes at most, found {facts.st_size:,}")
        return file.read(facts.st_size)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


@cache
def notices() -> list[str]:
    """Return the cache problems that this process found; the first one was printed."""
    return []


def tell(where: Path | str, what: str, then: str = "continuing without it") -> None:
    """Record that `where` is not used because of `what`; print the first record to stderr."""
    notices().append(one_line(f"{where}: {what}; {then}"))
    if len(notices()) == 1 and sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"lenetgpu: cache: {notices()[0]}\n")
            sys.stderr.flush()


def refuse(kind: str, name: str, what: str) -> None:
    """Report that an entry is not used."""
    tell(f"{kind}/{name}", what, "rebuilt")


def enclosed(kind: str, name: str, data: bytes) -> bytes:
    """Return `data` after a line with the format and the digest of kind, name and data."""
    digest = sha256(f"{kind}/{name}\0".encode() + data).hexdigest()
    return _FORMAT + digest.encode() + b"\n" + data


def _entry(where: Path, kind: str, name: str) -> bytes:
    """Return the data given to `enclosed`; raise OSError if the file holds anything else."""
    raw = _read_ours(where / (name + SUFFIX))
    head, _, data = raw.partition(b"\n")
    if not head.startswith(_FORMAT):
        start = ascii(head[:24].decode("latin-1")) if raw else "an empty file"
        raise OSError(f"expected an entry of format 1, found {start}")
    if raw != enclosed(kind, name, data):
        raise OSError("expected the digest that it was written with, found another")
    return data


def _facts(where: Path, kind: str, name: str) -> dict[str, Any]:
    facts: Any = json.loads(_entry(where, kind, name))
    if not isinstance(facts, dict):
        raise OSError("expected a JSON object, found none")
    return facts


def _cubin(where: Path, name: str) -> tuple[Path, bytes, dict[str, Any]]:
    facts, path = _facts(where, KERNELS, name), where / (name + CUBIN)
    binary = _read_ours(path)
    if facts.get("sha256") != sha256(binary).hexdigest():
        raise OSError("expected the digest in its facts, found another")
    return path, binary, facts


def _lookup(kind: str, name: str, look: Callable[[Path], T]) -> T | None:
    """Return the result of `look` in the folder of a kind; None if it raises, which is reported."""
    where = folder(kind)
    try:
        return None if where is None else look(where)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        refuse(kind, name, _reason(error))
        return None


def read(kind: str, name: str) -> bytes | None:
    """Return the bytes written as `name`; None if missing or damaged. Damage is reported."""
    return _lookup(kind, name, lambda where: _entry(where, kind, name))


def write(kind: str, name: str, data: bytes) -> bool:
    """Cache `data` as `name`; return False if it cannot be written."""
    return _write(kind, name + SUFFIX, enclosed(kind, name, data)) is not None


def _write(kind: str, file: str, data: bytes) -> Path | None:
    """Write `data` atomically to a file that only the user can read; return its path, or None."""
    where = folder(kind, make=True)
    if where is None:
        return None
    try:
        with Temporary(where) as temporary:
            temporary.file.write(data)
            temporary.publish(where / file, lasting=False, private=True)
    except OSError as error:
        tell(f"{kind}/{file}", f"cannot be written: {_reason(error)}", "not cached")
        return None
    return where / file


def name_of(facts: list[Any]) -> str:
    """Return the name of an entry that holds under `facts`, which are of JSON types."""
    return sha256(json.dumps(facts).encode()).hexdigest()[:24]


def save(kind: str, name: str, facts: Any) -> bool:
    """Cache a dataclass of JSON types, or a dictionary; return False if it cannot be written."""
    fields_by_name = facts if isinstance(facts, Mapping) else asdict(facts)
    return write(kind, name, json.dumps(fields_by_name).encode())


def facts_of(kind: str, name: str) -> dict[str, Any] | None:
    """Return the dictionary cached as `name`; None as in `read`."""
    return _lookup(kind, name, lambda where: _facts(where, kind, name))


def load(kind: str, name: str, cls: type[T]) -> T | None:
    """Return the dataclass cached as `name`, each field of its type; None as in `read`."""
    facts = facts_of(kind, name)
    if facts is None:
        return None
    with suppress(TypeError):
        loaded = cls(**facts)
        if all(_fits(getattr(loaded, n), hint) for n, hint in get_type_hints(cls).items()):
            return loaded
    refuse(kind, name, f"expected the fields of {cls.__name__}, found others")
    return None


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) is dict:
        of = get_args(hint)[1]
        return isinstance(value, dict) and all(_fits(item, of) for item in value.values())
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return False
    return type(value) in ((float, int) if hint is float else (hint,))


@contextmanager
def alone() -> Iterator[None]:
    """Hold the lock of the cache, if it can be locked: one process at a time adds to entries."""
    from filelock import FileLock

    root = cache_root()
    with ExitStack() as stack:
        with suppress(OSError):
            if root is not None:
                _make(root)
                _require_folder(root)
                stack.enter_context(FileLock(root / _LOCK, timeout=_LOCK_S, mode=0o600))
        yield


def write_cubin(name: str, binary: bytes, facts: Mapping[str, Any]) -> Path | None:
    """Cache a cubin as a file, and its digest and `facts` as an entry; return its path, or None."""
    path = _write(KERNELS, name + CUBIN, binary)
    entry = {**facts, "sha256": sha256(binary).hexdigest()}
    return path if path is not None and save(KERNELS, name, entry) else None


def read_cubin(name: str) -> tuple[Path, bytes, dict[str, Any]] | None:
    """Return (path, cubin, facts) as cached by `write_cubin`; None as in `read`."""
    return _lookup(KERNELS, name, lambda where: _cubin(where, name))


def forget(kind: str, device: str) -> None:
    """Remove the entries of a kind that are facts about the device of that name."""
    where = folder(kind)
    for path in [] if where is None else where.glob(f"*{SUFFIX}"):
        facts = facts_of(kind, path.name.removesuffix(SUFFIX))
        if facts is not None and facts.get("device") == device:
            path.unlink(missing_ok=True)


@cache
def sources(*parts: str) -> str:
    """Return a digest of the package's Python files, or of those in `parts` if given."""
    below = tuple(f"{part}/" for part in parts) or ""
    sums = [one for one in _source_sums() if f"{one[0]}/".startswith(below)]
    return name_of([lenetgpu.__version__, *sums])


@cache
def _source_sums() -> list[tuple[str, str]]:
    """Return path and SHA-256 of each of the package's Python files."""
    package = os.path.dirname(lenetgpu.__file__)  # pathlib takes longer than all else together
    names = sorted(glob("**/*.py", root_dir=package, recursive=True))
    return [(name, sha256(Path(package, name).read_bytes()).hexdigest()) for name in names]


@dataclass
class Survey:
    """Counts of usable or removed entries by kind, and messages about the others."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def _folders(root: Path) -> Iterator[Path]:
    return (root / kind for kind in KINDS if os.path.lexists(root / kind))


def survey() -> Survey:
    """Check every entry of every folder, and change nothing."""
    result, root = Survey(), cache_root()
    if root is None or not os.path.lexists(root):
        return result
    try:
        _require_folder(root)
    except OSError as error:
        result.problems.append(f"{root}: {_reason(error)}")
        return result
    for where in _folders(root):
        try:
            _require_folder(where, follow=False)
        except OSError as error:
            result.problems.append(f"{where}: {_reason(error)}")
            continue
        for name in sorted(entry.name.removesuffix(SUFFIX) for entry in where.glob(f"*{SUFFIX}")):
            try:
                _cubin(where, name) if where.name == KERNELS else _entry(where, where.name, name)
                result.counts[where.name] += 1
            except (OSError, ValueError) as error:
                result.problems.append(f"{where.name}/{name}: {_reason(error)}")
    return result


def repair() -> Survey:
    """Remove all entries, and revoke other users' write permission on the cache folder.

    Links are removed and not followed; files with other names stay and are reported. Raises
    LenetError if there is no path for a cache, or its folder is not the user's own.
    """
    root, removed = cache_root(), Survey()
    if root is None:
        raise LenetError("doctor --repair: expected a home or LENETGPU_CACHE, found neither")
    if not os.path.lexists(root):
        return removed
    facts = root.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
        reason = "expected a folder that the user owns, found a link or another user's"
        raise LenetError(f"doctor --repair: {root}: {reason}; nothing was removed")
    if facts.st_mode & stat.S_ISVTX:
        reason = "expected a private folder, found one that several users share"
        raise LenetError(f"doctor --repair: {root}: {reason}; nothing was removed")
    for where in _folders(root):
        plain = where.is_dir() and not where.is_symlink()
        for path in sorted(where.iterdir()) if plain else [where]:
            try:
                if plain and not _NAMES.fullmatch(path.name):
                    raise OSError("not an entry")
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
                removed.counts[where.name] += 1
            except OSError as error:
                removed.problems.append(f"{path}: {_reason(error)}")
        with suppress(OSError):  # not empty: unknown files were left
            where.rmdir()
    with suppress(OSError):
        root.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS_WRITE)
    return removed
