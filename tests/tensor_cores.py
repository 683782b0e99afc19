"""Helpers to compile tensor core kernels as C++ and launch them on this CPU (cpu_mma.hpp)."""

import ctypes
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from conftest import ROOT
from test_kernels_on_a_cpu import build_once, version

from lenetgpu.check.judge import judge
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT
from lenetgpu.layouts import narrowed, widened
from lenetgpu.problems import Conv
from lenetgpu.stages.reference import conv_reference as reference

compiled_here = pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")
NCHW = {"reads": "NCHW", "writes": "NCHW"}
TINY = np.float32(2.0**-149)
SCALES = {
    "1e30 and 1e-30": (1e30, 1e-30), "both 1e-18": (1e-18, 1e-18),
    "denormal filters": (1e10, 1e-40), "the least": (TINY, 1e30),
}  # fmt: skip


def cases(fast, slow=()):
    """Parametrize `case` with `fast` in every run and with `slow` in long runs."""
    marked = [pytest.param(case, marks=pytest.mark.slow) for case in slow]
    return pytest.mark.parametrize("case", [*fast, *marked], ids=str)


def conv(text, **how):
    """Return the problem C,H,W,M,R,S[,stride[,pad]], like the command line with R and S apart."""
    c, h, w, m, r, s, *rest = (int(word) for word in text.split(","))
    return Conv(h, w, c, m, r, s, *rest, **how)


def listed(section):
    """Yield problem, number of images and further words of a section's rows in conv-cases.txt."""
    text = (ROOT / "tests" / "conv-cases.txt").read_text()
    for line in text.partition(f"[{section}]\n")[2].partition("\n[")[0].splitlines():
        if row := line.partition("#")[0].split():
            reads, _, writes = row[1].partition("-")
            yield conv(row[0], reads=reads, writes=writes or reads), int(row[2]), row[3:]


def flat(path, seen):
    """Return a source with the folder's headers inlined, without what namespaces cannot contain."""
    if path in seen:
        return ""
    seen.add(path)
    lines = []
    for line in path.read_text().splitlines():
        found = re.match(r'#include "(.*)"', line)
        if found is None:
            lines.append(line)
        elif found[1].startswith("stages/") and not found[1].endswith("/wide.cuh"):  # which is PTX
            lines.append(flat(INCLUDE_ROOT / found[1], seen))
    text = "\n".join(lines).replace("#pragma once", "").replace('extern "C" ', "")
    memory = "unsigned char* memory = reinterpret_cast<unsigned char*>(cpu::memory());"
    return re.sub(r"extern __shared__ .*? memory\[\];", memory, text)


def in_a_namespace(number, kernel):
    macros = [(f"ENTRY_{kernel.entry}", 1), *kernel.defines]
    lines = [f"namespace k{number} {{", *(f"#define {k} {v}" for k, v in macros)]
    lines += [flat(kernel.source, set()), *(f"#undef {k}" for k, _ in macros), "}"]
    return "\n".join([*lines, f"RUN(run{number}, k{number}::{kernel.entry})"])


def compiled(kernels, folder):
    """Return kernel -> its function and its library; two libraries are built concurrently."""
    kernels = list(dict.fromkeys(kernels))

    def built(half):
        source, library = folder / f"half{half}.cpp", folder / f"half{half}.so"
        texts = [in_a_namespace(i, k) for i, k in enumerate(kernels) if i % 2 == half]
        text = "\n".join(['#include "cpu_mma.hpp"', *texts])
        build_once(source, text, library, "-O0", "-shared", f"-I{ROOT / 'tests'}")
        return ctypes.CDLL(str(library))

    with ThreadPoolExecutor() as pool:
        libraries = list(pool.map(built, (0, 1)))
    found = {}
    for i, kernel in enumerate(kernels):
        run = getattr(libraries[i % 2], f"run{i}")
        run.restype = ctypes.c_char_p
        found[kernel] = run, libraries[i % 2]
    return found


def selected(request, module):
    """Return the cases of a module's selected tests; None if one of the tests has no case."""
    items = [item for item in request.session.items if item.module.__name__ == module]
    using = [item for item in items if "functions" in item.fixturenames]
    found = [getattr(item, "callspec", None) and item.callspec.params.get("case") for item in using]
    return None if None in found else found


def argument(value):
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_float(value) if isinstance(value, np.float32) else ctypes.c_int32(int(value))


def launcher(functions, rng):
    """Return a CPU `launch` that checks reads outside the arguments, and that all threads wait."""

    def launch(kernel, grid, block, args, shared=0, overlap=False):
        run, library = functions[kernel]
        library.may_read(None, 0)
        for array in args:
            if isinstance(array, np.ndarray):
                at = ctypes.c_void_p(array.ctypes.data)
                library.may_read(at, ctypes.c_size_t(array.nbytes))
        held = [argument(value) for value in args]
        addresses = (ctypes.c_void_p * len(held))(*(ctypes.addressof(value) for value in held))
        seed = int(rng.integers(1 << 30))
        mistake = run(grid[0], block[0], ctypes.c_ulong(shared), seed, addresses)
        assert mistake is None, f"{kernel.entry}: {mistake.decode()}"
        assert overlap and library.waited() == grid[0] * block[0], kernel.entry

    return launch


def operands(case, rng):
    """Return random images and filters, or (filters, bias), in the problem's dtype."""
    problem = case.problem
    drawn = [
        narrowed(rng.standard_normal(shape).astype(np.float32), problem.dtype)
        for shape in ((case.images, *problem.in_shape), problem.weight_shape, (problem.M,))
    ]
    return drawn[0], tuple(drawn[1:]) if problem.bias else drawn[1]


def assert_each_right(found, x, w, case):
    """Check every image and filter separately, relative to its sums before ReLU."""
    expected = reference(x, w, case.problem)
    sums = reference(x, w, replace(case.problem, relu=False)) if case.problem.relu else expected
    for image, exact, whole in zip(found, expected, sums, strict=True):
        for m in range(case.problem.M):
            most = narrowed(np.float32([abs(whole[..., m]).max()]), case.problem.dtype)
            both = np.append(image[..., m], most), np.append(exact[..., m], widened(most))
            assert judge(*both, "fp16x3").passed, (case, m)


def no_numbers(case, value, compute, rng):
    """Check that NaN and infinity of inputs and filters propagate where read, and nowhere else."""
    one, frame = np.zeros((2, *case.problem.in_shape[:2]), bool)
    one[2, 3] = frame[[0, -1]] = frame[:, [0, -1]] = True
    for pixels in (one, frame):
        x, w = operands(case, rng)
        x[1, pixels, 4] = value
        with np.errstate(invalid="ignore"):
            expected = reference(x, w, case.problem)
        found = compute(case, x, w)
        reached = ~np.isfinite(expected)
        assert reached.any() and np.array_equal(~np.isfinite(found), reached)
        assert judge(found[~reached], expected[~reached], "fp16x3").passed
    x, w = operands(case, rng)
    w[1, 1, 4, 6] = value
    found = compute(case, x, w)
    assert not np.isfinite(found[..., 6]).any()
    rest = np.arange(case.problem.M) != 6
    w[..., 6] = 0
    assert judge(found[..., rest], reference(x, w, case.problem)[..., rest], "fp16x3").passed
