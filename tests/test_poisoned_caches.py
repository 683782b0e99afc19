"""Caches that are damaged, planted or inaccessible: no bad entry is used, and no command fails.

Every way to poison an entry is tried on one kind of cache, and ways that depend on the kind on each
kind. Results are right, at most one line is on stderr, and the entry is whole again or, if it
cannot be replaced, left alone. The last tests cover `doctor --repair`, which empties the cache.
"""

import errno
import os
import pickle
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from terminal import refused, run

from lenetgpu.check import fit as fits
from lenetgpu.cpu import native as code
from lenetgpu.cpu.jit import LazyJit, addresses, native
from lenetgpu.errors import LenetError
from lenetgpu.gpu import compiler, nvrtc
from lenetgpu.gpu.nvrtc import Kernel, Resources, compile_kernel
from lenetgpu.plan import resolve
from lenetgpu.store import entries
from lenetgpu.store.entries import repair, survey

ROOT_USER = hasattr(os, "geteuid") and os.geteuid() == 0
ANOTHER = 65_534


def plus_three(x):
    return x + 3


@dataclass
class Kind:
    """A kind of cache: `use` uses it as a new process would; `made` records each computation."""

    name: str
    use: object
    suffix: str = ".entry"
    made: list = field(default_factory=list)

    def entry(self):
        (path,) = (Path(os.environ["LENETGPU_CACHE"]) / self.name).glob(f"*{self.suffix}")
        return path


def stub_of(monkeypatch, module, name, found):
    """Stub `module.name` to return `found`; return the list of its calls."""
    calls = []
    monkeypatch.setattr(module, name, lambda *a, **k: calls.append(name) or found)
    return calls


def cpu_kind(monkeypatch, tmp_path):
    def emit(v, x, y):
        v.store(v.add(v.load(x), v.all(3.0)), y)

    kernel, plain, made = code.Emitted("plus_three", 2, emit), code.machine_code, []
    monkeypatch.setattr(code, "machine_code", lambda k: made.append(k) or plain(k))

    def use():
        native.cache_clear()
        x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
        native(kernel)(*addresses(x, y))
        return y[0] == 4

    return Kind("cpu", use, made=made)


def numba_kind(monkeypatch, tmp_path):
    from lenetgpu.cpu.numba_cache import NumbaCache

    made, plain = [], NumbaCache.save_overload
    monkeypatch.setattr(NumbaCache, "save_overload", lambda *a: made.append(a) or plain(*a))
    return Kind("numba", lambda: LazyJit(plus_three)(4) == 7, made=made)


def fits_kind(monkeypatch, tmp_path):
    found = fits.Fit("tiled", "fp32", 1e-7, {"digits": 1e-7})
    made = stub_of(monkeypatch, fits, "measure", found)
    plan, weights = resolve("tiled", "cpu"), SimpleNamespace(digest="these")
    return Kind("fits", lambda: fits.fit(plan, weights, "this one") == found, made=made)


def kernels_kind(monkeypatch, tmp_path, suffix=".entry"):
    source = tmp_path / "k.cu"
    source.write_text("// nothing\n")
    monkeypatch.setattr(compiler, "current", lambda: compiler.Compiler((13, 0), (), "a build"))
    monkeypatch.setattr(nvrtc, "surroundings", lambda: (None, None))
    monkeypatch.setattr(nvrtc, "_parse_resources", lambda *_: Resources(8, 0, 0, 0))
    monkeypatch.setattr(nvrtc.compiler, "outdated", lambda: False)
    made = stub_of(monkeypatch, nvrtc, "_run_nvrtc", (b"the right cubin", "a remark"))

    def use():
        nvrtc._uncached.clear()
        nvrtc.source_hash.cache_clear()
        found = compile_kernel(Kernel(source, "k"), "sm_90a")
        return (found.binary, found.resources.registers, found.log) == (
            b"the right cubin", 8, "a remark",
        )  # fmt: skip

    return Kind("kernels", use, suffix, made)


def cubins_kind(monkeypatch, tmp_path):
    return kernels_kind(monkeypatch, tmp_path, ".cubin")


