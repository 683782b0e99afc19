"""Bias, residual and ReLU after a convolution whose kernel does not apply them."""

from functools import cache
from typing import Any

from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.defines import launch_each

_THREADS, _EACH = 256, 4


@cache
def kernel(problem: Conv, bias: bool, add: bool, relu: bool) -> Kernel:
    """Return the kernel for the outputs of `problem`, in the layout and dtype that it writes."""
    defines: dict[str, int | str] = {
        "BIAS": int(bias), "ADD": int(add), "RELU": int(relu), "OH": problem.OH, "OW": problem.OW,
        "M": problem.M, "WRITES": problem.writes, "DTYPE": problem.dtype.upper(),
        "THREADS": _THREADS, "EACH": _EACH,
    }  # fmt: skip
    return Kernel.beside(__file__, "conv_finish", **defines)


def finish(y: Any, problem: Conv, bias: Any, add: Any, relu: bool) -> None:
    """Compute y = relu(y + bias + add) in place; `bias` (M,) and `add` (like `y`) may be None."""
    made = kernel(problem, bias is not None, add is not None, relu)
    arrays = (y if bias is None else bias, y if add is None else add)  # others are not read
    launch_each(made, y.size, y, *arrays, each=_EACH)
