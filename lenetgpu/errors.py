"""The one exception family: the CLI prints it as one sentence and exits with code 2."""


class LenetError(Exception):
    """Bad input or usage; the message is one sentence: what, where, expected, found."""
