"""Write what a wheel is made of as a CycloneDX bill of materials.

\b
    python scripts/sbom.py dist/lenetgpu-0.1.0-py3-none-any.whl    # or `make sbom`

It names the wheel with its SHA-256, the weights and images inside it with theirs, and each library
that an install brings, those of libraries too, in the versions and with the hashes of .ci/lock.txt.
The same wheel and lock give the same bytes. Extras are not in it.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
import zipfile
from collections import defaultdict
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import click
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lenetgpu.errors import LenetError
from lenetgpu.store import write_atomically

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "lock.txt"
_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)(?:\s*;\s*([^\\\n]+?))?\s*\\?$")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_SHIPPED = "lenetgpu/_shipped/"


@dataclass
class Locked:
    """One version of a library, where `marker` holds; `via` are those that ask for it."""

    name: str
    version: str
    marker: str
    hashes: list[str] = field(default_factory=list)
    via: list[str] = field(default_factory=list)

    @property
    def purl(self) -> str:
        """What it is called everywhere."""
        return f"pkg:pypi/{self.name}@{self.version}"


def locked(text: str) -> list[Locked]:
    """The entries of a lock file of `uv pip compile`."""
    found: list[Locked] = []
    for line in text.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            found.append(Locked(canonicalize_name(entry[1]), entry[2], entry[3] or ""))
        elif found:
            found[-1].hashes += _HASH.findall(line)
            asking = re.match(r"^\s+#(?: +via)? +(\S+)", line)
            if asking and asking[1] != "via":
                found[-1].via.append(asking[1])
    return found


def _digest(data: bytes) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(data).hexdigest()}]


def _library(entry: Locked) -> dict[str, Any]:
    """A library as a component; its hashes are of each file that it can be installed from."""
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": entry.purl,
        "name": entry.name,
        "version": entry.version,
        "purl": entry.purl,
        "externalReferences": [
            {
                "type": "distribution",
                "url": f"https://pypi.org/project/{entry.name}/{entry.version}/",
                "hashes": [{"alg": "SHA-256", "content": one} for one in sorted(entry.hashes)],
            }
        ],
    }
    if entry.marker:
        found["properties"] = [{"name": "marker", "value": entry.marker}]
    return found


def _read(wheel: Path) -> tuple[Message, dict[str, bytes]]:
    """The wheel's METADATA, and the files that it ships beside the code."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            place = next(name for name in names if name.endswith(".dist-info/METADATA"))
            facts = HeaderParser().parsestr(archive.read(place).decode())
            shipped = sorted(name for name in names if name.startswith(_SHIPPED))
            return facts, {name: archive.read(name) for name in shipped}
    except (OSError, StopIteration, zipfile.BadZipFile) as error:
        raise LenetError(f"{wheel}: expected a wheel, found: {error or 'no METADATA'}") from error


def bill(wheel: Path, entries: list[Locked]) -> dict[str, Any]:
    """The CycloneDX document of `wheel`; LenetError where the lock lacks what it asks for."""
    facts, shipped = _read(wheel)
    asked = map(Requirement, facts.get_all("Requires-Dist") or [])
    direct = {canonicalize_name(one.name) for one in asked if "extra" not in str(one.marker or "")}
    if missing := sorted(direct - {entry.name for entry in entries}):
        raise LenetError(f"{LOCK}: expected {', '.join(missing)}, found none; run `make lock`")
    below: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        for asking in entry.via:
            below[canonicalize_name(asking)].add(entry.name)
    reached, todo = set[str](), list(direct)
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += below[name]
    kept = [entry for entry in entries if entry.name in reached]
    data = wheel.read_bytes()
    digest = _digest(data)
    own = f"pkg:pypi/{canonicalize_name(facts['Name'])}@{facts['Version']}"

    def refs(names: set[str]) -> list[str]:
        return sorted(entry.purl for entry in kept if entry.name in names)

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, own + digest[0]["content"]).urn,
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": facts["Name"],
                "version": facts["Version"],
                "purl": own,
                "hashes": digest,
                "licenses": [{"license": {"id": facts["License-Expression"]}}],
            }
        },
        "components": [
            *({"type": "file", "bom-ref": name, "name": name, "hashes": _digest(content)}
              for name, content in shipped.items()),
            *map(_library, kept),
        ],
        "dependencies": [
            {"ref": own, "dependsOn": [*shipped, *refs(direct)]},
            *({"ref": entry.purl, "dependsOn": refs(below[entry.name])} for entry in kept),
        ],
    }  # fmt: skip


@click.command(help=__doc__)
@click.argument("wheel", type=click.Path(path_type=Path))
@click.option("--output", type=click.Path(path_type=Path), help="Beside the wheel unless given.")
def main(wheel: Path, output: Path | None) -> None:
    try:
        document = bill(wheel, locked(LOCK.read_text()))
        target = output or wheel.with_suffix(".cdx.json")
        write_atomically(target, json.dumps(document, indent=1).encode() + b"\n")
    except LenetError as error:
        click.echo(f"sbom: error: {error}", err=True)
        sys.exit(2)
    click.echo(f"{target}: {len(document['components'])} components")


if __name__ == "__main__":
    main()
