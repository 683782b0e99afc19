"""What the cache folder holds: which entries are damaged, and emptying it."""

from __future__ import annotations

import json
import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lenetgpu.cache import folder as folders
from lenetgpu.cache.entries import (
    CUBIN,
    KERNELS,
    MOST_BYTES,
    SUFFIX,
    opened,
    require_vouched,
)
from lenetgpu.cache.folder import (
    KINDS,
    OTHERS_WRITE,
    UnfitError,
    form,
    place,
    read_ours,
    require_owner,
    user,
)
from lenetgpu.errors import LenetError
from lenetgpu.store import TEMPORARY

_NAMES = re.compile(
    rf".*({re.escape(SUFFIX)}|\.[0-9a-f]{{16}}\.part)|{TEMPORARY}"
    rf"|.+\.[0-9a-f]{{32}}({re.escape(CUBIN)}|\.json)|[0-9a-f]{{16,64}}\.json"
)
"""Names of what is kept, and of what earlier versions kept."""
_BEFORE = re.compile(r"cpu-[0-9a-f]+\.o|ceilings-[0-9a-f]+\.json")
"""Files that versions before this one kept beside the folders."""


@dataclass
class Survey:
    """How many entries of each kind can be used, and what is wrong with the others."""

    sound: dict[str, int] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)


def survey() -> Survey:
    """Look at every entry of every folder, and change nothing."""
    found = Survey()
    for kind in KINDS:
        for root in folders.roots(kind):
            path = root
            try:
                folders.require_ours(path)
                path = root / kind
                folders.require_ours(path, inner=True, close=False)
                _look_at(path, kind, found)
            except FileNotFoundError:
                continue
            except OSError as error:
                _add(found, f"{path}: {error.strerror or error}")
            except UnfitError as unfit:
                _add(found, f"{path}: {unfit}")
    return found


def _add(found: Survey, sentence: str) -> None:
    if sentence not in found.damaged:
        found.damaged.append(sentence)


def _look_at(where: Path, kind: str, found: Survey) -> None:
    for path in sorted(where.glob(f"*{SUFFIX}")):
        name = path.name.removesuffix(SUFFIX)
        try:
            data = opened(kind, name, read_ours(path, MOST_BYTES))
            if kind == KERNELS:
                require_vouched(_facts(data), read_ours(where / (name + CUBIN), MOST_BYTES))
        except OSError as error:
            _add(found, f"{kind}/{name}: {error.strerror or error}")
        except UnfitError as unfit:
            _add(found, f"{kind}/{name}: {unfit}")
        else:
            found.sound[kind] = found.sound.get(kind, 0) + 1


def _facts(data: bytes) -> dict[str, Any]:
    """What an entry says of a cubin; UnfitError where it is no JSON object."""
    found: Any = None
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
    if not isinstance(found, dict):
        raise UnfitError("expected a JSON object, found none")
    return found


@dataclass
class Removed:
    """What was removed: files of each kind; and what was left, with the reason."""

    files: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def repair() -> Removed:
    """Empty the folders of the cache, and close the cache folder to others' writing.

    Links are removed and not followed. What another user owns is left and named. Raises LenetError
    where there is no cache folder, or it is not the user's, or a link.
    """
    root = place()
    if root is None:
        raise LenetError("doctor --repair: expected a home or LENETGPU_CACHE, found neither")
    removed = Removed()
    for where in dict.fromkeys(r for kind in KINDS for r in folders.roots(kind)):
        kinds = KINDS if where == root else ("numba",)
        _require_emptied(where)
        if os.path.lexists(where):
            _empty(where, kinds, removed)
    return removed


def _require_emptied(root: Path) -> None:
    """LenetError where `root` is there and is no folder of the user's."""
    try:
        found = root.lstat()
        if not stat.S_ISDIR(found.st_mode):
            raise UnfitError(f"expected a folder, found {form(found)}")
        require_owner(found)
        if found.st_mode & stat.S_ISVTX:
            raise UnfitError("expected a folder of one user's, found one that several share")
    except FileNotFoundError:
        return
    except (OSError, UnfitError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise LenetError(f"doctor --repair: {root}: {reason}; nothing is removed") from error


def _empty(root: Path, kinds: tuple[str, ...], removed: Removed) -> None:
    for where in (root / kind for kind in kinds):
        left = len(removed.left)
        if where.is_dir() and not where.is_symlink():
            for path in sorted(where.iterdir()):
                if _NAMES.fullmatch(path.name):
                    _remove(path, where.name, removed)
                else:
                    removed.left.append(f"{path}: no name of an entry")
        if len(removed.left) == left:
            _remove(where, "", removed)
    for path in sorted(path for path in root.iterdir() if _BEFORE.fullmatch(path.name)):
        _remove(path, "of an earlier version", removed)
    mode = stat.S_IMODE(root.lstat().st_mode)
    if user() is not None and mode & OTHERS_WRITE:
        root.chmod(mode & ~OTHERS_WRITE)


def _remove(path: Path, kind: str, removed: Removed) -> None:
    """Remove an entry, or the folder of a `kind`, "", where nothing is left in it."""
    try:
        found = path.lstat()
        require_owner(found)
        if stat.S_ISDIR(found.st_mode):
            path.rmdir()
        elif not kind and stat.S_ISREG(found.st_mode) and found.st_size:
            raise UnfitError("expected a folder, found a file")
        else:
            path.unlink()
    except FileNotFoundError:
        return
    except (OSError, UnfitError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        removed.left.append(f"{path}: {reason}")
    else:
        if kind:
            removed.files[kind] = removed.files.get(kind, 0) + 1
