"""The cache: bytes behind a digest of them and of their name, read whole or not at all.

What is kept is machine code and pickles. Nothing is read from, and nothing written to, a folder or
file that somebody else owns or can write. An entry that is damaged, planted or another's is as
good as none: what it held is made anew, and takes its place where that can be written.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import lenetgpu
from lenetgpu.errors import LenetError, one_line
from lenetgpu.store import TEMPORARY, Temporary

T = TypeVar("T")
KERNELS = "kernels"
KINDS = (
    KERNELS,
    "nvrtc",
    "cpu",
    "numba",
    "verified",
    "fits",
    "auto",
    "schedule",
    "ceilings",
    "tuned",
)
"""What is kept, a folder each."""
SUFFIX, CUBIN = ".kept", ".cubin"
MOST_BYTES = 64 << 20
_FORMAT = b"lenetgpu cache 1 "
_LOCK, _LOCK_S = "lock", 600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NAMES = re.compile(
    rf".*({re.escape(SUFFIX)}|\.[0-9a-f]{{16}}\.part)|{TEMPORARY}"
    rf"|.+\.[0-9a-f]{{32}}({re.escape(CUBIN)}|\.json)|[0-9a-f]{{16,64}}\.json"
)
"""Names of what is kept, and of what earlier versions kept."""
_FORMS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


class UnfitError(Exception):
    """Why a folder or file of the cache is not used: "expected ..., found ..."."""


_UNFIT = (OSError, UnfitError)


def place() -> Path | None:
    """Return where the cache is or would be (LENETGPU_CACHE overrides); None without a home."""
    override = os.environ.get("LENETGPU_CACHE")
    if override:
        return Path(override)
    from platformdirs import user_cache_path

    try:
        found = user_cache_path("lenetgpu")
    except RuntimeError:
        return None
    return found if found.is_absolute() else None


def folder(kind: str, make: bool = False) -> Path | None:
    """Return the folder of one of KINDS, which is there and ours; None where there is none to use.

    With `make` it is made, with rights for its owner only. Why one is not used is said.
    """
    root = place()
    if root is None:
        tell("no folder", "expected a home or LENETGPU_CACHE, found neither")
        return None
    path = root
    try:
        for path in (root, root / kind):
            if make:
                _make(path)
            require_ours(path, inner=path != root)
        return path
    except _UNFIT as error:
        if make or not isinstance(error, FileNotFoundError):
            tell(path, _reason(error))
        return None


@cache
def settle_cupy() -> None:
    """Have CuPy keep its own kernels in memory where its folder is not ours or takes no file.

    CuPy asks the environment each time that it compiles, and fails where it cannot write.
    """
    try:
        asked = os.environ.get("CUPY_CACHE_DIR")
        where = Path(asked) if asked else Path.home() / ".cupy" / "kernel_cache"
        _make(where)
        require_ours(where)
        if not os.access(where, os.W_OK):
            raise UnfitError("expected a folder to write to, found it read-only")
    except (*_UNFIT, RuntimeError) as error:
        tell("CuPy's cache", str(error))
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(0o700)


def require_ours(path: Path, inner: bool = False, close: bool = True) -> None:
    """Raise UnfitError where `path` is no folder of the user's that only the user writes.

    A link to one will do where it is the user's too; for an `inner` folder it will not, and what
    others can read of that is closed to them (`close`). OSError where it cannot be looked at.
    """
    link = path.lstat()
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise UnfitError("expected a folder, found a link to nowhere") from error
    if not stat.S_ISDIR(found.st_mode) or (inner and stat.S_ISLNK(link.st_mode)):
        raise UnfitError(f"expected a folder, found {_form(link)}")
    _require_owner(link)
    _require_alone(found, "a folder")
    if inner and close and stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
        path.chmod(stat.S_IRWXU)


def _require_owner(found: os.stat_result) -> None:
    """Raise UnfitError for what is another user's; where users have no numbers, nothing is."""
    user = os.geteuid() if hasattr(os, "geteuid") else found.st_uid
    if found.st_uid != user:
        raise UnfitError(f"expected an owner of number {user}, found {found.st_uid}")


def _require_alone(found: os.stat_result, what: str) -> None:
    _require_owner(found)
    if hasattr(os, "geteuid") and found.st_mode & _OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise UnfitError(f"expected {what} that others cannot write, found mode {mode:04o}")


