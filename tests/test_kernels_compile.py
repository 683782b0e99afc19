"""Tests that every kernel compiles for every architecture, without spills or local memory."""

import re
from collections import defaultdict
from pathlib import Path

import pytest
from compiling import compiles
from conftest import ROOT
from problems import ODD, in_layouts

from lenetgpu.check.warmup import network_problems
from lenetgpu.gpu import nvrtc
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.instructions import INSTRUCTIONS
from lenetgpu.gpu.latency import FMA_LATENCY, LOAD_LATENCY
from lenetgpu.gpu.nvrtc import ARCHITECTURES, Kernel, compile_kernel
from lenetgpu.measure.counters.child import MARK
from lenetgpu.measure.roofline import FMA_RATE, MMA_RATE
from lenetgpu.net.outside import OUTSIDE
from lenetgpu.problems import Conv
from lenetgpu.stages import variants
from lenetgpu.stages.conv import finish
from lenetgpu.stages.fused.persistent.persistent import DESIGNS
from lenetgpu.stages.registry import KINDS

BATCHES = (1, 10_000)
MANY = 64
WHOLE = "sm_90a"  # every kernel is compiled for it, some for the others
OLDEST = "sm_75"  # below every `__CUDA_ARCH__ >=` of the headers: paths that WHOLE never takes
pytestmark = compiles


def lossy_unrolls(text):
    """Yield loops of unknown trip count that are unrolled by a number that is no power of two."""
    sizes = dict(re.findall(r"constexpr int (\w+) = (\d+);", text))
    for by, bound in re.findall(r"#pragma unroll (\w+)\n\s*for \([^;]*;\s*\w+ < ([^;]*);", text):
        size = sizes.get(by, by)
        even = size.isdigit() and int(size) & (int(size) - 1) == 0
        if not even and not re.fullmatch(r"[A-Z0-9_+*/() -]+", bound):
            yield f"unroll {by} up to {bound}"


def test_unroll_pragmas_are_not_truncated_by_nvrtc():
    """NVRTC 13 omits the rest of a loop to min(32, n) that is unrolled by 5."""
    assert list(lossy_unrolls("#pragma unroll 5\nfor (int k = 0; k < deep; ++k)"))
    for source in (ROOT / "lenetgpu").rglob("*.cu*"):
        assert not list(lossy_unrolls(source.read_text())), source


def enough(laid_out):
    """Return the fewest of a shape's problems that read and write every layout."""
    found, read, written = [], set(), set()
    for new in (2, 1):
        for problem in laid_out:
            if (problem.reads not in read) + (problem.writes not in written) >= new:
                found.append(problem)
                read.add(problem.reads)
                written.add(problem.writes)
    return found


def problems_of(variant):
    """Return the network's problems in all pairs of layouts, and `enough` odd problems."""
    odd = []
    for index, base in enumerate(ODD.get(variant.kind, [])):
        laid_out = in_layouts(variant, base)
        odd += enough(laid_out[index % 2 :] + laid_out[: index % 2])
    return odd + network_problems(variant)


def kernels_of(variant):
    """Return all kernels of these problems for one image and for many; every other if very many."""
    found = [
        kernel
        for problem in problems_of(variant)
        for batch in BATCHES
        for kernel in variant.kernels(problem, batch)
    ]
    found = list(dict.fromkeys(found))
    return found if len(found) <= MANY else found[::2]


def selected(kernels, arch):
    """Return kernels not meant for WHOLE, and per entry point the first to spill.

    That has the most registers on WHOLE; for OLDEST the one with the fewest is added."""
    found, entries = [], defaultdict(list)
    for kernel in kernels:
        if kernel.meant_for(WHOLE):
            entries[kernel.source, kernel.entry].append(kernel)
        else:
            found.append(kernel)
    for same in entries.values():
        same.sort(key=lambda kernel: compile_kernel(kernel, WHOLE).resources.registers)
        found += [same[-1], same[0]] if arch == OLDEST else [same[-1]]
    return list(dict.fromkeys(found))


GPU = [v for v in variants(device="cuda") if v.kernels is not None]
OTHERS = [FMA_RATE, MMA_RATE, OUTSIDE, *(design.kernel for design in DESIGNS)]
OTHERS += [*FMA_LATENCY, *LOAD_LATENCY, MARK, *INSTRUCTIONS[0].kernels()]
OTHERS += [finish.kernel(Conv(9, 8, 3, 4, 3, 3), True, True, True)]
CASES = [
    pytest.param(variant, arch, id=f"{variant.kind}-{variant.full_name}-{arch}")
    for arch in sorted(ARCHITECTURES, key=lambda arch: arch != WHOLE)
    for variant in GPU
    if variant.needs.met_by(Gpu(0, arch, int(arch[3:].rstrip("a"))))
]


def assert_compiled(kernel, arch, local_memory=False):
    compiled = compile_kernel(kernel, arch)
    used = compiled.resources
    assert len(compiled.binary) > 0
    assert used.spill_bytes == 0, f"{kernel} spills {used.spill_bytes} bytes"
    if not local_memory:
        assert used.stack_bytes == 0, f"{kernel} uses {used.stack_bytes} bytes of local memory"
    assert "are serialized" not in compiled.log, f"{kernel}: wgmma serialised"


@pytest.mark.parametrize("variant", GPU, ids=lambda v: f"{v.kind}-{v.full_name}")
def test_every_entry_compiles_for_hopper(variant):
    """Compile one kernel per entry point of the network's problems; the slow test compiles all."""
    entries = {
        (kernel.source, kernel.entry): kernel
        for problem in network_problems(variant)
        for kernel in variant.kernels(problem, BATCHES[-1])
        if kernel.meant_for(WHOLE)
    }
    for kernel in entries.values():
        assert_compiled(kernel, WHOLE, variant.local_memory)


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "arch"), CASES)
def test_variant_kernels_compile(variant, arch):
    if not nvrtc.supported(arch):
        pytest.skip(f"NVRTC {nvrtc.version()} does not know {arch}")
    kernels = [kernel for kernel in kernels_of(variant) if kernel.meant_for(arch)]
    assert kernels
    if arch != WHOLE:
        kernels = selected(kernels, arch)
    for kernel in kernels:
        assert_compiled(kernel, arch, variant.local_memory)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("kernel", OTHERS, ids=lambda k: f"{k.entry}-{dict(k.defines)}")
def test_other_kernels_compile(kernel, arch):
    if not nvrtc.supported(arch) or not kernel.meant_for(arch):
        pytest.skip(f"not for {arch}, or NVRTC {nvrtc.version()} does not know it")
    assert_compiled(kernel, arch)


def test_local_memory_use_is_detected():
    source = ROOT / "tests" / "broken" / "spill.cu"
    assert compile_kernel(Kernel(source, "spill"), "sm_90a").resources.stack_bytes > 0


def test_every_source_is_launched_by_its_own_variant():
    package = Path(nvrtc.__file__).resolve().parent.parent
    compiled = {kernel.source for variant in GPU for kernel in kernels_of(variant)}
    compiled |= {kernel.source for kernel in OTHERS}
    starts = package / "lab" / "start"  # copied by `variants --new`; tests/test_starting.py
    compiled |= {(starts / f"{kind}.cu").resolve() for kind in KINDS}
    assert compiled == {path.resolve() for path in package.rglob("*.cu")}
    for source in compiled:
        assert source.with_suffix(".py").is_file()
