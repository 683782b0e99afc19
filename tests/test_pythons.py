"""Every Python that the package promises, where it is here: syntax, imports, the registry.

Its own libraries are not asked for: modules that need compiled ones are read, not run. The whole
suite runs on another Python by `make test PYTHON=python3.10 VENV=.venv-3.10`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

PROMISED = ("3.10", "3.11", "3.12", "3.13", "3.14")
READ = """
import sys
from pathlib import Path
for folder in ("lenetgpu", "scripts", "tests"):
    for path in Path(folder).rglob("*.py"):
        compile(path.read_text(), str(path), "exec", dont_inherit=True)
"""
LIST = """
import sys
sys.path.append({libraries!r})
from lenetgpu.cli import main
main(["variants", "--json"])
"""


def interpreter(version):
    """A Python of this version that starts: on PATH, or one of pyenv's; None where there is none.

    pyenv puts a shim on PATH for versions that it would not run.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    tell = "import sys; print('%d.%d' % sys.version_info[:2])"
    for path in filter(None, found):
        done = subprocess.run([path, "-c", tell], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return path
    return None


def run(python, code):
    done = subprocess.run([python, "-I", "-c", f"import sys; sys.path.insert(0, '.'){code}"],
                          capture_output=True, text=True, cwd=ROOT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", PROMISED)
def test_a_promised_python(version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on PATH or of pyenv's")
    run(python, READ)
    code = LIST.format(libraries=sysconfig.get_path("purelib"))
    found, here = (json.loads(run(each, code)) for each in (python, sys.executable))
    assert found["python"].startswith(f"{version}.")
    assert found["variants"] == here["variants"]


def test_the_oldest_promise_is_the_one_declared():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={PROMISED[0]}"' in text
    assert 'target-version = "py310"' in text
