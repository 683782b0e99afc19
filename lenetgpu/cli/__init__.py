"""The command line: options in, one call, results out. No logic lives here."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import click

    main: click.Group

__all__ = ["main"]


def __getattr__(name: str) -> object:
    """The commands, imported when they are asked for: signals are heeded before."""
    if name == "main":
        from lenetgpu.cli.commands import main

        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
