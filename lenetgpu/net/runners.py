"""Runners: images to labels on the CPU, through a GPU streamer, or from GPU memory."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from lenetgpu.arrays import cupy, np
from lenetgpu.check.judge import first_not_finite, refused, require_finite
from lenetgpu.cpu.turns import Turn, in_turn
from lenetgpu.files.reading import Source
from lenetgpu.files.source import EARLY_BYTES
from lenetgpu.gpu.device import driver
from lenetgpu.gpu.workspace import host_empty
from lenetgpu.net.images import MANY
from lenetgpu.net.streaming.stream_slots import Chunk
from lenetgpu.network import CLASSES, CLASSIFIER, FEATURES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline

if TYPE_CHECKING:
    from lenetgpu.cpu.staging import Staging
    from lenetgpu.gpu.launch import Repeat
    from lenetgpu.net.images import Accepted, DeviceImages
    from lenetgpu.net.single import OneImage
    from lenetgpu.net.streaming.schedule import Schedule
    from lenetgpu.net.streaming.stream_slots import After, Mark
    from lenetgpu.net.streaming.streamer import Deliver, Key, OnChunk
    from lenetgpu.stages.fused.persistent import Once

    Callbacks = tuple[OnChunk | None, Mark | None]

_WARM_IMAGES = 4
_SLICE_BYTES = 32 << 20  # size of each of the CPU's two read-ahead buffers
_STAGES = (1_024, 10_000)  # lengths of page-locked staging arrays; larger calls use the streamer's
_PLACES = 8
_LOOKS = 500  # of copying threads between two calls
_REPEATS = 64  # recorded launches, one per image count; the oldest is dropped


class Runner(ABC):
    """Host images to host labels, for one caller at a time.

    Raises LenetError for concurrent calls, and for NaN or infinite scores with the number of the
    first such image, counted from `first`.
    """

    first = 0

    def __init__(self) -> None:
        self._turn = Turn("runner")

    @property
    @abstractmethod
    def done(self) -> int:
        """Number of leading labels of the last run that are in host memory."""

    @in_turn
    def run(
        self,
        images: Any,
        labels: Any,
        scores: Any = None,
        on_chunk: OnChunk | None = None,
        mark: Mark | None = None,
    ) -> None:
        """Fill `labels` (n,) int32 and, if given, `scores` (n, 10) float32 from `images`.

        `images` is (n, 28, 28, 1) of the pipeline's dtype; a GPU is fastest with arrays from
        `whole` and `results`. `on_chunk(count)` is called when images are done (on a GPU: queued),
        `mark(stream, name)` after each operation and with None before the first.
        """
        self._run(images, labels, scores, (on_chunk, mark))

    @abstractmethod
    def _run(self, images: Any, labels: Any, scores: Any, callbacks: Callbacks) -> None: ...

    def results(self, n: int, with_scores: bool) -> tuple[Any, Any]:
        """Allocate labels (n,) int32 and scores (n, 10) float32 or None for `run`."""
        return np.empty(n, np.int32), np.empty((n, CLASSES), np.float32) if with_scores else None

    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Return new labels (n,) int32 and scores (n, 10) float32 or None for `images`."""
        labels, scores = Runner.results(self, len(images), with_scores)
        self.run(images, labels, scores)
        return labels, scores

    def answer_exact(self, images: Any, with_scores: bool) -> tuple[Any, Any] | None:
        """Classify contiguous floats as bytes k if each is some k/255, else return None."""
        return None

    def label(self, image: Any) -> Any:
        """Return the label of a NumPy image (28, 28) of uint8 as numpy.int32."""
        return self.answer(image.reshape(1, *IMAGE_SHAPE), False)[0][0]

    def labels(self, images: Any) -> Any:
        """Return the labels (n,) int32 of a NumPy array of uint8 images."""
        return self.answer(np.ascontiguousarray(images).reshape(-1, *IMAGE_SHAPE), False)[0]


