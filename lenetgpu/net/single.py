"""Single images from host memory by the kernel that stays on the GPU, checked before it is used."""

from __future__ import annotations

import threading
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.net.engine import Engine
from lenetgpu.net.one import check_resident


class Single:
    """Labels and scores of one image by a resident kernel on the engine's GPU, in fp32.

    Raises LenetError where there is no GPU that has it, and where it does not fit the weights.
    """

    def __init__(self, engine: Engine) -> None:
        import numpy as np

        if engine.gpu is None:
            raise LenetError(
                "latency: expected a GPU of compute capability 9.0, found device cpu "
                f"({engine.why})"
            )
        import cupy

        from lenetgpu.stages.fused.resident import Resident

        self._turn, self._gpu = threading.Lock(), cupy.cuda.Device(engine.gpu.index)
        self._label = np.int32
        with self._gpu:
            self._resident = Resident(engine.weights)
        try:
            with self._gpu:
                check_resident(self._resident, engine.weights)
        except BaseException:
            self.close()
            raise

    def label(self, image: Any) -> Any:
        """The label of a NumPy image (28, 28) of uint8, as NumPy's int32."""
        with self._turn:
            return self._label(self._resident.label(image))

    def answer(self, pixels: Any, with_scores: bool) -> tuple[Any, Any]:
        """Labels (1,) int32 and scores (1, 10) float32, or None, of `pixels` (1, 28, 28, 1).

        They are uint8, or float32 from 0 to 1.
        """
        import numpy as np

        scores = None
        with self._turn, self._gpu:
            label = self._resident.label(pixels[0, :, :, 0])
            if with_scores:
                scores = self._resident.scores()[None]
        return np.array([label], np.int32), scores

    def close(self) -> None:
        """End the kernel."""
        self._resident.close()
