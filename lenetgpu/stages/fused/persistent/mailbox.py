"""Host view of the memory that the host and the persistent kernel share, and its layout."""

import ctypes
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.network import CLASSES, PIXEL_SCALE

_MEANS = 1 / 16  # the kernel sums where the network averages: two pools of 2x2


def _near_one(tensor: Array) -> tuple[Array, int]:
    """Return `tensor` over the power of two above its largest absolute value, and the exponent."""
    wide = np.asarray(tensor, np.float64)
    power = int(np.frexp(np.abs(wide).max())[1])
    return np.ldexp(wide, -power), power


def pack(weights: Weights) -> tuple[Array, tuple[float, int]]:
    """Return all weights as a flat float32 array, and (f, p): scores are kernel sums * f * 2**p.

    conv1 [map 32][25 filter elements, 3 zeros]; conv2 [map/4][filter element][input map] of
    four maps; fc1 [row][map/16] [map 8][unit/16, unit/4 4, column 4, map/8 2] of four hidden
    units; fc2 [class][lane] of four. Each tensor is scaled by a power of two to at most 1.
    """
    (conv1, a), (conv2, b), (fc1, c), (fc2, d) = (
        _near_one(weights[name]) for name in ("conv1", "conv2", "fc1", "fc2")
    )
    row, column, map16, map8, eight, warp = 4, 4, 4, 2, 8, 8
    features = fc1.reshape(row, column, map16, map8, eight, warp, 4, 4)
    parts = (
        np.pad(conv1.reshape(25, 32).T, ((0, 0), (0, 3))),
        conv2.reshape(25, 32, 16, 4).transpose(2, 0, 1, 3),
        features.transpose(0, 2, 4, 5, 6, 1, 3, 7),
        fc2.T,
    )
    flat = np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)
    return flat, (_MEANS, a + b + c + d)


SIDE, PIXELS = 28, 784
ROW_BYTES = 32  # 28 pixels and the image's tag, so that one 32-byte read holds both
MAIL_AT, ANSWER_AT, ASLEEP_AT, FLOATS_AT, BYTES = 0, 1024, 1088, 2048, 8192
OFFSETS = {"MAIL_AT": MAIL_AT, "ANSWER_AT": ANSWER_AT, "ASLEEP_AT": ASLEEP_AT}
OFFSETS |= {"FLOATS_AT": FLOATS_AT}
_SHAPES = ((SIDE, SIDE), (PIXELS,), (SIDE, SIDE, 1), (1, SIDE, SIDE))
ANSWERED, LABEL, ASLEEP = ANSWER_AT // 4 + 15, ANSWER_AT // 4 + 13, ASLEEP_AT // 4


class Mailbox:
    """`BYTES` of page-locked memory at `address`, zeroed.

    `pixels` (28, 28) uint8 and `tags` (28,) uint32 are an image's rows; `floats` (784,) float32
    are the pixels of an image whose tag is odd. `words[ANSWERED]` is the tag of the latest
    answer, `words[LABEL]` its label, `words[ASLEEP]` the number of the latest launch that has
    ended.
    """

    def __init__(self, address: int) -> None:
        memory = (ctypes.c_uint8 * BYTES).from_address(address)
        everything: Array = np.ctypeslib.as_array(memory)
        everything[:] = 0
        rows = everything[MAIL_AT : MAIL_AT + SIDE * ROW_BYTES].reshape(SIDE, ROW_BYTES)
        self.pixels = rows[:, :SIDE]
        self.tags = rows.view(np.uint32)[:, -1]
        self.floats = everything[FLOATS_AT : FLOATS_AT + 4 * PIXELS].view(np.float32)
        self.words = memoryview(memory).cast("B").cast("I")
        self._answer = everything[ANSWER_AT : ANSWER_AT + 64].view(np.uint32).reshape(4, 4)

    def write(self, image: Any) -> int:
        """Write an image's pixels to the mailbox; return 1 for float pixels, 0 for bytes.

        `image` is (28, 28), (28, 28, 1), (1, 28, 28) or (784,), uint8 or float32 in 0..1.
        Raises LenetError for any other image.
        """
        array = np.asarray(image)
        if array.shape not in _SHAPES or array.dtype not in (np.uint8, np.float32):
            raise LenetError(
                "an image: expected uint8 or float32 of shape (28, 28) or (784,), "
                f"found {array.dtype} of shape {array.shape}"
            )
        if array.dtype == np.uint8:
            self.pixels[...] = array.reshape(SIDE, SIDE)
            return 0
        low, high = array.min(), array.max()
        if not (low >= 0 and high <= 1):
            raise LenetError(f"an image: expected floats in 0..1, found {low:g} to {high:g}")
        self.floats[...] = array.reshape(PIXELS)
        return 1

    def sums(self, tag: int) -> Array | None:
        """Return the ten float32 sums of image `tag`, or None until all four parts have arrived."""
        found = self._answer.copy()
        if (found[:, 3] != tag).any():
            return None
        sums: Array = np.delete(found, 3, axis=1).ravel()[:CLASSES].view(np.float32)
        return sums


def scaled(sums: Array, tag: int, scale: tuple[float, int]) -> Array:
    """Return float32 scores (10,) from the `sums` of image `tag`; `scale` comes from `pack`.

    Raises LenetError if a score exceeds float32's range.
    """
    factor, power = scale
    wide = np.ldexp(sums.astype(np.float64), power) * factor
    found = wide if tag % 2 else wide / PIXEL_SCALE
    if not (np.abs(found) <= np.finfo(np.float32).max).all():
        raise LenetError(
            "scores: expected values within float32's range, "
            f"found {np.abs(found).max():.3g}; the weights are too large"
        )
    return found.astype(np.float32)
