"""Simulated GPU that runs queued work late, in any order that streams and events allow.

It replaces `lenetgpu.net.streaming.cuda.Cuda`. Code that synchronizes too little, or writes to a
buffer that is still read, produces wrong labels. Its arrays are NumPy's.
"""

import math
import random
import time
from types import SimpleNamespace

import numpy as np

from lenetgpu.gpu.workspace import in_units
from lenetgpu.net.streaming.streamer import Streamer
from lenetgpu.network import CLASSES


def within(arrays, address, size):
    held = [(array.ctypes.data, array.nbytes) for array in arrays]
    return any(at <= address and address + size <= at + n for at, n in held)


class Stream:
    def __init__(self, gpu):
        self.gpu, self.last = gpu, None

    def __enter__(self):
        self.before, self.gpu.current = self.gpu.current, self

    def __exit__(self, *error):
        self.gpu.current = self.before

    def wait_event(self, event):
        self.gpu.queue(lambda: None, self, event.at)

    def synchronize(self):
        self.gpu.finish(self.last)


class Event:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, None

    def record(self, stream):
        self.at = stream.last

    def synchronize(self):
        self.gpu.finish(self.at)


class Operation:
    def __init__(self, work, after):
        self.work, self.done = work, False
        self.after = [before for before in after if before is not None]


class Graph:
    def __init__(self, gpu, operations):
        self.gpu, self.operations, self.stream = gpu, operations, Stream(gpu)

    def launch_alone(self, stream=None):
        self.gpu.launches += 1
        copies, stream = {}, stream or self.stream
        for operation in self.operations:
            before = [copies[at] for at in operation.after if at in copies]
            assert len(before) == len(operation.after), "waits for what is not in the graph"
            copies[operation] = Operation(operation.work, [*before, stream.last])
        self.gpu.pending += copies.values()
        stream.last = Operation(lambda: None, [*copies.values(), stream.last])
        self.gpu.pending.append(stream.last)


class PretendedGpu:
    """Simulated GPU: stream buffers hold `capacity` images; `seed` sets the order of execution.

    `reaches_host`: its kernels write labels to host memory. `copied`: bytes of each copy.
    """

    def __init__(self, capacity=1 << 20, seed=0, reaches_host=True):
        self.reaches_host = reaches_host
        self.random, self.pending, self.current = random.Random(seed), [], None
        self.capacity, self.used, self.pinned_bytes = capacity, 0, 0
        self.launches = self.released = 0
        self.recording = None
        self.copied = []
        self.page_locked, self.device_memory = [], []

    def stream(self):
        return Stream(self)

    def event(self):
        return Event(self)

    def queue(self, work, stream, *after):
        operation = Operation(work, [stream.last, *after])
        stream.last = operation
        (self.pending if self.recording is None else self.recording).append(operation)

    def finish(self, wanted):
        while wanted is not None and not wanted.done:
            self.step()

    def step(self):
        able = [op for op in self.pending if all(before.done for before in op.after)]
        chosen = self.random.choice(able)
        chosen.work()
        chosen.done = True
        self.pending.remove(chosen)

    def copy(self, to, source, stream):
        self.copied.append(to.nbytes)
        ends = [(end.ctypes.data, end.nbytes) for end in (to, source)]
        assert any(self.is_pinned(*end) for end in ends), "a copy that would wait"
        self.queue(lambda: np.copyto(to, source), stream)

    def empty(self, shape, dtype):
        self.allocate(shape[0])
        self.device_memory.append(np.full(shape, 255, dtype))
        return self.device_memory[-1]

    def allocate(self, images):
        if self.used + images > self.capacity:
            raise MemoryError
        self.used += images

    def pinned(self, shape, dtype):
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self.page_locked.append(np.zeros(in_units(size), np.uint8))
        self.pinned_bytes += size
        return self.page_locked[-1][:size].view(dtype).reshape(shape)

    def mapped(self, array):
        assert self.is_pinned(array.ctypes.data, array.nbytes), "a kernel would fault"
        return array

    def is_pinned(self, address, size):
        return within(self.page_locked, address, size)

    def has(self, address, size):
        return within([*self.page_locked, *self.device_memory], address, size)

    def record_graph(self, work, streams):
        assert not self.pending, "recorded while something runs"
        self.recording, lasts = [], [stream.last for stream in streams]
        for stream in streams:
            stream.last = None
        work()
        graph, self.recording = Graph(self, self.recording), None
        for stream, last in zip(streams, lasts, strict=True):
            stream.last = last
        return graph

    def release(self):
        self.used = 0
        self.released += 1


