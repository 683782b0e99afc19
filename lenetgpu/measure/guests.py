"""Variants from outside the package as candidates: which fit, run here, and compile at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lenetgpu.check.judge import TOLERANCE
from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.comparison import Candidate
from lenetgpu.measure.rounds import BREAKS, never, why
from lenetgpu.stages import Variant

LayOut = Callable[[Variant], Any]


def of_kind(found: Sequence[Variant], kind: str) -> tuple[list[Variant], list[str]]:
    """The variants of `kind`, and a sentence on those that are not.

    Raises LenetError where there are others only, or a precision has no tolerance.
    """
    fitting = [variant for variant in found if variant.kind == kind]
    others = [f"{variant.full_name} ({variant.kind})" for variant in found if variant.kind != kind]
    if others and not fitting:
        raise LenetError(f"--with: expected variants of kind {kind}, found {', '.join(others)}")
    for variant in fitting:
        if variant.precision not in TOLERANCE:
            raise LenetError(
                f"--with, {variant.full_name}: expected a precision of {', '.join(TOLERANCE)}, "
                f"found {variant.precision!r}"
            )
    left_out = f"--with: expected variants of kind {kind}, left out {', '.join(others)}"
    return fitting, [left_out] if others else []


def cannot_run(
    guests: Sequence[Variant], gpu: Gpu | None, batch: int, lay_out: LayOut
) -> dict[str, Candidate]:
    """The guests that cannot run on `gpu` (None: a CPU), by name, as `refused` or `failed`.

    A kernel that does not compile is said to be so on any machine that has NVRTC.
    """
    found = {}
    for guest in guests:
        stopped = _stopped(guest, gpu, batch, lay_out)
        if stopped is not None:
            found[guest.full_name] = Candidate(guest.full_name, never, guest.precision, *stopped)
    return found


def _stopped(
    guest: Variant, gpu: Gpu | None, batch: int, lay_out: LayOut
) -> tuple[str, str] | None:
    """The status and note of a guest that cannot run; None where it can."""
    try:
        problem = lay_out(guest)
        if isinstance(problem, str):
            return "refused", problem
        compiled = _compile(guest, gpu, problem, batch)
    except BREAKS as error:
        return "failed", why(error)
    here = "cpu" if gpu is None else "cuda"
    if guest.needs.device != here:
        return "refused", f"needs {guest.needs}, found device {here}{compiled}"
    if gpu is not None and not guest.needs.met_by(gpu):
        return "refused", f"needs {guest.needs}, found cuda {gpu.version}{compiled}"
    return None


def _compile(guest: Variant, gpu: Gpu | None, problem: Any, batch: int) -> str:
    """Compile the guest's kernels, for `gpu` where it will do; a clause that says so."""
    if guest.kernels is None or guest.needs.device != "cuda":
        return ""
    kernels = guest.kernels(problem, batch)
    if not kernels:
        return ""
    arch = gpu.arch if gpu is not None and guest.needs.met_by(gpu) else _arch_for(guest)
    if arch is None:
        return "; not compiled: no NVRTC is here that knows such a GPU"
    for kernel in kernels:
        if kernel.meant_for(arch):
            nvrtc.compile_kernel(kernel, arch)
    return f"; compiles for {arch}"


def _arch_for(guest: Variant) -> str | None:
    """An architecture that the guest runs on and NVRTC knows: sm_90a where it is one, or None."""
    try:
        nvrtc.version()
    except LenetError:
        return None
    for arch in ("sm_90a", *reversed(nvrtc.ARCHITECTURES)):
        capability = int(arch[3:].rstrip("a"))
        if guest.needs.met_by(Gpu(0, arch, capability)) and nvrtc.supported(arch):
            return arch
    return None
