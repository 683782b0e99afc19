"""2:4 pruning of conv2's filters, calibrated on digits; NumPy on the host.

One pass and a least-squares refit, without training or labels: Frantar and Alistarh, arXiv
2301.00774.
"""

from functools import lru_cache

from lenetgpu.arrays import Array, np
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE, SPANS, weight_shapes
from lenetgpu.problems import ConvPool
from lenetgpu.stages.fused.wgmma.int8_pack import BYTE_MOST, ranges
from lenetgpu.stages.reference import conv_pool_reference

_FOUR, _KEPT = 4, 2
_DAMPING = 1e-3  # of the mean second moment, so that inputs that are always zero have one too
_EVERY, _NOISE, _WHITE = 33, 16, 3
_PART, _BLOCK = 32, 40


def calibration() -> Array:
    """Return (N, 28, 28, 1) uint8: every 33rd shipped digit, noise and white where none has ink."""
    digits = load_dataset(assets.default_digits()).images[::_EVERY]
    noise = np.random.default_rng(0).integers(0, 256, (_NOISE, *IMAGE_SHAPE), dtype=np.uint8)
    return np.concatenate([digits, noise, np.full((_WHITE, *IMAGE_SHAPE), 255, np.uint8)])


def _unit(conv1: Array) -> Array:
    """Return (32,): the value of 1 in each channel of the maps."""
    largest = ranges(conv1)
    return np.asarray(np.where(largest > 0, largest, 1.0) / BYTE_MOST)


def maps_of(images: Array, conv1: Array) -> Array:
    """Return pool1's outputs (N, 12, 12, 32) of uint8 images, as integers like the kernel's."""
    first = next(span.problem for span in SPANS if isinstance(span.problem, ConvPool))
    maps = conv_pool_reference(images / PIXEL_SCALE, conv1, first)
    return np.asarray(np.rint(maps / _unit(conv1)))


def second_moments(maps: Array) -> Array:
    """Return (800, 800): summed products of the inputs of every two filter elements of conv2.

    `maps` (N, 12, 12, 32) are integers up to 255, so the sums are exact.
    """
    moments = np.zeros((5 * 5 * maps.shape[3],) * 2)
    for lo in range(0, len(maps), _PART):
        part = maps[lo : lo + _PART]
        windows = np.lib.stride_tricks.sliding_window_view(part, (5, 5), axis=(1, 2))
        rows = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, len(moments))
        moments += rows.T @ rows
    return moments


def prune(filters: Array, moments: Array) -> Array:
    """Prune (K, M) filters to at most two nonzeros in every four of K, float64.

    `moments` (K, K) are the second moments of the inputs. Each four loses the two elements whose
    loss the following compensate best; the kept elements are refitted at the end.
    """
    exact = filters.astype(np.float64)
    inputs = len(exact)
    damped = moments + (_DAMPING * np.trace(moments) / inputs or 1.0) * np.eye(inputs)
    root = np.linalg.cholesky(np.linalg.inv(damped)).T
    left, kept = exact.copy(), np.zeros(exact.shape, bool)
    for lo in range(0, inputs, _BLOCK):
        block, rest = slice(lo, lo + _BLOCK), slice(lo + _BLOCK, inputs)
        dropped = _dropped(left[block], root[block, block], kept[block])
        left[rest] -= root[block, rest].T @ dropped
    pruned = np.zeros_like(exact)
    for output in range(exact.shape[1]):
        rows = np.flatnonzero(kept[:, output])
        target = damped[rows] @ exact[:, output]
        pruned[rows, output] = np.linalg.solve(damped[np.ix_(rows, rows)], target)
    return pruned


def _dropped(left: Array, root: Array, kept: Array) -> Array:
    """Prune the rows of `left` (B, M) in order and mark `kept`; return errors over their roots."""
    dropped = np.empty_like(left)
    for row, own in enumerate(np.diag(root)):
        if row % _FOUR == 0:
            four = slice(row, row + _FOUR)
            loss = (left[four] / np.diag(root)[four, None]) ** 2
            best = np.argsort(-loss, axis=0, kind="stable")[:_KEPT]
            np.put_along_axis(kept[four], best, True, axis=0)
        dropped[row] = np.where(kept[row], 0.0, left[row]) / own
        left[row:] -= root[row, row:, None] * dropped[row]
    return dropped


def pruned(conv1: Array, conv2: Array) -> Array:
    """Return `conv2` (5, 5, 32, 64), 2:4 sparse along its inputs, float64, fitted to digits.

    Raises LenetError if the shipped digits are not available.
    """
    return _pruned(*(np.ascontiguousarray(w, np.float32).tobytes() for w in (conv1, conv2)))


@lru_cache(maxsize=2)
def _pruned(first: bytes, second: bytes) -> Array:
    shapes = weight_shapes()
    conv1 = np.frombuffer(first, np.float32).reshape(shapes["conv1"])
    conv2 = np.frombuffer(second, np.float32).reshape(shapes["conv2"])
    unit = _unit(conv1)[:, None]
    moments = second_moments(maps_of(calibration(), conv1))
    scaled = (conv2 * unit).reshape(len(moments), -1)
    sparse = prune(scaled, moments).reshape(conv2.shape) / unit
    sparse.flags.writeable = False
    return sparse
