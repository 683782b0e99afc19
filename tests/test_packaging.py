"""Built packages are complete: the wheel, made from the sdist, runs in its own environment.

Every supported Python that is installed reads the sources and lists the variants, without libraries
of its own. `make test PYTHON=python3.10 VENV=.venv-3.10` runs the whole suite on another Python.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow

ALSO = {"pyproject.toml", "README.md", "LICENSE", "Makefile", "CONTRIBUTING.md", "CHANGELOG.md"}
SHIPPED = {"lenetgpu/_shipped/weights/lenet-mnist.h5", "lenetgpu/_shipped/data/digits-10k.h5"}


def run(*command, cwd):
    """Return the output of a command that sees nothing of this checkout except its arguments."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "LENETGPU_"))}
    env["XDG_CACHE_HOME"] = str(cwd)
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def files(folder):
    """Return the files of the checkout below `folder`, without generated ones."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    return {str(p.relative_to(ROOT)) for p in found if "__pycache__" not in p.parts}


def environment(folder):
    """Create an environment without pip that has this one's libraries but no .pth files."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))",
                    cwd=folder).strip())  # fmt: skip
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "libraries.pth").write_text("\n".join(sorted(libraries)) + "\n")
    return python, site


def test_wheel_from_sdist_is_complete_and_runs(tmp_path):
    for needed in ("build", "hatchling", "pip"):
        pytest.importorskip(needed, reason="the extra `dev` brings build and hatchling")
    built, elsewhere = tmp_path / "dist", tmp_path / "elsewhere"
    elsewhere.mkdir()
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", built, ROOT, cwd=elsewhere)
    (sdist,), (wheel,) = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(sdist) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    wanted = ALSO.union(*map(files, ("lenetgpu", "weights", "data", "tests", "scripts", "docs")))
    assert wanted - inside == set()
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == files("lenetgpu") | SHIPPED
    python, site = environment(tmp_path / "venv")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index",
        "--no-warn-script-location", wheel, cwd=elsewhere)  # fmt: skip
    where = run(python, "-c", "import lenetgpu; print(lenetgpu.__file__)", cwd=elsewhere)
    assert Path(where.strip()) == site / "lenetgpu" / "__init__.py"
    command = python.with_name("lenetgpu")
    out = run(command, "infer", "--limit", 100, "--device", "cpu", "--json", "-", cwd=elsewhere)
    document = json.loads(out)
    assert (document["images"], document["correct"]) == (100, 97)
    assert Path(document["data"]) == site / "lenetgpu/_shipped/data/digits-10k.h5"
    assert Path(document["weights"]) == site / "lenetgpu/_shipped/weights/lenet-mnist.h5"
    assert document["commit"] is None
    assert "direct.basic" in run(command, "variants", "conv", cwd=elsewhere)


PROMISED = ("3.10", "3.11", "3.12", "3.13", "3.14")
READ = """
from pathlib import Path
for folder in ("lenetgpu", "scripts", "tests"):
    for path in Path(folder).rglob("*.py"):
        compile(path.read_text(), str(path), "exec", dont_inherit=True)
"""
LIST = """
sys.path.append({libraries!r})
from lenetgpu.cli import main
main(["variants", "--json"])
"""


def interpreter(version):
    """Return a working Python of this version on PATH, or None."""
    path = shutil.which(f"python{version}")
    return path if path and subprocess.run([path, "-c", ""]).returncode == 0 else None


def read_by(python, code):
    return run(python, "-I", "-c", f"import sys; sys.path.insert(0, '.'){code}", cwd=ROOT)


@pytest.mark.parametrize("version", PROMISED)
def test_promised_python_versions_work(version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on PATH or of pyenv's")
    read_by(python, READ)
    code = LIST.format(libraries=sysconfig.get_path("purelib"))
    found, here = (json.loads(read_by(each, code)) for each in (python, sys.executable))
    assert found["python"].startswith(f"{version}.")
    assert found["variants"] == here["variants"]


def test_oldest_promised_python_is_declared():
    text = (ROOT / "pyproject.toml").read_text()
    assert f'requires-python = ">={PROMISED[0]}"' in text
    assert 'target-version = "py310"' in text
