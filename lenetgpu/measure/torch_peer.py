"""PyTorch's convolution, cuDNN on a GPU, as a candidate beside the variants."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lenetgpu.check.judge import TOLERANCE
from lenetgpu.gpu.launch import Launch
from lenetgpu.measure.bench import Checked
from lenetgpu.measure.conv_bench import CALLS, LEAST_SAMPLES, SAMPLE_MS, Case, replays
from lenetgpu.problems import Conv

NAMES = {"cuda": "torch cudnn", "cpu": "torch cpu"}
_FORMATS = {"contiguous": "NCHW", "channels_last": "NHWC"}
_ROUGH = TOLERANCE["fp16"]


def peer_version(device: str) -> str | None:
    """What runs beside the variants on "cpu" or "cuda", or None where PyTorch cannot."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = _torch()
    if device == "cpu":
        return f"PyTorch {torch.__version__}"
    if not torch.cuda.is_available():
        return None
    return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


def _torch() -> Any:
    return importlib.import_module("torch")


class TorchBench:
    """F.conv2d in fp32 without TF32, contiguous and channels_last: the better one counts."""

    def __init__(self, problem: Conv, case: Case, seconds: float) -> None:
        self.problem, self._case = problem, case
        self._torch = torch = _torch()
        self.images = self.scaled_from = case.images
        self.launched: list[Launch] = []
        self.once = False
        self.method = self.note = ""
        self._budget_ms = 1e3 * seconds / LEAST_SAMPLES
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        filters = torch.from_numpy(case.filters).permute(3, 2, 0, 1)
        self._filters = filters.cuda() if case.gpu else filters
        self._sampler: Callable[[], float] = self._single
        self._kept: list[Any] = []
        self._x: Any = None
        self._w: Any = None
        self._y: Any = None

    def _hold(self, layout: str) -> None:
        torch, case = self._torch, self._case
        x = torch.from_dlpack(case.input(layout))
        kept = torch.contiguous_format if layout == "NCHW" else torch.channels_last
        self._x = self._as(x if layout == "NCHW" else x.permute(0, 3, 1, 2), kept)
        self._w = self._as(self._filters, kept)

    def _as(self, tensor: Any, kept: Any) -> Any:
        """A copy with the format's own strides.

        By those of axes of length 1, which mean nothing, PyTorch guesses the format.
        """
        empty = self._torch.empty(tensor.shape, device=tensor.device, memory_format=kept)
        return empty.copy_(tensor)

    def _call(self) -> None:
        p = self.problem
        with self._torch.no_grad():
            self._y = self._torch.nn.functional.conv2d(
                self._x, self._w, stride=p.stride, padding=p.pad
            )

    def _found(self) -> Any:
        y = self._y.permute(0, 2, 3, 1)
        return self._case.arrays.from_dlpack(y)

    def check(self) -> Checked:
        """Judge both memory formats, then keep the faster one.

        A library may round more than the variants may: up to fp16's tolerance its time counts, and
        the row says so.
        """
        found: list[tuple[float, str, Callable[[], float], bool]] = []
        worst: Checked | None = None
        for name, layout in _FORMATS.items():
            self._hold(layout)
            self._call()
            checked = self._case.judged(self._found(), "fp32")
            if worst is None or not checked.verdict.error <= worst.verdict.error:
                worst = checked
            sample, once = self._timer()
            found.append((min(sample() for _ in range(1 if once else 3)), name, sample, once))
        _, name, self._sampler, self.once = min(found, key=lambda row: row[0])
        self.problem = replace(self.problem, reads=_FORMATS[name], writes=_FORMATS[name])
        assert worst is not None
        self.note = name
        if not worst.verdict.passed and worst.verdict.error <= _ROUGH:
            self.note += f", error above fp32's tolerance {TOLERANCE['fp32']:.0e}"
            worst = replace(worst, verdict=replace(worst.verdict, passed=True))
        return worst

    def _timer(self) -> tuple[Callable[[], float], bool]:
        """A sampler that stays bound to the format now held, and whether once is enough."""
        x, w = self._x, self._w
        self._kept.append((x, w))  # a graph holds addresses only

        def call() -> None:
            self._x, self._w = x, w
            self._call()

        call()
        one = min(self._elapsed(call, 1) for _ in range(2))
        if one > self._budget_ms:
            self.method = "one call"
            return (lambda: self._elapsed(call, 1), True)
        if not self._case.gpu:
            self.method = "clock"
            times = max(1, int(SAMPLE_MS / one))
            return (lambda: self._elapsed(call, times), False)
        if one * CALLS > self._budget_ms:
            self.method = "single calls"
            return (lambda: self._elapsed(call, 1), False)
        graph = self._graph(call)
        self.method = f"graph of {CALLS} calls"
        times = replays(self._elapsed(graph.replay, 1) / CALLS)
        return (lambda: self._elapsed(graph.replay, times) / CALLS, False)

    def _graph(self, call: Callable[[], None]) -> Any:
        torch = self._torch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        return graph

    def _elapsed(self, work: Callable[[], Any], times: int) -> float:
        """Milliseconds of one of `times` calls of `work`."""
        if not self._case.gpu:
            start = time.perf_counter()
            for _ in range(times):
                work()
            return (time.perf_counter() - start) * 1e3 / times
        torch = self._torch
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(times):
            work()
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / times

    def _single(self) -> float:
        return self._elapsed(self._call, 1)

    def sample(self) -> float:
        """Milliseconds of one call."""
        return self._sampler()
