"""Plugins: variants from files outside the package, imported under private names."""

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
from lenetgpu.stages import registry
from lenetgpu.stages.registry import REGISTRY, NameInUseError, Variant, import_offered

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

    A file may import another in its folder by a relative import. Raises LenetError, with file
    and line, if the import fails, no valid variant is registered, or a name is in use; nothing
    stays registered then.
    """
    import_offered()
    before = dict(REGISTRY)
    try:
        for file in _files(path):
            _import(file)
        added = list(dict.fromkeys(v for key, v in REGISTRY.items() if key not in before))
        if not added:
            raise LenetError(
                f"{path}: expected variants, registered by lenetgpu.stages.registry.variant, "
                "found none"
            )
        for variant in added:
            _require_valid(path, variant)
    except BaseException:
        _restore(before)
        raise
    return added


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
        found = "another file type" if path.exists() else "no such file"
        raise LenetError(f"{path}: expected a .py file or a folder of .py files, found {found}")
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
        message = error.msg if isinstance(error, SyntaxError) else str(error).partition("\n")[0]
        fault = f"expected to import it, found {type(error).__name__}: {message}"
        if isinstance(error, NameInUseError):
            fault = f"expected a name of its own, found that {error}"
        raise LenetError(f"{_location(file, error)}: {fault}") from error


def _location(file: Path, error: BaseException) -> str:
    """Return the file in the folder of `file`, and the line in it, where `error` was raised."""
    folder = file.resolve().parent
    if isinstance(error, SyntaxError):
        locations = [(Path(error.filename or ""), error.lineno)]
    else:
        frames = traceback.extract_tb(error.__traceback__)
        locations = [(Path(frame.filename), frame.lineno) for frame in frames]
    lines = [f"{file.parent / p.name}, line {line}" for p, line in locations if p.parent == folder]
    return lines[-1] if lines else str(file)


def _require_valid(path: Path, variant: Variant) -> None:
    both = (variant.reads, variant.writes)
    layouts = {x for given in both for x in (given if isinstance(given, tuple) else (given,))}
    fault = None
    if not re.fullmatch(r"\w+\.\w+", variant.full_name):
        fault = f"a family and a name of letters, digits and _, found {variant.full_name!r}"
    elif variant.kind not in registry.ALL_KINDS:
        fault = f"one of {', '.join(registry.ALL_KINDS)}, found {variant.kind!r}"
    elif not isinstance(variant.needs, registry.Needs):
        fault = f"needs=cpu(), cuda() or hopper(), found {variant.needs!r}"
    elif not (variant.reads and variant.writes and layouts <= {*_LAYOUTS}):
        unknown = ", ".join(sorted(map(str, layouts - {*_LAYOUTS}))) or "none"
        fault = f"layouts of {', '.join(_LAYOUTS)} to read and write, found {unknown}"
    if fault is not None:
        name = variant.full_name.encode("unicode_escape").decode()
        raise LenetError(f"{path}, {name}: expected {fault}")
