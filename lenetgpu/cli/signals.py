"""Signals that end a command early: exit codes 130, 143 and 129 after Ctrl-C, TERM and HUP.

The first signal raises KeyboardInterrupt if the command can unwind, so that it saves the results it
promises. Before the command, after it, and on a second signal, the process exits at once.
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
_UNSAFE = ("importlib._bootstrap", f"{os.sep}h5py{os.sep}")
_TICK_S = 0.01
_PATIENCE = 200  # ticks for which an import, or HDF5, may delay the end of the command
# Ticks within which two signals count as one: `timeout` signals a process and then its group.
_SAME = 3


def stoppable(job: Callable[[], Any]) -> Any:
    """Call `job` and return its result; only in this call does a signal raise KeyboardInterrupt."""
    return job()


class Watch:
    """Signal handlers of this process, installed once, in its main thread."""

    def __init__(self) -> None:
        self._signal = 0
        self._ticks = 0
        self._postponed = False
        self._reported = False

    def begin(self) -> None:
        """Install the handlers, except for signals that the parent ignored (nohup)."""
        for name in ENDING:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)
        sys.unraisablehook = self._unraisable

    def end(self, code: int) -> NoReturn:
        """End the process with `code`, or with the exit code of the signal that came."""
        # Skips Python's finalization, during which signals would not be handled, unless a stream
        # cannot be flushed or a tool observes the process.
        self._reported = self._signal > 0
        if self._signal and code in (0, INTERRUPTED):
            code = 128 + self._signal
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError):
            sys.exit(code)
        if not self._signal and {"LD_PRELOAD", "CUDA_INJECTION64_PATH"} & os.environ.keys():
            sys.exit(code)
        converters = getattr(sys.modules.get("h5py"), "_unregister_converters", None)
        if converters is not None:  # would break a thread that is still reading
            atexit.unregister(converters)
        atexit._run_exitfuncs()
        self._drop()
        os._exit(code)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._ticks >= _SAME:
            self._leave()
        if not self._signal:
            self._signal = number
            signal.signal(signal.SIGALRM, self._tick)
            signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
            self._raise(frame)

    def _tick(self, _: int, frame: FrameType | None) -> None:
        self._ticks += 1
        if self._postponed:
            self._raise(frame)
        elif self._ticks >= _SAME:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt now or at a later tick; exit if nothing can unwind."""
        unwinds, safe = _standing(frame)
        if not unwinds or (not safe and self._ticks >= _PATIENCE):
            self._leave()
        self._postponed = not safe
        if safe:
            raise KeyboardInterrupt

    def _unraisable(self, args: Any) -> None:
        """Print exceptions that Python cannot raise; raise a signal's again at a later tick."""
        if not self._signal:
            sys.__unraisablehook__(args)
        elif issubclass(args.exc_type, KeyboardInterrupt):
            self._postponed = True
            signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)

    def _leave(self) -> NoReturn:
        self._drop()
        if not self._reported:
            shown = "rich.live" in sys.modules and os.isatty(2)
            os.write(2, (b"\r\x1b[2K\x1b[?25h" if shown else b"") + b"lenetgpu: interrupted\n")
        os._exit(128 + self._signal)

    def _drop(self) -> None:
        """Remove temporary files that the command did not remove."""
        store = sys.modules.get("lenetgpu.store")
        for path in list(getattr(store, "LIVING", ())):
            path.unlink(missing_ok=True)


def _standing(frame: FrameType | None) -> tuple[bool, bool]:
    """Return (`frame` is within `stoppable`, raising KeyboardInterrupt there is safe)."""
    # An exception in a half-imported library, or within HDF5, would crash the process.
    safe = True
    while frame is not None:
        if frame.f_code is stoppable.__code__:
            return True, safe
        safe = safe and not any(name in frame.f_code.co_filename for name in _UNSAFE)
        frame = frame.f_back
    return False, False
