"""The command line: options in, one call, results out. No logic lives here."""

from lenetgpu.cli.commands import main

__all__ = ["main"]
