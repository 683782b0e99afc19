"""What CI installs is locked by hashes, and covers what is asked for; the wheel has its bill."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
import zipfile

import pytest
from click.testing import CliRunner
from conftest import ROOT
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_pythons import PROMISED

METADATA = """Metadata-Version: 2.4
Name: lenetgpu
Version: 9.9.9
License-Expression: MIT
Requires-Dist: numpy>=2.0
Requires-Dist: rich>=13.7
Requires-Dist: matplotlib>=3.8; extra == 'plot'

words
"""


@pytest.fixture
def sbom(script):
    return script("sbom")


@pytest.fixture
def entries(sbom):
    return sbom.locked(sbom.LOCK.read_text())


def project():
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with Python 3.11's tomllib")
    import tomllib

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def holding(entries, python):
    """Name to version of what is installed on Linux by a Python."""
    place = {"python_version": python, "python_full_version": f"{python}.9", "os_name": "posix",
             "sys_platform": "linux", "platform_system": "Linux",
             "platform_python_implementation": "CPython"}  # fmt: skip
    kept = [e for e in entries if not e.marker or Marker(e.marker).evaluate(place)]
    found = {entry.name: entry.version for entry in kept}
    assert len(found) == len(kept), "a library is there twice"
    return found


@pytest.mark.parametrize("python", PROMISED)
def test_the_lock_covers_what_the_project_asks_for(entries, python):
    table = project()
    found = holding(entries, python)
    asked = [*table["project"]["dependencies"], *table["build-system"]["requires"]]
    asked += table["project"]["optional-dependencies"]["dev"]
    for one in map(Requirement, asked):
        version = found.get(canonicalize_name(one.name))
        assert version is not None and one.specifier.contains(version), f"{one}: run `make lock`"


def test_every_locked_file_has_a_hash(sbom, entries):
    assert len(entries) > 50 and all(entry.hashes and entry.via for entry in entries)
    text = sbom.LOCK.read_text()
    assert "://" not in text and "/" not in text.replace("(pyproject.toml)", "")
    assert text.count("==") >= len(entries)
    assert text.count("--hash=") == sum(len(entry.hashes) for entry in entries)


def test_ci_installs_the_lock():
    """By its hashes and nothing else; the package itself without an index."""
    run, make = (ROOT / ".ci" / "run").read_text(), (ROOT / "Makefile").read_text()
    assert "export CI=true" in run and run.index("export CI") < run.index("make ")
    locked = make[make.index("ifneq ($(LOCKED),)") : make.index("\nelse")]
    installs = [line for line in locked.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes --requirement .ci/lock.txt" in installs[0]
    assert "--no-deps --no-build-isolation --no-index --editable ." in installs[1]


@pytest.mark.skipif(os.environ.get("CI") != "true", reason="of what CI installed")
def test_what_is_installed_is_what_is_locked(entries):
    found = holding(entries, "{}.{}".format(*sys.version_info))
    wrong = {}
    for name, version in found.items():
        here = importlib.metadata.version(name)
        if here != version:
            wrong[name] = (version, here)
    assert wrong == {}


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "lenetgpu-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lenetgpu-9.9.9.dist-info/METADATA", METADATA)
        archive.writestr("lenetgpu/_shipped/weights/w.h5", b"weights")
        archive.writestr("lenetgpu/pipeline.py", b"")
    return path


def test_the_bill_names_the_wheel_its_files_and_every_library(sbom, entries, wheel):
    done = CliRunner().invoke(sbom.main, [str(wheel)])
    assert done.exit_code == 0, done.output
    found = json.loads(wheel.with_suffix(".cdx.json").read_text())
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    own = found["metadata"]["component"]
    assert own["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert own["purl"] == "pkg:pypi/lenetgpu@9.9.9" and own["licenses"][0]["license"]["id"] == "MIT"
    parts = {part["name"]: part for part in found["components"]}
    assert {"lenetgpu/_shipped/weights/w.h5", "numpy", "rich", "pygments", "mdurl"} <= set(parts)
    assert not {"matplotlib", "pytest", "h5py", "lenetgpu/pipeline.py"} & set(parts)
    shipped = parts["lenetgpu/_shipped/weights/w.h5"]["hashes"][0]["content"]
    assert shipped == hashlib.sha256(b"weights").hexdigest()
    (numpy,) = [e for e in entries if e.name == "numpy" and "3.11.*" in e.marker]
    (mine,) = [p for p in found["components"] if p.get("purl") == numpy.purl]
    held = {one["content"] for one in mine["externalReferences"][0]["hashes"]}
    assert held == set(numpy.hashes) and mine["properties"][0]["value"] == numpy.marker


def test_the_bill_is_whole_and_comes_out_the_same(sbom, entries, wheel):
    found = sbom.bill(wheel, entries)
    assert found == sbom.bill(wheel, entries)
    refs = [part["bom-ref"] for part in found["components"]]
    refs.append(found["metadata"]["component"]["bom-ref"])
    assert len(set(refs)) == len(refs)
    named = {ref for entry in found["dependencies"] for ref in (entry["ref"], *entry["dependsOn"])}
    assert named <= set(refs)
    below = {entry["ref"]: entry["dependsOn"] for entry in found["dependencies"]}
    (rich,) = [ref for ref in refs if "/rich@" in ref]
    assert any("/pygments@" in ref for ref in below[rich])


@pytest.mark.parametrize(
    ("lines", "said"),
    [("Requires-Dist: numpy>=2.0", "expected numpy, found none"), (None, "expected a wheel")],
)
def test_a_bill_that_cannot_be_made_is_refused(sbom, tmp_path, monkeypatch, wheel, lines, said):
    if lines is None:
        wheel.write_bytes(b"no archive")
    monkeypatch.setattr(sbom, "LOCK", tmp_path / "lock.txt")
    sbom.LOCK.write_text("rich==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n")
    done = CliRunner().invoke(sbom.main, [str(wheel)])
    assert done.exit_code == 2 and said in done.output
    assert not wheel.with_suffix(".cdx.json").exists()
