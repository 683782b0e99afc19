"""Low-latency paths for single host images: a recorded pass or the persistent kernel."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.fit import judged, looked_at
from lenetgpu.cpu.turns import Left, in_turn
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import lacks_memory
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.workspace import pinned_empty
from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan, resolve

if TYPE_CHECKING:
    from lenetgpu.stages.fused.persistent import Once, Persistent

_FP32_ACCURACY = ("fp32", "fp16x3", "tf32x3")
_POLLS = 1 << 13  # polls of the label before waiting for the stream, which reports errors
_NONE = -1


class OneImage:
    """A recorded pass of one image through the pipeline of `make_pipeline(1)`.

    Kernels read the image from host memory and write the label there, which the host polls: no
    copies and no stream wait. Raises LenetError if the plan cannot be recorded, for concurrent
    calls, and for scores of another thread's image.
    """

    def __init__(self, make_pipeline: Callable[[int], Pipeline]) -> None:
        device, self._turn = Cuda(), Left("one image")
        stream = device.stream()
        with stream:
            self._pipeline = make_pipeline(1)
            name = self._pipeline.plan.name
            if not self._pipeline.labels_by_kernel:
                raise LenetError(f"plan {name}: expected labels computed on the GPU, found the CPU")
            self._image = pinned_empty((1, *IMAGE_SHAPE), self._pipeline.input_dtype)
            self._label = pinned_empty((1,), "int32")
            self._image.fill(0)
            self._seen = device.mapped(self._image), device.mapped(self._label)
            self._pass()
        stream.synchronize()
        try:
            self._graph = Graph(self._pass, 1)
        except RuntimeError as error:
            expected = f"plan {name}: expected one that a CUDA graph can record"
            raise LenetError(f"{expected}, found: {error}") from error
        self._word = ctypes.c_int32.from_address(self._label.ctypes.data)
        self._running = False

    def _pass(self) -> None:
        image, label = self._seen
        self._pipeline.run(image, None, label)

    @in_turn
    def label(self, image: Any) -> int:
        """Return the label of `image`, (28, 28) or (28, 28, 1) of the pipeline's dtype."""
        if self._running:
            self._graph.stream.synchronize()
        self._image[0] = image.reshape(IMAGE_SHAPE)
        word = self._word
        word.value, self._running = _NONE, True
        self._graph.launch_alone()
        for _ in range(_POLLS):
            if word.value != _NONE:
                break
        else:
            self._graph.stream.synchronize()
        self._running = False
        if word.value == _NONE:
            raise LenetError("one image: expected a label from the GPU, found none")
        return int(word.value)

    def scores(self) -> Any:
        """Return the scores (10,) float32 of the last image, if the pipeline has scores."""
        with self._turn.last():
            self._graph.stream.synchronize()
            return self._pipeline.scores(1)[0]


class Single:
    """Labels and scores of single images by the persistent kernel on `gpu`, in fp32.

    Raises LenetError if the GPU does not support it or its results for `weights` are wrong.
    """

    def __init__(self, gpu: Gpu | None, why: str, weights: Weights) -> None:
        if gpu is None:
            expected = "expected a GPU of compute capability 9.0"
            raise LenetError(f"latency: {expected}, found device cpu ({why})")
        from lenetgpu.stages.fused.persistent import Persistent

        self._turn, self._gpu = threading.Lock(), cupy.cuda.Device(gpu.index)
        self._label = np.int32
        with self._gpu:
            self._persistent = Persistent(weights)
            try:
                check_persistent(self._persistent, weights)
            except BaseException:
                self.close()
                raise

    def label(self, image: Any) -> Any:
        """Return the label of a NumPy image (28, 28) of uint8 as numpy.int32."""
        with self._turn:
            return self._label(self._persistent.label(image))

    def answer(self, pixels: Any, with_scores: bool) -> tuple[Any, Any]:
        """Return labels (1,) and scores (1, 10) or None of uint8 or 0..1 float32 (1, 28, 28, 1)."""
        with self._turn, self._gpu:
            label = self._persistent.label(pixels[0, :, :, 0])
            scores = self._persistent.scores()[None] if with_scores else None
        return np.array([label], np.int32), scores

    def close(self) -> None:
        """Stop the kernel."""
        self._persistent.close()


def one_image(
    plan: Plan, weights: Weights, dtype: str, auto: bool, make: Callable[[int], Pipeline]
) -> OneImage | Once | None:
    """Return the fastest path for single host images of `dtype` on the current GPU, or None.

    With plan `auto` and fp32 accuracy that is the persistent kernel launched for one image, if it
    is supported and correct for `weights`; else a recorded pass of the pipeline from `make(1)`.
    """
    paths: list[Callable[[], OneImage | Once]] = [lambda: OneImage(make)]
    if auto and plan.precision in _FP32_ACCURACY and dtype == "uint8":
        paths.insert(0, lambda: _once(weights))
    for path in paths:
        try:
            return path()
        except Exception as error:
            if not isinstance(error, LenetError) and not lacks_memory(error):
                raise
    return None


def _once(weights: Weights) -> Once:
    from lenetgpu.stages.fused.persistent import Once

    once = Once(weights)
    check_persistent(once, weights)
    return once


def check_persistent(net: Once | Persistent, weights: Weights) -> None:
    """Raise LenetError if the persistent kernel differs from float64 for `weights`."""
    images = looked_at()
    labels = np.empty(len(images), np.int32)
    scores = np.empty((len(images), CLASSES), np.float32)
    for index, image in enumerate(images[..., 0]):
        labels[index] = net.label(image)
        scores[index] = net.scores()
    judged(replace(resolve("fp32", "cuda"), name="persistent"), weights, "uint8", scores, labels)
