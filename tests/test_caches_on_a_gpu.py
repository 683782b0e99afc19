"""Kernels from a damaged or tampered cache, loaded by a driver: the labels are correct."""

import shutil

import numpy as np
import pytest
from test_poisoned_caches import POISONS

from lenetgpu import LeNet
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.gpu import launch, nvrtc
from lenetgpu.store import entries
from lenetgpu.store.entries import survey

pytestmark = pytest.mark.gpu
N = 64
HOW = ["cut in half", "a bit in the middle", "a link", "a pipe", "a folder", "gone"]


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Return a cache folder with the kernels of plan tiled."""
    where = tmp_path_factory.mktemp("filled") / "cache"
    read_names, read = set(), entries.read_cubin
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LENETGPU_CACHE", str(where))
        begun_anew()
        assert right()
        begun_anew()
        patch.setattr(entries, "read_cubin", lambda name: read_names.add(name) or read(name))
        assert right()
    for path in (where / "kernels").iterdir():
        if path.name.removesuffix(path.suffix) not in read_names:
            path.unlink()  # files of kernels that this process loaded earlier
    assert len(read_names) > 2
    return where


@pytest.fixture
def cache(filled, tmp_path, monkeypatch):
    where = tmp_path / "cache"
    shutil.copytree(filled, where)
    monkeypatch.setenv("LENETGPU_CACHE", str(where))
    begun_anew()
    yield where
    begun_anew()


def begun_anew():
    """Forget the loaded kernels, as in a new process."""
    entries.notices.cache_clear()
    nvrtc._uncached.clear()
    launch._function.cache_clear()


def right():
    data = load_dataset(assets.default_digits())
    with LeNet.load(device="cuda", plan="tiled", batch=N) as net:
        labels = np.asarray(net(np.ascontiguousarray(data.images[:N])))
    return (labels == data.labels[:N]).mean() > 0.9


def test_intact_kernel_cache_is_used(cache, monkeypatch):
    monkeypatch.setattr(nvrtc, "_run_nvrtc", lambda *_: pytest.fail("compiled again"))
    assert right() and entries.notices() == []


@pytest.mark.parametrize("suffix", [".cubin", ".entry"])
@pytest.mark.parametrize("how", HOW)
def test_damaged_cached_kernels_are_recompiled(how, suffix, cache, tmp_path, capfd):
    for number, path in enumerate(sorted((cache / "kernels").glob(f"*{suffix}"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        POISONS[how](path, folder)
    assert right()
    assert capfd.readouterr().err.count("\n") <= 1
    assert how == "a folder" or survey().problems == []


def test_swapped_cubins_are_not_loaded(cache, capfd):
    """Every cubin is a different valid one: loading it would give wrong labels or a crash."""
    cubins = sorted((cache / "kernels").glob("*.cubin"))
    assert len(cubins) > 2
    held = [path.read_bytes() for path in cubins]
    for path, other in zip(cubins, held[1:] + held[:1], strict=True):
        path.write_bytes(other)
    assert right()
    assert capfd.readouterr().err.count("\n") == 1
    assert [path.read_bytes() for path in cubins] == held
