"""Signals wait while HDF5 calls Python, which is no place to raise anything."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from lenetgpu.errors import ENDING


@contextmanager
def later() -> Iterator[Callable[[], None]]:
    """Ctrl-C, TERM, HUP and alarms wait until what is yielded is called, or for the block's end.

    HDF5 cannot close a file of which a read or write has raised, and dies as the process ends; of a
    name that it tells, h5py makes a SystemError.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # nothing is raised here
        return
    numbers = [getattr(signal, name) for name in (*ENDING, "SIGALRM") if hasattr(signal, name)]
    found = ((number, signal.getsignal(number)) for number in numbers)
    handlers = {number: handler for number, handler in found if callable(handler)}
    came: list[int] = []
    waiting = True

    def note(number: int, frame: FrameType | None) -> None:
        if not waiting:  # handlers are being given back, and one of them may have raised
            handlers[number](number, frame)
        elif number not in came:
            came.append(number)

    def interrupt() -> None:
        while came:
            handlers[came[0]](came.pop(0), sys._getframe())

    try:
        for number in handlers:
            signal.signal(number, note)
        yield interrupt
    finally:
        waiting = False
        try:
            interrupt()
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
