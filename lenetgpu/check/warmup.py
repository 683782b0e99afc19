"""Ahead-of-time compilation of everything that the network can run."""

import time
from dataclasses import replace
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.reference import random_input, tensors
from lenetgpu.gpu.device import Gpu, activate, current_arch
from lenetgpu.gpu.nvrtc import Kernel, compile_together
from lenetgpu.network import IMAGE_SHAPE, SPANS, STAGES
from lenetgpu.plan import Plan
from lenetgpu.problems import Relayout, Scale
from lenetgpu.stages import Variant, variants
from lenetgpu.stages.prepared import PreparedKernel

BATCHES = (1, 10_000)  # Images per pass that kernels are compiled for.


def network_problems(variant: Variant) -> list[Any]:
    """Return the network's problems that `variant` solves, in each layout it can read and write."""
    if variant.kind == "scale":
        bases: list[Any] = [Scale(*IMAGE_SHAPE, dtype="uint8")]
    elif variant.kind == "relayout":
        maps = [stage.problem.out_shape for stage in STAGES if stage.kind in ("conv", "pool")]
        bases = [Relayout(h, w, c, reads="", writes="") for h, w, c in maps]
    else:
        bases = [stage.problem for stage in STAGES if stage.kind == variant.kind]
        bases += [span.problem for span in SPANS if span.kind == variant.kind]
    laid_out = [
        replace(base, reads=reads, writes=writes)
        for base in bases
        for reads in variant.reads
        for writes in variant.writes
        if variant.kind != "relayout" or reads != writes
    ]
    return [problem for problem in laid_out if variant.refusal(problem) is None]


def warm_up(gpu: Gpu | None) -> tuple[int, float]:
    """Compile every variant for the network's shapes and BATCHES; return (variants, seconds)."""
    start = time.perf_counter()
    device = "cpu" if gpu is None else "cuda"
    if gpu is not None:
        activate(gpu)
    supported = [v for v in variants(device=device) if gpu is None or v.needs.met_by(gpu)]
    kernels: list[Kernel] = []
    for variant, problem in ((v, problem) for v in supported for problem in network_problems(v)):
        if gpu is None:
            x, w = random_input(variant.kind, problem, 1, np.random.default_rng(0))
            prepared = PreparedKernel(variant, problem, tensors(w), 1)
            prepared.run(prepared.input(x), prepared.output(1))
        elif variant.kernels is not None:
            kernels += [kernel for batch in BATCHES for kernel in variant.kernels(problem, batch)]
    if gpu is not None:
        compile_all(tuple(kernels))
    return len(supported), time.perf_counter() - start


def compile_plan(plan: Plan, batch: int) -> None:
    """Compile and load the kernels that `plan` launches for passes of up to `batch` images."""
    compile_all(kernels_of(plan, batch))


def kernels_of(plan: Plan, batch: int) -> tuple[Kernel, ...]:
    """Return the kernels for passes of up to `batch` images, pixel-to-float conversion included."""
    found: list[Kernel] = []
    for bound in plan.stages:
        if bound.variant.kernels is not None:
            found += bound.variant.kernels(bound.problem, batch)
    if not plan.stages[0].variant.raw_images:
        scale = Scale(*IMAGE_SHAPE, dtype="uint8")
        for support in variants("scale", "cuda"):
            if support.kernels is not None:
                found += support.kernels(scale, batch)
    return tuple(found)


def compile_all(kernels: tuple[Kernel, ...]) -> None:
    """Compile and load those of `kernels` that the current device launches."""
    from lenetgpu.gpu.launch import function

    arch = current_arch()
    compile_together(kernels, arch)
    for kernel in kernels:
        if kernel.meant_for(arch):
            function(kernel)
