"""The house can be seen from its tree: what is counted of it, and how far it may go.

Floors are listed in CONTRIBUTING.md. `pytest tests/test_house.py -v` prints a row a rule.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from house import (
    HEADERS,
    IMPORTERS,
    KERNELS,
    MODULES,
    PACKAGE,
    SCRIPTS,
    SOURCES,
    STAGES,
    called,
    circles,
    dotted,
    figures,
    imported,
    kernel,
    name,
    places,
    repeated,
    texts,
    tree,
)

# bottom up; imports run from a floor to a lower one, or stay in their room
FLOORS = (
    {"errors"}, {"store"}, {"cache"}, {"problems", "layouts"}, {"network"}, {"cpu"}, {"gpu"},
    {"files"}, {"stages"}, {"plan"}, {"pipeline"}, {"check"}, {"measure"}, {"dispatch"}, {"net"},
    {"pictures"}, {"jobs"}, {"papers"}, {"lab"}, {"cli"}, {"__main__", "__init__"},
)  # fmt: skip
LONGEST = {".py": (SOURCES, 350), ".cu": (KERNELS, 300), ".cuh": (HEADERS, 320)}
LONGEST["scripts"] = (SCRIPTS, 370)
ARROWS = {
    module: sorted(set(imported(path)) - {module, "lenetgpu"}) for module, path in MODULES.items()
}


def room(module: str) -> str:
    return [*module.split("."), "__init__"][1]


def floor(module: str) -> int:
    found = [height for height, rooms in enumerate(FLOORS) if room(module) in rooms]
    assert found, f"{module}: expected a room that FLOORS lists, found {room(module)}"
    return found[0]


def test_imports_run_down():
    up = [
        f"{module} imports {target}"
        for module, targets in ARROWS.items()
        for target in targets
        if room(module) != room(target) and floor(target) >= floor(module)
    ]
    assert up == []


def test_imports_are_plain():
    """None is relative, and none of the package goes by its text."""
    for path in SOURCES:
        nodes = list(ast.walk(tree(path)))
        assert [n.lineno for n in nodes if isinstance(n, ast.ImportFrom) and n.level] == []
        asked = [n for n in nodes if isinstance(n, ast.Call) and called(n, path) in IMPORTERS]
        by_text = [text for node in asked for text in texts(node)]
        assert [text for text in by_text if re.match(r"lenetgpu|\.\w", text)] == [], path
    assert places(r"import_module|__import__|exec_module|run_module|import runpy") == {
        "lenetgpu/gpu/graph.py",
        "lenetgpu/measure/torch_peer.py",
        "lenetgpu/stages/outside.py",
        "lenetgpu/stages/registry.py",
    }


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


@pytest.mark.parametrize(("paths", "most"), LONGEST.values(), ids=LONGEST)
def test_no_file_is_long(paths, most):
    assert paths
    lengths = {name(path): len(path.read_text().splitlines()) for path in paths}
    assert {path: lines for path, lines in lengths.items() if lines > most} == {}


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield path, node


def test_no_function_is_long():
    lines = [(path, f.name, (f.end_lineno or 0) - f.lineno + 1) for path, f in functions()]
    assert [where for where in lines if where[-1] > 60] == []


_KERNEL = re.compile(r"numba\.(.*\.)?(jit|njit|intrinsic)")
_COMMAND = re.compile(r"click\.\w+|\w+\.(command|group)")


def test_no_signature_is_wide():
    """Functions that stand for a kernel's arguments (Numba, LLVM) and click's callbacks apart."""
    wide = {}
    for path, node in functions():
        asked = node.args
        count = len([*asked.posonlyargs, *asked.args, *asked.kwonlyargs])
        by = [dotted(decorator, path) for decorator in node.decorator_list]
        apart = any(map(_KERNEL.fullmatch, by)) or (
            path.parent == PACKAGE / "cli" and any(map(_COMMAND.fullmatch, by))
        )
        if count > 8 and not apart:
            wide[f"{name(path)}:{node.name}"] = count
    assert wide == {}


def test_two_places_prepare_a_variant():
    """Mounted, and the variant that hands its work to another."""
    assert places(r"\S+\.prepare") == {
        "lenetgpu/stages/mounted.py",
        "lenetgpu/dispatch/choose.py",
    }


def test_one_place_captures_a_graph():
    capture = r"\w*begin_?capture\w*|cuda\.graphs?|make_graphed_callables|CUDAGraph"
    assert places(rf"(?i:{capture})") == {"lenetgpu/gpu/graph.py"}


def test_one_place_interleaves_and_one_knows_tolerances():
    shuffled = r"import random|Random|SystemRandom|random\.(shuffle|sample)|shuffle"
    assert places(rf"{shuffled}|permutation|permuted|randperm") == {"lenetgpu/measure/rounds.py"}
    assert places(r"_?TOLERANCES? =") == {"lenetgpu/check/judge.py"}


def test_one_place_times_by_events_and_one_by_the_clock():
    assert places(r"(?i:\w*elapsed_?time\w*)") == {
        "lenetgpu/measure/trace.py",
        "lenetgpu/measure/timing.py",
    }
    assert places(r"def cpu_ms") == {"lenetgpu/measure/timing.py"}


def test_few_places_read_a_clock():
    clocks = r"import (time|timeit)|(perf_counter|monotonic|process_time|thread_time)(_ns)?"
    assert places(rf"{clocks}|time\.time(_ns)?|default_timer|clock_gettime(_ns)?") == {
        "lenetgpu/check/warmup.py",
        "lenetgpu/cli/group.py",
        "lenetgpu/cli/run.py",
        "lenetgpu/measure/rounds.py",
        "lenetgpu/measure/timing.py",
    }


# of an architecture rather than a device: what a multiprocessor holds, a block's shared memory
# asserted, constant memory
ALLOWED = {
    ("lenetgpu/gpu/occupancy.py", 228 << 10),
    ("lenetgpu/gpu/occupancy.py", 65536),
    ("lenetgpu/gpu/workspace.py", 65536),
    ("lenetgpu/stages/conv/direct.cu", 65536),
    ("lenetgpu/stages/conv/unrolled.cu", 65536),
    ("lenetgpu/stages/fused/mma/classifier.cu", 99 << 10),
    ("lenetgpu/stages/fused/mma/features.cu", 99 << 10),
    ("lenetgpu/stages/fused/wgmma/conv2.cuh", 227 << 10),
    ("lenetgpu/stages/fused/wgmma/fp16_classifier.cu", 227 << 10),
}


def test_one_place_knows_a_devices_figures():
    """No machine's multiprocessors, shared memory or clocks outside gpu/machines.py."""
    read = r"\[(MultiProcessorCount|MaxSharedMemoryPer\w+|\w*ClockRate)\]"
    assert places(read + r"|multi_?[pP]rocessor_?[cC]ount") == {"lenetgpu/gpu/machines.py"}
    rest = [path for path in (*SOURCES, *STAGES) if path != PACKAGE / "gpu" / "machines.py"]
    codes = {path: tree(path) if path.suffix == ".py" else kernel(path) for path in rest}
    known = {(name(path), value) for path, code in codes.items() for value in figures(code)}
    assert known == ALLOWED


def test_one_model_is_fitted_to_a_machine():
    """Which scales by its figures; other stages ask for the machine that they are on."""
    said_in = places(r"H100|H200|GTX_1080_TI|USUAL|KNOWN|known") & set(map(name, STAGES))
    assert said_in == {"lenetgpu/stages/conv/tuned/clocks.py"}


def test_the_gpu_layer_knows_no_stages():
    below = [path for path in (*SOURCES, *HEADERS) if path.is_relative_to(PACKAGE / "gpu")]
    assert below and [name(path) for path in below if "stages" in path.read_text()] == []


def test_little_is_written_twice():
    pairs = repeated([*SOURCES, *KERNELS, *HEADERS])
    assert len(pairs) <= 6, sorted(pairs)


def test_the_front_door_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 160
    install = next(number for number, line in enumerate(lines, 1) if "pip install" in line)
    assert install < 40
