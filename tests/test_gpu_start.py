"""Starting a GPU: page-locked memory, the driver, the cached compiler version, launches."""

import ctypes
import ctypes.util
import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu import __main__ as entry
from lenetgpu.errors import LenetError
from lenetgpu.gpu import compiler, device, launch, nvrtc
from lenetgpu.gpu.nvrtc import CompileError, Kernel, Resources, compile_kernel, compile_together
from lenetgpu.store import entries
from lenetgpu.store.entries import folder


class Driver:
    """A CUDA driver with two GPUs, whose contexts are created once `may_create` is set."""

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
    """A driver in place of this machine's; `.files` are the library names that were loaded."""
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
def test_driver_library_name_depends_on_platform(driver, monkeypatch, platform, file):
    monkeypatch.setattr(sys, "platform", platform)
    names = [(gpu.name, gpu.version) for gpu in device.driver_gpus()]
    assert names == [("GPU 10", "9.0"), ("GPU 11", "9.0")] and driver.files == [file]


def test_context_is_created_in_the_background(driver):
    device.begin("cuda:1")
    gpu = device.driver_gpus()[1]
    assert driver.said == ["init"]  # the GPUs are listed before the context exists
    timer = threading.Timer(0.05, driver.may_create.set)
    timer.start()
    device.activate(gpu)
    timer.join()
    assert driver.said == ["init", "context 11", "use 1", "free"]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], ["auto"]),
        (["a.png", "--device", "cuda:1", "--limit", "9"], ["cuda:1"]),
        (["--device=cpu"], ["cpu"]),
        (["--device"], ["auto"]),
        (["--device", "cpu", "--help"], []),
    ],
)
def test_infer_starts_its_device_before_parsing(monkeypatch, words, wanted):
    begun = []
    monkeypatch.setattr(device, "begin", begun.append)
    entry._begin(words)
    assert begun == wanted


