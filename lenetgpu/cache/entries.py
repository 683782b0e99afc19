"""Entries of the cache: bytes behind a digest of them and of their name, read whole or not at all.

An entry that is damaged, planted or another's is as good as none: what it held is made anew, and
takes its place where that can be written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

from lenetgpu.cache.folder import UnfitError, folder, read_ours, tell
from lenetgpu.store import Temporary

T = TypeVar("T")
SUFFIX, CUBIN = ".kept", ".cubin"
KERNELS = "kernels"
_FORMAT = b"lenetgpu cache 1 "
MOST_BYTES = 64 << 20


def enclosed(kind: str, name: str, data: bytes) -> bytes:
    """`data` behind a line with the format and the digest of kind, name and data."""
    return _FORMAT + _digest(kind, name, data) + b"\n" + data


def opened(kind: str, name: str, raw: bytes) -> bytes:
    """What `enclosed` made for this kind and name; UnfitError where `raw` is another thing."""
    head, _, data = raw.partition(b"\n")
    if not head.startswith(_FORMAT):
        said = ascii(head[:24].decode("latin-1")) if raw else "an empty file"
        raise UnfitError(f"expected an entry of format 1, found {said}")
    if head[len(_FORMAT) :] != _digest(kind, name, data):
        raise UnfitError("expected the digest that it was written with, found another")
    return data


def require_vouched(facts: Mapping[str, Any], binary: bytes) -> None:
    """Raises UnfitError where `facts` do not hold the digest of `binary`."""
    if facts.get("sha256") != sha256(binary).hexdigest():
        raise UnfitError("expected the digest in its facts, found another")


def _digest(kind: str, name: str, data: bytes) -> bytes:
    return sha256(f"{kind}/{name}\0".encode() + data).hexdigest().encode()


def read(kind: str, name: str) -> bytes | None:
    """What was written as `name`; None where it is not there or damaged, which is said."""
    raw = read_plain(kind, f"{name}{SUFFIX}")
    if raw is None:
        return None
    try:
        return opened(kind, name, raw)
    except UnfitError as unfit:
        refuse(kind, name, str(unfit))
        return None


def write(kind: str, name: str, data: bytes) -> bool:
    """Keep `data` as `name`; whether it could be."""
    return write_plain(kind, f"{name}{SUFFIX}", enclosed(kind, name, data))


def refuse(kind: str, name: str, what: str) -> None:
    """Say that an entry is not taken."""
    tell(f"{kind}/{name}", what, "made anew")


def read_plain(kind: str, file: str) -> bytes | None:
    """The bytes of a file of ours, which nothing vouches for; None as in `read`."""
    where = folder(kind)
    if where is None:
        return None
    try:
        return read_ours(where / file, MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        refuse(kind, file, error.strerror or str(error))
    except UnfitError as unfit:
        refuse(kind, file, str(unfit))
    return None


def write_plain(kind: str, file: str, data: bytes) -> bool:
    """Keep `data` under its name: a file that only the user reads, whole or not at all.

    What has that name already is replaced, a link itself and not what it leads to.
    """
    where = folder(kind, make=True)
    if where is None:
        return False
    try:
        with Temporary(where) as made:
            made.file.write(data)
            made.publish(where / file, lasting=False, private=True)
    except OSError as error:
        tell(f"{kind}/{file}", f"cannot be written: {error.strerror or error}", "not kept")
        return False
    return True


def keep(kind: str, name: str, facts: Any) -> bool:
    """Keep a dataclass of JSON's types, or a dictionary of them; whether it could be."""
    held = facts if isinstance(facts, Mapping) else asdict(facts)
    return write(kind, name, json.dumps(held).encode())


def facts_of(kind: str, name: str) -> dict[str, Any] | None:
    """The dictionary that was kept as `name`; None as in `read`."""
    data = read(kind, name)
    if data is None:
        return None
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    refuse(kind, name, "expected a JSON object, found none")
    return None


def kept(kind: str, name: str, made: type[T]) -> T | None:
    """The dataclass `made` that was kept as `name`, each field of its type; None as in `read`."""
    found = facts_of(kind, name)
    if found is None:
        return None
    try:
        held = made(**found)
    except TypeError:
        held = None
    if held is not None and all(_fits(getattr(held, f.name), str(f.type)) for f in fields(made)):  # type: ignore[arg-type]
        return held
    refuse(kind, name, f"expected the fields of {made.__name__}, found others")
    return None


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value is of the type that a field says, a dictionary's values too."""
    if annotation.startswith("dict[str, "):
        of = annotation[len("dict[str, ") : -1]
        return isinstance(value, dict) and all(_fits(item, of) for item in value.values())
    if isinstance(value, int) and abs(value) >= 1 << 63:
        return False
    if annotation == "float":
        return type(value) in (float, int)
    return type(value) is {"str": str, "int": int, "bool": bool}[annotation]


@contextmanager
def alone(kind: str) -> Iterator[None]:
    """A block that one process at a time is in, of those that add to entries of a kind.

    It goes without where there is no folder of ours, and where folders cannot be locked.
    """
    import fcntl

    where = folder(kind, make=True)
    with ExitStack() as held:
        if where is not None:
            with suppress(OSError):
                handle = os.open(where, os.O_RDONLY | os.O_CLOEXEC)
                held.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_cubin(name: str, binary: bytes, facts: Mapping[str, Any]) -> Path | None:
    """Keep a cubin, which other tools can read, and behind a digest `facts` with its own.

    Where it is then; None where it could not be kept.
    """
    held = {**facts, "sha256": sha256(binary).hexdigest()}
    written = write_plain(KERNELS, name + CUBIN, binary) and write(
        KERNELS, name, json.dumps(held).encode()
    )
    where = folder(KERNELS) if written else None
    return None if where is None else where / (name + CUBIN)


def read_cubin(name: str) -> tuple[Path, bytes, dict[str, Any]] | None:
    """(where it is, the cubin, its facts) of what `write_cubin` kept; None as in `read`."""
    where, facts = folder(KERNELS), facts_of(KERNELS, name)
    binary = None if facts is None else read_plain(KERNELS, name + CUBIN)
    if where is None or facts is None or binary is None:
        return None
    try:
        require_vouched(facts, binary)
    except UnfitError as unfit:
        refuse(KERNELS, name + CUBIN, str(unfit))
        return None
    return where / (name + CUBIN), binary, facts


def forget(kind: str, device: str) -> None:
    """Remove the entries of a kind that are facts about the device of that name."""
    where = folder(kind)
    for path in [] if where is None else where.glob(f"*{SUFFIX}"):
        facts = facts_of(kind, path.name.removesuffix(SUFFIX))
        if facts is not None and facts.get("device") == device:
            with suppress(OSError):
                path.unlink()
