"""The house can be seen from its tree: what is counted of it, and how far it may go.

Floors are listed in CONTRIBUTING.md. `pytest tests/test_house.py -v` prints a row a rule.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "lenetgpu"
# bottom up; imports run from a floor to a lower one, or stay in their room
FLOORS = (
    {"problems", "layouts", "errors", "cpu", "__init__"},
    {"store", "network"},
    {"files", "gpu"},
    {"stages"},
    {"plan"},
    {"pipeline", "device"},
    {"check", "streaming"},
    {"measure"},
    {"papers"},
    {"show"},
    {"commands"},
    {"cli"},
    {"__main__"},
)
SOURCES = sorted(PACKAGE.rglob("*.py"))
KERNELS = sorted(PACKAGE.rglob("*.cu"))
HEADERS = sorted(PACKAGE.rglob("*.cuh"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lenetgpu":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)


ARROWS = {
    module: sorted(set(imported(path)) - {module, "lenetgpu"}) for module, path in MODULES.items()
}


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def floor(module: str) -> int:
    found = [height for height, rooms in enumerate(FLOORS) if room(module) in rooms]
    assert found, f"{module}: expected a room that FLOORS lists, found {room(module)}"
    return found[0]


def circles(arrows: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Shortest ways back to where they began, one for each that begins one."""
    found = set()
    for start in arrows:
        paths, seen = [(start,)], set()
        while paths:
            path = paths.pop(0)
            for target in arrows.get(path[-1], ()):
                if target == start:
                    found.add(tuple(sorted(path)))
                elif target not in seen:
                    seen.add(target)
                    paths.append((*path, target))
    return sorted(found)


def test_imports_run_down():
    up = [
        f"{module} imports {target}"
        for module, targets in ARROWS.items()
        for target in targets
        if room(module) != room(target) and floor(target) >= floor(module)
    ]
    assert up == []


def test_no_circle_of_files():
    families = {
        module for module in MODULES if (PACKAGE.parent / module.replace(".", "/")).is_dir()
    }
    files = {m: set(targets) - families for m, targets in ARROWS.items() if m not in families}
    assert circles(files) == []


def test_no_circle_of_folders():
    folders: dict[str, set[str]] = defaultdict(set)
    for module, targets in ARROWS.items():
        for target in targets:
            if room(target) != room(module):
                folders[room(module)].add(room(target))
    assert circles(folders) == []


def test_no_circle_of_headers():
    folder = {str(path.relative_to(PACKAGE)): path for path in (*KERNELS, *HEADERS)}
    include = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
    arrows = {place: set(include.findall(path.read_text())) for place, path in folder.items()}
    assert {target for targets in arrows.values() for target in targets} <= folder.keys()
    assert circles(arrows) == []


def test_no_room_is_crowded():
    counts: dict[Path, int] = defaultdict(int)
    for path in (*SOURCES, *KERNELS, *HEADERS):
        if path.name != "__init__.py" or path.parent == PACKAGE:
            counts[path.parent] += 1
    assert counts[PACKAGE] <= 12
    assert {name(folder): count for folder, count in counts.items() if count > 18} == {}


@pytest.mark.parametrize(("paths", "most"), [(SOURCES, 350), (KERNELS, 300)], ids=[".py", ".cu"])
def test_no_file_is_long(paths, most):
    lengths = {name(path): len(path.read_text().splitlines()) for path in paths}
    assert {path: lines for path, lines in lengths.items() if lines > most} == {}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                yield f"{name(path)}:{node.name}", node


def test_no_function_is_long():
    lines = {where: (node.end_lineno or 0) - node.lineno + 1 for where, node in functions()}
    assert {where: count for where, count in lines.items() if count > 60} == {}


def calls(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def test_no_signature_is_wide():
    """Functions that stand for a kernel's arguments (Numba, LLVM) and click's callbacks apart."""
    wide = {}
    for where, node in functions():
        asked = node.args
        count = len([*asked.posonlyargs, *asked.args, *asked.kwonlyargs])
        kernel = any("jit" in calls(d) or "intrinsic" in calls(d) for d in node.decorator_list)
        if count > 8 and not kernel and not where.startswith("lenetgpu/cli/"):
            wide[where] = count
    assert wide == {}


def places(pattern: str) -> set[str]:
    found = re.compile(pattern)
    return {name(path) for path in SOURCES if found.search(path.read_text())}


def test_two_places_prepare_a_variant():
    """Mounted, and the variant that hands its work to another."""
    assert places(r"\.prepare\(") == {
        "lenetgpu/stages/mounted.py",
        "lenetgpu/stages/conv/tuned/choose.py",
    }


def test_one_place_captures_a_graph():
    assert places(r"begin_capture|cuda\.graph\(") == {"lenetgpu/gpu/graph.py"}


def test_one_place_interleaves_and_one_knows_tolerances():
    assert places(r"random\.Random\(") == {"lenetgpu/measure/rounds.py"}
    assert places(r"^TOLERANCE = |\nTOLERANCE = ") == {"lenetgpu/check/judge.py"}


def test_one_place_times_by_events_and_one_by_the_clock():
    assert places(r"get_elapsed_time") == {
        "lenetgpu/measure/timing.py",
        "lenetgpu/measure/trace.py",
    }
    assert places(r"def cpu_ms") == {"lenetgpu/measure/timing.py"}


def test_one_place_knows_a_devices_figures():
    """No machine's multiprocessors, shared memory or clocks outside gpu/machines.py."""
    elsewhere = places(r"\b132\b|\b227 (\*|<<)|MultiProcessorCount|MaxSharedMemoryPer|ClockRate")
    assert elsewhere == {"lenetgpu/gpu/machines.py"}


def test_the_gpu_layer_knows_no_stages():
    below = [path for path in (*SOURCES, *HEADERS) if path.is_relative_to(PACKAGE / "gpu")]
    assert below and [name(path) for path in below if "stages" in path.read_text()] == []


_PUNCTUATION = re.compile(r"^[\W_]*$")


def telling_lines(path: Path) -> list[tuple[int, str]]:
    """(line number, text) without blank lines, comments, imports and lone punctuation."""
    found, importing = [], False
    for number, raw in enumerate(path.read_text().splitlines(), 1):
        line = " ".join(raw.split())
        starts = line.startswith(("import ", "from ", "#include"))
        if starts or importing:
            importing = (starts and line.endswith("(")) or (importing and line != ")")
            continue
        if not _PUNCTUATION.match(line) and not line.startswith(("#", "//")):
            found.append((number, line))
    return found


def repeated(paths: list[Path], least: int = 6, most: int = 8) -> set[tuple[str, str]]:
    """Pairs of files (or a file with itself) that share `least` lines to the letter.

    Runs that stand in more than `most` places are boilerplate.
    """
    where: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
    for path in paths:
        lines = telling_lines(path)
        for at in range(len(lines) - least + 1):
            where[tuple(text for _, text in lines[at : at + least])].append((path, at))
    pairs = set()
    for found in where.values():
        for index, (first, at) in enumerate(found[:most]):
            for second, other in found[index + 1 : most]:
                if first != second or other - at >= least:
                    pairs.add((name(first), name(second)))
    return pairs


def test_little_is_written_twice():
    pairs = repeated([*SOURCES, *KERNELS, *HEADERS])
    assert len(pairs) <= 6, sorted(pairs)


def test_the_front_door_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 160
    install = next(number for number, line in enumerate(lines, 1) if "pip install" in line)
    assert install < 40
