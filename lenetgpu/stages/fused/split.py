"""fp32 accuracy on fp16 tensor cores: split fp16 operands (high + low) and their scales.

Every operand is multiplied by a power of two and split into fp16 high + low (22 bits). The three
significant products are accumulated separately from long sums (Ootomo & Yokota, arXiv 2203.03341).
Scales are chosen from the weights so that no activation of images within +-`PIXEL_BOUND` overflows
fp16. A scale is given by its exponent: `k` means 2**k.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from lenetgpu.arrays import Array, cupy, np
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.network import PIXEL_SCALE
from lenetgpu.stages.registry import Kernels, classifier_variant, features_variant, hopper


def output_args(y: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    """Return labels (n,) int32, scores (n, 10) or a null pointer if not requested, and n."""
    labels, scores = y
    return labels, np.uint64(0) if scores is None else scores, np.int32(len(labels))


Prepare = Callable[[Any, Any, int], Any]
PIXEL_BOUND = 4.0
FLOAT_PIXEL_EXPONENT = 8
_HALF_EXPONENT = 15


@dataclass(frozen=True)
class Factors:
    """Factors from sums of scaled products to a stage's scaled output, means included.

    conv1 has one factor for bytes and one for pixels in 0..1.
    """

    bytes: float
    floats: float
    conv2: float
    fc1: float
    fc2: float


@dataclass(frozen=True)
class Packed:
    """Operands on the host in the order that a family's kernels read them, and their factors."""

    conv1: Array
    conv2: Array
    fc1: Array
    fc2: Array
    factors: Factors


def on_device(**values: Any) -> SimpleNamespace:
    """Return a kernel's arguments by name: host arrays copied to the device, numbers unchanged."""
    arguments = {name: cupy.asarray(v) if v.ndim else v for name, v in values.items()}
    return SimpleNamespace(**arguments)


@dataclass(frozen=True)
class Filters:
    """The convolutions' operands on the device; conv1 and scales for floats in 0..1 and bytes."""

    conv1: Any
    conv2: Any
    scales: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())

    def args(self, x: Any, y: Any) -> tuple[Any, ...]:
        """Return a kernel's arguments for uint8 or float32 images `x` (n, ...) and features `y`."""
        form = int(x.dtype == "uint8")
        return (x, self.conv1[form], self.conv2, y, np.int32(len(x)), *self.scales[form])


def in_fp16(conv1: Callable[[Any], Array], conv2: Callable[[Any], Array]) -> Prepare:
    """Return a `Variant.prepare` from functions that pack the two convolutions' filters as fp16."""
    return lambda w, problem, batch: Filters(cupy.asarray(conv1(w[0])), cupy.asarray(conv2(w[1])))


hopper_features = partial(features_variant, needs=hopper())
hopper_classifier = partial(classifier_variant, needs=hopper())


def of_pixels(kernel: Callable[[bool], Kernel]) -> Kernels:
    """Return `Variant.kernels` for uint8 pixels (divided by 255) and for float pixels in 0..1."""
    return lambda problem, batch: (kernel(True), kernel(False))


def filters(packed: Packed) -> Filters:
    """Copy the convolutions' operands and factors to the current device."""
    conv1, factors = cupy.asarray(packed.conv1), packed.factors
    scale2 = np.float32(factors.conv2)
    scales = (np.float32(factors.floats), scale2), (np.float32(factors.bytes), scale2)
    return Filters((conv1, conv1), cupy.asarray(packed.conv2), scales)


def _exponent(bound: float) -> int:
    """Return the smallest e with bound <= 2**e; 0 for a bound of zero."""
    return math.ceil(math.log2(bound)) if bound > 0 else 0


def parts(w: Array, axis: int = 0) -> tuple[Array, int]:
    """Return `w` times 2**k as fp16 high and low along a new axis, and k; |high| < 2**15."""
    k = _HALF_EXPONENT - 1 - _exponent(float(np.abs(w).max()))
    scaled = np.ldexp(w.astype(np.float64), k)
    high = scaled.astype(np.float16)
    return np.stack([high, (scaled - high).astype(np.float16)], axis), k


def activation_exponents(tensors: Sequence[Array]) -> tuple[int, int, int]:
    """Return the scales of the fp16 outputs of pool1, pool2 and fc1: the largest output fits.

    `tensors` are conv1 (5, 5, 1, 32), conv2 (5, 5, 32, 64) and fc1 (1024, 128).
    """
    conv1, conv2, fc1 = (np.abs(tensor.astype(np.float64)) for tensor in tensors[:3])
    pool1 = PIXEL_BOUND * conv1.sum((0, 1, 2))
    pool2 = np.einsum("rscm,c->m", conv2, pool1)
    hidden = fc1.reshape(16, 64, 128).sum(0).T @ pool2
    one, two, three = (_exponent(float(bound.max())) for bound in (pool1, pool2, hidden))
    return _HALF_EXPONENT - one, _HALF_EXPONENT - two, _HALF_EXPONENT - three


def factors(
    mean: float,
    pixels: tuple[int, int],
    weights: tuple[int, int, int, int],
    outputs: tuple[int, int, int],
) -> Factors:
    """Return the factors of kernels that multiply a window's sum by `mean`.

    The other arguments are exponents of the scales of bytes and float pixels, the four tensors,
    and the outputs of pool1, pool2 and fc1.
    """
    (byte, unit), (k1, k2, k3, k4), (a1, a2, a3) = pixels, weights, outputs
    return Factors(
        bytes=math.ldexp(mean, a1 - k1 - byte) / PIXEL_SCALE,
        floats=math.ldexp(mean, a1 - k1 - unit),
        conv2=math.ldexp(mean, a2 - k2 - a1),
        fc1=math.ldexp(1.0, a3 - k3 - a2),
        fc2=math.ldexp(1.0, -k4 - a3),
    )
