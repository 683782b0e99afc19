"""Terminals that tests open: a command in one, a shell that is typed into."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT

_TOLD = ("NO_COLOR", "FORCE_COLOR", "CI", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def surroundings(**environment):
    """This process's environment with `environment` for what chooses colours and widths."""
    kept = {name: value for name, value in os.environ.items() if name not in _TOLD}
    return kept | {"PYTHONPATH": str(ROOT)} | environment


def in_terminal(width, *arguments, code=0, **environment):
    """What `lenetgpu` writes to a terminal of that width; `code` is its exit code."""
    here, there = pytest.importorskip("pty").openpty()
    told = {"COLUMNS": str(width), "LINES": "50", "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "lenetgpu", *arguments]
    written = b""
    ends = {"stdin": there, "stdout": there, "stderr": there}
    with subprocess.Popen(command, **ends, env=surroundings(**told)) as process:
        os.close(there)
        while True:
            try:
                part = os.read(here, 65536)
            except OSError:  # the other end is closed
                break
            written += part
            if not part:
                break
    os.close(here)
    shown = written.decode().replace("\r\n", "\n")
    assert process.returncode == code, shown
    return shown


def without_escapes(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
