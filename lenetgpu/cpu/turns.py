"""Exclusive use by one thread at a time, and callbacks in forked children."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from lenetgpu.errors import LenetError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Turn:
    """Lock for one thread at a time; raises LenetError at once if another thread is inside `what`.

    The thread inside may enter again.
    """

    def __init__(self, what: str) -> None:
        self._what, self._lock = what, threading.RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise self._refusal()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _refusal(self) -> LenetError:
        return LenetError(
            f"{self._what}: expected one thread, found it in use by another; "
            "give each thread one of its own"
        )


class Owned(Turn):
    """`Turn` owned by the first thread that enters; raises LenetError for others until it ends.

    Results left inside are read after the owner has left the block.
    """

    _owner = 0

    def __enter__(self) -> None:
        super().__enter__()
        caller = threading.get_ident()
        if caller == self._owner:
            return
        if any(thread.ident == self._owner for thread in threading.enumerate()):
            self._lock.release()
            raise self._refusal()
        self._owner = caller


class Left(Turn):
    """`Turn` whose results are read in `last`, by the thread that was inside last."""

    _last = 0

    def __enter__(self) -> None:
        super().__enter__()
        self._last = threading.get_ident()

    @contextmanager
    def last(self) -> Iterator[None]:
        """Enter again; raise LenetError if another thread was inside meanwhile."""
        super().__enter__()
        try:
            if self._last != threading.get_ident():
                raise self._refusal()
            yield
        finally:
            self._lock.release()


def in_turn(
    method: Callable[Concatenate[Any, _Arguments], _Result],
) -> Callable[Concatenate[Any, _Arguments], _Result]:
    """Wrap `method` to run inside its object's `_turn` (a lock or a `Turn`)."""

    @wraps(method)
    def turn(self: Any, /, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with self._turn:
            return method(self, *args, **options)

    return turn


# Held while CPU code is compiled, and in a fork: a child must not inherit a compiler's locks.
PREPARING = threading.RLock()
_parted: WeakSet[Any] = WeakSet()


def tell_children(listener: Any) -> None:
    """Call `listener.forked()` first in every child that is forked while `listener` lives."""
    _parted.add(listener)


def _in_child() -> None:
    PREPARING.release()
    for listener in list(_parted):
        listener.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=PREPARING.acquire, after_in_parent=PREPARING.release, after_in_child=_in_child
    )
