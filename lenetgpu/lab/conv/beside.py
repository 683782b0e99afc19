"""What stands beside a shape's candidates: explanations, and the convnet2 paper's ladder."""

from __future__ import annotations

from typing import Any

from lenetgpu.gpu import latency, machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.lab.conv.request import ConvRequest
from lenetgpu.lab.show.explain import explanation_json, latency_json
from lenetgpu.measure.comparison import Comparison
from lenetgpu.measure.roofline import Ceilings
from lenetgpu.measure.rounds import Say
from lenetgpu.papers.convnet2_ladder import measure_ladder
from lenetgpu.papers.shapes import Shape, Suite
from lenetgpu.stages import Variant, variants


def named(words: str | None) -> list[Variant]:
    """The GPU variants that a comma list names, or their families; all where there is no list."""
    wanted = None if words is None else {word.strip() for word in words.split(",")}
    return [v for v in variants("conv", "cuda") if wanted is None or wanted & {v.family, *v.names}]


def explained(
    request: ConvRequest,
    shape: Shape,
    comparison: Comparison,
    limits: Ceilings,
    here: list[Variant] | None,
) -> list[dict[str, Any]]:
    """Explanations of the variants on the GPU `here`, or for the machine that was asked for.

    `here` is None where there is no GPU.
    """
    machine = machines.current() if request.machine is None else machines.known(request.machine)
    if request.machine is None and here is not None:
        first = latency_json(lambda: latency.measured(machine), machine)
        return [first, *explanation_json(shape, comparison, limits, here, [], machine)]
    elsewhere, words = named(request.only), request.only
    return explanation_json(shape, comparison, limits, [], elsewhere, machine, words)


def has_ladder(suite: Suite | None, chosen: list[Variant]) -> bool:
    """Whether the suite's steps are measured one by one too on a GPU: where they are chosen."""
    if suite is None or suite.name != "convnet2":
        return False
    return any(variant.family == suite.name for variant in chosen)


def ladder(shape: Shape, gpu: Gpu, say: Say) -> list[dict[str, Any]]:
    """The paper's steps on one shape; a row that says why where they cannot be measured."""
    try:
        return measure_ladder(shape.problem, shape.batch, gpu=gpu, say=say)
    except (MemoryError, RuntimeError) as error:
        reason = f"not measured: {(str(error).splitlines() or [''])[0]}"
        return [{"step": "the ladder", "variant": "", "status": "skipped", "note": reason}]
