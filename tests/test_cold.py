"""What a fresh process loads, and what it leaves alone."""

from __future__ import annotations

import atexit
import ctypes
import ctypes.util
import gc
import io
import json
import os
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu import __main__, cli
from lenetgpu.commands import infer
from lenetgpu.errors import LenetError
from lenetgpu.gpu import compiler, device, launch, nvrtc
from lenetgpu.gpu.launch import _overlapping
from lenetgpu.gpu.nvrtc import (
    CompileError,
    Kernel,
    Resources,
    compile_kernel,
    compile_together,
)
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import summarise
from lenetgpu.show.console import Console
from lenetgpu.stages import registry


@pytest.fixture
def host_memory(monkeypatch):
    """CuPy's two names for page-locked memory, made of ordinary memory: (sizes, blocks)."""
    sizes, blocks = [], []

    def allocate(size):
        sizes.append(size)
        block = type("Block", (ctypes.c_char * size,), {})()
        blocks.append(weakref.ref(block))
        return block

    cuda = SimpleNamespace(PinnedMemory=allocate, PinnedMemoryPointer=lambda memory, offset: memory)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    return sizes, blocks


SIZES = [((3, 28, 28, 1), "uint8", 2352), ((), "f4", 4), ((0, 10), "f4", 1), ((5,), "i8", 40)]


@pytest.mark.parametrize(("shape", "dtype", "size"), SIZES)
def test_pinned_memory_is_as_large_as_the_array(host_memory, shape, dtype, size):
    array = pinned_empty(shape, dtype)
    assert (array.shape, array.dtype, host_memory[0]) == (shape, np.dtype(dtype), [size])
    assert array.flags.c_contiguous and array.flags.writeable


def test_pinned_memory_lives_as_long_as_a_view_of_it(host_memory):
    array = pinned_empty((4, 4), "float32")
    (block,) = host_memory[1]
    array[...] = 7
    corner = array[2:, 2:].view("int32")
    del array
    gc.collect()
    assert block() is not None and corner.tolist() == [[0x40E00000] * 2] * 2
    del corner
    gc.collect()
    assert block() is None


class Driver:
    """A CUDA driver of two GPUs, whose contexts are made when `may_create` is set."""

    def __init__(self):
        self.said, self.may_create = [], threading.Event()

    def cuInit(self, flags):
        return self.said.append("init") or 0

    def cuDeviceGetCount(self, count):
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, handle, index):
        handle._obj.value = 10 + index
        return 0

    def cuDeviceGetName(self, name, length, handle):
        name.value = b"GPU %d" % handle.value

    def cuDeviceGetAttribute(self, value, attribute, handle):
        value._obj.value = {75: 9, 76: 0}[attribute]

    def cuDevicePrimaryCtxRetain(self, context, handle):
        assert self.may_create.wait(10)
        return self.said.append(f"context {handle.value}") or 0


@pytest.fixture
def driver(monkeypatch):
    """A driver in place of this machine's; `.files` are the names that it was looked for under."""
    found = Driver()
    found.files = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: found.files.append(name) or found)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: pytest.fail("a search"))
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a process"))
    used = SimpleNamespace(
        Device=lambda index: SimpleNamespace(use=lambda: found.said.append(f"use {index}")),
        runtime=SimpleNamespace(free=lambda pointer: found.said.append("free")),
    )
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=used))
    for cached in (device.driver, device._listed):
        cached.cache_clear()
    yield found
    found.may_create.set()
    while device._contexts:
        device._contexts.pop().join()
    for cached in (device.driver, device._listed):
        cached.cache_clear()


