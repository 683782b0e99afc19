"""Command line: parse options, make one call, print the results. No logic lives here."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from lenetgpu.cli.commands import main as main


def __getattr__(name: str) -> object:
    """Import the commands on first use, after the signal handlers are installed."""
    if name == "main":
        from lenetgpu.cli.commands import main

        return main
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
