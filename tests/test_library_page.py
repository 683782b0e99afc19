"""The output printed on the library page matches its code."""

import contextlib
import importlib.util
import io
import re

import pytest
from conftest import ROOT

PAGE = ROOT / "docs" / "library.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONAL = ("torch", "jax")


def blocks():
    """Return (code, output) pairs of the page, in order."""
    found = BLOCK.findall(PAGE.read_text())
    kinds = [kind for kind, _ in found]
    assert kinds == ["python", "output"] * (len(found) // 2)
    return [(found[k][1], found[k + 1][1]) for k in range(0, len(found), 2)]


def lacks(code):
    """Return the optional framework that `code` imports and that is not installed."""
    asked = [name for name in OPTIONAL if re.search(rf"^import {name}\b", code, re.MULTILINE)]
    return next((name for name in asked if importlib.util.find_spec(name) is None), None)


def printed(code, names):
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, str(PAGE), "exec"), names)
    return said.getvalue()


def test_library_examples_print_the_shown_output():
    names, ran = {}, 0
    for code, expected in blocks():
        if lacks(code) is None:
            assert printed(code, names) == expected, code
            ran += 1
    assert ran >= 5


@pytest.mark.peers
def test_library_examples_include_frameworks():
    assert lacks("import torch\n") is None
    assert sum("import torch" in code for code, _ in blocks()) == 1