@pytest.mark.parametrize(("platform", "file"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")])
def test_the_driver_is_loaded_by_its_name(driver, monkeypatch, platform, file):
    monkeypatch.setattr(sys, "platform", platform)
    names = [(gpu.name, gpu.version) for gpu in device.driver_gpus()]
    assert names == [("GPU 10", "9.0"), ("GPU 11", "9.0")] and driver.files == [file]


def test_the_context_is_made_while_other_things_are_done(driver):
    device.begin("cuda:1")
    gpu = device.driver_gpus()[1]
    assert driver.said == ["init"]  # listed, while the context is not there yet
    timer = threading.Timer(0.05, driver.may_create.set)
    timer.start()
    device.activate(gpu)
    timer.join()
    assert driver.said == ["init", "context 11", "use 1", "free"]


@pytest.mark.parametrize("wanted", ["cpu", "cuda:2", "cuda:-1", "cuda:", "tpu"])
def test_no_context_is_made_where_no_such_device_is_there(driver, wanted):
    driver.may_create.set()
    device.begin(wanted)
    device.activate(device.driver_gpus()[0])
    assert driver.said == ["init", "use 0", "free"]


class Nvrtc:
    """NVRTC's functions, of version `minor`; `loads` counts who wanted them."""

    def __init__(self, minor):
        self.minor, self.loads = minor, 0

    def library(self):
        self.loads += 1
        return self

    def nvrtcVersion(self):
        return 0, 13, self.minor

    def nvrtcCreateProgram(self, *arguments):
        return 0, None

    def nvrtcCompileProgram(self, *arguments):
        return (0,)

    def nvrtcDestroyProgram(self, program):
        return (0,)


@pytest.fixture
def start(tmp_path, monkeypatch):
    """A process that begins, with NVRTC of that version beside it; it lies in the folder's lib."""
    monkeypatch.setenv("LENETGPU_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "site-packages" / "libnvrtc.so.13"
    file.parent.mkdir()
    file.write_text("library")
    maps = tmp_path / "maps"
    maps.write_text(
        f"7f00-7f01 r-xp 0 8:1 12   /lib/libc.so\n7f02-7f03 r--p 0 8:1 2   {file}\n" * 2
    )
    monkeypatch.setattr(compiler, "_MAPPED", maps)
    monkeypatch.setattr(sys, "path", [*sys.path, str(file.parent)])

    def begin(minor=0):
        for cached in (compiler.asked, compiler._remembered):
            cached.cache_clear()
        found = Nvrtc(minor)
        monkeypatch.setattr(compiler, "library", found.library)
        return found

    begin.file = file
    yield begin
    for cached in (compiler.asked, compiler._remembered):
        cached.cache_clear()


def test_the_compiler_is_asked_once_for_its_version(start):
    first = start(5)
    assert (nvrtc.version(), nvrtc._no_cache(), first.loads) == ((13, 5), ("--no-cache",), 1)
    later = start(5)
    assert (nvrtc.version(), nvrtc._no_cache(), later.loads) == ((13, 5), ("--no-cache",), 0)


def _another_size(start, monkeypatch):
    then = start.file.stat().st_mtime_ns
    start.file.write_text("a longer library")
    os.utime(start.file, ns=(then, then))


def _another_time(start, monkeypatch):
    os.utime(start.file, ns=(1, 1))


def _gone(start, monkeypatch):
    start.file.unlink()


def _packages_installed(start, monkeypatch):
    os.utime(start.file.parent, ns=(1, 1))


def _another_toolkit(start, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")


def _half_a_record(start, monkeypatch):
    record = compiler._record()
    record.write_text(record.read_text()[:-9])


CHANGES = (
    _another_size,
    _another_time,
    _gone,
    _packages_installed,
    _another_toolkit,
    _half_a_record,
)


@pytest.mark.parametrize("change", CHANGES)
def test_the_compiler_is_asked_again_where_it_may_be_another(start, monkeypatch, change):
    start(5)
    nvrtc.version()
    change(start, monkeypatch)
    later = start(6)
    assert (nvrtc.version(), later.loads) == ((13, 6), 1)


def test_where_the_loaded_file_is_unknown_nothing_is_remembered(start, monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_MAPPED", tmp_path / "nowhere")
    for loads in (1, 1):
        found = start(5)
        assert (nvrtc.version(), found.loads) == ((13, 5), loads)


def test_a_cached_kernel_needs_no_compiler(start, monkeypatch, tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("// nothing")
    made = []
    monkeypatch.setattr(nvrtc, "_run_nvrtc", lambda *_: made.append(nvrtc.version()) or (b"c", ""))
    monkeypatch.setattr(nvrtc, "_parse_resources", lambda *_: Resources(8, 0, 0, 0))
    nvrtc.source_hash.cache_clear()
    start(5)
    cubin = compile_kernel(Kernel(source, "first"), "sm_90a").path
    later = start(6)  # the files do not tell: it is believed until it is loaded
    assert compile_kernel(Kernel(source, "first"), "sm_90a").path == cubin and later.loads == 0
    compile_kernel(Kernel(source, "second"), "sm_90a")
    assert made == [(13, 5), (13, 6)] and later.loads == 1
    assert json.loads(compiler._record().read_text())["version"] == [13, 6]
    assert compile_kernel(Kernel(source, "first"), "sm_90a").path != cubin
    nvrtc.source_hash.cache_clear()


def test_kernels_are_compiled_side_by_side(start, monkeypatch, tmp_path):
    start(5)
    source, both, made = tmp_path / "kernel.cu", threading.Barrier(2, timeout=10), []
    source.write_text("// nothing")

    def run(kernel, arch, options):
        made.append(kernel.entry)
        if kernel.entry == "wrong":
            raise CompileError("wrong: expected it to compile")
        if kernel.entry in ("a", "b"):
            both.wait()
        return b"cubin", ""

    monkeypatch.setattr(nvrtc.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(nvrtc, "_run_nvrtc", run)
    monkeypatch.setattr(nvrtc, "_parse_resources", lambda *_: Resources(8, 0, 0, 0))
    nvrtc.source_hash.cache_clear()
    compile_kernel(Kernel(source, "known"), "sm_80")
    other = Kernel(source, "other", only=("sm_90a",))
    absent = Kernel(tmp_path / "nowhere.cu", "absent")
    names = ("a", "known", "b", "wrong", "a")
    compile_together([*(Kernel(source, name) for name in names), other, absent], "sm_80")
    assert sorted(made) == ["a", "b", "known", "wrong"]
    with pytest.raises(CompileError, match="expected it to compile"):
        compile_kernel(Kernel(source, "wrong"), "sm_80")
    compile_kernel(Kernel(source, "a"), "sm_80")
    assert made.count("a") == 1
    nvrtc.source_hash.cache_clear()


def test_a_launch_is_described_as_cuda_bindings_would():
    """Byte for byte, the address of the attribute apart."""
    cuda = pytest.importorskip("cuda.bindings.driver")
    attribute, config = cuda.CUlaunchAttribute(), cuda.CUlaunchConfig()
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config.gridDimX, config.gridDimY, config.gridDimZ = 132, 2, 1
    config.blockDimX, config.blockDimY, config.blockDimZ = 384, 1, 1
    config.sharedMemBytes, config.hStream = 227 << 10, 0x1234
    config.attrs, config.numAttrs = [attribute], 1
    ours = _overlapping((132, 2), (384,), 227 << 10, 0x1234)
    theirs = launch._Config.from_buffer_copy(ctypes.string_at(config.getPtr(), ctypes.sizeof(ours)))
    assert bytes(ours.attributes[0]) == bytes(theirs.attributes[0])
    theirs.attributes = ours.attributes
    assert bytes(ours) == bytes(theirs)


def test_a_refused_launch_is_named(driver, monkeypatch):
    seen = []

    def launch_kernel(config, function, values, extra):
        at = ctypes.cast(values[1], ctypes.POINTER(ctypes.c_int32)).contents.value
        seen.append((list(config._obj.grid), config._obj.stream, function.value, at))
        return (0, 700, 2)[len(seen) - 1]

    def name_of(status, name):
        known = {700: b"CUDA_ERROR_ILLEGAL_ADDRESS", 2: b"CUDA_ERROR_OUT_OF_MEMORY"}
        name._obj.value = known[status]

    driver.cuLaunchKernelEx, driver.cuGetErrorName = launch_kernel, name_of
    array = type("Array", (), {"data": SimpleNamespace(ptr=1 << 40)})
    cupy = sys.modules["cupy"]
    cupy.ndarray, cupy.cuda.get_current_stream = array, lambda: SimpleNamespace(ptr=1 << 33)
    launch._launch_overlapping(1 << 34, (7,), (32,), (array(), np.int32(9)), 0)
    assert seen == [([7, 1, 1], 1 << 33, 1 << 34, 9)]
    with pytest.raises(LenetError, match="the driver answers CUDA_ERROR_ILLEGAL_ADDRESS"):
        launch._launch_overlapping(1 << 34, (7,), (32,), (array(), np.int32(9)), 0)
    with pytest.raises(MemoryError, match="the driver answers CUDA_ERROR_OUT_OF_MEMORY"):
        launch._launch_overlapping(1 << 34, (7,), (32,), (array(), np.int32(9)), 0)


def fresh(code):
    """What `code` prints in a process of its own, line by line."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def told():
    return [name for name, offer in registry._OFFERS.items() if offer.families is not None]


@pytest.mark.parametrize("module", told())
def test_a_module_registers_the_families_that_are_told_of_it(module):
    registry.import_offered()
    made = [
        (kind, name.split(".")[0])
        for (kind, name), made in registry.REGISTRY.items()
        if f"{made.run.__module__}.".startswith(f"{module}.")
    ]
    offered = registry._OFFERS[module]
    assert {family for _, family in made} == offered.families
    assert {kind for kind, _ in made} <= set(offered.kinds)


ORDER = "from lenetgpu.stages import {0}; {1}[print(v.kind, v.full_name) for v in variants()]"


def test_the_order_of_variants_is_that_of_the_files_whatever_is_asked_first():
    first = "find('argmax', 'numpy', 'cpu'); find('conv', 'best', 'cuda'); "
    assert fresh(ORDER.format("variants", "")) == fresh(ORDER.format("find, variants", first))


FAR = {"conv.convnet2", "conv.prefetch", "conv.texture", "conv.fft", "conv.tuned", "conv.cublas",
       "fused.block", "fused.cuda_cores", "fused.mma", "fused.wgmma.int8_features"}  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "device", "near", "far"),
    [
        ("tiled", "cpu", "conv.tiled", FAR | {"fused.wgmma"}),
        ("fp16", "cuda", "fused.wgmma.fp16_features", FAR | {"conv.tiled", "pool.mean"}),
    ],
)
def test_a_plan_is_resolved_without_importing_what_it_does_not_run(plan, device, near, far):
    modules = fresh(
        f"import sys; from lenetgpu.plan import resolve; resolve({plan!r}, {device!r});"
        "print(*sys.modules, sep='\\n')"
    )
    ours = {name.removeprefix("lenetgpu.stages.") for name in modules}
    assert near in ours and ours & far == set()


NEVER = {"scipy", "cupyx", "matplotlib", "torch", "jax", "onnx", "onnxruntime", "pandas",
         "rich", "cuda.bindings.nvrtc"}  # fmt: skip
INFER = """
import os, sys
from lenetgpu.cli import main
try:
    main(["infer", *sys.argv[1:], "--no-progress", "--limit", "3"])
finally:
    loaded = [name for name in sys.modules if sys.modules[name] is not None]
    os.write(2, ("loaded " + " ".join(loaded)).encode())
"""


def loaded_by(*words):
    """The modules of a fresh process that labelled three of its digits."""
    command = [sys.executable, "-c", INFER, *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stderr.rpartition("loaded ")[2].split())


@pytest.mark.parametrize("plan", ["serial", "fp32"])
def test_infer_leaves_alone_what_it_does_not_need(plan):
    loaded_by("--device", "cpu", "--plan", plan)  # compiles, and checks the plan
    loaded = loaded_by("--device", "cpu", "--plan", plan)
    assert "numpy" in loaded and loaded & (NEVER | {"cupy", "cuda"}) == set()
    unused = {"lenetgpu.measure.rounds", "lenetgpu.measure.bench", "lenetgpu.gpu.software",
              "lenetgpu.measure.roofline", "lenetgpu.show.tables"}  # fmt: skip
    assert loaded & unused == set()


@pytest.mark.gpu
def test_infer_on_a_gpu_loads_no_compiler_and_no_science():
    loaded_by("--device", "cuda")  # compiles and chooses, where nobody did
    loaded = loaded_by("--device", "cuda")
    assert "cupy" in loaded
    assert {name for name in loaded if name.startswith(("cupyx.scipy", "cuda.bindings"))} == set()
    assert loaded & (NEVER - {"cupyx"} | {"numpy.ma", "numba"}) == set()


def test_images_of_idx_files_are_read_without_hdf5(tmp_path):
    file = tmp_path / "three-images-idx3-ubyte"
    sizes = b"".join(n.to_bytes(4, "big") for n in (3, 28, 28))
    file.write_bytes(bytes([0, 0, 8, 3]) + sizes + bytes(3 * 784))
    code = f"""
import pathlib, sys
from lenetgpu.files.source import open_source
with open_source(pathlib.Path({str(file)!r})) as source:
    print(len(source.whole()), "h5py" in sys.modules)
"""
    assert fresh(code) == ["3 False"]


@pytest.mark.parametrize(("terminal", "bold"), [(True, "\x1b[1m{}\x1b[0m"), (False, "{}")])
def test_lines_are_printed_without_rich(monkeypatch, terminal, bold):
    stream = io.StringIO()
    stream.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich.console", None)  # an import of it fails
    console = Console()
    console.print("a [thing] is 7", highlight=False, soft_wrap=True)
    console.print("right", style="bold", highlight=False)
    console.print("[bold]took 3[/] (once)", markup=True, highlight=False)
    want = ["a [thing] is 7", bold.format("right"), bold.format("took 3") + " (once)"]
    assert stream.getvalue().splitlines() == want


@pytest.fixture
def collecting():
    """The collector as it was, afterwards; what was frozen is not any more."""
    yield
    gc.unfreeze()
    gc.enable()


@pytest.mark.parametrize(("words", "looks"), [(["infer"], False), (["profile"], True), ([], True)])
def test_a_short_process_does_not_look_for_garbage(monkeypatch, collecting, words, looks):
    found, at_exit = [], []
    monkeypatch.setattr(sys, "argv", ["lenetgpu", *words])
    monkeypatch.setattr(cli, "main", lambda: found.append(gc.isenabled()))
    monkeypatch.setattr(atexit, "register", at_exit.append)
    __main__.main()
    assert found == [looks]
    assert at_exit == ([] if looks else [gc.freeze])


@pytest.mark.parametrize("looked", [True, False])
def test_garbage_is_looked_for_from_when_images_are_computed(monkeypatch, collecting, looked):
    frozen, states = gc.get_freeze_count(), []
    compute = infer._ran
    monkeypatch.setattr(infer, "_ran", lambda job: states.append(gc.isenabled()) or compute(job))
    if not looked:
        gc.disable()
    infer.infer(Request(device="cpu", plan="serial", limit=2))
    assert states == [True]
    assert (gc.get_freeze_count() == frozen) == looked


@pytest.mark.parametrize("count", [1, 2, 3, 99, 1000])
def test_percentiles_are_numpys(rng, count):
    """Whose own import its masked arrays, a tenth of a short process."""
    samples = rng.standard_normal(count).tolist()
    found = summarise(samples)
    wanted = np.percentile(samples, [5, 50, 95, 99])
    np.testing.assert_allclose([found.p05, found.median, found.p95, found.p99], wanted, rtol=1e-12)
    for none in ([], [*samples, float("nan")]):
        assert np.isnan([summarise(none).p05, summarise(none).median, summarise(none).p99]).all()


GUEST = """
from lenetgpu.stages.registry import cpu, variant
@variant(kind="argmax", family="guest", reads="NC", writes="N", needs=cpu())
def best(x, y, problem):
    "Of a guest."
    y[...] = x.argmax(1)
"""


def test_a_guests_departure_leaves_every_variant_there(tmp_path):
    guest = tmp_path / "guest.py"
    guest.write_text(GUEST)
    code = f"""
from pathlib import Path
from lenetgpu.stages import outside, variants
with outside.loaded((Path({str(guest)!r}),)) as found:
    print(len(found), len(variants()))
print(0, len(variants()))
"""
    count = len(registry.variants())
    assert fresh(code) == [f"1 {count + 1}", f"0 {count}"]


@pytest.mark.gpu
def test_pinned_memory_is_known_to_the_runtime():
    import cupy

    array = pinned_empty((1000, 784), "uint8")
    array[...] = 3
    pinned = cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data)
    assert pinned.type == 1  # cudaMemoryTypeHost
    assert int(cupy.asarray(array).sum()) == 3 * array.size
