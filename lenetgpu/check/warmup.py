"""Compiling everything the network can run, ahead of time."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from lenetgpu.check.truth import random_input
from lenetgpu.gpu.device import Gpu, activate, current_arch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.layouts import from_nhwc, physical_shape
from lenetgpu.network import IMAGE_SHAPE, SPANS, STAGES
from lenetgpu.problems import Relayout, Scale
from lenetgpu.stages import Variant, variants


def network_problems(variant: Variant) -> list[Any]:
    """The network's problems that `variant` solves, in each layout it can read and write."""
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


def _runs_on(variant: Variant, gpu: Gpu) -> bool:
    return variant.needs.met_by(gpu.compute_capability)


def warm_up(gpu: Gpu | None) -> tuple[int, float]:
    """Compile every variant for the network's shapes: (variants, seconds)."""
    start = time.perf_counter()
    device = "cpu" if gpu is None else "cuda"
    if gpu is not None:
        activate(gpu)
    ready = [v for v in variants(device=device) if gpu is None or _runs_on(v, gpu)]
    for variant in ready:
        for problem in network_problems(variant):
            if gpu is None:
                _run_once(variant, problem)
            elif variant.kernels is not None:
                compile_all(variant.kernels(problem))
    return len(ready), time.perf_counter() - start


def compile_all(kernels: tuple[Kernel, ...]) -> None:
    """Compile and load those of `kernels` that the current device launches."""
    from lenetgpu.gpu.launch import function

    arch = current_arch()
    for kernel in kernels:
        if kernel.meant_for(arch):
            function(kernel)


def _run_once(variant: Variant, problem: Any) -> None:
    import numpy as np

    x, w = random_input(variant.kind, problem, 1, np.random.default_rng(0))
    if problem.reads != "NC":
        x = np.ascontiguousarray(from_nhwc(x, problem.reads))
    shape = physical_shape(problem.writes, 1, problem.out_shape)
    y = np.empty(shape, np.int32 if problem.writes == "N" else np.float32)
    state = variant.prepare(w, problem, 1) if variant.prepare is not None else w
    variant.launch(x, state, y, problem)
