"""Compilation of CUDA C++ source to cubin with NVRTC, cached on disk; needs no GPU.

The cache key covers the source, every header it includes, the options, the architecture, and the
versions of NVRTC, CuPy and the driver. A binary is used only if its digest matches its entry.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.gpu import compiler, nvml
from lenetgpu.store import entries

_THREADS = 16
INCLUDE_ROOT = Path(__file__).resolve().parents[1]
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120")
_INCLUDE = r'(?m)^\s*#include\s+"([^"]+)"'
_OPTIONS = ("-std=c++17", "-default-device", "--ptxas-options=-v")
_SOURCE_ERROR = r"(?m)^(.+?)\((\d+)\): (?:\w+ )?error(?: #[\w-]+)?: (.+)$"
_TOOL_ERROR = r"(?m)^\s*(?:ptxas|nvrtc)\b.*?\berror *: (.+)$"
_LAST_WORDS = r"(?m)^\s*(?:ptxas|nvrtc) fatal *: (.+)$"
_ENTRY = r"Compiling entry function '(\w+)'"


def _number(arch: str) -> int:
    return int(arch.removeprefix("sm_").rstrip("af"))


@cache
def _source_beside(module: str) -> Path:
    return Path(module).with_suffix(".cu").resolve()


@dataclass(frozen=True)
class Kernel:
    """An entry point of a `.cu` file with `-D` definitions; `only`: its architectures, () all."""

    source: Path
    entry: str
    defines: tuple[tuple[str, int | str], ...] = ()
    only: tuple[str, ...] = ()

    @classmethod
    def beside(
        cls, module: str, entry: str, only: tuple[str, ...] = (), /, **defines: int | str
    ) -> "Kernel":
        """Return an entry of the `.cu` file with the path of the Python file `module`."""
        return cls(_source_beside(module), entry, tuple(defines.items()), only)

    def meant_for(self, arch: str) -> bool:
        """Return True if it is launched on `arch`, or on the next lower listed architecture."""
        below = [known for known in ARCHITECTURES if _number(known) <= _number(arch)]
        return not self.only or (below[-1] if below else arch) in self.only

    @property
    def macros(self) -> tuple[str, ...]:
        """The `-D` options; ENTRY_<entry> selects this entry point in its file."""
        return (f"-DENTRY_{self.entry}=1", *(f"-D{k}={v}" for k, v in self.defines))


@dataclass(frozen=True)
class Resources:
    """A kernel's resource usage per thread or per block, from ptxas."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Compiled:
    """A kernel's cubin, resources and compiler log; `path` is the cached cubin, None if none."""

    path: Path | None
    resources: Resources
    log: str
    binary: bytes = field(repr=False)


class CompileError(LenetError):
    """A compilation failure with file, line and first message; `log` is the complete log."""

    def __init__(self, sentence: str, log: str = "") -> None:
        super().__init__(sentence)
        self.log = log


def _refused(kernel: Kernel, arch: str, status: str, log: str) -> CompileError:
    """Return the error for NVRTC's `log`: the first error's location, and the number of others."""
    source, what = kernel.source.name, f"{kernel.entry} for {arch}"
    errors = re.findall(_SOURCE_ERROR, log)
    messages = [message for _, _, message in errors]
    if errors:
        file, line, _ = errors[0]
        if Path(file).name != source:
            what = f"{kernel.entry} of {source} for {arch}"
        source = f"{Path(file).name}, line {line}"
    messages = messages or re.findall(_TOOL_ERROR, log) or re.findall(_LAST_WORDS, log) or [status]
    count = len(messages) - 1
    more = f" (and {count} more error{'s' * (count > 1)})" if count else ""
    found = f"{messages[0]}{more}"
    return CompileError(f"{source}, {what}: expected it to compile, found: {found}", log)


def source_files(source: Path) -> list[Path]:
    """Return `source` and every file that it includes by a quoted name, directly or not."""
    found, todo = [], [source]
    while todo:
        path = todo.pop()
        if path in found:
            continue
        found.append(path)
        for name in re.findall(_INCLUDE, path.read_text()):
            candidates = (path.parent / name, INCLUDE_ROOT / name)
            todo += [here for here in candidates if here.is_file()][:1]
    return found