@pytest.mark.parametrize("installed", [False, True])
def test_cupy_loads_no_cublas_for_a_missing_cutensor(monkeypatch, tmp_path, installed):
    loaded = []
    finder = SimpleNamespace(load_nvidia_dynamic_lib=loaded.append, DynamicLibNotFoundError=OSError)
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(pathfinder=finder))
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "cupy")
    (tmp_path / f"{'cutensor' if installed else 'other'}.py").touch()
    load = 'pathfinder.load_nvidia_dynamic_lib("cutensor")'
    (tmp_path / "cupy.py").write_text(f"from cuda import pathfinder\n{load}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with nullcontext() if installed else pytest.raises(OSError, match="cutensor"):
        device.import_cupy()
    finder.load_nvidia_dynamic_lib("cutensor")
    assert loaded == ["cutensor"] * (1 + installed)


@pytest.mark.parametrize("wanted", ["cpu", "cuda:2", "tpu"])
def test_missing_devices_get_no_context(driver, wanted):
    driver.may_create.set()
    device.begin(wanted)
    device.activate(device.driver_gpus()[0])
    assert driver.said == ["init", "use 0", "free"]


class Nvrtc:
    """NVRTC's functions, of version `minor`; `loads` counts how often it was loaded."""

    def __init__(self, minor):
        self.minor, self.loads = minor, 0

        self.nvrtcCreateProgram = lambda *_: (0, None)
        self.nvrtcCompileProgram = self.nvrtcDestroyProgram = lambda *_: (0,)

    def library(self):
        self.loads += 1
        return self

    def nvrtcVersion(self):
        return 0, 13, self.minor


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start a process with an NVRTC of the given version; its library is in a temporary folder."""
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
    monkeypatch.setattr(nvrtc, "_parse_resources", lambda *_: Resources(8, 0, 0, 0))
    nvrtc.source_hash.cache_clear()

    def begin(minor=0):
        for cached in (compiler.asked, compiler._remembered):
            cached.cache_clear()
        found = Nvrtc(minor)
        monkeypatch.setattr(compiler, "library", found.library)
        return found

    begin.file = file
    yield begin
    for cached in (compiler.asked, compiler._remembered, nvrtc.source_hash):
        cached.cache_clear()


def test_compiler_version_is_queried_once(start):
    for loads in (1, 0):
        asked = start(5)
        found = nvrtc.version(), compiler.current().options, asked.loads
        assert found == ((13, 5), ("--no-cache",), loads)


def _another_size(start, monkeypatch):
    then = start.file.stat().st_mtime_ns
    start.file.write_text("a longer library")
    os.utime(start.file, ns=(then, then))


def _another_toolkit(start, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")


def _half_a_record(start, monkeypatch):
    (record,) = (folder("nvrtc")).glob("*")
    record.write_text(record.read_text()[:-9])


@pytest.mark.parametrize("change", [_another_size, _another_toolkit, _half_a_record])
def test_changed_compiler_is_queried_again(start, monkeypatch, change):
    start(5)
    nvrtc.version()
    change(start, monkeypatch)
    later = start(6)
    assert (nvrtc.version(), later.loads) == ((13, 6), 1)


def test_cached_kernel_needs_no_compiler(start, monkeypatch, tmp_path):
    source = tmp_path / "kernel.cu"
    source.write_text("// nothing")
    made = []
    monkeypatch.setattr(nvrtc, "_run_nvrtc", lambda *_: made.append(nvrtc.version()) or (b"c", ""))
    start(5)
    cubin = compile_kernel(Kernel(source, "first"), "sm_90a").path
    later = start(6)  # unchanged files: the cached version is used until the library is loaded
    assert compile_kernel(Kernel(source, "first"), "sm_90a").path == cubin and later.loads == 0
    compile_kernel(Kernel(source, "second"), "sm_90a")
    assert made == [(13, 5), (13, 6)] and later.loads == 1
    assert entries.facts_of("nvrtc", compiler._record())["version"] == [13, 6]
    assert compile_kernel(Kernel(source, "first"), "sm_90a").path != cubin


def test_kernels_compile_in_parallel(start, monkeypatch, tmp_path):
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


def test_failed_launch_names_the_kernel(driver, monkeypatch):
    seen = []

    def launch_kernel(config, function, values, extra):
        at = ctypes.cast(values[1], ctypes.POINTER(ctypes.c_int32)).contents.value
        seen.append((list(config._obj.grid), config._obj.stream, function.value, at))
        return (0, 1, 2)[len(seen) - 1]

    def name_of(status, name):
        known = {1: b"CUDA_ERROR_INVALID_VALUE", 2: b"CUDA_ERROR_OUT_OF_MEMORY"}
        name._obj.value = known[status]

    driver.cuLaunchKernelEx, driver.cuGetErrorName = launch_kernel, name_of
    array = type("Array", (), {"data": SimpleNamespace(ptr=1 << 40)})
    cupy = sys.modules["cupy"]
    cupy.ndarray, cupy.cuda.get_current_stream = array, lambda: SimpleNamespace(ptr=1 << 33)
    packed = launch.Packed(1 << 34, (7,), (32,), (array(), np.int32(9)), 0)
    packed.launch(1 << 33)
    assert seen == [([7, 1, 1], 1 << 33, 1 << 34, 9)]
    for kind, name in ((LenetError, "INVALID_VALUE"), (MemoryError, "OUT_OF_MEMORY")):
        with pytest.raises(kind, match=f"the driver answers CUDA_ERROR_{name}"):
            packed.launch(1 << 33)


def test_repeat_moves_images_and_labels_only(driver, monkeypatch):
    seen = []

    def launch_kernel(config, function, values, extra):
        kinds = (ctypes.c_uint64,) * 3 + (ctypes.c_int32,)
        at = [
            ctypes.cast(v, ctypes.POINTER(k)).contents.value
            for v, k in zip(values, kinds, strict=True)
        ]
        seen.append((config._obj.stream, config._obj.count, at))
        return 0

    driver.cuLaunchKernelEx = launch_kernel
    array = type(
        "Array", (), {"__init__": lambda self, at: setattr(self, "data", SimpleNamespace(ptr=at))}
    )
    cupy = sys.modules["cupy"]
    cupy.ndarray, cupy.cuda.get_current_stream = array, lambda: SimpleNamespace(ptr=7)
    monkeypatch.setattr(launch, "_can_overlap", lambda arch: True)
    monkeypatch.setattr(launch, "current_arch", lambda: "sm_90a")
    monkeypatch.setattr(launch, "last_queued", [])
    function, filters = SimpleNamespace(ptr=1 << 34), 1 << 40

    def work():
        for lo in (0, 4):
            args = (array(1000 + lo), array(filters), array(9000 + lo), np.int32(1004))
            launch.launch("kernel", (1,), (32,), args, loaded=function, overlap=True)

    repeat = launch.Repeat(work, (1000, 8), (9000, 8))
    repeat.run((3000, 5000), 8)
    for lo in (0, 4):
        assert seen[lo // 4] == (7, 1, [1000 + lo, filters, 9000 + lo, 1004])
        assert seen[2 + lo // 4] == (8, 1, [3000 + lo, filters, 5000 + lo, 1004])
    args = (array(1), array(1), array(1), np.int32(1))
    launch.launch("kernel", (1,), (32,), args, loaded=function, overlap=True)
    repeat.run((0, 0), 8)
    assert len(seen) == 7
