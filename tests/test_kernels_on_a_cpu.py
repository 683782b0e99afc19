"""Tests of plain CUDA kernels without a GPU, compiled as C++ and launched by the package.

Kernels without PTX and warp instructions run thread by thread (cpu_cuda.hpp); guard zones surround
the output.
"""

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from conftest import ROOT
from problems import in_layouts

from lenetgpu import stages
from lenetgpu.check.judge import judge
from lenetgpu.check.reference import random_input, reference
from lenetgpu.gpu import launch as launching
from lenetgpu.gpu.nvrtc import INCLUDE_ROOT
from lenetgpu.layouts import from_nhwc, held_as, physical_shape, to_nhwc
from lenetgpu.problems import Argmax, Conv, Fc, Pool, Relayout, Scale
from lenetgpu.stages.prepared import Guarded, PreparedKernel
from lenetgpu.stages.registry import REGISTRY, variants

COMPILER = shutil.which("g++")
HEADERS = ("cpu_cuda.hpp", "cpu_half.hpp")


def version():
    """Return g++'s major version; 0 without g++."""
    if COMPILER is None:
        return 0
    said = subprocess.run([COMPILER, "-dumpversion"], capture_output=True, text=True).stdout
    return int(said.partition(".")[0])


pytestmark = pytest.mark.skipif(version() < 11, reason="no g++ 11 to compile kernels for a CPU")
WINDOW = Conv(11, 13, 3, 7, 3, 2, stride=2, pad=1)
EVEN = Conv(6, 8, 4, 35, 3, 3, pad=1)
EVERYTHING = Conv(9, 8, 6, 9, 3, 2, strides=(2, 1), pads=(1, 0, 2, 1), dilation=(2, 3), groups=3)
DEPTHWISE = Conv(8, 9, 5, 10, 3, 3, stride=2, pad=1, groups=5)


def build(*arguments):
    command = [COMPILER, "-std=c++20", "-O1", "-w", "-fPIC", "-pthread", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def common_folder(tmp_path_factory, name):
    """Return a folder of this run, the same for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def build_once(source, text, library, *options):
    """Build a library of `text`, unless another process has built it."""
    with library.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            source.write_text(text)
            own = library.with_suffix(".part")
            build(*options, source, "-o", own)
            own.rename(library)


def launch_by(launch, monkeypatch):
    """Make the modules of all stages launch kernels by this function."""
    for name, module in list(sys.modules.items()):
        if name.startswith(stages.__name__) and vars(module).get("launch") is launching.launch:
            monkeypatch.setattr(module, "launch", launch)


def header_folder(folder, ptx, own, *others):
    """Copy headers of tests/ into a folder, and let `own` replace the PTX headers `ptx`."""
    (folder / "gpu" / "ptx").mkdir(parents=True)
    for name in ptx:
        (folder / "gpu" / "ptx" / f"{name}.cuh").write_text(f'#include "{own}"\n')
    for name in (own, *others):
        shutil.copy(ROOT / "tests" / name, folder)


def built_with(folder, kernel, own, text):
    """Return the library of a kernel with the source `text` and the folder's headers."""
    source = folder / f"{kernel.entry}-{abs(hash(kernel))}.cpp"
    lines = [f'#include "{own}"', *(f"#define {k} {v}" for k, v in kernel.defines), text]
    source.write_text("\n".join(lines))
    library = source.with_suffix(".so")
    build("-shared", f"-I{folder}", f"-I{INCLUDE_ROOT}", source, "-o", library)
    return ctypes.CDLL(str(library))


def compiled(kernel, folder):
    """Return a shared library that runs the kernel, and True if its threads synchronize."""
    name = f"{kernel.entry}-{abs(hash(kernel))}"
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    text = kernel.source.read_text()
    own = text.partition(f"#ifdef ENTRY_{kernel.entry}\n")[2].partition("#endif")[0] or text
    together = any(word in own for word in ("__syncthreads", "_sync(", "tiled_product"))
    if not library.exists():
        macros = [("ENTRY_" + kernel.entry, 1), *kernel.defines]
        text = text.replace("__shared__ alignas(16)", "alignas(16) __shared__")
        lines = [f'#include "{header}"' for header in HEADERS]
        lines += [f"#define {k} {v}" for k, v in macros]
        text = re.sub(
            r"extern __shared__ .*? (\w+)\[\];", r"static float \1[SHARED_BYTES / 4];", text
        )
        lines.append(re.sub(r"^\s*#pragma unroll.*$", "", text, flags=re.MULTILINE))
        lines.append(f"RUN({kernel.entry})")
        source.write_text("\n".join(lines))
        build("-shared", f"-I{INCLUDE_ROOT}", source, "-o", library)
    return ctypes.CDLL(str(library)), together


def argument(value):
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, float):
        return ctypes.c_float(value)
    return ctypes.c_int32(int(value)) if isinstance(value, np.int32) else ctypes.c_int64(value)


