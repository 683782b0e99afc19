"""What test_house counts: the package's sources as syntax trees, their figures, what repeats."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from math import nan
from operator import add, mul, sub
from pathlib import Path

from conftest import ROOT

PACKAGE = ROOT / "lenetgpu"
SOURCES = sorted(PACKAGE.rglob("*.py"))
KERNELS = sorted(PACKAGE.rglob("*.cu"))
HEADERS = sorted(PACKAGE.rglob("*.cuh"))
STAGES = [p for p in (*SOURCES, *KERNELS, *HEADERS) if p.is_relative_to(PACKAGE / "stages")]
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
IMPORTERS = {"import_module", "__import__"}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def aliases(path: Path) -> dict[str, str]:
    """What the names that a file's imports bind stand for."""
    found = {}
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if inside or alias.asname:
                    found[alias.asname or alias.name] = inside + alias.name
    return found


def dotted(node: ast.AST, path: Path) -> str:
    """The name of an expression, or of what it calls, from its module on; ? if it has none."""
    if isinstance(node, ast.Call):
        return dotted(node.func, path)
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value, path)}.{node.attr}"
    return aliases(path).get(node.id, node.id) if isinstance(node, ast.Name) else "?"


def texts(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value


def called(node: ast.Call, path: Path) -> str:
    return dotted(node, path).rpartition(".")[2]


@cache
def said(path: Path) -> frozenset[str]:
    """Names that a file reads ("a.b"), binds ("a ="), defines ("def a") or imports ("import a").

    A name asked for by its text, as by getattr, is read; one compared with None is not.
    """
    found, nodes = set(aliases(path).values()), list(ast.walk(tree(path)))
    compared = [node for node in nodes if isinstance(node, ast.Compare)]
    asked = {id(node.left) for node in compared if isinstance(node.ops[0], (ast.Is, ast.IsNot))}
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {f"import {alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(f"import {node.module}")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(f"def {node.name}")
        elif isinstance(node, (ast.Name, ast.Attribute)) and id(node) not in asked:
            found.add(dotted(node, path) + (" =" if isinstance(node.ctx, ast.Store) else ""))
        elif isinstance(node, ast.Call):
            if called(node, path) in {"getattr", "attrgetter", "methodcaller"}:
                found |= {f"?.{text}" for text in texts(node)}
            elif called(node, path) in IMPORTERS:
                found |= {f"import {text}" for text in texts(node)}
        elif isinstance(node, ast.Subscript):
            found |= {f"[{text}]" for text in texts(node.slice)}
    return frozenset(found)


def places(pattern: str) -> set[str]:
    """Files that say a name whose end is `pattern`."""
    found = re.compile(rf"(.*\.)?({pattern})")
    return {name(path) for path in SOURCES if any(map(found.fullmatch, said(path)))}


def imported(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports, wherever in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lenetgpu":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)


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


FIGURES = {132, 228 << 10, 227 << 10, 99 << 10, 65536, 1980, 1785, 3352, 4800, 4814, 4917}
_DONE = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.LShift: lambda a, b: a * 2 ** min(b, 64)}
_COMMENT = re.compile(r"//.*|(?s:/\*.*?\*/)|(?<=\d)'(?=\d)")
_NUMBER = re.compile(r"(?<![\w.])0*(0[xX][\da-fA-F]+|\d+)(?:\.0*)?[uUlLfF]*(?![\w.])")
_PRODUCT = re.compile(r"\b\d+\b(?:\s*(?:\*|<<)\s*\d+\b)*")


def valued(node: ast.AST, names: dict[str, float]) -> float:
    """A constant expression's value, with a file's constants by name; nan for any other."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _DONE:
        left, right = valued(node.left, names), valued(node.right, names)
        if max(abs(left), abs(right)) < 1e12:
            return _DONE[type(node.op)](left, right)
    return names.get(node.id, nan) if isinstance(node, ast.Name) else nan


def figures(code: ast.Module) -> set[float]:
    """Those that are the value of a constant expression."""
    names: dict[str, float] = {}
    for node in code.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value:
            for target in getattr(node, "targets", None) or [node.target]:
                names[ast.unparse(target)] = valued(node.value, names)
    return {valued(node, names) for node in ast.walk(code)} & FIGURES


def kernel(path: Path) -> ast.Module:
    """The numbers of CUDA code, their products and shifts, as Python."""
    code = _COMMENT.sub(lambda found: " " * (found[0] != "'"), path.read_text())
    numbers = _NUMBER.sub(lambda found: str(int(found[1], 0)), code)
    return ast.parse("\n".join(_PRODUCT.findall(numbers)))


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
