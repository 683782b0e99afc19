"""Requirements that CI installs are locked by hashes and cover the project's dependencies."""

import importlib.metadata
import os
import re
import sys

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = (ROOT / ".ci" / "lock.txt").read_text()
ENTRIES = re.split(r"^(?=[a-z])", LOCK, flags=re.MULTILINE)[1:]


def locked():
    """Return the pinned requirements without hashes."""
    return [Requirement(entry.split("\\")[0].strip()) for entry in ENTRIES]


def test_lock_covers_the_declared_dependencies():
    if sys.version_info < (3, 11):
        pytest.skip("reads pyproject.toml with Python 3.11's tomllib")
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    pins = {canonicalize_name(pin.name): pin for pin in locked()}
    for wanted in map(Requirement, asked):
        (pinned,) = pins[canonicalize_name(wanted.name)].specifier
        assert pinned.operator == "==" and wanted.specifier.contains(pinned.version), wanted


def test_every_locked_file_has_a_hash():
    assert len(ENTRIES) > 30
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in ENTRIES)


@pytest.mark.skipif(not os.environ.get("CI"), reason="of what CI installed")
def test_installed_versions_match_the_lock():
    for pin in locked():
        if pin.marker is None or pin.marker.evaluate():
            assert pin.specifier.contains(importlib.metadata.version(pin.name)), pin