def started(library, together, grid, block, args):
    """Run the kernel of a library that `compiled` returned."""
    held = [argument(value) for value in args]
    addresses = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    extents = (ctypes.c_uint * 3)(*(*grid, 1, 1)[:3])
    library.run(extents, *(*block, 1)[:2], together, addresses)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder for compiled kernels, with the precompiled header that they share."""
    made = tmp_path_factory.mktemp("kernels")
    header, *_ = (shutil.copy(ROOT / "tests" / name, made) for name in HEADERS)
    build("-x", "c++-header", header, "-o", f"{header}.gch")
    return made


def product(a, b, out):
    """Stand in for cuBLAS SGEMM."""
    np.matmul(a, b, out=out)


def found_magnitudes(rows, found):
    """Stand in for cuBLAS Idamax of a 32-bit build of CuPy, row by row."""
    found.view(np.int32)[::2] = np.abs(rows).argmax(axis=1) + 1


class Transforms:
    """A cuFFT plan: whole batches, real to half a spectrum or back, unscaled."""

    def __init__(self, size, batch, inverse):
        self.size, self.batch, self.inverse = size, batch, inverse

    def fft(self, array, out, direction):
        assert direction == (1 if self.inverse else -1)
        assert array.size // prod(array.shape[-2:]) == self.batch
        if self.inverse:
            assert out.shape[-2:] == self.size
            out[...] = np.fft.irfft2(array, s=self.size) * prod(self.size)
            array[...] = np.nan  # CUFFT_C2R may
        else:
            out[...] = np.fft.rfft2(array)


@pytest.fixture
def on_a_cpu(folder, monkeypatch):
    """Make the package's modules launch on this CPU, with NumPy in place of CuPy."""

    def launch(kernel, grid, block, args, shared=0, loaded=None, overlap=False):
        started(*compiled(kernel, folder), grid, block, args)

    monkeypatch.setitem(sys.modules, "cupy", np)
    for name, stand_in in (
        ("exact_sgemm", product), ("largest_of_rows", found_magnitudes), ("fft_plan", Transforms)
    ):  # fmt: skip
        for module in list(sys.modules.values()):
            if hasattr(module, name) and module.__name__.startswith(stages.__name__):
                monkeypatch.setattr(module, name, stand_in)
    launch_by(launch, monkeypatch)


def assert_right(variant, problem, n, rng, spare=0):
    """Check a variant that is prepared for `spare` more than `n` images."""
    x, w = random_input(variant.kind, problem, n, rng)
    expected = reference(variant.kind, x, w, problem)
    flat = problem.reads in ("NC", "N")
    held = np.ascontiguousarray(x if flat else from_nhwc(x, problem.reads))
    before = held.copy()
    state = variant.prepare(w, problem, n + spare) if variant.prepare else w
    shape = physical_shape(problem.writes, n, problem.out_shape)
    guarded = [Guarded(np, shape, held_as(problem))]
    y = guarded[0].array
    PreparedKernel.poison(y)
    if hasattr(state, "shape") and w is None:  # workspace
        guarded.append(Guarded(np, state.shape, state.dtype))
        state = guarded[1].array
    variant.launch(held, state, y, problem)
    found = y if problem.writes in ("NC", "N") else to_nhwc(y, problem.writes, problem.out_shape)
    verdict = judge(found, expected, "fp32")
    assert verdict.passed, f"{verdict} for {problem}"
    assert [f.intact for f in guarded] == [True] * len(guarded), f"written beside for {problem}"
    assert np.array_equal(held, before), f"input changed for {problem}"


