"""What `scripts/fuzz.py` damages in the cache folder: an entry of each kind that is kept.

`record-*`: what a record says is damaged and its digest made right again; it is of the right types
and sizes, or made anew. `entry-*`: the bytes of a file as it lies there, its digest among them; it
is what it was, or made anew. Machine code and pickles are damaged in the second way only: who can
write an entry with its digest is the user.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any
from unittest import mock

import fuzz_mutations as mutations
import numba
import numpy as np
from fuzz_formats import ROOT, Format
from fuzz_mutations import Entry
from numba.core.registry import cpu_target

from lenetgpu.check import fit, verify
from lenetgpu.cpu import native as code
from lenetgpu.cpu.kept import Kept
from lenetgpu.dispatch import auto as choice
from lenetgpu.files import assets
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import compiler, nvrtc
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.measure import roofline
from lenetgpu.net.streaming import costs
from lenetgpu.net.streaming.schedule import Costs, best_schedule
from lenetgpu.plan import resolve
from lenetgpu.stages import emitted
from lenetgpu.store import entries
from lenetgpu.store.entries import survey

HOPPER = Gpu(0, "Some Hopper", 90)


@dataclass(frozen=True)
class Record:
    """What the cache folder keeps of something that `ask` makes, reads, or makes anew.

    `given` stands in for `name` of the module `owner`, which measures or compiles. Damaged is the
    file that ends in `suffix`.
    """

    ask: Callable[[], object]
    owner: Any
    name: str
    given: Callable[..., object]
    suffix: str = entries.SUFFIX

    def _asked(self, folder: Path) -> object:
        with mock.patch.dict(os.environ, {"LENETGPU_CACHE": str(folder)}):
            return self.ask()

    def _files(self, folder: Path) -> list[Path]:
        return sorted(folder.rglob(f"*{self.suffix}"))

    def whole(self) -> list[Entry]:
        """The files that are written where there were none."""
        with tempfile.TemporaryDirectory() as folder:
            with mock.patch.object(self.owner, self.name, self.given):
                self._asked(Path(folder))
            files = [path.read_bytes() for path in self._files(Path(folder))]
        assert files, f"{self.name}: expected a record to be kept"
        return [Entry(data, [(0, 128)]) for data in files]

    def seeds(self) -> list[Entry]:
        """The same without the line of the digest."""
        return [Entry(entry.data[entry.data.index(b"{") :]) for entry in self.whole()]

    def read(self, path: Path) -> str:
        """What is made of the damaged record, behind a digest of its own."""
        return self._read(path, lambda place, data: entries.enclosed(
            place.parent.name, place.stem, data
        ))  # fmt: skip

    def read_raw(self, path: Path) -> str:
        """What is made of the damaged file as it is."""
        return self._read(path, lambda place, data: data)

    def _read(self, path: Path, made: Callable[[Path, bytes], bytes]) -> str:
        with (
            tempfile.TemporaryDirectory(dir=path.parent) as folder,
            mock.patch.object(self.owner, self.name, self.given),
        ):
            self._asked(Path(folder))
            for place in self._files(Path(folder)):
                place.write_bytes(made(place, path.read_bytes()))
            with mock.patch.dict(os.environ, {"LENETGPU_CACHE": folder}):
                survey()
            return repr(self._asked(Path(folder))).replace(folder, "")


def _ceilings() -> object:
    found = roofline.ceilings("cpu", "a CPU")
    return found, found.share(1e9, 1e6, 0.5, "fp32"), found.copy_gbs * 1.0


@cache
def _shipped() -> Weights:
    return load_weights(assets.default_weights())


def _fit() -> object:
    plan, weights = resolve("fp32", "cpu"), _shipped()
    found = fit.fit(plan, weights, "a CPU")
    return found, found.error < 1.0, sorted(found.groups.items()), str(found)


def _verified() -> object:
    return verify.verify_once(resolve("fp32", "cpu"), "a CPU")


def _compiled() -> object:
    source = ROOT / "lenetgpu" / "stages" / "argmax" / "scan.cu"
    found = nvrtc.compile_kernel(Kernel(source, "argmax_thread"), "sm_90a")
    used = found.resources
    return used, used.registers + 1, len(found.log), sha256(found.binary).hexdigest()


def _chosen() -> object:
    """The choice of plan `auto`, in order; what it says of the others."""
    refused: list[str] = []
    with (
        mock.patch.object(choice, "plan_key", lambda *facts: "key"),
        mock.patch.object(roofline, "load_on", lambda device: 0.0),
    ):
        found = choice.still_holds(HOPPER, "fp32", 1) or choice.measure(HOPPER, "fp32", 1)
        order = list(choice._ordered(HOPPER, "fp32", 1, refused))
    assert order and isfinite(found.load), found
    return str(found), order, refused


def _scheduled() -> object:
    """Schedules by the figures that are kept, of plain images and of packed ones."""
    found = costs.costs_of(resolve("fp32", "cpu"), _shipped(), HOPPER, "uint8")
    schedules = [
        best_schedule(images, figures, *given)
        for figures in (found, found.packed(150))
        for images, *given in ((1,), (20_000,), (1_000_000, 2), (9_000, None, 500))
    ]
    for one in schedules:
        assert one.streams > 0 and one.chunk > 0 and isfinite(one.predicted_ms), one
    return found, schedules


class _Nvrtc:
    """A library of which `compiler` remembers the version."""

    def __init__(self) -> None:
        self.nvrtcVersion = lambda: (0, 13, 5)
        self.nvrtcCreateProgram = lambda *given: (0, None)
        self.nvrtcCompileProgram = lambda *given: (0,)
        self.nvrtcDestroyProgram = lambda *given: (0,)


def _library() -> object:
    """NVRTC as it is remembered: numbers, its options, a text."""
    with mock.patch.object(compiler, "_loaded", lambda: compiler._places(__file__)):
        for cached in (compiler.asked, compiler._remembered):
            cached.cache_clear()
        found = compiler.current()
        for cached in (compiler.asked, compiler._remembered):
            cached.cache_clear()
    assert all(type(part) is int for part in found.version) and type(found.build) is str, found
    return found.version >= (12, 0), len(found.version), found.options, type(found.build)


def _emit(v: Any, x: Any, y: Any) -> None:
    v.store(v.add(v.load(x), v.all(3.0)), y)


_KERNEL = code.Emitted("plus_three", 2, _emit)


_compile = cache(code.machine_code)


def _native() -> object:
    emitted.native.cache_clear()
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    emitted.native(_KERNEL)(*emitted.addresses(x, y))
    return float(y[0])


def _plus_three(x: int) -> int:
    return x + 3


@cache
def _numbas() -> Any:
    """A function that Numba compiled."""
    function = numba.njit(nogil=True)(_plus_three)
    function(4)
    return function.overloads[numba.int64,]


def _jitted() -> object:
    kept, compiled = Kept(_plus_three), _numbas()
    found = kept.load_overload(compiled.signature, cpu_target.target_context)
    if found is None:
        kept.save_overload(compiled.signature, compiled)
        return 7
    return found.entry_point(4)


_LOG = """ptxas info    : Compiling entry function 'argmax_thread' for 'sm_90a'
ptxas info    : Function properties for argmax_thread
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 26 registers, used 0 barriers, 512 bytes smem
"""
_CUBIN = b"\x7fELF" + bytes(range(256))
RECORDS = {
    "ceilings": Record(
        _ceilings, roofline, "_measured",
        lambda device, name: roofline.Ceilings(
            device=name, copy_gbs=10.0, fma_tflops=1.0, tensor_tflops=0.0, date=roofline._today(),
            **roofline._facts("cpu"),
        ),
    ),
    "fit": Record(
        _fit, fit, "measure",
        lambda plan, *rest: fit.Fit(plan.name, plan.precision, 1e-7, {"digits": 1e-7}),
    ),
    "verified": Record(_verified, verify, "verify", lambda *rest: None),
    "kernel": Record(_compiled, nvrtc, "_run_nvrtc", lambda *rest: (_CUBIN, _LOG)),
    "auto": Record(
        _chosen, choice, "_measured",
        lambda *given: choice.Choice(
            HOPPER.name, "fp32", 1, "sgemm", {"sgemm": 1.0, "fp32": 2.0}, {"fp16x3": "is wrong"}
        ),
    ),
    "schedule": Record(
        _scheduled, costs, "measure_costs",
        lambda *given: Costs(50.0, 5.0, 9.0, 20.0, 9.0, 9.0, 784, 20.0, 9.0, 20.0, 9.0, 9.0),
    ),
    "nvrtc": Record(_library, compiler, "library", _Nvrtc),
}  # fmt: skip
ENTRIES = {
    "fit": RECORDS["fit"],
    "kernel": RECORDS["kernel"],
    "cubin": Record(
        _compiled, nvrtc, "_run_nvrtc", lambda *rest: (_CUBIN, _LOG), entries.CUBIN
    ),
    "cpu": Record(_native, code, "machine_code", _compile),
    "numba": Record(_jitted, code, "machine_code", _compile),
}  # fmt: skip
FORMATS = {
    entry.name: entry
    for entry in (
        *(
            Format(f"record-{name}", "r.json", record.seeds, mutations.of_json, record.read)
            for name, record in RECORDS.items()
        ),
        *(
            Format(f"entry-{name}", "e", record.whole, mutations.of_bytes, record.read_raw,
                   summed=True)
            for name, record in ENTRIES.items()
        ),
    )
}  # fmt: skip