class FailingCopies(PretendedGpu):
    """The `at`-th input copy raises `error`, once; copies wait until readers are ahead."""

    copies, at, error = 0, 5, MemoryError

    def copy(self, to, source, stream):
        if to.ndim == 4:
            time.sleep(0.005)
            self.copies += 1
            if self.copies == self.at:
                raise self.error
        super().copy(to, source, stream)


class PretendedPipeline:
    """A pipeline of two steps whose labels are each image's first pixel.

    Score i is the first pixel + i.
    """

    input_dtype = "uint8"
    scores_on_gpu = True
    plan = SimpleNamespace(name="pretended", precision="fp32")

    def __init__(self, gpu, size, with_scores=True):
        self.gpu, self.with_scores = gpu, with_scores
        self.labels_by_kernel = gpu.reaches_host
        self.between = np.zeros(size, np.int32)
        self.labels = np.full(size, -1, np.int32)
        self.scores = np.full((size, CLASSES), np.nan, np.float32)

    def run(self, images, observer=None, labels=None):
        n, stream = len(images), self.gpu.current
        into = self.labels[:n] if labels is None else labels

        def features():
            self.between[:n] = images[:, 0, 0, 0]

        def classifier():
            into[:] = self.between[:n]
            self.scores[:n] = self.between[:n, None] + np.arange(CLASSES)

        for name, work in (("features", features), ("classifier", classifier)):
            self.gpu.queue(work, stream)
            if observer is not None:
                observer(SimpleNamespace(name=name), None)
        return into

    def held_scores(self, n):
        return self.scores[:n]


def streamer_on(gpu, chunk, streams, with_scores=True, **how):
    def make(n):
        return PretendedPipeline(gpu, n, with_scores)

    return Streamer(make, chunk, streams, gpu, **how)


def pixels(n, seed=0):
    """Return images (n, 28, 28, 1) uint8 whose first pixels differ from their neighbours'."""
    images = np.zeros((n, 28, 28, 1), np.uint8)
    images[:, 0, 0, 0] = np.random.default_rng(seed).integers(0, 255, n)
    return images


class Interrupts:
    """Callback for each chunk; raises at the `at`-th."""

    def __init__(self, at, error=KeyboardInterrupt):
        self.counts, self.at, self.error = [], at, error

    def __call__(self, count):
        self.counts.append(count)
        if len(self.counts) == self.at:
            raise self.error


def pinned(gpu, images):
    held = gpu.pinned(images.shape, images.dtype)
    held[...] = images
    return held


def results(gpu, n):
    labels, scores = gpu.pinned((n,), np.int32), gpu.pinned((n, CLASSES), np.float32)
    labels[...], scores[...] = -1, np.nan
    return labels, scores


def assert_right(images, labels, scores=None):
    expected = images[:, 0, 0, 0].astype(int)
    np.testing.assert_array_equal(labels, expected)
    if scores is not None:
        np.testing.assert_array_equal(scores, expected[:, None] + np.arange(CLASSES))


def assert_right_each_time(gpu, streamer, given, images=None):
    """Run once directly, then recorded and replayed, and check the results.

    `given` are pixels, different each time, or the input made from `images`.
    """
    n = len(given)
    labels, scores = results(gpu, n)
    for again in range(4):
        if images is None:
            given[...] = pixels(n, seed=again)
        labels[...], scores[...] = -1, np.nan
        streamer.run(given, labels, scores)
        assert_right(given if images is None else images, labels, scores)
        assert (streamer.done, gpu.launches, streamer._replays.refusal) == (n, again, "")
