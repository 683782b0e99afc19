"""What ends a command early: after Ctrl-C, TERM and HUP it ends with 130, 143 and 129.

The first is raised as KeyboardInterrupt where the command can unwind, so that it keeps what it
promises to keep. Before, after, and at a second one the process ends where it stands.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys

from lenetgpu.errors import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, NoReturn

INTERRUPTED = 130
_HELD = ("importlib._bootstrap", f"{os.sep}h5py{os.sep}")
_TICK_S = 0.01
_PATIENCE = 200
"""Ticks for which an import, or HDF5, may keep the command from unwinding."""
_ONE = 3
"""`timeout` and others send a signal to a process and to its group: two within this are one."""


def stoppable(job: Callable[[], Any]) -> Any:
    """What `job` returns; in here, and nowhere else, a signal raises KeyboardInterrupt."""
    return job()


class Watch:
    """Heeds the signals that end this process; one a process, in its main thread."""

    def __init__(self) -> None:
        self._came = 0
        self._ticks = 0
        self._waits = False
        self._said = False

    def begin(self) -> None:
        """Heed them from now on, but those that this process was told to ignore (nohup)."""
        for name in ENDING:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._heed)
        sys.unraisablehook = self._unraisable

    def end(self, code: int) -> NoReturn:
        """End the process with `code`, or that of the signal that came.

        At once, without taking Python down, where signals would no longer be heeded; a tool that
        was loaded into the process to watch it gets the usual end.
        """
        self._said = self._came > 0
        if self._came and code in (0, INTERRUPTED):
            code = 128 + self._came
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.exit(code)
        if not self._came and {"LD_PRELOAD", "CUDA_INJECTION64_PATH"} & os.environ.keys():
            sys.exit(code)
        takes = getattr(sys.modules.get("h5py"), "_unregister_converters", None)
        if takes is not None:  # from HDF5 what a thread that still reads is using
            atexit.unregister(takes)
        atexit._run_exitfuncs()
        self._drop()
        os._exit(code)

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if self._ticks >= _ONE:
            self._leave()
        if not self._came:
            self._came = number
            signal.signal(signal.SIGALRM, self._tick)
            self._begin_ticks()
            self._raise(frame)

    def _begin_ticks(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        self._ticks += 1
        if self._waits:
            self._raise(frame)
        elif self._ticks >= _ONE:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, frame: FrameType | None) -> None:
        """KeyboardInterrupt, now or at a later tick; the end where nothing could unwind."""
        can, may = _standing(frame)
        if not can or (not may and self._ticks >= _PATIENCE):
            self._leave()
        self._waits = not may
        if may:
            raise KeyboardInterrupt

    def _unraisable(self, told: Any) -> None:
        """What Python could not raise: nothing is said of what a signal did; itself comes again."""
        if not self._came:
            sys.__unraisablehook__(told)
        elif issubclass(told.exc_type, KeyboardInterrupt):
            self._waits = True
            self._begin_ticks()

    def _leave(self) -> NoReturn:
        self._drop()
        if not self._said:
            shown = "rich.live" in sys.modules and os.isatty(2)
            os.write(2, (b"\r\x1b[2K\x1b[?25h" if shown else b"") + b"lenetgpu: interrupted\n")
        os._exit(128 + self._came)

    def _drop(self) -> None:
        """Remove the temporary files of a command that did not get to it."""
        store = sys.modules.get("lenetgpu.store")
        for path in list(getattr(store, "living", set)()):
            path.unlink(missing_ok=True)


def _standing(frame: FrameType | None) -> tuple[bool, bool]:
    """Whether KeyboardInterrupt, raised in `frame`, ends the command, and does no harm on its way.

    A library that is half imported, and HDF5 in the middle of something, take the process down.
    """
    may = True
    while frame is not None:
        code = frame.f_code
        if code is stoppable.__code__:
            return True, may
        held = any(name in code.co_filename for name in _HELD)
        may = may and not held
        frame = frame.f_back
    return False, False
