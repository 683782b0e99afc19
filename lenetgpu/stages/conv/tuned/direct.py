"""Our own fastest fp32 convolution for any shape."""

from dataclasses import dataclass
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.gpu import machines
from lenetgpu.gpu.machines import Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv import nchw
from lenetgpu.stages.conv.tuned.product import Product, Workspace, cheapest

_MOST_INPUTS = 1 << 31  # per image; offsets are 32-bit


@dataclass
class State:
    """Filters (K_SIZE, M rounded up to 4), the plan, and its workspace for `batch` images."""

    filters: Any
    product: Product
    space: Workspace
    batch: int


def plan(problem: Conv, batch: int, machine: Machine | None = None) -> Product:
    """Return the product for up to `batch` images on `machine`, by default the current one."""
    return cheapest(problem, batch, machine or machines.current())


def prepare(w: Any, problem: Conv, batch: int, product: Product | None = None) -> State:
    """Prepare `tuned` for up to `batch` images at a time."""
    matrix = np.asarray(w, np.float32).reshape(problem.gemm_k, problem.M)
    filters = cupy.asarray(np.pad(matrix, ((0, 0), (0, -problem.M % 4))))
    product = product or plan(problem, batch)
    state = State(filters, product, Workspace.of(product, problem, batch), batch)
    cupy.cuda.get_current_stream().synchronize()  # kernels fetch filters before preceding ones end
    return state


def refusal(problem: Conv) -> str | None:
    """Return the reason if the product does not support the problem, else None."""
    if problem.C * problem.H * problem.W >= _MOST_INPUTS:
        return f"supports images of fewer than {_MOST_INPUTS} elements"
    return None


def kernels(problem: Conv, batch: int) -> tuple[Kernel, ...]:
    """Return the kernel for up to `batch` images."""
    return (plan(problem, batch).kernel(problem),)


@nchw(
    family="direct",
    prepare=prepare,
    kernels=kernels,
    supports=refusal,
    paper="after Chang 3.2: prefetching, split where maps are small",
)
def tuned(x: Any, w: State, y: Any, problem: Conv) -> None:
    """Register-tiled implicit product, cp.async pipeline, K split over a cluster."""
    for lo in range(0, len(x), w.batch):
        w.product.run(problem, x[lo:], w.filters, y[lo:], w.space, min(w.batch, len(x) - lo))
