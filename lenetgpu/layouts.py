"""Memory layouts of activations.

| layout | physical shape of (N, H, W, C) | what |
|---|---|---|
| NHWC | (N, H, W, C) | the files' own order |
| NCHW | (N, C, H, W) | the report's second transformation (section 3.2.4) |
| QUAD | (N, C, 2H, W/2) | each 2x2 window also becomes a 4x1 column (Fig. 5, Table 10) |
| NC | (N, K) | a vector per image; NHWC flattened |
| N | (N,) | a label per image |
| F16, F32, F16X2 | (80s, 1024) float16, (N, 1024) float32, (80s, 2, 1024) float16 | features |
| | | between the two kernels of a fused family, in that family's own order and scale; |
| | | 80s: N rounded up to a multiple of 80 |

Values are float32, or a convolution's `dtype`. NumPy and CuPy have no bfloat16, so its bits are
stored as uint16, which has no other use here.
"""

from collections.abc import Sequence
from typing import Any

MAP_LAYOUTS = ("NHWC", "NCHW", "QUAD")
PRIVATE = ("F16", "F32", "F16X2")
_TILE = 80
_NARROW = {"fp16": "float16", "bf16": "uint16"}
_QUIET, _INFINITE = 0x40, 0x7F800000


def dtype_of(layout: str) -> str:
    """The element type of an activation in `layout`."""
    return {"N": "int32", "F16": "float16", "F16X2": "float16"}.get(layout, "float32")


def held_as(problem: Any) -> str:
    """Return the dtype of the array for a problem's output; a convolution's inputs share it."""
    return _NARROW.get(getattr(problem, "dtype", ""), dtype_of(problem.writes))


def narrowed(values: Any, dtype: str) -> Any:
    """Round float32 `values` to nearest even: "fp32", "fp16", or "bf16" as its bits in uint16."""
    import numpy as np

    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return values.astype(_NARROW.get(dtype, "float32"), copy=False)
    bits = values.view("uint32")
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    nan = (bits & 0x7FFFFFFF) > _INFINITE
    rounded[nan] = bits[nan] >> 16 | _QUIET
    return rounded.astype("uint16")


def widened(array: Any) -> Any:
    """Convert bfloat16 bits (uint16) to float32; return other arrays unchanged."""
    return (array.astype("uint32") << 16).view("float32") if array.dtype == "uint16" else array


def convertible(a: str, b: str) -> bool:
    """Return True if an activation can be copied from layout `a` to layout `b`."""
    return a == b or not {a, b} & {*PRIVATE, "N"}


def physical_shape(layout: str, n: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Array shape that holds `n` images of logical `shape` in `layout`."""
    if layout in ("F16", "F16X2"):
        parts = (2,) if layout == "F16X2" else ()
        return (-(-n // _TILE) * _TILE, *parts, *shape)
    if layout in ("NC", "N", *PRIVATE):
        return (n, *shape) if len(shape) < 2 else (n, shape[0] * shape[1] * shape[2])
    h, w, c = shape
    return {"NHWC": (n, h, w, c), "NCHW": (n, c, h, w), "QUAD": (n, c, 2 * h, w // 2)}[layout]


def equivalent(a: str, b: str, shape: Sequence[int]) -> bool:
    """Return True if layouts `a` and `b` of logical `shape` have the same bytes in memory."""
    if a == b:
        return True
    flat = {"NHWC", "NC"}
    if len(shape) == 3 and (shape[2] == 1 or shape[0] == shape[1] == 1):
        flat.add("NCHW")
    return {a, b} <= flat


def from_nhwc(x: Any, layout: str) -> Any:
    """Return (N, H, W, C) array `x` (NumPy or CuPy) rearranged to `layout`, a view where it can."""
    if layout == "NHWC":
        return x
    n, h, w, c = x.shape
    if layout == "NC":
        return x.reshape(n, h * w * c)
    if layout == "NCHW":
        return x.transpose(0, 3, 1, 2)
    windows = x.reshape(n, h // 2, 2, w // 2, 2, c)
    return windows.transpose(0, 5, 1, 2, 4, 3).reshape(n, c, 2 * h, w // 2)


def to_nhwc(x: Any, layout: str, shape: Sequence[int]) -> Any:
    """Inverse of `from_nhwc` for logical `shape` (H, W, C)."""
    h, w, c = shape
    n = x.shape[0]
    if layout in ("NHWC", "NC"):
        return x.reshape(n, h, w, c)
    if layout == "NCHW":
        return x.transpose(0, 2, 3, 1)
    windows = x.reshape(n, c, h // 2, 2, 2, w // 2)
    return windows.transpose(0, 2, 3, 5, 4, 1).reshape(n, h, w, c)
