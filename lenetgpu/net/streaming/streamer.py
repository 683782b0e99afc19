"""Streaming: images in host memory or a file to labels in host memory (report, section 3.5).

Chunks use the stream slots in turn, so that copies of one overlap kernels of another; with
zero-copy, kernels read host memory directly. Pageable memory and files go through a ring of
page-locked buffers. The second pass over the same page-locked arrays or buffers is recorded as CUDA
graphs and replayed.
"""

import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any
from weakref import finalize

from lenetgpu.arrays import np
from lenetgpu.cpu.threads import core_count
from lenetgpu.cpu.turns import Turn, in_turn
from lenetgpu.errors import LenetError
from lenetgpu.files.reading import MemorySource, Source
from lenetgpu.gpu.faults import lacks_memory
from lenetgpu.gpu.graph import Graph
from lenetgpu.gpu.workspace import host_empty, pinned_empty
from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.net.streaming.schedule import EVEN, LEAST, chunk_sizes
from lenetgpu.net.streaming.stream_slots import After, Chunk, Mark, StreamPool
from lenetgpu.network import CLASSES, IMAGE_SHAPE
from lenetgpu.pipeline import Pipeline

MOST_RECORDED = 256  # chunks per graph; with more, single launches hide behind the copies
_QUARTERS = 4
_GRAPHS = 4  # graphs cached, least recently used dropped
# Most image bytes of one page-locked buffer, and of one read. With larger buffers not all of them
# stay in the CPU's cache: 37 instead of 48 million images/s with 32 MiB (host of an H100).
STAGING_BYTES, READ_BYTES = 8 << 20, 4 << 20
MOST_READERS = 16
Key = tuple[int, ...]  # number of images, of parts, and the address of each array
OnChunk = Callable[[int], None]
Deliver = Callable[[Any, Any], None]
# called with labels (n,) int32 and scores (n, 10) float32 or None, valid during the call
Read = Callable[[int, Any], None]
# fills an array (n, 28, 28, 1) with images from an index on; may be called from several threads


def pinned_copy(array: Any) -> Any:
    """Copy `array` to page-locked memory."""
    copy = pinned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def host_results(n: int, with_scores: bool) -> tuple[Any, Any]:
    """Allocate labels and, if `with_scores`, scores for `n` images, page-locked if possible."""
    labels = host_empty((n,), "int32")
    return labels, host_empty((n, CLASSES), "float32") if with_scores else None


class Replays:
    """Recorded passes by the addresses of their arrays; `refusal`: why none can be recorded."""

    def __init__(self) -> None:
        self.refusal = ""
        self.graphs: OrderedDict[Key, list[Graph]] = OrderedDict()

    def find(self, key: Key, record: Callable[[], list[Graph]]) -> list[Graph]:
        """Return the graphs of a pass, [] if none; call `record` on the second use of `key`."""
        if self.refusal:
            return []
        if key not in self.graphs:
            self.graphs[key] = []
            if len(self.graphs) > _GRAPHS:
                self.graphs.popitem(last=False)
            return []
        try:
            graphs = self.graphs[key] or record()
        except RuntimeError as error:
            self.refusal = str(error)
            return []
        self.graphs[key] = graphs
        self.graphs.move_to_end(key)
        return graphs


@dataclass
class StagingBuffer:
    """A page-locked buffer for `n` images and their results; event `done` follows the results.

    Chunk `number` of a pass, replayed by `graph` if full; threads of `staging` read files.
    """

    images: Any
    labels: Any
    scores: Any
    done: Any
    number: int
    n: int = 0
    graph: Graph | None = None
    staging: Any = None

    def chunk(self) -> Chunk:
        """Return the images in use with their labels and scores."""
        scores = None if self.scores is None else self.scores[: self.n]
        return Chunk(self.images[: self.n], self.labels[: self.n], scores)


class Filling:
    """Reads of one buffer by several threads; the last one unlocks `ended`."""

    def __init__(self, parts: int) -> None:
        self.left = iter(range(parts)[::-1])  # next() is atomic
        self.error: BaseException | None = None
        self.ended = Lock()
        self.ended.acquire()

    def wait(self) -> None:
        """Wait for all reads; raise the error of one that failed."""
        with self.ended:
            if self.error is not None:
                raise self.error


