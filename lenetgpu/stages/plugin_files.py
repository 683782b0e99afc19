"""Plugins: variants from files outside the package, imported under private names."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from lenetgpu.cpu.jit import PLUGIN_PREFIX
from lenetgpu.errors import LenetError
from lenetgpu.layouts import MAP_LAYOUTS, PRIVATE
from lenetgpu.stages.registry import (
    KINDS,
    REGISTRY,
    SPAN_KINDS,
    SUPPORT_KINDS,
    NameInUseError,
    Needs,
    Variant,
    import_offered,
)

_LAYOUTS = (*MAP_LAYOUTS, *PRIVATE, "NC", "N")


@contextmanager
def loaded(paths: Iterable[Path]) -> Iterator[list[Variant]]:
    """Load the variants of plugin files and folders; unregister them at the end of the block."""
    import_offered()
    before = dict(REGISTRY)
    try:
        files = {os.path.realpath(path): path for path in paths}.values()
        yield [variant for path in files for variant in load(path)]
    finally:
        _restore(before)


def load(path: Path) -> list[Variant]:
    """Import `path`, a .py file or a folder of .py files, and return the variants it registered.

    A file may import another in its folder by a relative import (`from .helper import tile`).
    Raises LenetError, with file and line, if the file does not exist or cannot be imported,
    registers nothing or something that is not a variant, or uses a name already in use. Nothing
    stays registered then.
    """
    import_offered()
    before = dict(REGISTRY)
    try:
        for file in _files(path):
            _import(file)
        new = {key: made for key, made in REGISTRY.items() if key not in before}
        found = [made for (_, name), made in new.items() if name == made.full_name]
        if not found:
            said = "expected variants, registered by lenetgpu.stages.registry.variant, found none"
            raise LenetError(f"{path}: {said}")
        for made in found:
            _require_sound(path, made)
    except BaseException:
        _restore(before)
        raise
    return found


def _restore(before: dict[tuple[str, str], Variant]) -> None:
    """Unregister variants that are not in `before`, and remove all plugin modules."""
    REGISTRY.clear()
    REGISTRY.update(before)
    for name in [name for name in sys.modules if name.startswith(PLUGIN_PREFIX)]:
        del sys.modules[name]


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    if not files:
        raise LenetError(f"{path}: expected a folder with .py files, found none in it")
    if not path.exists() or (files == [path] and path.suffix != ".py"):
        found = "a file that is not called .py" if path.exists() else "nothing there"
        raise LenetError(f"{path}: expected a .py file or a folder with some, found {found}")
    return files


def _import(file: Path) -> None:
    """Import `file` as a module of a private package that represents its folder."""
    folder = file.resolve().parent
    package = f"{PLUGIN_PREFIX}{abs(hash(folder)):x}"
    if package not in sys.modules:
        sys.modules[package] = ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    name = f"{package}.{file.stem.replace('.', '_')}"
    if name in sys.modules:
        return
    importlib.invalidate_caches()
    spec = spec_from_file_location(name, file.resolve())
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        said = error.msg if isinstance(error, SyntaxError) else first
        what = f"expected to import it, found {type(error).__name__}: {said}"
        if isinstance(error, NameInUseError):
            what = f"expected a name of its own, found that {error}"
        raise LenetError(f"{_location(file, error)}: {what}") from error


def _location(file: Path, error: BaseException) -> str:
    """Return the file in the folder of `file`, and the line in it, where `error` was raised."""
    folder = file.resolve().parent
    if isinstance(error, SyntaxError):
        locations = [(Path(error.filename or ""), error.lineno)]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        locations = [(Path(frame.filename), frame.lineno) for frame in frames]
    here = [(path.name, line) for path, line in locations if path.parent == folder]
    if not here:
        return str(file)
    name, line = here[-1]
    return f"{file.parent / name}, line {line}"


def _require_sound(path: Path, made: Variant) -> None:
    """Raise LenetError if a field of a variant is invalid."""
    kinds = (*KINDS, *SPAN_KINDS, *SUPPORT_KINDS)
    given = (made.reads, made.writes)
    layouts = {x for each in given for x in (each if isinstance(each, tuple) else (each,))}
    wrong = None
    if not re.fullmatch(r"\w+\.\w+", made.full_name):
        wrong = f"a family and a name of letters, digits and _, found {made.full_name!r}"
    elif made.kind not in kinds:
        wrong = f"a kind of {', '.join(kinds)}, found {made.kind!r}"
    elif not isinstance(made.needs, Needs):
        wrong = f"needs=cpu(), cuda() or hopper(), found {made.needs!r}"
    elif not (made.reads and made.writes and layouts <= {*_LAYOUTS}):
        found = ", ".join(sorted(map(str, layouts - {*_LAYOUTS}))) or "none"
        wrong = f"layouts of {', '.join(_LAYOUTS)} to read and write, found {found}"
    if wrong is not None:
        name = made.full_name.encode("unicode_escape").decode()
        raise LenetError(f"{path}, {name}: expected {wrong}")
