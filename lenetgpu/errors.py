"""The one exception family: the CLI prints it as one sentence and exits with code 2."""

ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that end a command, by KeyboardInterrupt; their names, since not every system has all."""


class LenetError(Exception):
    """Bad input or usage; the message is one sentence: what, where, expected, found."""
