"""Small files are read in the background; an error is raised where the images are used."""

import threading

import numpy as np
import pytest

from lenetgpu.errors import LenetError
from lenetgpu.files import source as source_module
from lenetgpu.files.reading import MemorySource, Source
from lenetgpu.files.source import read_early

IMAGES = np.random.default_rng(0).integers(0, 256, (9, 28, 28, 1), dtype=np.uint8)


class Held(Source):
    """Source whose images are available once `may_read` is set; `calls` records its calls."""

    def __init__(self, error=None):
        super().__init__("held", "uint8", np.arange(9), range(9))
        self.may_read, self.calls, self.error = threading.Event(), [], error

    def _fill(self, first, out):
        assert self.may_read.wait(10)
        self.calls.append((first, len(out)))
        if self.error is not None:
            raise self.error
        out[...] = IMAGES[first : first + len(out)]

    def close(self):
        self.calls.append("closed")


def test_file_is_read_once_in_the_background():
    held = Held()
    with read_early(held) as source:
        assert held.calls == [] and len(source) == 9 and source.dtype == "uint8"
        assert source.labels.tolist() == list(range(9))
        timer = threading.Timer(0.05, held.may_read.set)
        timer.start()
        part = np.empty((4, 28, 28, 1), np.uint8)
        source.read(3, part)
        timer.join()
        np.testing.assert_array_equal(part, IMAGES[3:7])
        np.testing.assert_array_equal(source.whole().images, IMAGES)
        assert held.calls == [(0, 9)]
    assert held.calls == [(0, 9), "closed"]


def test_read_error_is_raised_on_every_use():
    held = Held(LenetError("held: expected 9 images, found 3"))
    held.may_read.set()
    with read_early(held) as source:
        for _ in range(2):
            with pytest.raises(LenetError, match="found 3"):
                source.whole()
    assert held.calls[-1] == "closed"


def test_large_files_and_arrays_are_not_read_early(monkeypatch):
    memory = MemorySource(IMAGES, None, "memory")
    assert read_early(memory) is memory
    monkeypatch.setattr(source_module, "EARLY_BYTES", IMAGES.nbytes - 1)
    held = Held()
    assert read_early(held) is held
    monkeypatch.setattr(source_module, "EARLY_BYTES", IMAGES.nbytes)
    held.may_read.set()
    read_early(held).close()
    assert held.calls == [(0, 9), "closed"]