class CpuRunner(Runner):
    """Run NumPy images through `pipeline` in passes of its batch size."""

    done = 0
    chunk: int | None = None
    notes: tuple[str, ...] = ()

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._last = pipeline.steps[-1]
        pipeline.run(np.zeros((1, *IMAGE_SHAPE), pipeline.input_dtype))

    def whole(self, source: Source, labels: Any, scores: Any) -> Any:
        """Return all images (n, 28, 28, 1) of `source`; the results are not used."""
        return source.whole().images

    @in_turn
    def run_source(self, source: Source, deliver: Deliver, on_chunk: OnChunk | None = None) -> None:
        """Read `source`, which may grow, one slice ahead; call `deliver(labels, scores)` in order.

        Its arguments are valid during the call. Results before an error are delivered first.
        """
        from concurrent.futures import ThreadPoolExecutor

        with_scores, total, first = self.pipeline.with_scores, 0, source.selection.start
        each = prod(IMAGE_SHAPE) * np.dtype(source.dtype).itemsize
        size = min(self.pipeline.batch, max(1, _SLICE_BYTES // each))
        buffers = [np.empty((size, *IMAGE_SHAPE), source.dtype) for _ in range(2)]
        labels, scores = self.results(size, with_scores)

        def read(lo: int, out: Any) -> Any:
            part = out[: min(size, len(source) - lo)]
            source.read(lo, part)
            return part

        with ThreadPoolExecutor(1, thread_name_prefix="lenetgpu-read") as reader:
            lo, ahead = 0, reader.submit(read, 0, buffers[0])
            while lo < len(source):
                images = ahead.result()
                buffers.reverse()
                after = lo + len(images)
                if after < len(source):
                    ahead = reader.submit(read, after, buffers[0])
                self.done, self.first = 0, first + lo
                try:
                    self.run(images, labels, scores, on_chunk)
                finally:
                    n, total = self.done, total + self.done
                    self.done, self.first = total, first
                    deliver(labels[:n], scores[:n] if with_scores else None)
                lo = after

    def _run(self, images: Any, labels: Any, scores: Any, callbacks: Callbacks) -> None:
        (on_chunk, mark), through, self.done = callbacks, 0, 0
        if mark is not None:
            mark(0, None)

        def passed(step: Any, output: Any) -> None:
            nonlocal through
            if mark is not None:
                mark(0, step.name)
            if step is self._last:
                count = len(output[0] if isinstance(output, tuple) else output)
                through += count
                if on_chunk is not None:
                    on_chunk(count)

        for lo in range(0, len(images), self.pipeline.batch):
            try:
                self.pipeline.run(images[lo : lo + self.pipeline.batch], passed)
                bad = first_not_finite(self.pipeline.held_scores(through - lo))
                if bad is not None:
                    through = lo + bad
                    raise refused(self.pipeline.plan, self.first + through)
            finally:
                labels[lo:through] = self.pipeline.labels[: through - lo]
                if scores is not None:
                    scores[lo:through] = self.pipeline.scores(through - lo)
                self.done = through


class GpuRunner(Runner):
    """Run host images through a streamer on GPU `index`; `one` creates a path for one image."""

    def __init__(
        self,
        make: Callable[[int], Pipeline],
        schedule: Schedule,
        index: int,
        one: Callable[[], OneImage | Once | None] | None = None,
        after: After | None = None,
    ) -> None:
        from lenetgpu.net.streaming.streamer import Streamer, host_results

        super().__init__()
        self._gpu, self._dtype = cupy.cuda.Device(index), ""
        self._copies: Staging | None = None
        self._staged: dict[int, Chunk] = {}
        self._page_locked = True  # what is staged
        # recorded passes over page-locked images, by number and address, and their labels
        self._in_place_before: dict[tuple[int, int], tuple[Key, Any]] = {}
        self._label = np.int32

        def made(images: int) -> Pipeline:
            pipeline = make(images)
            self._plan = pipeline.plan
            self._dtype = pipeline.input_dtype
            return pipeline

        with self._gpu:
            self._streamer = Streamer(
                made,
                schedule.chunk,
                schedule.streams,
                taper=schedule.taper,
                zero_copy=schedule.zero_copy,
                after=after,
            )
            few = host_empty((min(schedule.chunk, _WARM_IMAGES), *IMAGE_SHAPE), self._dtype)
            few.fill(0)
            self._streamer.run(few, host_results(len(few), False)[0])
            self._one = None if one is None else one()

    @property
    def done(self) -> int:
        """Number of leading labels of the last run that are in host memory."""
        return self._streamer.done

    @property
    def chunk(self) -> int:
        """Images per chunk, at most the requested number."""
        return self._streamer.chunk

    @property
    def notes(self) -> list[str]:
        """A sentence if memory forced smaller chunks than requested."""
        return [self._streamer.shrunk] if self._streamer.shrunk else []

    def whole(self, source: Source, labels: Any, scores: Any) -> Any:
        """Return all images of `source` in page-locked memory; if small, `run` is recorded."""
        with self._gpu:
            images = host_empty((len(source), *IMAGE_SHAPE), source.dtype)
            if images.nbytes <= EARLY_BYTES:
                images.fill(0)
                for _ in range(2):  # the GPU maps the memory; the streamer records the second pass
                    self._streamer.run(images, labels, scores)
                self._streamer.done = 0
            source.read(0, images)
        return images

    def results(self, n: int, with_scores: bool) -> tuple[Any, Any]:
        """Allocate page-locked labels (n,) int32 and scores (n, 10) float32 or None."""
        from lenetgpu.net.streaming.streamer import host_results

        with self._gpu:
            return host_results(n, with_scores)

    def _run(self, images: Any, labels: Any, scores: Any, callbacks: Callbacks) -> None:
        with self._gpu:
            self._streamer.run(images, labels, scores, *callbacks)
        require_finite(scores, self._plan, self.first)

    def run_source(self, source: Source, deliver: Deliver, on_chunk: OnChunk | None = None) -> None:
        """Read `source` ahead; call `deliver(labels, scores)` in order, valid during the call."""

        def checked(labels: Any, scores: Any) -> None:
            require_finite(scores, self._plan, source.selection.start + self.done)
            deliver(labels, scores)

        with self._gpu:
            self._streamer.run_source(source, checked, on_chunk)

    @in_turn
    def answer(self, images: Any, with_scores: bool) -> tuple[Any, Any]:
        """Return new results; small calls and page-locked images replay recorded passes."""
        n = len(images)
        labels, scores = Runner.results(self, n, with_scores)
        if n == 1 and self._one is not None:
            with self._gpu:
                labels[0] = self._one.label(images[0])
                if with_scores:
                    scores[0] = self._one.scores()
                    require_finite(scores, self._plan)
        elif n > _STAGES[-1]:
            self.run(images, labels, scores)
        elif n and not self._in_place(images, labels, scores):
            self._through_stage(images, labels, scores, self.first)
        return labels, scores

    def _in_place(self, images: Any, labels: Any, scores: Any) -> bool:
        """Fill the results from many page-locked images, read where they are, or return False."""
        if len(images) < MANY:
            return False
        _, held_labels, held_scores = self._stage(len(images), scores is not None)
        with self._gpu:
            batch = Chunk(images, held_labels, held_scores)
            if self._streamer.replay(batch):
                if scores is None:
                    self._remember(batch)
                require_finite(held_scores, self._plan, self.first)
            elif self._streamer.page_locked(images):
                self.run(images, held_labels, held_scores)
            else:
                return False
        _copy(held_labels, held_scores, labels, scores)
        return True

    @in_turn
    def answer_exact(self, images: Any, with_scores: bool) -> tuple[Any, Any] | None:
        """Classify contiguous floats as bytes k if each is some k/255, else return None."""
        labels, scores = Runner.results(self, len(images), with_scores)
        for lo in range(0, len(images), _STAGES[-1]):
            part = slice(lo, lo + _STAGES[-1])
            some = None if scores is None else scores[part]
            if not self._through_stage(images[part], labels[part], some, self.first + lo):
                return None
        return labels, scores

    def _remember(self, batch: Chunk) -> None:
        """Let `labels` repeat the recorded pass over `batch` at once; keep few."""
        if len(self._in_place_before) >= _PLACES:
            self._in_place_before.clear()
        from lenetgpu.net.streaming.streamer import pass_key

        key = pass_key(batch)
        self._in_place_before[key[0], key[2]] = key, batch.labels

    def _through_stage(self, images: Any, labels: Any, scores: Any, first: int) -> bool:
        """Fill the results through page-locked memory; return False if a float is no k/255.

        Threads copy or convert while the GPU works on earlier chunks.
        """
        n, streamer = len(images), self._streamer
        held = self._stage(n, scores is not None)
        converted = images.dtype != held.images.dtype
        if (n >= MANY or converted) and self._page_locked and sys.platform == "linux":
            if self._copies is None:
                from lenetgpu.cpu.staging import Staging

                self._copies = Staging(looks=_LOOKS)
            sizes = streamer.filled_sizes(n, converted)
            with self._gpu:
                self._copies.start(images, held.images, sizes)
                try:
                    if not streamer.run_filled(held, sizes, self._copies.wait):
                        return False
                finally:
                    self._copies.stop()
            require_finite(held.scores, self._plan, first)
        elif converted:
            return False
        else:
            held.images[...] = images
            self.run(*held)
        _copy(held.labels, held.scores, labels, scores)
        return True

    def labels(self, images: Any) -> Any:
        """Return the labels (n,) int32 of a NumPy array of uint8 images."""
        if images.flags.c_contiguous:
            place = len(images), images.__array_interface__["data"][0]
            if (known := self._in_place_before.get(place)) is not None:
                with self._turn, self._gpu:
                    if self._streamer.repeat(known[0]):
                        return known[1].copy()
        return super().labels(images)

    def label(self, image: Any) -> Any:
        """Return the label of a NumPy image (28, 28) of uint8 as numpy.int32."""
        if self._one is None:
            return super().label(image)
        with self._gpu:
            return self._label(self._one.label(image))

    def _stage(self, n: int, with_scores: bool) -> Chunk:
        """Return page-locked images, labels and scores for `n` images, reused between calls."""
        size = next(size for size in _STAGES if n <= size)
        if size not in self._staged:
            with self._gpu:
                images = host_empty((size, *IMAGE_SHAPE), self._dtype)
                held = self._staged[size] = Chunk(images, *self.results(size, True))
                self._page_locked &= self._streamer.page_locked(*held)
        images, labels, scores = self._staged[size]
        return Chunk(images[:n], labels[:n], scores[:n] if with_scores else None)


def _copy(held_labels: Any, held_scores: Any, labels: Any, scores: Any) -> None:
    labels[:] = held_labels
    if scores is not None:
        scores[:] = held_scores


class Pool:
    """At most `most` runners, created by `make` on demand, each used by one caller at a time."""

    def __init__(self, make: Callable[[], CpuRunner | GpuRunner], most: int) -> None:
        self._make, self._left = make, threading.Semaphore(most)
        self._idle: list[CpuRunner | GpuRunner] = []

    @contextmanager
    def acquire(self) -> Iterator[CpuRunner | GpuRunner]:
        """Yield a runner, waiting for a free one; a runner whose block fails is dropped."""
        with self._left:
            try:
                runner = self._idle.pop()
            except IndexError:  # a check beforehand would race with other callers
                runner = self._make()
            yield runner
            self._idle.append(runner)


class DeviceRunner:
    """One pipeline for images on GPU `index`; a caller's stream waits for the previous caller's."""

    def __init__(self, make: Callable[[], Pipeline], index: int) -> None:
        from lenetgpu.gpu.graph import new_stream

        self._lock = threading.Lock()
        self._held: deque[tuple[Any, Any]] = deque()
        self._repeats: OrderedDict[int, Repeat] = OrderedDict()
        self._runtime, self._index = cupy.cuda.runtime, index
        with cupy.cuda.Device(index), new_stream() as stream:
            self._pipeline = make()
            self._free = cupy.cuda.Event(disable_timing=True)
            self._free.record(stream)
            stream.synchronize()

        # other variants queue more than launches, or encode an address in an argument
        fused = [step.variant and step.variant.kind for step in self._pipeline.steps]
        self._direct = fused == [FEATURES, CLASSIFIER] and not self._pipeline.with_scores
        self._direct &= hasattr(driver(), "cuLaunchKernelEx")

    def _pass(self, pixels: Any, labels: Any) -> None:
        """Queue a pass of at most `batch` images; floats outside 0..1 get label -1."""
        self._pipeline.run(pixels, None, labels)
        if self._pipeline.input_dtype != "uint8":
            from lenetgpu.net.outside import mark_outside

            mark_outside(pixels, labels, None)

    def label(self, images: DeviceImages) -> bool:
        """Queue a pass that fills `images.labels`; return False if the plan needs `run`.

        The GPU must be current. Float images outside 0..1 or with NaN get label -1.
        """
        if not self._direct:
            return False
        stream, size = images.stream, self._pipeline.batch
        each = prod(IMAGE_SHAPE) * (1 if images.dtype == "uint8" else 4)
        with self._lock:
            self._runtime.setDevice(self._index)  # in a new thread this makes its context current
            self._runtime.streamWaitEvent(stream, self._free.ptr)
            try:
                for lo in range(0, images.count, size):
                    n = min(size, images.count - lo)
                    at, labels = images.address + each * lo, images.label_address + 4 * lo
                    if repeat := self._repeats.get(n):
                        repeat.run((at, labels), stream)
                        continue
                    self._repeats[n] = self._recorded(n, at, labels, images)
                    if len(self._repeats) > _REPEATS:
                        self._repeats.popitem(last=False)
            finally:
                self._runtime.eventRecord(self._free.ptr, stream)
        return True

    def _recorded(self, n: int, at: int, label_at: int, images: DeviceImages) -> Repeat:
        """Queue the first pass of `n` images at address `at`, and record its launches."""
        from lenetgpu.gpu.launch import Repeat
        from lenetgpu.net.images import external_stream

        def viewed(address: int, shape: tuple[int, ...], dtype: str) -> Any:
            memory = cupy.cuda.UnownedMemory(address, 1, images, self._index)
            return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0))

        pixels = viewed(at, (n, *IMAGE_SHAPE), images.dtype)
        labels = viewed(label_at, (n,), "int32")
        with external_stream(images.stream):
            work = partial(self._pass, pixels, labels)
            return Repeat(work, (at, pixels.nbytes), (label_at, labels.nbytes))

    def run(self, accepted: Accepted) -> tuple[Any, Any]:
        """Queue a pass on the current stream; return labels (n,) int32 and scores (n, 10) or None.

        The GPU must be current. Float images outside 0..1 or with NaN get label -1 and NaN scores.
        If the weights can overflow float32 scores, waits for the scores and checks them
        (LenetError).
        """
        import cupy  # a call is short: faster than through lenetgpu.arrays

        pixels = accepted.pixels()
        wanted, size = self._pipeline.with_scores, self._pipeline.batch
        labels = cupy.empty(accepted.count, "int32")
        scores = cupy.empty((accepted.count, CLASSES), "float32") if wanted else None
        stream = cupy.cuda.get_current_stream()
        with self._lock:
            stream.wait_event(self._free)
            for lo in range(0, accepted.count, size):
                part = slice(lo, min(lo + size, accepted.count))
                labels[part] = self._pipeline.run(pixels[part])
                if scores is not None:
                    scores[part] = self._pipeline.held_scores(part.stop - lo)
            self._free.record(stream)
            while self._held and self._held[0][0].done:
                self._held.popleft()
            if accepted.home.in_other_order:  # keep it until read: its owner may reuse the memory
                read = cupy.cuda.Event(disable_timing=True)
                read.record(stream)
                self._held.append((read, accepted.raw))
        if scores is not None and not self._pipeline.bounded:
            require_finite(scores.get(), self._pipeline.plan)
        if accepted.dtype != "uint8":
            from lenetgpu.net.outside import mark_outside

            mark_outside(pixels, labels, scores)
        return labels, scores
