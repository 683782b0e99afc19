"""Rules that ruff and import-linter cannot express: allowed places, lengths, duplication."""

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from itertools import combinations
from pathlib import Path

import pytest
from conftest import ROOT

PACKAGE = ROOT / "lenetgpu"
SOURCES = sorted(PACKAGE.rglob("*.py"))
CUDA = sorted([*PACKAGE.rglob("*.cu"), *PACKAGE.rglob("*.cuh")])
TEXTS = {str(path.relative_to(PACKAGE)): path.read_text() for path in (*SOURCES, *CUDA)}


def files_with(pattern: str, *endings: str) -> set[str]:
    """Return the files with a line that matches."""
    found = re.compile(pattern, re.MULTILINE)
    return {name for name, text in TEXTS.items() if name.endswith(endings) and found.search(text)}


@pytest.mark.parametrize(
    ("pattern", "where"),
    [
        (r"\.prepare\(|\.prepare\b.*getattr", {"stages/prepared.py", "dispatch/choose.py"}),
        (r"begin_?[cC]apture|make_graphed_callables|CUDAGraph", {"gpu/graph.py"}),
        (r"^import random|^from random|\.(shuffle|permutation|permuted)\(", {"measure/rounds.py"}),
        (r"^_?TOLERANCES?\b.* = ", {"check/judge.py"}),
        (r"elapsed_?[tT]ime", {"measure/timing.py"}),
        (r"def cpu_ms", {"measure/timing.py"}),
        (r"MultiProcessorCount|MaxSharedMemoryPer|ClockRate|multi_?[pP]rocessor_?[cC]ount",
         {"gpu/machines.py"}),
        (r"import_module|__import__|exec_module|run_module|import runpy",
         {"arrays.py", "cli/options.py", "gpu/graph.py", "measure/torch_peer.py",
          "stages/plugin_files.py", "stages/registry.py"}),
    ],
)  # fmt: skip
def test_pattern_is_used_only_in_allowed_files(pattern, where):
    assert files_with(pattern, ".py") == where


def test_device_figures_are_in_one_file():
    """Multiprocessor counts and clocks of known GPUs; all other code queries the machine."""
    found = files_with(
        r"(?<![\w.])(132|1980|1785|3352|4800|4814|4917)(?![\w.])", ".py", ".cu", ".cuh"
    )
    assert found == {"gpu/machines.py"}


def test_headers_have_no_include_cycle():
    include = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
    arrows = {str(p.relative_to(PACKAGE)): set(include.findall(p.read_text())) for p in CUDA}
    assert set(TopologicalSorter(arrows).static_order()) == arrows.keys()


def test_functions_are_short_with_few_arguments():
    """Arguments of kernels, commands, LeNet.load and conv2d may be many."""
    apart = re.compile(r"njit|jit|intrinsic|click\.|\.command|\.group|classmethod")
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
                free = any(apart.search(ast.unparse(one)) for one in node.decorator_list)
                free |= node.name == "conv2d"  # PyTorch's arguments, and some more
                assert lines <= 60 and (count <= 8 or free), f"{path}: {node.name}"


def code_of(path: Path) -> list[str]:
    """Return the lines without blank ones, comments, imports and lone punctuation."""
    lines = (" ".join(line.split()) for line in path.read_text().splitlines())
    return [line for line in lines if re.match(r"\w|\W+\w", line) and not re.match(
        r"#|//|import |from |[\w\" ]+,$", line)]  # fmt: skip


def test_duplication_is_limited():
    """Counts six-line blocks found in two to eight files; more frequent ones are boilerplate."""
    where: dict[tuple[str, ...], set[Path]] = defaultdict(set)
    for path in (*SOURCES, *CUDA):
        lines = code_of(path)
        for at in range(len(lines) - 5):
            where[tuple(lines[at : at + 6])].add(path)
    pairs = {pair for paths in where.values() if len(paths) <= 8
             for pair in combinations(sorted(paths), 2)}  # fmt: skip
    assert len(pairs) <= 6, sorted(pairs)
