"""What judges and times as it was before files from outside were imported: is it still?

A guest runs in the same process as its judge, so it may replace a clock, a tolerance or another's
kernel. `Seal` remembers every function, class and constant of the package and the functions of
what it measures with, and finds and undoes a replacement. It is a record and no wall: code that
writes memory by ctypes, walks frames or lists the collector's objects, or starts a thread that
puts everything back in time, is not seen by it. Strangers' code belongs on a machine of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.stages.registry import REGISTRY, import_offered

_OURS = "lenetgpu"
_ROOTS = (_OURS, "builtins", "cupy", "cupy_backends", "cupyx", "gc", "math", "numpy", "random",
          "sys", "threading", "time")  # fmt: skip
_CLASSES_OF = (_OURS, "cupy", "cupyx")
_CONSTANTS = (bool, int, float, str, tuple, frozenset)
_WRAPPERS = (property, staticmethod, classmethod, cached_property, ModuleType)
_PARTS = ("__code__", "__defaults__", "__kwdefaults__")
_MISSING = object()
# what sampling calls: looked at after every sample of a guest
_HOT = ("time", "math", "builtins", "lenetgpu.measure.timing", "lenetgpu.measure.sampling.calls",
        "lenetgpu.measure.bench", "lenetgpu.measure.conv_bench", "lenetgpu.measure.rounds",
        "lenetgpu.stages.mounted", "lenetgpu.stages.registry", "cupy.cuda")  # fmt: skip
# that imports and the interpreter set
_RESTLESS = {"sys": {"last_exc", "last_type", "last_value", "last_traceback", "stdin", "stdout",
                     "stderr", "displayhook", "excepthook", "unraisablehook"}}  # fmt: skip


class _Entry:
    """`name` of `owner` is `value`: an attribute, a key of a dict, or a part of a function."""

    def __init__(self, owner: Any, name: Any, value: Any, called: str) -> None:
        self.owner, self.name, self.value, self.called = owner, name, value, called

    @property
    def holds(self) -> bool:
        """Whether it is still the same object."""
        owner = self.owner
        if type(owner) is dict:
            return owner.get(self.name, _MISSING) is self.value
        if type(owner) is FunctionType:
            return getattr(owner, self.name, _MISSING) is self.value
        return vars(owner).get(self.name, _MISSING) is self.value

    def mend(self) -> None:
        """Put it back."""
        if type(self.owner) is dict:
            self.owner[self.name] = self.value
        elif isinstance(self.owner, (ModuleType, type, FunctionType)):
            setattr(self.owner, self.name, self.value)
        else:
            object.__setattr__(self.owner, self.name, self.value)


def _root(name: str) -> str:
    return name.partition(".")[0]


def _inside(value: Any) -> Any:
    """The function in a property or a method's wrapper."""
    for name in ("fget", "__func__", "func", "_function"):
        value = getattr(value, name, value)
    return value


def _functions(value: Any, called: str) -> Iterator[_Entry]:
    inner = _inside(value)
    if type(inner) is FunctionType:
        for part in _PARTS:
            yield _Entry(inner, part, getattr(inner, part), f"the code of {called}")


def _of_module(name: str, module: ModuleType) -> Iterator[_Entry]:
    """A module's entries, and those of its classes."""
    ours = _root(name) == _OURS
    for key, value in list(vars(module).items()):
        called = f"{name}.{key}"
        if key in _RESTLESS.get(name, ()) or (key.startswith("__") and key.endswith("__")):
            continue
        if callable(value) or isinstance(value, _WRAPPERS) or (ours and type(value) in _CONSTANTS):
            yield _Entry(module, key, value, called)
        if getattr(value, "__module__", name) != name:
            continue
        yield from _functions(value, called)
        if isinstance(value, type) and _root(name) in _CLASSES_OF:
            yield from _of_class(value, called)
        if ours and type(value) is dict and key.strip("_").isupper():
            for word, held in value.items():
                yield _Entry(value, word, held, f"{word!r} of {called}")


def _of_class(made: type, called: str) -> Iterator[_Entry]:
    for key, value in list(vars(made).items()):
        if callable(value) or isinstance(value, _WRAPPERS):
            yield _Entry(made, key, value, f"{called}.{key}")
            yield from _functions(value, f"{called}.{key}")


def _of_variants() -> Iterator[_Entry]:
    for (kind, name), variant in REGISTRY.items():
        for field, value in vars(variant).items():
            yield _Entry(variant, field, value, f"{field} of the {kind} variant {name}")


class Seal:
    """What there is when it is made; `guests` are the full names of variants that came later."""

    def __init__(self) -> None:
        self.guests: set[str] = set()
        self._blamed: dict[str, str] = {}
        self._entries: list[_Entry] = list(_of_variants())
        self._hot: list[_Entry] = []
        for name, module in sorted(sys.modules.items()):
            if _root(name) in _ROOTS and isinstance(module, ModuleType):
                found = list(_of_module(name, module))
                self._entries += [*found, _Entry(sys.modules, name, module, f"module {name}")]
                if name in _HOT:
                    self._hot += found
        self._watching = (sys.gettrace(), sys.getprofile())

    def changed(self, hot: bool = False) -> str:
        """What is not as it was, in a sentence, and put back; "" where nothing is.

        `hot` looks at what sampling calls only.
        """
        found = []
        for entry in self._hot if hot else self._entries:
            if not entry.holds:
                entry.mend()
                found.append(entry.called)
        if (sys.gettrace(), sys.getprofile()) != self._watching:
            sys.settrace(self._watching[0])
            sys.setprofile(self._watching[1])
            found.append("the interpreter's trace or profile function")
        if not found:
            return ""
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        return f"replaces {found[0]}{more}"

    def admit(self, names: set[str]) -> None:
        """Variants `names` were just imported; what changed meanwhile is their doing."""
        self.guests |= names
        sentence = self.changed()
        if sentence:
            self.blame(names, sentence)

    def blame(self, names: set[str], sentence: str) -> None:
        """`names` did what the sentence says."""
        for name in names:
            self._blamed.setdefault(name, sentence)

    def verdict(self, name: str, hot: bool = False) -> str:
        """Look again; what variant `name` is blamed for, "" where it is for nothing.

        What has changed while a guest is looked at is that guest's doing; else it is every guest's.
        """
        sentence = self.changed(hot)
        if sentence:
            self.blame({name} if name in self.guests else self.guests, sentence)
        return self._blamed.get(name, "")


_seals: list[Seal] = []


def accused(name: str, hot: bool = False) -> str:
    """What the variant `name` is blamed for under the seal in force; "" without one."""
    return _seals[-1].verdict(name, hot) if _seals else ""


def is_guest(name: str) -> bool:
    """Whether the variant `name` came from outside, under the seal in force."""
    return bool(_seals) and name in _seals[-1].guests


@contextmanager
def sealed() -> Iterator[Seal]:
    """A seal in force inside the block; what was replaced meanwhile is put back at its end."""
    import_offered()
    seal = Seal()
    look: Callable[[], str] = partial(Seal.changed, seal)
    _seals.append(seal)
    try:
        yield seal
    finally:
        look()
        if seal not in _seals:
            raise LenetError("--with: expected files that leave their seal alone, found it gone")
        _seals.remove(seal)