# functions: True once the buffer is full or a read failed; wait for the reads, raise their error
Reading = tuple[Callable[[], bool], Callable[[], object]]
Reads = deque[tuple[StagingBuffer, Reading]]
Todo = SimpleQueue[tuple[Filling, Read, int, Any] | None]


def _is_read(reads: Reads) -> bool:
    """Return True if the first buffer is full, or a read of it failed."""
    return bool(reads) and reads[0][1][0]()


def _read(todo: Todo) -> None:
    """Read what is to do until it is None."""
    while (part := todo.get()) is not None:
        filling, read, lo, out = part
        try:
            read(lo, out)
        except BaseException as error:
            filling.error = error
        if next(filling.left) == 0:
            filling.ended.release()
        del part, filling, read, out  # a waiting thread keeps no buffer
    todo.put(None)  # for the next thread


class Ring:
    """Buffers on demand for images that threads read: one per slot, one more, and those being read.

    Native threads of each buffer read files of bytes, Python's threads other sources.
    """

    def __init__(self, device: Cuda, dtype: str, chunk: int, slots: int, with_scores: bool) -> None:
        self._device, self._dtype, self.with_scores = device, dtype, with_scores
        size = prod(IMAGE_SHAPE) * np.dtype(dtype).itemsize
        self.images = max(1, min(chunk, STAGING_BYTES // size))
        self._reads = -(-self.images * size // READ_BYTES)  # of one buffer, by several threads
        self._readers = min(MOST_READERS, core_count())
        self.free: deque[StagingBuffer] = deque()  # in the order of their slots
        ahead = -(-self._readers // self._reads)
        self._most = slots * (2 + ahead // slots)  # as many for each slot
        self._native = sys.platform == "linux" and dtype == "uint8"
        self._made: list[StagingBuffer] = []
        # bare threads: a pool's futures would cost the host as much as the reads
        self._todo: Todo = SimpleQueue()
        self._threads: list[Thread] = []
        self._stop = finalize(self, self._todo.put, None)

    def fill(self, source: Source, lo: int, buffer: StagingBuffer) -> Reading:
        """Start to read images from `lo` on into a buffer."""
        read: Callable[..., Any] = source.read
        staging, images = buffer.staging, buffer.images[: buffer.n]
        if staging is not None and self._begun(source, lo, staging, images):
            return partial(staging.ended, 0), lambda: staging.wait(0) or read(lo, images)
        while len(self._threads) < self._readers:
            name = f"lenetgpu-read_{len(self._threads)}"
            self._threads.append(Thread(target=_read, args=(self._todo,), name=name, daemon=True))
            self._threads[-1].start()
        parts = min(self._reads, buffer.n)
        filling, edges = Filling(parts), [buffer.n * part // parts for part in range(parts + 1)]
        for begin, end in pairwise(edges):
            self._todo.put((filling, read, lo + begin, buffer.images[begin:end]))
        return lambda: not filling.ended.locked(), filling.wait

    @staticmethod
    def _begun(source: Source, lo: int, staging: Any, images: Any) -> bool:
        """Begin to read or copy contiguous bytes natively; return False for other sources."""
        if isinstance(source, MemorySource):
            first = source.selection.start + lo
            part = source.images[first : first + len(images)]
            if part.flags.c_contiguous:
                staging.start(part, images, (len(part),))
            return bool(part.flags.c_contiguous)
        at = source.raw(lo, len(images))
        if at:
            staging.read(*at, images)
        return at is not None

    def close(self) -> None:
        """Drop the reads that have not begun, and wait for the others."""
        for buffer in self._made:
            if buffer.staging is not None:
                buffer.staging.close()
        with suppress(Empty):
            while True:
                self._todo.get_nowait()
        self._stop()
        for thread in self._threads:
            thread.join()

    def take(self) -> StagingBuffer | None:
        """Return a free buffer, or None if all are in use."""
        if self.free:
            return self.free.popleft()
        if len(self._made) == self._most:
            return None
        pinned, staging = self._device.pinned, None
        if self._native:  # now rather than in the first read
            from lenetgpu.cpu.staging import Staging

            staging = Staging(-(-self._readers // self._most))
        buffer = StagingBuffer(
            pinned((self.images, *IMAGE_SHAPE), self._dtype),
            pinned((self.images,), "int32"),
            pinned((self.images, CLASSES), "float32") if self.with_scores else None,
            self._device.event(),
            len(self._made),
            staging=staging,
        )
        self._made.append(buffer)
        return buffer


def pass_key(batch: Chunk, parts: int = 1) -> Key:
    """Return the key of a pass over `batch` in `parts` graphs."""
    places = (array.__array_interface__["data"][0] for array in batch if array is not None)
    return len(batch.images), parts, *places


def _cut(batch: Chunk, sizes: Iterable[int], start: int = 0) -> Iterator[Chunk]:
    """Yield parts of `sizes` images of `batch` from image `start` on."""
    for size in sizes:
        part = slice(start, start + size)
        start += size
        scores = None if batch.scores is None else batch.scores[part]
        yield Chunk(batch.images[part], batch.labels[part], scores)


class Streamer:
    """Run host images through `make_pipeline(chunk)` pipelines on `streams` CUDA streams.

    Chunks have `chunk` images, or grow or shrink by `taper` (`schedule.chunk_sizes`). They are
    copied to the GPU or, with `zero_copy`, read by its kernels; `after` queues more for each. If
    GPU memory is short, in the constructor or in a run, chunks are halved until they fit: `chunk`
    is the actual size, `requested` the requested one. Raises LenetError if not even one image fits,
    and for concurrent calls.
    """

    def __init__(
        self,
        make_pipeline: Callable[[int], Pipeline],
        chunk: int,
        streams: int = 1,
        device: Cuda | None = None,
        taper: float = EVEN,
        zero_copy: bool = False,
        after: After | None = None,
    ) -> None:
        self._turn = Turn("streamer")
        self.taper, self.zero_copy, self._after = taper, zero_copy, after
        self.requested = self.chunk = chunk
        self.streams = streams
        self.done = 0
        self._make = make_pipeline
        self._device = Cuda() if device is None else device
        self._slots: StreamPool | None = None
        self._ring: Ring | None = None
        self._replays = Replays()
        self._ready()

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

        `images` is C-contiguous (n, 28, 28, 1) of the pipelines' dtype. Page-locked arrays are used
        in place, others go through the ring. `on_chunk(count)` is called after each chunk is
        queued, `mark(stream, name)` after each operation and with None before the first. `done` is
        the number of leading labels in host memory; after a Ctrl-C, those of the queued chunks.
        """
        self.done = 0
        batch = Chunk(images, labels, scores)
        self._check(batch)
        if mark is None and self.replay(batch, on_chunk):
            return
        if not self.page_locked(*batch):
            self._through_ring(batch, on_chunk, mark)
            return
        graphs, key = list[Graph](), pass_key(batch)
        if mark is None and len(images) <= MOST_RECORDED * self.chunk:
            graphs = self._replays.find(key, lambda: [self._recorded(self._chunks(batch))])
        if not graphs or not self._replay(graphs[0], len(images), on_chunk):
            self._insist(lambda: self._launch(batch, on_chunk, mark))

    @in_turn
    def replay(self, batch: Chunk, on_chunk: OnChunk | None = None) -> bool:
        """Replay the recorded pass over `batch`, if any; return False unless it ran."""
        key = pass_key(batch)
        graphs = self._replays.graphs.get(key)
        if not graphs or not all(self._device.is_pinned(at, 1) for at in key[2:]):
            return False
        self._replays.graphs.move_to_end(key)
        return self._replay(graphs[0], len(batch.images), on_chunk)

    @in_turn
    def repeat(self, key: Key) -> bool:
        """Replay the pass of `key`, whose results are still page-locked; False unless it ran."""
        graphs = self._replays.graphs.get(key)
        if not graphs or not self._device.is_pinned(key[2], 1):
            return False
        return self._replay(graphs[0], key[0], None)

    def filled_sizes(self, images: int, slowly: bool) -> list[int]:
        """Return chunk sizes for `run_filled`: with `slowly`, the GPU waits for what fills them.

        Then equal quarters keep it busy; otherwise a first quarter lets it start, and further
        chunks would cost more than they hide.
        """
        first = min(self.chunk, images, max(LEAST, -(-images // _QUARTERS)))
        rest = images - first
        return [first, *chunk_sizes(rest, first if slowly else self.chunk)] if rest else [first]

    @in_turn
    def run_filled(self, batch: Chunk, sizes: Sequence[int], filled: Callable[[int], bool]) -> bool:
        """Run page-locked arrays whose images are filled meanwhile; return True.

        `filled(k)` returns once the next `sizes[k]` images, at most `chunk`, can be read, or False,
        which ends the run.
        """
        slots, count, graphs = self._ready(), len(sizes), list[Graph]()
        if count <= MOST_RECORDED:
            parts = enumerate(_cut(batch, sizes))
            graphs = self._replays.find(
                pass_key(batch, count),
                lambda: [self._recorded([part], turn) for turn, part in parts],
            )
        chunks = () if graphs else tuple(_cut(batch, sizes))
        there, whole = map(filled, range(count)), True
        self.done = 0

        def queue() -> None:
            nonlocal whole
            slots.begin()
            for turn in range(count):
                whole = next(there)
                if not whole:
                    return
                if graphs:
                    graphs[turn].launch_alone(slots.stream(turn))
                else:
                    slots.queue(turn, chunks[turn])

        try:
            fits = self._fitted(queue)
        finally:
            slots.wait()
        if not fits and (whole := all(there)):
            self._insist(lambda: self._launch(batch, None, None))
        self.done = len(batch.images) if whole else 0
        return whole

    @in_turn
    def run_source(self, source: Source, deliver: Deliver, on_chunk: OnChunk | None = None) -> None:
        """Read `source` by threads into a page-locked ring; `deliver(labels, scores)` in order.

        The source may become longer while it is read.
        Labels (k,) int32 and scores (k, 10) float32 or None are valid until `deliver` returns;
        `on_chunk(k)` follows. Errors of readers and `deliver` are raised once the readers have
        ended and the GPU is idle; `done` is the number of delivered images. After a Ctrl-C, queued
        chunks are delivered first.
        """
        self.done = 0
        scored = self._ready().with_scores
        self._insist(lambda: self._stream(source, deliver, scored, on_chunk))

    @property
    def shrunk(self) -> str:
        """A sentence if GPU memory forced smaller chunks than requested, or an empty string."""
        if self.chunk == self.requested:
            return ""
        return (
            f"the GPU's memory did not hold chunks of {self.requested:,} images on {self.streams} "
            f"streams: they are of {self.chunk:,}"
        )

    def page_locked(self, *arrays: Any) -> bool:
        """Return True if all arrays but None are page-locked."""
        held = (array for array in arrays if array is not None)
        return all(self._device.is_pinned(array.ctypes.data, array.nbytes) for array in held)

    def _check(self, batch: Chunk) -> None:
        n = len(batch.images)
        shapes = (n, *IMAGE_SHAPE), (n,), (n, CLASSES)
        dtypes = self._ready().dtype, "int32", "float32"
        for name, array, shape, dtype in zip(batch._fields, batch, shapes, dtypes, strict=True):
            if array is None:
                continue
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise LenetError(
                    f"{name}: expected a C-contiguous array {shape} of {dtype}, "
                    f"found {array.shape} of {array.dtype}, strides {array.strides}"
                )

    def _ready(self) -> StreamPool:
        """Return the stream slots, made for the largest chunks that fit in the GPU's memory."""

        def make() -> None:
            self._slots = StreamPool(
                self._device, self._make, self.chunk, self.streams, self.zero_copy, self._after
            )

        if self._slots is None:
            self._insist(make)
        assert self._slots is not None
        return self._slots

    def _insist(self, work: Callable[[], None]) -> None:
        """Do `work`, which continues after image `done`, with smaller chunks if memory is short."""
        while not self._fitted(work):
            self._slots, self._ring = None, None
            self._replays.graphs.clear()
            self._device.release()
            if self.chunk == 1:
                raise LenetError(
                    f"GPU memory: expected room for one image on {self.streams} streams, found "
                    "none; end what else uses the GPU, or take fewer streams"
                )
            self.chunk = -(-self.chunk // 2)

    def _fitted(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:
            if not lacks_memory(error):
                raise
            return False
        return True

    def _chunks(self, batch: Chunk, start: int = 0) -> Iterator[Chunk]:
        sizes = chunk_sizes(len(batch.images) - start, self.chunk, self.taper)
        return _cut(batch, sizes, start)

    def _launch(self, batch: Chunk, on_chunk: OnChunk | None, mark: Mark | None) -> None:
        """Launch chunk after chunk from image `done` on, and keep `done` correct on errors."""
        slots, queued = self._ready(), self.done
        slots.begin()
        try:
            for turn, part in enumerate(self._chunks(batch, queued)):
                slots.queue(turn, part, mark)
                queued += len(part.images)
                if on_chunk is not None:
                    on_chunk(len(part.images))
        finally:
            slots.wait()
            self.done = queued

    def _replay(self, graph: Graph, images: int, on_chunk: OnChunk | None) -> bool:
        """Launch `graph`; if memory is short, drop all graphs and return False."""
        queued = 0
        try:
            if not self._fitted(graph.launch_alone):
                self._replays.graphs.clear()
                return False
            queued = images
            if on_chunk is not None:
                for size in chunk_sizes(images, self.chunk, self.taper):
                    on_chunk(size)
        finally:
            graph.stream.synchronize()
            self.done = queued
        return True

    def _recorded(self, chunks: Iterable[Chunk], first: int = 0) -> Graph:
        """Record `chunks`, numbered from `first`; raise RuntimeError if that is impossible."""
        slots = self._ready()

        def work() -> None:
            slots.begin()
            for turn, part in enumerate(chunks, first):
                slots.queue(turn, part)

        return self._device.record_graph(work, slots.streams)

    def _through_ring(self, batch: Chunk, on_chunk: OnChunk | None, mark: Mark | None) -> None:
        def deliver(labels: Any, scores: Any) -> None:
            part = slice(self.done, self.done + len(labels))
            batch.labels[part] = labels
            if batch.scores is not None:
                batch.scores[part] = scores

        source, scored = MemorySource(batch.images, None, "images"), batch.scores is not None
        self._insist(lambda: self._stream(source, deliver, scored, on_chunk, mark))

    def _ready_ring(self, slots: StreamPool, with_scores: bool, replays: bool) -> Ring:
        """Return the ring, made or made anew if it lacks what is wanted."""
        if self._ring is None or self._ring.with_scores != with_scores:
            self._ring = Ring(self._device, slots.dtype, self.chunk, self.streams, with_scores)
        elif replays:
            self._record(self._ring)
        return self._ring

    def _record(self, ring: Ring) -> None:
        """Record the graphs of buffers that an earlier pass filled, while nothing is queued."""
        for buffer in ring.free:
            if not (buffer.graph or buffer.n < ring.images or self._replays.refusal):
                try:
                    buffer.graph = self._recorded([buffer.chunk()], buffer.number)
                except RuntimeError as error:
                    self._replays.refusal = str(error)

    def _stream(
        self,
        source: Source,
        deliver: Deliver,
        with_scores: bool,
        on_chunk: OnChunk | None,
        mark: Mark | None = None,
    ) -> None:
        """Process images from `done` on while readers work ahead."""
        slots = self._ready()
        reads: Reads = deque()
        queued: deque[StagingBuffer] = deque()
        delivering = False

        def finish_oldest() -> None:
            nonlocal delivering
            buffer = queued[0]
            buffer.done.synchronize()
            _, labels, scores = buffer.chunk()
            delivering = True
            deliver(labels, scores)
            self.done += buffer.n
            delivering = False
            ring.free.append(queued.popleft())
            if on_chunk is not None:
                on_chunk(buffer.n)

        ring, requested = self._ready_ring(slots, with_scores, mark is None), self.done
        slots.begin()
        try:
            while True:
                while requested < len(source) and not _is_read(reads) and (buffer := ring.take()):
                    buffer.n = min(ring.images, len(source) - requested)
                    reads.append((buffer, ring.fill(source, requested, buffer)))
                    requested += buffer.n
                if reads and (not queued or _is_read(reads)):
                    buffer, (_, wait) = reads[0]
                    wait()
                    reads.popleft()
                    if buffer.graph and mark is None and buffer.n == ring.images:
                        slots.launch(buffer.number, buffer.graph, buffer.done)
                    else:
                        slots.queue(buffer.number, buffer.chunk(), mark, buffer.done)
                    queued.append(buffer)
                elif queued:
                    finish_oldest()
                else:
                    break
        except BaseException as error:
            self._ring = None
            if isinstance(error, KeyboardInterrupt):
                while queued and not delivering:
                    finish_oldest()
            raise
        finally:
            try:
                slots.wait()
            finally:
                if self._ring is None:
                    ring.close()
