"""The public classifier."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import repeat
from operator import index
from os import PathLike
from pathlib import Path
from reprlib import repr as brief
from typing import Any, TypeVar

from lenetgpu.arrays import np
from lenetgpu.cpu.threads import using_threads
from lenetgpu.cpu.turns import tell_children
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.orientation import AS_STORED, SAMPLE, Orientation
from lenetgpu.files.orientation import AUTO as AUTO_POLARITY
from lenetgpu.files.weights import weights_of
from lenetgpu.gpu.device import FORKED
from lenetgpu.gpu.faults import tell, telling
from lenetgpu.measure.outcome import DEFAULT_BATCH, Request
from lenetgpu.net.engine import Engine
from lenetgpu.net.images import (
    FORMS,
    MANY,
    Accepted,
    DeviceImages,
    accept,
    current,
    device_images,
    in_order_of,
    is_a,
)
from lenetgpu.net.runners import CpuRunner, DeviceRunner, GpuRunner, Pool
from lenetgpu.net.single import Single
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.plan import AUTO, Plan

_Made = TypeVar("_Made")
Key = tuple[str, bool]  # dtype of the images, with scores
Finish = Callable[[Any, Any, Any], Any]
# (NumPy or CuPy, labels (n,) int32, scores (n, 10) float32 or None) to one result or several
_AHEAD = 2  # batches that `stream` requests in advance
_SINGLES = {(1, *form) for form in FORMS}
_LOOKS = 8  # calls whose images are looked at, up to one of SAMPLE
_MOST = 1 << 20  # images per pass, larger than any chunk


class LeNet:
    """The network on one device. Create it with `LeNet.load`; threads may share it.

    Images are NumPy arrays, nested lists, or arrays of PyTorch, JAX, CuPy or anything with DLPack,
    of shape (28, 28), (N, 28, 28), (N, 28, 28, 1) or (N, 1, 28, 28): uint8 pixels, or floats from 0
    to 1 (float16, float32, float64, bfloat16). Integers in lists are pixels. Of a batch [images,
    labels], as PyTorch's loaders give, the labels are ignored.

    Results are new arrays of the caller's framework on the device of the images: labels of a
    PyTorch tensor on a GPU are a tensor on that GPU, ordered on PyTorch's current stream, and the
    host does not wait. For lists the result is a NumPy array. A single image without a batch axis
    has a result without one; an empty batch has an empty result.

    Raises LenetError for images of another shape or type; for floats in host memory that are NaN or
    outside 0..1 (on a GPU they get label -1 and NaN scores instead, because a check would block);
    for images on another GPU; if memory is short or the GPU is lost; and after `close`. In a forked
    child a CPU net works, a GPU net raises LenetError.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        single: Single | None = None,
        orientation: Orientation = AS_STORED,
    ) -> None:
        if engine is None:
            raise LenetError("LeNet(): call LeNet.load() instead, which prepares a net")
        self._engine, self._single, self._making = engine, single, threading.Lock()
        self._index = engine.index
        self._pools: dict[Key, Pool] = {}
        self._on_gpu: dict[Key, DeviceRunner] = {}
        self._batch = engine.request.images_a_pass(sys.maxsize)
        # `_array` is np.ndarray once images take the shortest way: unchanged, and looked at
        self._array: Any = None
        self._orientation, self._looks = orientation, _LOOKS
        self._pixels, self._refusal = np.dtype(np.uint8), ""
        self._made, self._label = np.array, np.int32  # look-ups would slow a short call
        tell_children(self)

    def forked(self) -> None:
        """Reset in a forked child, where running work never ends; CUDA objects are not freed."""
        pools, self._making, self._pools = self._pools, threading.Lock(), {}
        if self._index is not None:
            self._refusal = FORKED
            self._left, self._single = (pools, self._single), None

    @classmethod
    def load(
        cls,
        weights: str | Path | Mapping[str, Any] | None = None,
        plan: str = AUTO,
        precision: str | None = None,
        device: Any = "auto",
        batch: int = DEFAULT_BATCH,
        threads: int | None = None,
        latency: bool = False,
        polarity: str = AUTO_POLARITY,
        transpose: bool = False,
    ) -> LeNet:
        """Return a net ready for uint8 images: plan chosen, compiled and checked on its device.

        `weights`: path of a weight file in any supported format, or a state_dict or arrays by name
        as in such a file, which are copied; None: the file that ships. `plan`, `precision`,
        `device` ("auto", "cpu", "cuda", "cuda:K", or a torch.device): as in `lenetgpu infer`.
        `batch`: images per pass, at most 1,048,576; plan "auto" optimises for it; larger calls
        are split. `threads`: CPU threads of the whole process; None: all available. `latency`:
        answer single host images by a persistent GPU kernel, in fp32. `polarity`: "black-on-white"
        inverts all images; "auto" only warns once if the first ones in host memory look dark on
        light, or transposed; "white-on-black" does not. `transpose`: swap rows and columns.

        Warns if plan "auto" chose a higher precision because the requested one does not fit the
        weights. Raises LenetError if an argument is not available, or the plan is wrong on this
        device or does not fit the weights.
        """
        file = given = None
        if isinstance(weights, Mapping):
            given = weights_of(weights)
        elif isinstance(weights, str | PathLike):
            file = Path(weights)
        elif weights is not None:
            expected = "the path of a file, or tensors by name as in model.state_dict()"
            raise unexpected("weights", expected, brief(weights))
        if not isinstance(plan, str):
            raise unexpected("plan", "a plan's name", brief(plan))
        if is_a("torch", "device", device):
            device = str(device)
        if not isinstance(device, str):
            raise unexpected("device", "auto, cpu, cuda, cuda:K or a torch.device", brief(device))
        batch = min(_MOST, _whole("batch: expected a whole number of images", batch))
        if threads is not None:
            threads = _whole("threads: expected a whole number", threads)
        orientation = Orientation(polarity, transpose)
        orientation.check("polarity")
        request = Request(
            None, file, batch, plan=plan, precision=precision, device=device, threads=threads
        )
        engine = Engine(request, weights=given)
        with telling(), using_threads(threads), current(engine.index):
            engine.start("uint8", batch)
            for note in engine.notes:
                warnings.warn(note, stacklevel=2)
            single = Single(engine.gpu, engine.why, engine.weights) if latency else None
            return cls(engine, single, orientation)

    @property
    def plan(self) -> Plan:
        """The plan: the variant of each stage, and its `precision`."""
        return self._engine.plan

    @property
    def device(self) -> str:
        """The device: "cpu" or "cuda:K"."""
        return "cpu" if self._index is None else f"cuda:{self._index}"

    def __repr__(self) -> str:
        return f"<LeNet plan {self.plan.name} ({self.plan.precision}) on {self.device}>"

    def __reduce__(self) -> Any:
        raise TypeError("a LeNet cannot be pickled or copied; load one in each process")

    def __call__(self, images: Any) -> Any:
        """Return labels (N,) int32 from 0 to 9; a scalar for a single image."""
        if type(images) is self._array and images.dtype is self._pixels:
            shape = images.shape
            if shape == IMAGE_SHAPE[:2]:
                return self._direct(images)
            if shape in _SINGLES:
                return self._made([self._direct(images.reshape(IMAGE_SHAPE[:2]))], self._label)
            if self._many(shape):
                return self._direct(images)
        elif (torch := sys.modules.get("torch")) and type(images) is torch.Tensor and images.is_cpu:
            if images.dtype is torch.uint8 and self._many(images.shape):
                return torch.from_numpy(self._direct(images.numpy()))
        elif self._index is not None and (direct := self._label_on_device(images)) is not None:
            return direct.labels[0] if direct.single else direct.labels
        return self._answer(images, False, _labels)

    def scores(self, images: Any) -> Any:
        """Return scores (N, 10) float32: fc2's output; the label has the largest one."""
        return self._answer(images, True, lambda arrays, labels, scores: scores)

    def probabilities(self, images: Any) -> Any:
        """Return the softmax of the scores, (N, 10) float32."""
        return self._answer(images, True, _probabilities)

    def top(self, images: Any, k: int = 3) -> tuple[Any, Any]:
        """Return the `k` most likely labels and their probabilities, best first.

        Labels (N, k) are int32, probabilities (N, k) float32; equal scores are ordered by
        label. Raises LenetError unless `k` is from 1 to 10.
        """
        expected = f"k: expected 1 to {CLASSES} labels"
        k = _whole(expected, k)
        if not 1 <= k <= CLASSES:
            raise LenetError(f"{expected}, found {k}")
        labels, likely = self._answer(images, True, partial(_top, k))
        return labels, likely

    def stream(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the labels of each of `batches`, in order, while later batches run.

        A batch may be overwritten once the next one is requested. `batches` is iterated in the
        caller's thread, at most two batches ahead. Errors of `batches` or of a batch are raised
        after the results of earlier batches.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        pending: deque[Future[Any]] = deque()
        with ThreadPoolExecutor(_AHEAD, thread_name_prefix="lenetgpu-stream") as workers:
            try:
                for job in self._jobs(batches):
                    pending.append(workers.submit(job))
                    if len(pending) > _AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def _jobs(self, batches: Iterable[Any]) -> Iterator[Callable[[], Any]]:
        """Yield a function per batch that completes it in any thread; the last may raise."""
        try:
            for batch in batches:
                accepted = self._accept(batch)
                if accepted.home.on_gpu:  # queued here, on the caller's stream
                    yield repeat(self._on_device(accepted, False, _labels)).__next__
                else:
                    pixels = accepted.pixels(copied=True)
                    yield partial(self._on_host, accepted, pixels, False, _labels)
        except Exception as error:
            yield partial(_raise, error)

    def close(self) -> None:
        """Free all buffers; later calls raise LenetError."""
        with self._making:
            self._refusal = "net: expected an open net, found a closed one"
            self._pools.clear()
            self._on_gpu.clear()
            if self._single is not None:
                self._single.close()

    def __enter__(self) -> LeNet:
        self._require_open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _many(self, shape: Any) -> bool:
        """Return True if `shape` is that of enough images to copy by threads, of one pass."""
        known = self._array is not None and shape[1:] in FORMS
        return known and MANY <= shape[0] <= self._batch

    def _direct(self, images: Any) -> Any:
        """Return the label of NumPy uint8 (28, 28), or labels of a batch, with least overhead."""
        try:
            pool = self._pools.get(("uint8", False)) or self._pool("uint8", False)
            if self._single is not None and images.ndim == 2:
                return self._single.label(images)
            with pool.acquire() as runner:
                return runner.label(images) if images.ndim == 2 else runner.labels(images)
        except Exception as error:
            tell(error)
            raise

    @telling()
    def _label_on_device(self, images: Any) -> DeviceImages | None:
        """Queue the labels of a plain device array with least overhead; None for other images."""
        self._require_open()
        assert self._index is not None
        if self._orientation.changes or (direct := device_images(images, self._index)) is None:
            return None
        key = (direct.dtype, False)
        runner = self._on_gpu.get(key) or self._device_runner(*key)
        return direct if runner.label(direct) else None

    def _answer(self, images: Any, with_scores: bool, finish: Finish) -> Any:
        self._require_open()
        accepted = self._accept(images, self._engine.plan.all_on_gpu)
        if accepted.home.on_gpu:
            return self._on_device(accepted, with_scores, finish)
        with telling():
            exact = self._exact(accepted, with_scores)
            if exact is not None:
                return _given(accepted, finish(np, *exact))
            return self._on_host(accepted, accepted.pixels(), with_scores, finish)

    def _accept(self, images: Any, later: bool = False) -> Accepted:
        """Check images and return them as the network expects them; warn of unlikely ones once."""
        accepted = accept(images, self.device, later)
        if self._looks and accepted.count and not accepted.home.on_gpu:
            raw = accepted.raw[None] if accepted.single else accepted.raw
            notes = self._orientation.sentences(raw[:SAMPLE])
            self._looks = 0 if notes or accepted.count >= SAMPLE else self._looks - 1
            for note in notes:
                warnings.warn(f"images: {note}", stacklevel=4)
            if not self._looks and not self._orientation.changes:
                self._array = np.ndarray
        return accepted.oriented(self._orientation) if self._orientation.changes else accepted

    def _exact(self, accepted: Accepted, with_scores: bool) -> Any:
        """Classify many floats as bytes k if each is some k/255, else return None."""
        if self._index is None or accepted.dtype == "uint8" or accepted.count < MANY:
            return None
        found, raw = None, accepted.raw
        if raw.flags.c_contiguous and (raw.dtype == np.float32 or raw.dtype == np.float64):
            with self._pool("uint8", with_scores).acquire() as runner:
                found = runner.answer_exact(raw, with_scores)
        if found is None and raw.dtype != np.float32:
            accepted.check()  # before a cast that may overflow
        return found

    @telling()
    def _on_host(self, accepted: Accepted, pixels: Any, with_scores: bool, finish: Finish) -> Any:
        if (
            accepted.count == 1
            and self._single is not None
            and (accepted.dtype == "uint8" or 0 <= pixels.min() <= pixels.max() <= 1)
        ):
            labels, scores = self._single.answer(pixels, with_scores)
        else:
            with self._pool(accepted.dtype, with_scores).acquire() as runner:
                try:
                    labels, scores = runner.answer(pixels, with_scores)
                except LenetError:  # the scores are not finite: check for floats outside 0..1
                    accepted.check()
                    raise
            if accepted.dtype != "uint8" and labels.min(initial=0) < 0:
                accepted.check()
        return _given(accepted, finish(np, labels, scores))

    def _on_device(self, accepted: Accepted, with_scores: bool, finish: Finish) -> Any:
        import cupy

        with telling():
            runner = self._device_runner(accepted.dtype, with_scores)
            with current(accepted.raw.device.id), in_order_of(accepted.home.stream()):
                labels, scores = runner.run(accepted)
                return _given(accepted, finish(cupy, labels, scores))

    def _device_runner(self, dtype: str, with_scores: bool) -> DeviceRunner:
        assert self._index is not None
        make = partial(self._engine.whole_pipeline, dtype, self._batch, with_scores)
        made = partial(DeviceRunner, make, self._index)
        return self._cached(self._on_gpu, (dtype, with_scores), made)

    def _pool(self, dtype: str, with_scores: bool) -> Pool:
        def make() -> CpuRunner | GpuRunner:
            with current(self._index):
                return self._engine.runner(dtype, self._batch, with_scores, one=True)

        most = 1 if self._index is None else _AHEAD
        return self._cached(self._pools, (dtype, with_scores), lambda: Pool(make, most))

    def _cached(self, cache: dict[Key, _Made], key: Key, make: Callable[[], _Made]) -> _Made:
        """Return the cached object; if missing, start the engine and make it."""
        with self._making:
            self._require_open()
            if key not in cache:
                with current(self._index):
                    self._engine.start(key[0], self._batch)
                cache[key] = make()
            return cache[key]

    def _require_open(self) -> None:
        if self._refusal:
            raise LenetError(self._refusal)


def _whole(expected: str, value: Any) -> int:
    """Return `value` as an int; LenetError if it is no integer."""
    with suppress(TypeError):
        if not isinstance(value, bool):
            return index(value)
    raise LenetError(f"{expected}, found {brief(value)}")


def _given(accepted: Accepted, answer: Any) -> Any:
    """Convert an array or tuple to the caller's framework; remove the batch axis of one image."""
    if isinstance(answer, tuple):
        return tuple(_given(accepted, part) for part in answer)
    given = accepted.home.give(answer)
    return given[0] if accepted.single else given


def _raise(error: Exception) -> Any:
    raise error


def _labels(arrays: Any, labels: Any, scores: Any) -> Any:
    return labels


def _probabilities(arrays: Any, labels: Any, scores: Any) -> Any:
    raised = arrays.exp(scores - scores.max(axis=1, keepdims=True))
    return raised / raised.sum(axis=1, keepdims=True)


def _top(k: int, arrays: Any, labels: Any, scores: Any) -> tuple[Any, Any]:
    best = arrays.argsort(-scores, axis=1, kind="stable")[:, :k]
    likely = arrays.take_along_axis(_probabilities(arrays, labels, scores), best, axis=1)
    return arrays.where(arrays.isnan(likely), -1, best).astype("int32"), likely
