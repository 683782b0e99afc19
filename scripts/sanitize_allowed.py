"""Reports of compute-sanitizer that are none, each with its reason, for `scripts/sanitize.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import lenetgpu


def source_line(path: Path, number: int) -> str:
    """A line of a source file without its ends; empty where there is none."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


@dataclass(frozen=True)
class Access:
    """Read or Write, by the function as the tool names it, inlined or not, and a source's line."""

    kind: str
    file: Path
    function: str
    line: str

    def is_at(self, place: tuple[str, str, str, str]) -> bool:
        """Whether it is what a report names with a path, or its last parts, and a line's number."""
        kind, function, path, at = place
        there = self.file.parts[-len(Path(path).parts) :] == Path(path).parts
        same = (kind, function) == (self.kind, self.function)
        return there and same and source_line(self.file, int(at)) == self.line


@dataclass(frozen=True)
class Allowed:
    """A report that is none: of `tool`, between some of these accesses and no others."""

    tool: str
    accesses: tuple[Access, ...]
    why: str

    def holds(self, places: list[tuple[str, str, str, str]]) -> bool:
        """Whether `places` are among these, writes and reads."""
        known = all(any(one.is_at(place) for one in self.accesses) for place in places)
        return known and {kind for kind, *_ in places} == {one.kind for one in self.accesses}


_STAGES = Path(lenetgpu.__file__).resolve().parent / "stages"
_TF32 = _STAGES / "conv" / "tf32" / "wgmma.cu"
_PATCH = _TF32.with_name("patch.cu")
_COPIES = _STAGES.parent / "gpu" / "ptx" / "async.cuh"
ALLOWED = (
    Allowed(
        "racecheck",
        (
            Access("Write", _COPIES, "ptx::copy4_or_zero", '"r"(there ? 4 : 0)'),
            Access("Write", _COPIES, "ptx::copy16_or_zero", '"r"(there ? 16 : 0)'),
            *(
                Access("Read", _TF32, "Operand::load", line)
                for line in (
                    "const float4 four = *reinterpret_cast<const float4*>(at);",
                    "const float2 both = *reinterpret_cast<const float2*>(at);",
                    "v[0] = at[0], v[1] = at[NEXT_ROW * (PAIRS ? 1 : 8)];",
                )
            ),
            Access(
                "Read",
                _PATCH,
                "Operand::load",
                "v[h] = *reinterpret_cast<const float*>(memory + (from[h] + at[j]));",
            ),
        ),
        "copies and loads of inputs in tf32/wgmma.cu and patch.cu are ordered by mbarriers, one of "
        "them told by the copies themselves: copy, cp.async.mbarrier.arrive; wait, load, multiply, "
        "arrive; wait, copy (docs/convolutions.md)",
    ),
)
