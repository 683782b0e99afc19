"""The cache folder: where it is, whether what lies in it is ours, and the one line where it is not.

What is kept is machine code and pickles: nothing is read from, and nothing written to, a folder or
file that somebody else owns or can write.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from lenetgpu.errors import one_line

KINDS = (
    "kernels", "nvrtc", "cpu", "numba", "verified", "fits", "auto", "schedule", "ceilings",
    "tuned",
)  # fmt: skip
"""What is kept, a folder each."""
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UnfitError(Exception):
    """Why a folder or file of the cache is not used: "expected ..., found ..."."""


def place() -> Path | None:
    """Where the cache folder is or would be (LENETGPU_CACHE overrides); None where no home is."""
    override = os.environ.get("LENETGPU_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "lenetgpu"
    except RuntimeError:
        return None


def folder(kind: str, make: bool = False) -> Path | None:
    """The folder of one of KINDS, which is there and ours; None where there is none to use.

    Made where that is wanted, with rights for its owner only. Why one is not used is said.
    """
    for root in roots(kind):
        path = root
        try:
            for path, inner in ((root, False), (root / kind, True)):
                if make:
                    _make(path)
                require_ours(path, inner)
            return root / kind
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not make:
                return None
            tell(path, error.strerror or str(error))
        except UnfitError as unfit:
            tell(path, str(unfit))
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
    except (OSError, RuntimeError, UnfitError) as error:
        tell("CuPy's cache", str(error))
        os.environ["CUPY_CACHE_IN_MEMORY"] = "1"


def roots(kind: str) -> Iterator[Path]:
    """Where folders of `kind` may lie, the first that can be used is."""
    if kind == "numba" and os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(os.environ["NUMBA_CACHE_DIR"])
    root = place()
    if root is None:
        tell("no folder", "expected a home or LENETGPU_CACHE, found neither")
    else:
        yield root


def _make(path: Path) -> None:
    with suppress(FileExistsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(0o700)


def user() -> int | None:
    """The user's number; None where the system has none (Windows), and rights are not looked at."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def require_ours(path: Path, inner: bool = False, close: bool = True) -> None:
    """Raises UnfitError where `path` is no folder of the user's that only the user writes.

    A link to one will do where it is the user's too; for an `inner` folder it will not, and what
    others can read of that is closed to them (`close`). OSError where it cannot be looked at.
    """
    link = path.lstat()
    try:
        found = path.stat()
    except FileNotFoundError as error:
        raise UnfitError("expected a folder, found a link to nowhere") from error
    if not stat.S_ISDIR(found.st_mode) or (inner and stat.S_ISLNK(link.st_mode)):
        raise UnfitError(f"expected a folder, found {form(link)}")
    for owned in (link, found):
        require_owner(owned)
    if user() is not None and found.st_mode & OTHERS_WRITE:
        mode = stat.S_IMODE(found.st_mode)
        raise UnfitError(f"expected a folder that others cannot write, found mode {mode:04o}")
    if inner and close and stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
        path.chmod(stat.S_IRWXU)


def require_owner(found: os.stat_result) -> None:
    """Raises UnfitError where what was looked at is another user's."""
    if user() is not None and found.st_uid != user():
        raise UnfitError(f"expected an owner of number {user()}, found {found.st_uid}")


def read_ours(path: Path, most: int) -> bytes:
    """The bytes of a file of the user's that only the user writes, `most` of them at most.

    No link is followed, and nothing but a plain file is opened. Raises UnfitError where it is
    another thing, OSError where it cannot be read.
    """
    seen = path.lstat()
    if not stat.S_ISREG(seen.st_mode):
        raise UnfitError(f"expected a file, found {form(seen)}")
    flags = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
    handle = os.open(path, os.O_RDONLY | sum(getattr(os, flag, 0) for flag in flags))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        require_owner(found)
        if not stat.S_ISREG(found.st_mode):
            raise UnfitError(f"expected a file, found {form(found)}")
        if user() is not None and found.st_mode & OTHERS_WRITE:
            mode = stat.S_IMODE(found.st_mode)
            raise UnfitError(f"expected a file that others cannot write, found mode {mode:04o}")
        if found.st_size > most:
            raise UnfitError(f"expected {most:,} bytes at most, found {found.st_size:,}")
        return file.read(found.st_size)


def form(found: os.stat_result) -> str:
    """What was looked at, in a word."""
    kinds = {
        stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFREG: "a file",
        stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(found.st_mode), "a device")


@cache
def told() -> list[str]:
    """What this process found wrong with the cache; the first of it was printed."""
    return []


def tell(where: Path | str, what: str, then: str = "done without") -> None:
    """Remember that `where` is not used because of `what`; the first is a line on stderr."""
    sentence = f"{where}: {what}; {then}"
    printable = one_line(sentence)
    told().append(printable)
    if len(told()) == 1 and sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"lenetgpu: cache: {printable}\n")
            sys.stderr.flush()