KINDS = [cpu_kind, numba_kind, fits_kind, kernels_kind, cubins_kind]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, in a process without earlier warnings."""
    where = tmp_path / "cache"
    monkeypatch.setenv("LENETGPU_CACHE", str(where))
    entries.notices.cache_clear()
    yield where
    entries.notices.cache_clear()
    native.cache_clear()
    nvrtc._uncached.clear()
    nvrtc.source_hash.cache_clear()


def used(make, monkeypatch, tmp_path):
    """Return a kind of cache with one entry, which has been used."""
    found = make(monkeypatch, tmp_path)
    assert found.use() and found.use() and len(found.made) == 1
    return found


@pytest.fixture(params=KINDS, ids=lambda made: made.__name__.removesuffix("_kind"))
def kind(request, cache, monkeypatch, tmp_path):
    """Each kind of cache."""
    return used(request.param, monkeypatch, tmp_path)


@pytest.fixture
def fit(cache, monkeypatch, tmp_path):
    """One kind of cache, for behavior that all kinds share."""
    return used(fits_kind, monkeypatch, tmp_path)


class Evil:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (Path(self.marker),)


def flipped(data):
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def bytes_of(change):
    def poison(path, tmp_path):
        path.write_bytes(change(path.read_bytes()))

    return poison


def replaced_by(make):
    def poison(path, tmp_path):
        path.unlink()
        make(path, tmp_path)

    return poison


def _evil(path, tmp_path):
    path.write_bytes(pickle.dumps(Evil(str(tmp_path / "marker"))))


def _evil_made_for_another(path, tmp_path):
    """Write an entry with the right form and digest, but for another name, as if renamed."""
    data = pickle.dumps(Evil(str(tmp_path / "marker")))
    path.write_bytes(entries.enclosed(path.parent.name, "another", data))


def _too_large(path, tmp_path):
    with path.open("ab") as file:
        file.truncate(entries.MOST_BYTES + 1)


def _link(path, tmp_path):
    """Replace the entry by a link to an identical copy, which another user could change."""
    target = tmp_path / "target"
    shutil.move(path, target)
    path.symlink_to(target)


def _anothers(path, tmp_path):
    os.chown(path, ANOTHER, -1)


NEEDS_ROOT = pytest.mark.skipif(not ROOT_USER, reason="only root gives a file away")
POISONS = {
    "empty": bytes_of(lambda data: b""),
    "cut in half": bytes_of(lambda data: data[: len(data) // 2]),
    "one byte more": bytes_of(lambda data: data + b"\0"),
    "a bit in the middle": bytes_of(flipped),
    "a format to come": bytes_of(lambda data: data.replace(b"cache 1 ", b"cache 2 ") + b" "),
    "a planted pickle": _evil,
    "made for another": _evil_made_for_another,
    "too large": _too_large,
    "a link": _link,
    "a link to nowhere": replaced_by(lambda path, tmp_path: path.symlink_to(tmp_path / "no")),
    "a pipe": replaced_by(lambda path, tmp_path: os.mkfifo(path)),
    "a folder": replaced_by(lambda path, tmp_path: path.mkdir()),
    "writable by all": lambda path, tmp_path: path.chmod(0o666),
    "gone": lambda path, tmp_path: path.unlink(),
    "another's": _anothers,
}
STAYS = "a folder"
NOTHING_TO_SAY = "gone"


def needs_root(names):
    return [pytest.param(name, marks=NEEDS_ROOT) if "another's" in name else name for name in names]


@pytest.mark.parametrize("how", needs_root(POISONS))
def test_damaged_fit_entry_is_rebuilt(how, fit, tmp_path, capfd):
    require_made_anew(how, fit, tmp_path, capfd)


@pytest.mark.parametrize("how", ["a bit in the middle", "a planted pickle", "gone"])
def test_damaged_entries_of_every_kind_are_rebuilt(how, kind, tmp_path, capfd):
    require_made_anew(how, kind, tmp_path, capfd)


def require_made_anew(how, kind, tmp_path, capfd):
    path = kind.entry()
    good = path.stat().st_size
    POISONS[how](path, tmp_path)
    lost = survey()
    assert how == NOTHING_TO_SAY or len(lost.problems) == 1, lost
    assert kind.use() and len(kind.made) == 2
    assert not (tmp_path / "marker").exists()
    said = capfd.readouterr()
    assert (said.out, said.err.count("\n")) == ("", int(bool(entries.notices())))
    assert how == NOTHING_TO_SAY or entries.notices()
    healed = how != STAYS
    assert kind.use() and len(kind.made) == (2 if healed else 3)
    assert capfd.readouterr().err == ""
    if healed:
        assert survey().problems == []
        assert kind.entry().lstat().st_mode & 0o777 == 0o600
    if how == "a link":
        assert (tmp_path / "target").stat().st_size == good
    repair()
    assert survey().problems == [] and survey().counts == {}


def _as_file(where, tmp_path):
    shutil.rmtree(where)
    where.write_text("")


def _as_link(where, tmp_path):
    shutil.move(where, tmp_path / "elsewhere")
    where.symlink_to(tmp_path / "elsewhere")


def _as_lost_link(where, tmp_path):
    shutil.rmtree(where)
    where.symlink_to(tmp_path / "nowhere" / "deep")


FOLDERS = {
    "a file": _as_file,
    "a link": _as_link,
    "a link to nowhere": _as_lost_link,
    "open to all": lambda where, tmp_path: where.chmod(0o777),
    "open to the group": lambda where, tmp_path: where.chmod(0o770),
    "another's": _anothers,
}


@pytest.mark.parametrize("inner", [True, False], ids=["a kind's", "all"])
@pytest.mark.parametrize("how", needs_root(FOLDERS))
def test_foreign_cache_folder_is_not_used(how, inner, fit, tmp_path, cache, capfd):
    if how == "a link" and not inner:
        pytest.skip("is followed")
    before = sorted(cache.rglob("*"))
    FOLDERS[how](cache / fit.name if inner else cache, tmp_path)
    assert survey().problems
    for times in (2, 3):
        assert fit.use() and len(fit.made) == times
    assert capfd.readouterr().err.count("\n") == 1
    if how.startswith(("open", "another")):
        assert sorted(cache.rglob("*")) == before


def test_own_symlink_to_the_cache_is_followed(fit, tmp_path, cache):
    _as_link(cache, tmp_path)
    assert fit.use() and len(fit.made) == 1 and entries.notices() == []
    with pytest.raises(LenetError, match="found a link or another user's; nothing was removed"):
        repair()
    assert fit.use() and len(fit.made) == 1


@pytest.mark.parametrize("made", [fits_kind, cpu_kind, numba_kind, kernels_kind])
def test_uncacheable_results_are_still_computed(made, cache, tmp_path, monkeypatch, capfd):
    kind, real = made(monkeypatch, tmp_path), os.open

    def refuse(path, *rest, **more):
        if str(cache) in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    for times in (1, 2):
        assert kind.use() and len(kind.made) == times
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "No space left" in said
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_without_home_nothing_is_cached(fit, monkeypatch, capfd):
    monkeypatch.delenv("LENETGPU_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    assert fit.use() and len(fit.made) == 2
    assert capfd.readouterr().err.count("expected a home or LENETGPU_CACHE, found neither") == 1
    with pytest.raises(LenetError, match="expected a home or LENETGPU_CACHE, found neither"):
        repair()


@pytest.mark.parametrize("made", [fits_kind, kernels_kind])
def test_invalid_cached_fields_are_ignored(made, cache, tmp_path, monkeypatch):
    """An intact entry of the right name may hold other fields, as written by another version."""
    kind = used(made, monkeypatch, tmp_path)
    name = kind.entry().name.removesuffix(".entry")
    for times, change in enumerate(({}, dict.fromkeys(entries.facts_of(kind.name, name))), 2):
        entries.save(kind.name, name, change)
        assert kind.use() and kind.use() and len(kind.made) == times


def test_cache_is_private_to_the_user(fit, cache):
    modes = {path: path.stat().st_mode & 0o777 for path in (cache, *cache.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_cupy_caches_in_memory_if_its_folder_is_foreign(cache, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(os, "environ", dict(os.environ) | {"HOME": str(tmp_path)})
    for name in ("CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"):
        os.environ.pop(name, None)
    folder = tmp_path / ".cupy" / "kernel_cache"
    for mode, kept in ((0o700, None), (0o777, "1")):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        entries.settle_cupy.cache_clear()
        entries.settle_cupy()
        assert os.environ.get("CUPY_CACHE_IN_MEMORY") == kept
    assert capfd.readouterr().err.count("\n") == len(entries.notices()) == 1
    entries.settle_cupy.cache_clear()


def test_uncacheable_kernel_is_compiled_once_per_process(cache, tmp_path, monkeypatch):
    kind = kernels_kind(monkeypatch, tmp_path)
    monkeypatch.setenv("LENETGPU_CACHE", os.devnull)
    assert kind.use() and len(kind.made) == 1
    found = compile_kernel(Kernel(tmp_path / "k.cu", "k"), "sm_90a")
    assert (found.path, found.binary, len(kind.made)) == (None, b"the right cubin", 1)


def test_concurrent_cache_writes_are_all_stored(cache):
    names = [f"{number:03}" for number in range(240)]
    with ThreadPoolExecutor(8) as pool:
        kept = list(pool.map(lambda name: entries.write("fits", name, b"{}"), names))
    assert all(kept)
    assert {entries.read("fits", name) for name in names} == {b"{}"}


def test_cache_lock_admits_one_process(cache):
    """The lock is a file in the cache folder; without a usable folder, all processes continue."""
    order = []

    def hold(number):
        with entries.alone():
            order.append(number)
            time.sleep(0.02)
            order.append(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(hold, range(4)))
    assert order[::2] == order[1::2] and sorted(order[::2]) == [0, 1, 2, 3]
    cache.chmod(0o777)
    hold(4)
    assert order[-1] == 4


@pytest.fixture
def filled(cache):
    for kind in ("cpu", "numba", "fits"):
        assert entries.write(kind, "first", b"{}")
    return cache


def entries_of(cache):
    return sorted(cache.glob("*/*.entry"))


doctor = partial(run, "doctor")


def test_doctor_counts_entries_and_names_damaged_ones(filled):
    cache = filled
    paths = entries_of(cache)
    row = next(line for line in doctor().output.splitlines() if line.startswith("kernel cache"))
    counts = {kind: len(list((cache / kind).glob("*.entry"))) for kind in entries.KINDS}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    assert row.endswith(f"{cache}, {counted}") and "damaged" not in doctor().output
    paths[0].write_bytes(b"")
    (cache / "numba").chmod(0o777)
    row = next(line for line in doctor().output.splitlines() if line.startswith("damaged"))
    name = f"{paths[0].parent.name}/{paths[0].name.removesuffix('.entry')}"
    assert f"{name}: expected an entry of format 1, found an empty file" in row
    assert f"{cache / 'numba'}: expected no write access for others, found mode 0777" in row
    assert doctor("--repair").exit_code == 0
    assert "damaged" not in doctor().output and "kernel cache  " in doctor().output


def test_doctor_repair_removes_only_cache_entries(filled, tmp_path):
    cache = filled
    target, strange, nested = tmp_path / "target", cache / "numba" / "notes", cache / "mine"
    for path in (target, strange, nested):
        path.write_text("not an entry")
    (cache / "fits" / "link.kept").symlink_to(target)
    (cache / "auto").symlink_to(tmp_path)
    full = cache / "cpu" / "folder.entry"
    full.mkdir()
    (full / "mine").write_text("not an entry")
    cache.chmod(0o777)
    result = doctor("--repair", code=0)
    first, *left = result.output.splitlines()
    assert first.startswith(f"removed from {cache}: ") and "1 numba" in first
    assert sorted(left) == [f"left: {full}: Directory not empty", f"left: {strange}: not an entry"]
    assert {path for path in cache.rglob("*") if path.is_file()} == {strange, nested, full / "mine"}
    assert target.read_text() == "not an entry" and not (cache / "auto").is_symlink()
    assert cache.stat().st_mode & 0o777 == 0o755
    assert "nothing" in doctor("--repair").output


WHOSE = {"another's": _anothers, "shared": lambda cache, tmp_path: cache.chmod(0o1777)}


@pytest.mark.parametrize("whose", needs_root(WHOSE))
def test_doctor_repair_refuses_foreign_folders(whose, filled, tmp_path):
    before = entries_of(filled)
    WHOSE[whose](filled, tmp_path)
    refused(doctor("--repair"), "; nothing was removed")
    assert entries_of(filled) == before
