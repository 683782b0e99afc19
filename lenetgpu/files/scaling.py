"""Rescaling of weights into every kernel's range, by powers of two.

The network has no biases and ReLU preserves positive factors, so a channel may be multiplied by a
power of two if the next tensor's rows for it are divided by that. After rescaling, no image in 0..1
drives an activation beyond fp16's range, whatever the weights, and fp32 results are identical to
the bit. A power of two may remain as a common factor of the scores.
"""

from collections.abc import Mapping

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError

# pool1, pool2 and fc1 outputs of any image stay below 2**level; fp16 overflows at 2**16
LEVELS = (10, 12, 14)
_SLACK = 16  # bound of a channel's sum of absolute products, as a multiple of its level
_OUTPUT = range(-10, 14)  # exponents of fc2's largest weight that fp16 holds without a factor


def most_pooled(conv1: Array) -> Array:
    """Return (32,) float64: by channel, the exact largest 2x2 mean of ReLUs of images in 0..1.

    `conv1` is (5, 5, 1, 32). A sum of four ReLUs is the largest sum of a subset of the windows,
    which is largest if the pixels under its positive filter elements are 1.
    """
    filters = np.asarray(conv1, np.float64)[:, :, 0]
    rows, columns, maps = filters.shape
    most = np.zeros(maps)
    for subset in range(1, 16):
        summed = np.zeros((rows + 1, columns + 1, maps))
        for window in range(4):
            if subset >> window & 1:
                y, x = divmod(window, 2)
                summed[y : y + rows, x : x + columns] += filters
        most = np.maximum(most, np.maximum(summed, 0).sum((0, 1)) / 4)
    return most


def _channels(reach: Array, absolute: Array, level: int) -> tuple[Array, Array]:
    """Return factors that bring channels' sizes just below 2**level, and the new sizes."""
    size = np.where(reach > 0, np.maximum(reach, absolute / _SLACK), 0.0)
    _, exponents = np.frexp(size)
    factors = np.where(size > 0, np.ldexp(1.0, level - exponents), 0.0)
    return factors, size * factors


def _inverse(factors: Array) -> Array:
    """Return the factors for the next tensor's rows: 0 for a dead channel."""
    return np.divide(1.0, factors, out=np.zeros_like(factors), where=factors > 0)


def _rescale(tensor: Array, factors: Array, sizes: Array, level: int) -> tuple[Array, Array, Array]:
    """Rescale `tensor` (positions, channels, outputs); return it, its output factors and sizes.

    `factors` and `sizes` are its input channels', 2**`level` is its outputs' bound.
    """
    rows = _inverse(factors)
    inputs = rows * sizes
    reach = inputs @ np.maximum(tensor, 0).sum(0)
    factors, sizes = _channels(reach, 2 * reach - inputs @ tensor.sum(0), level)
    return tensor * (rows[:, None] * factors), factors, sizes


def _in_float64(tensors: Mapping[str, Array]) -> list[Array]:
    return [tensors[name].astype(np.float64) for name in ("conv1", "conv2", "fc1", "fc2")]


def balance(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], int]:
    """Return the four float32 tensors rescaled, and k: the scores are 2**k times theirs.

    Channels that no image activates become zeros. Raises LenetError for NaN or infinity.
    """
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise LenetError(f"weights: expected finite numbers in {name}, found NaN or infinity")
    conv1, conv2, fc1, fc2 = _in_float64(tensors)
    first, sizes = _channels(most_pooled(conv1), np.abs(conv1).sum((0, 1, 2)), LEVELS[0])
    filters, factors, sizes = _rescale(conv2.reshape(-1, *conv2.shape[2:]), first, sizes, LEVELS[1])
    rows = fc1.reshape(-1, conv2.shape[3], fc1.shape[1])
    rows, factors, _ = _rescale(rows, factors, sizes, LEVELS[2])
    last = fc2 * _inverse(factors)[:, None]
    top = int(np.frexp(np.abs(last).max())[1])
    out = 0 if top in _OUTPUT else top
    scaled = {"conv1": conv1 * first, "conv2": filters, "fc1": rows, "fc2": np.ldexp(last, -out)}
    return {
        name: np.ascontiguousarray(w.reshape(tensors[name].shape), np.float32)
        for name, w in scaled.items()
    }, out


def reach(tensors: Mapping[str, Array]) -> dict[str, float]:
    """Return upper bounds, by stage, of the values that any image in 0..1 can produce.

    fc2's is on the magnitude, the others on positive values, as ReLU follows. NaN gives NaN.
    """
    conv1, conv2, fc1, fc2 = _in_float64(tensors)
    maps1 = most_pooled(conv1)
    maps2 = maps1 @ np.maximum(conv2, 0).sum((0, 1))
    rows = np.maximum(fc1, 0).reshape(-1, len(maps2), fc1.shape[1]).sum(0)
    hidden = maps2 @ rows
    scores = np.maximum(hidden @ np.maximum(fc2, 0), hidden @ np.maximum(-fc2, 0))
    sums1 = np.maximum(conv1, 0).sum((0, 1, 2))
    bounds = {"conv1": sums1, "pool1": maps1, "conv2": maps2, "pool2": maps2, "fc1": hidden}
    return {name: float(values.max()) for name, values in (bounds | {"fc2": scores}).items()}
