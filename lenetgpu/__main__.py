"""Entry point of `python -m lenetgpu` and of the command `lenetgpu`."""

# `signal` takes a while to import, in which Ctrl-C would print a traceback
import _signal  # type: ignore[import-not-found]
import atexit
import gc
import os
import sys
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def _interrupted(number: int, _: "FrameType | None") -> None:
    os.write(2, b"lenetgpu: interrupted\n")
    os._exit(128 + number)


def _install() -> None:
    """End the process at Ctrl-C, unless its parent ignores it, until `Watch` is imported."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _interrupted)


if __name__ == "__main__":
    _install()


def main() -> None:
    """Run the command line.

    For `infer` garbage collection is off until it is ready to compute, and at exit, because it
    takes a quarter of a short run. If Python runs only this, signal handlers come first.
    """
    caller = sys._getframe(1)
    own = (caller.f_globals.get("__name__"), caller.f_code.co_name) == ("__main__", "<module>")
    if own:
        _install()
    from lenetgpu.cli.signals import Watch

    watch = Watch()
    if own:
        watch.begin()
    if sys.argv[1:2] == ["infer"]:
        gc.disable()
        atexit.register(gc.freeze)
        # idle threads of NumPy's BLAS sleep; they would spin on every core beside the imports
        os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
        _begin(sys.argv[2:])
    from lenetgpu.cli import main as command

    code: str | int | None = 1
    try:
        command()
        return
    except SystemExit as end:
        code = end.code
    except Exception:
        import traceback

        from lenetgpu.errors import one_line

        for line in traceback.format_exc().splitlines():
            print(one_line(line), file=sys.stderr)
        print(
            "lenetgpu: this is a mistake in lenetgpu: please report the lines above with the "
            "command and what `lenetgpu doctor` says",
            file=sys.stderr,
        )
    faults = sys.modules.get("lenetgpu.gpu.faults")
    if faults is not None and faults.lost():  # its memory cannot be freed
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 2)
    if own and isinstance(code, int):
        watch.end(code)
    sys.exit(code)


def _begin(words: list[str]) -> None:
    """Create the context of the device of `infer` while its options are read and parsed."""
    if {"-h", "--help"} & {*words}:
        return
    from lenetgpu.gpu.device import begin

    given = [word.partition("=")[2] for word in words if word.startswith("--device=")]
    given += [value for name, value in pairwise(words) if name == "--device"]
    begin(given[-1] if given else "auto")


if __name__ == "__main__":
    main()
