"""Helpers that run commands: in this process, in a terminal of a given width, or to be refused."""

import os
import re
import subprocess
import sys
from functools import cache

import pytest
from click.testing import CliRunner
from conftest import ROOT

from lenetgpu.cli import main

_TOLD = ("NO_COLOR", "FORCE_COLOR", "CI", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


def run(*arguments, code=None, **how):
    """Run `lenetgpu` in this process and return click's result; check the code if one is given."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], **how)
    assert code in (None, result.exit_code), result.output
    return result


@cache
def weights_were_checked():
    """Run `infer` once, so that later runs do not pass extra images to check the weights."""
    run("infer", "--limit", 1, "--device", "cpu", "--plan", "tiled", code=0)


def refused(result, *parts):
    """Check that a command ended with code 2 and one printable line that contains `parts`."""
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("lenetgpu: error: ") and result.stderr.count("\n") == 1
    assert result.stderr[:-1].isprintable()
    for part in parts:
        assert part in result.stderr


def python(*words, prefix=(), limit=300, cwd=ROOT, env=os.environ, **environment):
    """Run Python with these words and this tree in a process of its own; return the process.

    `prefix` are the words of another command that starts it.
    """
    return subprocess.run(
        [*prefix, sys.executable, *map(str, words)], capture_output=True, text=True, timeout=limit,
        cwd=cwd, env=env | {"PYTHONPATH": str(ROOT)} | environment,
    )  # fmt: skip


def surroundings(**environment):
    """Return this process's environment, without terminal settings, plus `environment`."""
    kept = {name: value for name, value in os.environ.items() if name not in _TOLD}
    return kept | {"PYTHONPATH": str(ROOT)} | environment


def in_terminal(width, *arguments, code=0, **environment):
    """Run `lenetgpu` in a terminal of that width, check its exit code, and return its output."""
    here, there = pytest.importorskip("pty").openpty()
    variables = {"COLUMNS": str(width), "LINES": "50", "TERM": "xterm-256color", **environment}
    command = [sys.executable, "-m", "lenetgpu", *arguments]
    written = b""
    ends = {"stdin": there, "stdout": there, "stderr": there}
    with subprocess.Popen(command, **ends, env=surroundings(**variables)) as process:
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
