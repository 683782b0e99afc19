"""Who may enter: one thread at a time, and a forked child that has none of its parent's threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from lenetgpu.errors import LenetError

_Asked = ParamSpec("_Asked")
_Answer = TypeVar("_Answer")


class Turn:
    """One thread at a time: LenetError, at once, for another that enters `what` meanwhile.

    The thread that is inside may enter again.
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
    """The same, and who was inside keeps it: LenetError for any other thread until that one ends.

    What it left inside is read after it went out.
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
    """The same, and what is left inside is read by `last`, in the thread that was inside last."""

    _last = 0

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise self._refusal()
        self._last = threading.get_ident()

    @contextmanager
    def last(self) -> Iterator[None]:
        """Inside again; LenetError where another thread was there meanwhile."""
        super().__enter__()
        try:
            if self._last != threading.get_ident():
                raise self._refusal()
            yield
        finally:
            self._lock.release()


def in_turn(
    method: Callable[Concatenate[Any, _Asked], _Answer],
) -> Callable[Concatenate[Any, _Asked], _Answer]:
    """`method`, inside the `_turn` (a lock, or a `Turn`) of its object."""

    @wraps(method)
    def turn(self: Any, /, *asked: _Asked.args, **words: _Asked.kwargs) -> _Answer:
        with self._turn:
            return method(self, *asked, **words)

    return turn


PREPARING = threading.RLock()
"""Held while something is compiled for the CPU: a fork waits, as the compilers' own locks would
stay closed in the child."""
_parted: WeakSet[Any] = WeakSet()


def tell_children(kept: Any) -> None:
    """Call `kept.forked()` in every child that is forked while `kept` lives, before all else."""
    _parted.add(kept)


def _in_child() -> None:
    PREPARING.release()
    for kept in list(_parted):
        kept.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=PREPARING.acquire, after_in_parent=PREPARING.release, after_in_child=_in_child
    )
