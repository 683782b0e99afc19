"""`python -m lenetgpu` is `lenetgpu`."""

from __future__ import annotations

import atexit
import gc
import sys
import traceback


def main() -> None:
    """The command line in a process of its own.

    Imports make next to no garbage, and the end of a process needs none found: looking for it takes
    a quarter of the time of a short `infer`, which begins to look when it is ready to compute.
    """
    if sys.argv[1:2] == ["infer"]:
        gc.disable()
        atexit.register(gc.freeze)
    from lenetgpu.cli import main as command

    try:
        command()
    except Exception:
        _report()
        sys.exit(1)


def _report() -> None:
    """The traceback of what nobody expected, each line safe to print, and what to do with it."""
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
