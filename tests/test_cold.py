"""What a fresh process loads, and what it leaves alone."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

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


@pytest.mark.gpu
def test_pinned_memory_is_known_to_the_runtime():
    import cupy

    array = pinned_empty((1000, 784), "uint8")
    array[...] = 3
    pinned = cupy.cuda.runtime.pointerGetAttributes(array.ctypes.data)
    assert pinned.type == 1  # cudaMemoryTypeHost
    assert int(cupy.asarray(array).sum()) == 3 * array.size
