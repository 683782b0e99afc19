"""Single images from host memory by the kernel that stays on the GPU, checked before it is used."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from lenetgpu.check.fit import judged, looked_at
from lenetgpu.errors import LenetError
from lenetgpu.network import CLASSES
from lenetgpu.plan import resolve
from lenetgpu.running.engine import Engine


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
            self._check(engine)
        except BaseException:
            self.close()
            raise

    def _check(self, engine: Engine) -> None:
        """LenetError unless it gives what float64 does, with these weights."""
        import numpy as np

        asked = looked_at()
        labels = np.empty(len(asked), np.int32)
        scores = np.empty((len(asked), CLASSES), np.float32)
        for index in range(len(asked)):
            found = self.answer(asked[index : index + 1], True)
            labels[index], scores[index] = found[0][0], found[1][0]
        plan = replace(resolve("fp32", "cuda"), name="resident")
        judged(plan, engine.weights, "uint8", scores, labels)

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