CASES = [
    ("pool", "fused.relu_in_mean", Pool(6, 10, 7), 3),
    ("pool", "basic.two_passes", Pool(6, 10, 7), 3),
    ("pool", "layout.quad", Pool(6, 10, 7), 3),
    ("pool", "tiled.shared", Pool(14, 4, 33), 3),
    ("pool", "unrolled.windows", Pool(6, 10, 7), 3),
    ("pool", "cublas.sgemm", Pool(6, 10, 7), 3),
    ("pool", "fft.cufft", Pool(6, 10, 7), 3),
    ("argmax", "thread.per_image", Argmax(7), 133),
    ("argmax", "reduction.list", Argmax(10), 70),
    ("argmax", "tiled.shared", Argmax(10), 133),
    ("argmax", "unrolled.pairs", Argmax(33), 67),
    ("argmax", "cublas.idamax", Argmax(33), 67),
    ("scale", "cuda.pixels", Scale(5, 7, 3, "uint8"), 3),
    ("relayout", "cuda.gather", Relayout(6, 4, 5, "", ""), 3),
    ("fc", "tiled.shared", Fc(33, 31, relu=True), 3),
    ("fc", "unrolled.naive", Fc(33, 31, relu=True), 3),
    ("fc", "fft.cufft", Fc(1024, 12, relu=True), 5),
    ("conv", "direct.basic", EVEN, 2),
    ("conv", "direct.tight", WINDOW, 2),
    ("conv", "direct.four_maps", WINDOW, 2),
    ("conv", "unrolled.naive", EVEN, 2),
    ("conv", "unrolled.tiled", EVEN, 1),
    ("conv", "direct.grouped", EVERYTHING, 3),
    ("conv", "direct.grouped", Conv(7, 6, 3, 4, 3, 3, pad=2, dilation=(1, 2)), 2),
    ("conv", "direct.grouped", replace(DEPTHWISE, relu=True, dtype="fp16"), 2),
    ("conv", "direct.grouped", replace(EVERYTHING, bias=True, relu=True, dtype="fp16"), 2),
    ("conv", "direct.grouped", replace(DEPTHWISE, bias=True, relu=True, dtype="bf16"), 2),
    ("conv", "direct.depthwise", replace(DEPTHWISE, bias=True, relu=True), 2),
    (
        "conv",
        "direct.depthwise",
        Conv(
            11,
            8,
            6,
            6,
            3,
            2,
            strides=(2, 1),
            pads=(1, 0, 2, 1),
            dilation=(2, 3),
            groups=6,
            dtype="bf16",
        ),
        2,
    ),
]


# Every run tests a kernel of each source; long runs test the other shapes and dtypes.
OFTEN = ("fused.relu_in_mean", "layout.quad", "unrolled.windows", "thread.per_image",
         "reduction.list", "cuda.pixels", "cuda.gather", "direct.basic", "direct.four_maps",
         "unrolled.tiled")  # fmt: skip
LONG = [c for c in CASES if c[1] not in OFTEN and c[2] not in (EVERYTHING, Fc(33, 31, relu=True))]


@pytest.mark.parametrize(
    ("kind", "name", "base", "n"),
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2].out_shape}",
                  marks=pytest.mark.slow if case in LONG else ())
     for case in CASES],
)  # fmt: skip
def test_outputs_are_correct_and_in_bounds(kind, name, base, n, on_a_cpu, rng):
    variant = REGISTRY[kind, name]
    laid_out = in_layouts(variant, base)
    for problem in laid_out if len(laid_out) < 3 else (laid_out[0], laid_out[-1]):
        assert_right(variant, problem, n, rng)


@pytest.mark.parametrize("name", ["pool unrolled.windows", "pool cublas.sgemm", "pool fft.cufft",
                                  "fc fft.cufft"])  # fmt: skip
def test_workspace_for_part_of_the_batch(name, on_a_cpu, monkeypatch, rng):
    """Process images in parts of two, also the cuFFT plans; the last part has one image."""
    kind, _, full_name = name.partition(" ")
    variant = REGISTRY[kind, full_name]
    for module in list(sys.modules.values()):
        ours = getattr(module, "__name__", "").startswith(stages.__name__)
        if ours and hasattr(module, "images_within"):
            monkeypatch.setattr(module, "images_within", lambda *_: 2)
    base = Pool(6, 10, 7) if kind == "pool" else Fc(1024, 12, relu=True)
    assert_right(variant, in_layouts(variant, base)[-1], 5, rng)


SCORES = [[0.0, -0.0, 0.0], [-0.0, 0.0, -1.0], [-3e38, -3.1e38, -2.9e38], [-5, -5, -5],
          [-1e30, 1.0000001, 1.0], [-1e30, 1.0, 1.0000001], [1e-45, 0.0, 2.9e-45],
          [-np.inf, 3e38, np.inf], [np.inf, 1, np.inf], [-np.inf, -np.inf, -3e38]]  # fmt: skip


@pytest.mark.parametrize(
    "variant",
    [v for v in variants("argmax") if v.full_name != "reduction.shuffle"],
    ids=lambda v: f"{v.needs.device}-{v.full_name}",
)
def test_labels_of_ties_and_extreme_scores(variant, on_a_cpu):
    """Check that ties, including zeros of both signs, go to the first and rounding makes no tie."""
    x = np.array(SCORES, np.float32)
    problem = Argmax(x.shape[1])
    state = variant.prepare(None, problem, len(x)) if variant.prepare else None
    y = np.full(len(x), -1, np.int32)
    variant.launch(x, state, y, problem)
    np.testing.assert_array_equal(y, x.argmax(axis=1))
