"""Single-channel convolution: faithful reproduction of the Pascal paper's section 3.1."""

from functools import cache, partial
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import launch
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv import nchw
from lenetgpu.stages.conv.prefetch import plan
from lenetgpu.stages.conv.prefetch.plan import StrictParts, strict_single
from lenetgpu.stages.defines import conv_kernel
from lenetgpu.stages.registry import Rows, of_shape

prefetch = partial(nchw, family="prefetch")


@cache
def _kernel(problem: Conv, parts: StrictParts) -> Kernel:
    sizes = {
        "SMS": parts.multiprocessors,
        "PART_LINES": parts.part_lines(problem),
        "PART_FILTERS": parts.part_filters(problem),
        "STREAMS_LINES": int(parts.streams == "lines"),
        "SHARED_BYTES": parts.shared(problem),
    }
    for name in ("each", "threads", "row_parts", "filter_parts", "pieces"):
        sizes[name.upper()] = getattr(parts, name)
    return conv_kernel(__file__, "conv_single_strict", problem, **sizes)


def prepare(w: Any, problem: Conv, batch: int) -> Any:
    """Return float32 w (R, S, 1, M) as (M, 1, R, S): one filter after another (Fig. 1(a))."""
    return cupy.asarray(np.ascontiguousarray(np.asarray(w, np.float32).transpose(3, 2, 0, 1)))


def launch_parts(x: Any, w: Any, y: Any, problem: Conv, parts: StrictParts) -> None:
    """Launch the kernel of `parts` on x (n, 1, H, W), w (M, 1, R, S) and y (n, M, OH, OW)."""
    blocks, shared = parts.multiprocessors * parts.each, parts.shared(problem)
    args = (x, w, y, np.int32(len(x)))
    launch(_kernel(problem, parts), (blocks,), (parts.threads,), args, shared=shared)


def _offer(name: str, both: bool, paper: str, summary: str) -> None:
    def parts(problem: Conv) -> StrictParts:
        planned = strict_single(problem, machines.current(), both)
        assert planned is not None, "refused by `supports`"
        return planned.parts

    def supports(problem: Conv) -> str | None:
        if problem.C != 1:
            return f"supports one input channel, found {problem.C}"
        if problem.stride != 1:
            return f"supports stride 1, as the paper's equation (2), found {problem.stride}"
        if strict_single(problem, machines.current(), both) is None:
            filters = f"{problem.R}x{problem.S} filters on lines of {problem.padded[1]} pixels"
            return f"supports parts that two blocks hold, found {filters}"
        return None

    def explain(problem: Conv, batch: int, machine: Machine) -> Rows:
        planned = strict_single(problem, machine, both)
        rows = [plan.NO_TWO] if planned is None else plan.parts_rows(planned, problem, machine)
        return [*plan.explain_machine(machine), *rows]

    @prefetch(
        name=name,
        summary=summary,
        prepare=prepare,
        kernels=of_shape(lambda problem: _kernel(problem, parts(problem))),
        supports=supports,
        explain=explain,
        paper=paper,
    )
    def run(x: Any, w: Any, y: Any, problem: Conv) -> None:
        launch_parts(x, w, y, problem, parts(problem))


_DIVIDED = "One channel; filters or map divided by P or Q among 2 x N_SM blocks of 512 threads."
_BOTH = "prefetch.single_strict, map and filters both divided, until all multiprocessors have work."
_offer("single_strict", False, "Pascal 3.1", _DIVIDED)
_offer("single_strict_both", True, "Pascal 2.3, both divided", _BOTH)