def _read_ours(path: Path) -> bytes:
    """Return the bytes of a file of the user's that only the user writes.

    No link is followed, and nothing but a plain file is opened. UnfitError where it is another
    thing, OSError where it cannot be read.
    """
    seen = path.lstat()
    if not stat.S_ISREG(seen.st_mode):
        raise UnfitError(f"expected a file, found {_form(seen)}")
    flags = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    handle = os.open(path, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        _require_alone(found, "a file")
        if not os.path.samestat(seen, found):
            raise UnfitError("expected one file, found another in its place")
        if found.st_size > MOST_BYTES:
            raise UnfitError(f"expected {MOST_BYTES:,} bytes at most, found {found.st_size:,}")
        return file.read(found.st_size)


def _form(found: os.stat_result) -> str:
    return _FORMS.get(stat.S_IFMT(found.st_mode), "a device")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


@cache
def told() -> list[str]:
    """Return what this process found wrong with the cache; the first of it was printed."""
    return []


def tell(where: Path | str, what: str, then: str = "done without") -> None:
    """Remember that `where` is not used because of `what`; the first is a line on stderr."""
    told().append(one_line(f"{where}: {what}; {then}"))
    if len(told()) == 1 and sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"lenetgpu: cache: {told()[0]}\n")
            sys.stderr.flush()


def refuse(kind: str, name: str, what: str) -> None:
    """Say that an entry is not taken."""
    tell(f"{kind}/{name}", what, "made anew")


def enclosed(kind: str, name: str, data: bytes) -> bytes:
    """Return `data` behind a line with the format and the digest of kind, name and data."""
    return _FORMAT + _digest(kind, name, data) + b"\n" + data


def _opened(kind: str, name: str, raw: bytes) -> bytes:
    """Return what `enclosed` was given; UnfitError where `raw` is another thing."""
    head, _, data = raw.partition(b"\n")
    if not head.startswith(_FORMAT):
        said = ascii(head[:24].decode("latin-1")) if raw else "an empty file"
        raise UnfitError(f"expected an entry of format 1, found {said}")
    if head[len(_FORMAT) :] != _digest(kind, name, data):
        raise UnfitError("expected the digest that it was written with, found another")
    return data


def _digest(kind: str, name: str, data: bytes) -> bytes:
    return sha256(f"{kind}/{name}\0".encode() + data).hexdigest().encode()


def _json(data: bytes) -> dict[str, Any]:
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
    if not isinstance(found, dict):
        raise UnfitError("expected a JSON object, found none")
    return found


def _looked_at(where: Path, kind: str, name: str) -> bytes:
    return _opened(kind, name, _read_ours(where / (name + SUFFIX)))


def _cubin(where: Path, name: str) -> tuple[bytes, dict[str, Any]]:
    """Return (the cubin, its facts) of an entry of kernels; errors as of `_looked_at`."""
    facts = _json(_looked_at(where, KERNELS, name))
    binary = _read_ours(where / (name + CUBIN))
    if facts.get("sha256") != sha256(binary).hexdigest():
        raise UnfitError("expected the digest in its facts, found another")
    return binary, facts


@contextmanager
def _refused(kind: str, name: str) -> Iterator[None]:
    """Say why what is read in the block is not taken; nothing where it is not there."""
    try:
        yield
    except FileNotFoundError:
        pass
    except _UNFIT as error:
        refuse(kind, name, _reason(error))


def read(kind: str, name: str) -> bytes | None:
    """Return what was written as `name`; None where it is not there or damaged, which is said."""
    where = folder(kind)
    with _refused(kind, name):
        return None if where is None else _looked_at(where, kind, name)
    return None


def write(kind: str, name: str, data: bytes) -> bool:
    """Keep `data` as `name`; False where it cannot be."""
    return _write(kind, name + SUFFIX, enclosed(kind, name, data)) is not None


def _write(kind: str, file: str, data: bytes) -> Path | None:
    """Keep `data` in a file that only the user reads, whole or not at all: where it is then."""
    where = folder(kind, make=True)
    if where is None:
        return None
    try:
        with Temporary(where) as made:
            made.file.write(data)
            made.publish(where / file, lasting=False, private=True)
    except OSError as error:
        tell(f"{kind}/{file}", f"cannot be written: {_reason(error)}", "not kept")
        return None
    return where / file


def keep(kind: str, name: str, facts: Any) -> bool:
    """Keep a dataclass of JSON's types, or a dictionary of them; False where it cannot be."""
    held = facts if isinstance(facts, Mapping) else asdict(facts)
    return write(kind, name, json.dumps(held).encode())


def facts_of(kind: str, name: str) -> dict[str, Any] | None:
    """Return the dictionary that was kept as `name`; None as in `read`."""
    data = read(kind, name)
    with _refused(kind, name):
        return None if data is None else _json(data)
    return None


def kept(kind: str, name: str, made: type[T]) -> T | None:
    """Return the dataclass kept as `name`, each field of its type; None as in `read`."""
    found = facts_of(kind, name)
    if found is None:
        return None
    with suppress(TypeError):
        held = made(**found)
        if all(_fits(getattr(held, f.name), str(f.type)) for f in fields(made)):  # type: ignore[arg-type]
            return held
    refuse(kind, name, f"expected the fields of {made.__name__}, found others")
    return None


def _fits(value: Any, annotation: str) -> bool:
    if annotation.startswith("dict[str, "):
        of = annotation[len("dict[str, ") : -1]
        return isinstance(value, dict) and all(_fits(item, of) for item in value.values())
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return False
    if annotation == "float":
        return type(value) in (float, int)
    return type(value) is {"str": str, "int": int, "bool": bool}[annotation]