@cache
def source_hash(source: Path) -> str:
    """Return the SHA-256 of a kernel source and its headers."""
    digest = hashlib.sha256()
    for path in sorted(source_files(source)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def version() -> tuple[int, int]:
    """Return NVRTC's (major, minor)."""
    return compiler.current().version


@cache
def surroundings() -> tuple[str | None, ...]:
    """Return the versions of the driver and of CuPy that run compiled kernels; None if missing."""
    cupy = compiler.installed(*compiler.CUPY)
    return nvml.loaded_driver() or nvml.driver_version(), cupy and cupy[0]


def environment() -> tuple[object, ...]:
    """Return the inputs to compilation except source: NVRTC's version, build, `surroundings`."""
    return (version(), compiler.current().build, *surroundings())


@cache
def supported(arch: str) -> bool:
    """Return True if this NVRTC compiles for `arch`."""
    _, archs = compiler.library().nvrtcGetSupportedArchs()
    return int(re.sub(r"\D", "", arch)) in archs


def _parse_resources(log: str, kernel: Kernel, arch: str) -> Resources:
    entry, where = kernel.entry, f"{kernel.source.name}, {kernel.entry} for {arch}"
    compiled = re.findall(_ENTRY, log)
    if entry not in compiled and "ptxas info" in log:
        raise CompileError(
            f'{where}: expected an extern "C" __global__ function of this name, '
            f"found {', '.join(compiled) or 'none'}",
            log,
        )
    section = log.split(f"Compiling entry function '{entry}'")[-1]
    frame = re.search(r"(\d+) bytes stack frame, (\d+) .* stores, (\d+) .* loads", section)
    used = re.search(r"Used (\d+) registers(.*)", section)
    if frame is None or used is None:
        raise CompileError(f"{where}: expected ptxas to report resources, found none", log)
    shared = re.search(r"(\d+) bytes smem", used[2])
    stack, stores, loads = map(int, frame.groups())
    return Resources(int(used[1]), int(shared[1]) if shared else 0, stack, stores + loads)


def _run_nvrtc(kernel: Kernel, arch: str, options: list[str]) -> tuple[bytes, str]:
    nvrtc = compiler.library()

    def read(size_of: Any, get: Any) -> bytes:
        size = int(size_of(program)[1])
        # NVRTC writes into the object; Python shares bytes objects of length 0 and 1
        buffer = bytes(size + 2)
        get(program, buffer)
        return buffer[:size]

    text = kernel.source.read_bytes()
    _, program = nvrtc.nvrtcCreateProgram(text, kernel.source.name.encode(), 0, [], [])
    try:
        encoded = [option.encode() for option in options]
        status = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]
        log = read(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        message = log.replace(b"\0", b"").decode(errors="replace")
        if int(status) != 0:
            raise _refused(kernel, arch, status.name, message)
        return read(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN), message
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _entry(kernel: Kernel, arch: str) -> tuple[str, list[str]]:
    folders = dict.fromkeys((kernel.source.parent, INCLUDE_ROOT))
    options = [*_OPTIONS, *compiler.current().options, f"-arch={arch}"]
    options += [*(f"-I{folder}" for folder in folders), *kernel.macros]
    named = [option for option in options if not option.startswith("-I")]
    key = hashlib.sha256(
        json.dumps([source_hash(kernel.source), kernel.entry, named, environment()]).encode()
    ).hexdigest()[:32]
    return f"{kernel.source.stem}.{kernel.entry}.{arch}.{key}", options


_uncached: dict[str, Compiled] = {}  # kernels of this process that could not be cached


def _cached(name: str) -> Compiled | None:
    entry = None if name in _uncached else entries.read_cubin(name)
    if entry is None:
        return _uncached.get(name)
    path, binary, facts = entry
    with contextlib.suppress(LookupError, TypeError):
        resources = Resources(**facts["resources"])
        if all(type(used) is int for used in asdict(resources).values()):
            return Compiled(path, resources, str(facts["log"]), binary)
    entries.refuse(entries.KERNELS, name, "expected a kernel's facts, found others")
    return None


def compile_together(kernels: Iterable[Kernel], arch: str) -> None:
    """Compile in threads the uncached `kernels` for `arch`; `compile_kernel` repeats errors."""
    meant = [k for k in dict.fromkeys(kernels) if k.meant_for(arch) and k.source.is_file()]
    todo = [kernel for kernel in meant if _cached(_entry(kernel, arch)[0]) is None]
    if len(todo) < 2:
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
        for kernel in todo:
            pool.submit(compile_kernel, kernel, arch)


def compile_kernel(kernel: Kernel, arch: str) -> Compiled:
    """Return `kernel` compiled for `arch` ("sm_90a"), cached; raise CompileError or LenetError."""
    if not kernel.source.is_file():
        what = f"{kernel.source}, {kernel.entry} for {arch}"
        raise CompileError(f"{what}: expected a file, found none there")
    name, options = _entry(kernel, arch)
    cached = _cached(name)
    if cached is not None:
        return cached
    if compiler.outdated():
        return compile_kernel(kernel, arch)
    binary, log = _run_nvrtc(kernel, arch, options)
    resources = _parse_resources(log, kernel, arch)
    path = entries.write_cubin(name, binary, {"resources": asdict(resources), "log": log})
    compiled = Compiled(path, resources, log, binary)
    return compiled if path else _uncached.setdefault(name, compiled)
