"""GPU tests known to fail, with reasons; the receipt of a complete run lists them.

A fix removes its test's line and is listed as unrun until it has run on a GPU.
"""

FAILING: dict[str, str] = {}
