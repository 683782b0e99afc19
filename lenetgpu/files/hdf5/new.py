"""New HDF5 files, written whatever the disk and the keyboard do meanwhile."""

from __future__ import annotations

import platform
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from lenetgpu.errors import ENDING

if TYPE_CHECKING:
    import h5py


def library() -> Any:
    """The module h5py, which is left no folder to look for plugins in for the rest of the process.

    While it is imported it asks for all that `uname` says, for which Python would run a program.
    """
    said = vars(platform.uname())
    primed = "h5py" not in sys.modules and "processor" not in said
    if primed:
        said["processor"] = ""
    try:
        import h5py
    finally:
        if primed:
            said.pop("processor", None)
    for index in reversed(range(h5py.h5pl.size())):
        h5py.h5pl.remove(index)
    return h5py


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

    def note(number: int, frame: FrameType | None) -> None:
        if number not in came:
            came.append(number)

    def interrupt() -> None:
        while came:
            handlers[came[0]](came.pop(0), sys._getframe())

    try:
        for number in handlers:
            signal.signal(number, note)
        yield interrupt
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        interrupt()


class _Patient:
    """A file open for writing that takes everything; the first error is kept for later.

    HDF5 2.0 dies of a signal when it closes a file on a disk that is full.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.error: OSError | None = None

    def check(self) -> None:
        """Raise what the disk had to say."""
        if self.error is not None:
            raise self.error

    def _tried(self, call: Callable[..., Any], otherwise: Any, *arguments: Any) -> Any:
        if self.error is not None:
            return otherwise
        try:
            return call(*arguments)
        except OSError as error:
            self.error = error
            return otherwise

    def tell(self) -> int:
        return int(self._tried(self._file.tell, 0))

    def seek(self, at: int, whence: int = 0) -> int:
        return int(self._tried(self._file.seek, 0, at, whence))

    def read(self, size: int) -> bytes:
        return bytes(self._tried(self._file.read, bytes(size), size))

    def write(self, data: Any) -> int:
        return int(self._tried(self._file.write, len(data), data))

    def truncate(self, size: int) -> int:
        return int(self._tried(self._file.truncate, size, size))

    def flush(self) -> None:
        self._tried(self._file.flush, None)


@contextmanager
def new_hdf5(target: IO[bytes]) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """A new HDF5 file in `target`, which is open for reading and writing, and a check.

    The check raises OSError where the disk has not taken what was written so far, and what a Ctrl-C
    raises that came since; so does the end. Whatever ends the block, HDF5 is done with `target`.
    """
    h5py = library()
    target.truncate(0)
    patient = _Patient(target)
    with later() as interrupt:

        def check() -> None:
            interrupt()
            patient.check()

        with h5py.File(patient, "w") as file:
            yield file, check
    patient.check()
    target.flush()


def set_text(holder: Any, name: str, text: str) -> None:
    """Give a file or dataset being written the attribute `name`, of fixed length, in UTF-8.

    What h5py makes of a str has variable length, which `attribute` does not read.
    """
    import h5py
    import numpy as np

    data = text.encode()
    kind = h5py.string_dtype("utf-8", max(1, len(data)))
    holder.attrs.create(name, np.array(data, kind), dtype=kind)
