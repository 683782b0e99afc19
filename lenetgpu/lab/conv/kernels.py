"""The kernels of a suite, compiled together before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.measure.conv_bench import laid_out
from lenetgpu.measure.rounds import Say
from lenetgpu.papers.shapes import Shape
from lenetgpu.stages import Variant

Chosen = Callable[[Shape], list[Variant]]
"""What runs on a shape."""


def _kernels(shapes: list[Shape], chosen: Chosen, arch: str) -> Iterator[Kernel]:
    """What the variants will launch, so far as they say."""
    for shape in shapes:
        for variant in chosen(shape):
            problem = laid_out(variant, shape.problem)
            if isinstance(problem, str) or variant.kernels is None:
                continue
            yield from (k for k in variant.kernels(problem, shape.batch) if k.meant_for(arch))


def compile_all(shapes: list[Shape], chosen: Chosen, say: Say) -> None:
    """Compile every kernel of the shapes at once, by as many threads as help."""
    from lenetgpu.gpu.device import current_arch
    from lenetgpu.gpu.nvrtc import compile_together

    arch = current_arch()
    wanted = list(dict.fromkeys(_kernels(shapes, chosen, arch)))
    say(f"compiling {len(wanted)} kernels")
    compile_together(wanted, arch)  # what fails is said, and listed, where the variant is built
