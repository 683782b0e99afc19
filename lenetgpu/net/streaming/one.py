"""One image to its label at the least latency: a recorded pass with memory that both sides see."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from lenetgpu.cpu.turns import Left, in_turn
from lenetgpu.errors import LenetError
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.network import IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline

_LOOKS = 1 << 13
"""Looks at the label before the host waits for the stream instead, which tells of errors."""
_NONE = -1


class OneImage:
    """A pass of one image, recorded and replayed; `make_pipeline(1)` makes its pipeline.

    Kernels read the image from the host's memory and write the label there, which the host watches:
    two copies less, and no wait for the stream. LenetError where the plan cannot be recorded, for
    a thread that comes while another is inside, and for scores of another thread's image.
    """

    def __init__(self, make_pipeline: Callable[[int], Pipeline]) -> None:
        device, self._turn = Cuda(), Left("one image")
        stream = device.stream()
        with stream:
            self._pipeline = make_pipeline(1)
            name = self._pipeline.plan.name
            if not self._pipeline.labels_by_kernel:
                raise LenetError(f"plan {name}: expected labels of the GPU, found them on the CPU")
            self._image = pinned_empty((1, *IMAGE_SHAPE), self._pipeline.input_dtype)
            self._label = pinned_empty((1,), "int32")
            self._image.fill(0)
            self._seen = device.mapped(self._image), device.mapped(self._label)
            self._pass()
        stream.synchronize()
        try:
            self._graph = Graph(self._pass, 1)
        except RuntimeError as error:
            raise LenetError(
                f"plan {name}: expected one that a CUDA graph can hold, found: {error}"
            ) from error
        self._word = ctypes.c_int32.from_address(self._label.ctypes.data)
        self._under_way = False

    def _pass(self) -> None:
        image, label = self._seen
        self._pipeline.run(image, None, label)

    @in_turn
    def label(self, image: Any) -> int:
        """The label of `image`, (28, 28) or (28, 28, 1) of the pipeline's dtype."""
        if self._under_way:
            self._graph.stream.synchronize()
        self._image[0] = image.reshape(IMAGE_SHAPE)
        word = self._word
        word.value, self._under_way = _NONE, True
        self._graph.launch_alone()
        looks = _LOOKS
        while looks and word.value == _NONE:
            looks -= 1
        if not looks:
            self._graph.stream.synchronize()
        self._under_way = False
        if word.value == _NONE:
            raise LenetError("one image: expected a label from the GPU, found none")
        return int(word.value)

    def scores(self) -> Any:
        """Scores (10,) float32 of the last image, of a pipeline that has them."""
        with self._turn.last():
            self._graph.stream.synchronize()
            return self._pipeline.scores(1)[0]
