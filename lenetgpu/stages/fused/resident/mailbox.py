"""The memory that the host and the resident kernel share: where what lies, as the host sees it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from lenetgpu.network import CLASSES

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

SIDE, PIXELS = 28, 784
ROW_BYTES = 32  # 28 pixels and the image's tag, so that one 32-byte read holds both
MAIL_AT, ANSWER_AT, ASLEEP_AT, FLOATS_AT, BYTES = 0, 1024, 1088, 2048, 8192
ANSWERED, LABEL, ASLEEP = ANSWER_AT // 4 + 15, ANSWER_AT // 4 + 13, ASLEEP_AT // 4


class Mailbox:
    """`BYTES` of page-locked memory at `address`, zeroed.

    `pixels` (28, 28) uint8 and `tags` (28,) uint32 are an image's rows; `floats` (784,) float32 the
    pixels of one whose tag is odd. `words[ANSWERED]` is the tag of the newest answer,
    `words[LABEL]` its label, `words[ASLEEP]` the newest life that has ended.
    """

    def __init__(self, address: int) -> None:
        import numpy as np

        memory = (ctypes.c_uint8 * BYTES).from_address(address)
        everything: Array = np.ctypeslib.as_array(memory)
        everything[:] = 0
        rows = everything[MAIL_AT : MAIL_AT + SIDE * ROW_BYTES].reshape(SIDE, ROW_BYTES)
        self.pixels = rows[:, :SIDE]
        self.tags = rows.view(np.uint32)[:, -1]
        self.floats = everything[FLOATS_AT : FLOATS_AT + 4 * PIXELS].view(np.float32)
        self.words = memoryview(memory).cast("B").cast("I")
        self._answer = everything[ANSWER_AT : ANSWER_AT + 64].view(np.uint32).reshape(4, 4)

    def sums(self, tag: int) -> Array | None:
        """The ten sums of the image `tag`, float32; None until all four parts have arrived."""
        import numpy as np

        found = self._answer.copy()
        if (found[:, 3] != tag).any():
            return None
        sums: Array = np.delete(found, 3, axis=1).ravel()[:CLASSES].view(np.float32)
        return sums
