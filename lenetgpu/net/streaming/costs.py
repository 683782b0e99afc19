"""Measurement of the schedule's costs on the current GPU, once per device and kernels."""

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from lenetgpu.arrays import np
from lenetgpu.check.fit import plan_key
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.graph import Graph
from lenetgpu.measure.timing import cpu_ms, gpu_ms
from lenetgpu.net.streaming.cuda import Cuda
from lenetgpu.net.streaming.schedule import Costs
from lenetgpu.net.streaming.streamer import pinned_copy
from lenetgpu.network import IMAGE_SHAPE, PIXEL_SCALE
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import Plan
from lenetgpu.store import entries

IMAGES, FEW = 10_000, 2_500  # batch sizes at which copies and kernels are timed
_CALLS, _TIMES, _LAUNCHES, _STREAMS = 4, 5, 30, 3
_LONG_MS = 10.0  # a sample longer than this is not repeated


def costs_of(plan: Plan, weights: Weights, gpu: Gpu, dtype: str) -> Costs:
    """Return the costs of `plan` on `gpu`, which is current: cached or measured now."""
    facts = [gpu.name, gpu.index, plan_key(plan, gpu.name, dtype, IMAGES)]
    name = entries.name_of(facts)
    costs = entries.load("schedule", name, Costs)
    if costs is not None and costs.sound:
        return costs

    def make_pipeline(size: int) -> Pipeline:
        pipeline = Pipeline(plan, weights, size, dtype, size)
        pipeline.with_scores = False
        return pipeline

    costs = measure_costs(make_pipeline)
    entries.save("schedule", name, costs)
    return costs


def measure_costs(make_pipeline: Callable[[int], Pipeline]) -> Costs:
    """Measure copies, kernels and zero-copy passes of FEW images and of all shipped digits."""
    device, pipeline = Cuda(), make_pipeline(IMAGES)
    digits = load_dataset(assets.default_digits()).images[:IMAGES]
    if pipeline.input_dtype != "uint8":
        digits = digits.astype(np.float32) / np.float32(PIXEL_SCALE)
    host = pinned_copy(digits)
    resident = device.empty((len(host), *IMAGE_SHAPE), pipeline.input_dtype)
    resident.set(host)

    def copy(n: int) -> None:
        device.copy(resident[:n], host[:n], device.current())

    few, many = FEW, len(host)
    copies = [_each_us(partial(copy, n)) for n in (few, many)]
    kernels = [_each_us(partial(pipeline.run, resident[:n])) for n in (few, many)]
    image_bytes = host.nbytes // many
    copy_us, byte_us = _line(few * image_bytes, many * image_bytes, copies)
    chunk_us, image_us = _line(few, many, kernels)
    mapped = device.mapped(host)
    reads = [_each_us(partial(pipeline.run, mapped[:n])) for n in (few, many)]
    zero_copy_us, read_us = _line(few, many, reads)
    pipelines = [pipeline, *(make_pipeline(few) for _ in range(_STREAMS - 1))]
    overlapped_us = _overlapped_us(device, pipelines, resident[:few])
    return Costs(
        bus_gbs=1 / (1e3 * byte_us),
        copy_us=copy_us,
        image_ns=1e3 * image_us,
        chunk_us=chunk_us,
        overlapped_us=min(chunk_us, max(0.0, overlapped_us - few * image_us)),
        call_us=_call_us(device),
        image_bytes=image_bytes,
        zero_copy_gbs=image_bytes / (1e3 * read_us),
        zero_copy_us=zero_copy_us,
    )


def _overlapped_us(device: Cuda, pipelines: list[Pipeline], images: Any) -> float:
    """Return the microseconds of a pass of `images` while other streams have passes in progress."""
    slots = [(device.stream(), pipeline) for pipeline in pipelines]

    def work() -> None:
        for _ in range(_CALLS):
            for stream, pipeline in slots:
                with stream:
                    pipeline.run(images)

    device.current().synchronize()
    try:
        graph = Graph(work, 1, [stream for stream, _ in slots])
    except RuntimeError:
        return inf
    with graph.stream:
        return 1e3 / (_CALLS * len(slots)) * _least(lambda: gpu_ms(graph.launch))


def _line(few: int, many: int, times: list[float]) -> tuple[float, float]:
    """Return (start, slope) of the line through two times, both non-negative."""
    slope = max((times[1] - times[0]) / (many - few), 1e-3 * times[1] / many)
    return max(0.0, times[0] - few * slope), slope


def _each_us(work: Callable[[], Any]) -> float:
    """Return the GPU microseconds of `work`, the minimum of a few; recorded if possible."""
    work()
    try:
        graph = Graph(work, _CALLS)
    except RuntimeError:
        return 1e3 * _least(lambda: gpu_ms(work))
    with graph.stream:
        return 1e3 / _CALLS * _least(lambda: gpu_ms(graph.launch))


def _least(sample: Callable[[], float]) -> float:
    first = sample()
    return first if first > _LONG_MS else min(sample() for _ in range(_TIMES))


def _call_us(device: Cuda) -> float:
    """Return the microseconds to launch a graph of one small copy and wait for its end."""
    host_word, device_word = device.pinned((1,), "int32"), device.empty((1,), "int32")
    graph = Graph(lambda: device.copy(device_word, host_word, device.current()), 1)

    def call() -> None:
        with graph.stream:
            graph.launch()
        graph.stream.synchronize()

    return 1e3 * min(cpu_ms(call) for _ in range(_LAUNCHES))
