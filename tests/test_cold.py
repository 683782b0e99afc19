"""What a fresh process loads, and what it leaves alone."""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import subprocess
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from lenetgpu.gpu import device
from lenetgpu.gpu.workspace import pinned_empty


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
    for cached in (device._driver, device._listed):
        cached.cache_clear()
    yield found
    found.may_create.set()
    while device._contexts:
        device._contexts.pop().join()
    for cached in (device._driver, device._listed):
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


@pytest.mark.gpu
def test_pinned_memory_is_known_to_the_runtime():
    import cupy

    array = pinned_empty((1000, 784), "uint8")
    array[...] = 3
    pinned = cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data)
    assert pinned.type == 1  # cudaMemoryTypeHost
    assert int(cupy.asarray(array).sum()) == 3 * array.size
