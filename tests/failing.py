"""GPU tests that are known to fail, with why: a run is whole beside them, its receipt names them.

What mends one takes its line away, and is listed as unrun until a GPU has run it.
"""

FAILING: dict[str, str] = {}
