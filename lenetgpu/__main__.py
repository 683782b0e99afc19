"""`python -m lenetgpu` is `lenetgpu`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import traceback


def main() -> None:
    """The command line in a process of its own.

    Imports make next to no garbage, and the end of a process needs none found: looking for it takes
    a quarter of the time of a short `infer`, which begins to look when it is ready to compute.
    Where Python runs nothing but this, signals are heeded before anything else is imported.
    """
    from lenetgpu.cli.signals import Watch

    watch, caller = Watch(), sys._getframe(1)
    own = (caller.f_globals.get("__name__"), caller.f_code.co_name) == ("__main__", "<module>")
    if own:
        watch.begin()
    if sys.argv[1:2] == ["infer"]:
        gc.disable()
        atexit.register(gc.freeze)
    from lenetgpu.cli import main as command

    code: str | int | None = 1
    try:
        command()
        return
    except SystemExit as end:
        code = end.code
    except Exception:
        _report()
    faults = sys.modules.get("lenetgpu.gpu.faults")
    if faults is not None and faults.lost():  # what would be freed there cannot be
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 2)
    if own and isinstance(code, int):
        watch.end(code)
    sys.exit(code)


def _report() -> None:
    """Print the traceback of a mistake, each line safe to print, and what to do with it."""
    from lenetgpu.errors import one_line

    for line in traceback.format_exc().splitlines():
        print(one_line(line), file=sys.stderr)
    print(
        "lenetgpu: this is a mistake in lenetgpu: please report the lines above with the command "
        "and what `lenetgpu doctor` says",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