@contextmanager
def alone() -> Iterator[None]:
    """Hold the cache's lock, which one process at a time has of those that add to entries.

    It goes without where there is no folder of ours, and where files cannot be locked.
    """
    root = place()
    with ExitStack() as held:
        with suppress(*_UNFIT):
            if root is not None:
                from filelock import FileLock

                _make(root)
                require_ours(root)
                held.enter_context(FileLock(root / _LOCK, timeout=_LOCK_S, mode=0o600))
        yield


def write_cubin(name: str, binary: bytes, facts: Mapping[str, Any]) -> Path | None:
    """Keep a cubin, which other tools can read, and behind a digest `facts` with its own.

    Return where it is then; None where it could not be kept.
    """
    path = _write(KERNELS, name + CUBIN, binary)
    held = {**facts, "sha256": sha256(binary).hexdigest()}
    return path if path is not None and keep(KERNELS, name, held) else None


def read_cubin(name: str) -> tuple[Path, bytes, dict[str, Any]] | None:
    """Return (where it is, the cubin, its facts) of what `write_cubin` kept; None as in `read`."""
    where = folder(KERNELS)
    with _refused(KERNELS, name):
        return None if where is None else (where / (name + CUBIN), *_cubin(where, name))
    return None


def forget(kind: str, device: str) -> None:
    """Remove the entries of a kind that are facts about the device of that name."""
    where = folder(kind)
    for path in [] if where is None else where.glob(f"*{SUFFIX}"):
        facts = facts_of(kind, path.name.removesuffix(SUFFIX))
        if facts is not None and facts.get("device") == device:
            with suppress(OSError):
                path.unlink()


@cache
def sources(*parts: str) -> str:
    """Return a digest of the package's Python files; of `parts` of it, where named."""
    package = Path(lenetgpu.__file__).parent
    digest = sha256(lenetgpu.__version__.encode())
    for part in parts or ("",):
        found = package / part
        for path in sorted(found.rglob("*.py")) if found.is_dir() else [found]:
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@dataclass
class Survey:
    """How many entries of each kind can be used, and what is wrong with the others."""

    sound: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def survey() -> Survey:
    """Look at every entry of every folder, and change nothing."""
    found, wrong = Survey(), {}
    root = place()
    for kind in KINDS if root is not None and os.path.lexists(root) else ():
        assert root is not None
        path = root
        try:
            for path in (root, root / kind):
                require_ours(path, inner=path != root, close=False)
        except FileNotFoundError:
            continue
        except _UNFIT as error:
            wrong[str(path)] = _reason(error)
            continue
        for name in sorted(entry.name.removesuffix(SUFFIX) for entry in path.glob(f"*{SUFFIX}")):
            try:
                _cubin(path, name) if kind == KERNELS else _looked_at(path, kind, name)
                found.sound[kind] = found.sound.get(kind, 0) + 1
            except _UNFIT as error:
                wrong[f"{kind}/{name}"] = _reason(error)
    found.damaged = [f"{where}: {what}" for where, what in wrong.items()]
    return found


@dataclass
class Removed:
    """What was removed: files of each kind; and what was left, with the reason."""

    files: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def repair() -> Removed:
    """Empty the folders of the cache, and close the cache folder to others' writing.

    Links are removed and not followed. What another user owns is left and named. LenetError where
    there is no cache folder, or it is not the user's, or a link.
    """
    root, removed = place(), Removed()
    if root is None:
        raise LenetError("doctor --repair: expected a home or LENETGPU_CACHE, found neither")
    try:
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UnfitError(f"expected a folder, found {_form(found)}")
        _require_owner(found)
        if found.st_mode & stat.S_ISVTX:
            raise UnfitError("expected a folder of one user's, found one that several share")
    except FileNotFoundError:
        return removed
    except _UNFIT as error:
        reason = _reason(error)
        raise LenetError(f"doctor --repair: {root}: {reason}; nothing is removed") from error
    for where in (root / kind for kind in KINDS):
        left = len(removed.left)
        for path in sorted(where.iterdir()) if where.is_dir() and not where.is_symlink() else ():
            if _NAMES.fullmatch(path.name):
                _remove(path, where.name, removed)
            else:
                removed.left.append(f"{path}: no name of an entry")
        if len(removed.left) == left:
            _remove(where, "", removed)
    with suppress(OSError):
        root.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS_WRITE)
    return removed


def _remove(path: Path, kind: str, removed: Removed) -> None:
    try:
        found = path.lstat()
        _require_owner(found)
        if stat.S_ISDIR(found.st_mode):
            path.rmdir()
        elif not kind and stat.S_ISREG(found.st_mode) and found.st_size:
            raise UnfitError("expected a folder, found a file")
        else:
            path.unlink()
    except FileNotFoundError:
        return
    except _UNFIT as error:
        removed.left.append(f"{path}: {_reason(error)}")
    else:
        if kind:
            removed.files[kind] = removed.files.get(kind, 0) + 1
