"""PyTorch's convolution (cuDNN on a GPU) as a candidate to compare the variants with."""

import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from lenetgpu.check.judge import TOLERANCE, Checked, Errors, rough
from lenetgpu.gpu.graph import TorchGraph
from lenetgpu.measure.conv_bench import CallBench, Case
from lenetgpu.measure.timing import CallTimer
from lenetgpu.problems import Conv

NAMES = {"cuda": "torch cudnn", "cpu": "torch cpu"}
_FORMATS = {"contiguous": "NCHW", "channels_last": "NHWC"}
_MOST_NAMED = 100


def peer_version(device: str) -> str | None:
    """Return the versions of PyTorch and cuDNN on "cpu" or "cuda", or None if it cannot run."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    if device == "cpu":
        return f"PyTorch {torch.__version__}"
    if not torch.cuda.is_available():
        return None
    return f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"


def plan_of(kernels: Iterable[str]) -> str:
    """Return a description of cuDNN's plan: its kernels in launch order, without arguments."""
    bare = dict.fromkeys(re.sub(r"^void |\(.*", "", name) for name in kernels)
    named = [name for name in bare if not name.startswith(("Memcpy", "Memset"))]
    most = _MOST_NAMED
    return " + ".join(name if len(name) <= most else f"{name[:most]}..." for name in named)


class TorchBench(CallBench):
    """F.conv2d without TF32, with bias, contiguous and channels_last; ReLU is a second kernel."""

    repeats = False

    def __init__(self, problem: Conv, case: Case, seconds: float) -> None:
        super().__init__(problem, case, seconds)
        self._torch = torch = importlib.import_module("torch")
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.benchmark_limit = 0  # try every plan
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        weights = [self._tensor(torch.from_numpy, array) for array in case.weights]
        filters, *bias = [tensor.cuda() for tensor in weights] if case.gpu else weights
        self._filters = filters.permute(3, 2, 0, 1)
        self._bias = bias[0] if bias else None
        self._graph_inputs: list[Any] = []

    def one_output(self) -> Any:
        """Return a copy of one more call's output; a library promises no order of its sums."""
        self._load(self.problem.reads, self._case.first(self.problem.reads, self.images))
        self._call()
        return self._case.arrays.ascontiguousarray(self._found()).copy()

    def errors(self) -> Errors:
        """Return the errors of one more call, in the chosen format, on all candidates' images."""
        return self._case.errors(self.one_output())

    def _load_timed(self, layout: str) -> None:
        images = self._case.input(layout)
        self._load(layout, images.array)
        self._which = images.which.copy()

    def _load(self, layout: str, images: Any) -> None:
        torch = self._torch
        x = self._tensor(torch.from_dlpack, images)
        order = torch.contiguous_format if layout == "NCHW" else torch.channels_last
        self._x = self._as(x if layout == "NCHW" else x.permute(0, 3, 1, 2), order)
        self._w = self._as(self._filters, order)

    def _tensor(self, make: Callable[[Any], Any], array: Any) -> Any:
        """Return the array as a tensor made by `make`; bfloat16's bits are reinterpreted."""
        if self.problem.dtype != "bf16":
            return make(array)
        return make(array.view("int16")).view(self._torch.bfloat16)

    def _as(self, tensor: Any, order: Any) -> Any:
        """Return a copy with the format's strides, which PyTorch guesses for axes of length 1."""
        like = {"dtype": tensor.dtype, "device": tensor.device}
        return self._torch.empty(tensor.shape, memory_format=order, **like).copy_(tensor)

    def _call(self) -> None:
        p, functional = self.problem, self._torch.nn.functional
        above, left, below, right = p.around
        with self._torch.no_grad():
            x, pad = self._x, (above, left)
            if self._uneven:
                x, pad = functional.pad(x, (left, right, above, below)), (0, 0)
            self._y = functional.conv2d(
                x, self._w, self._bias, p.step, pad, dilation=p.dilation, groups=p.groups
            )
            if p.relu:
                self._torch.relu_(self._y)

    @property
    def _uneven(self) -> bool:
        """True if padding at the end differs from the start, which needs a separate call."""
        above, left, below, right = self.problem.around
        return (above, left) != (below, right)

    def _found(self) -> Any:
        y = self._y.permute(0, 2, 3, 1)
        if self.problem.dtype != "bf16":
            return self._case.arrays.from_dlpack(y)
        return self._case.arrays.from_dlpack(y.view(self._torch.int16)).view("uint16")

    def _plan(self) -> str:
        """Return the kernels of a call on a GPU, or why they are unknown."""
        if not self._case.gpu:
            return ""
        profiler = importlib.import_module("torch.profiler")
        try:
            with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as seen:
                self._call()
                self._torch.cuda.synchronize()
        except (RuntimeError, AssertionError) as error:  # another profiler is active, or none works
            return f"kernels not named: {(str(error).splitlines() or ['no reason'])[0]}"
        on_gpu = self._torch.autograd.DeviceType.CUDA
        return plan_of(event.name for event in seen.events() if event.device_type == on_gpu)

    def check(self) -> Checked:
        """Judge both memory formats and choose the faster one; an error up to `rough` is noted."""
        timings: list[tuple[float, str, CallTimer]] = []
        worst: Checked | None = None
        for name, layout in _FORMATS.items():
            self._load_timed(layout)
            self._call()
            checked = self._case.judged(self._found(), "fp32", self._which)
            if worst is None or not checked.verdict.error <= worst.verdict.error:
                worst = checked
            timer = self._timed()
            ms = min(timer.calls.sample() for _ in range(1 if timer.once else 3))
            timings.append((ms, name, timer))
        _, name, timer = min(timings, key=lambda row: row[0])
        self.problem = replace(self.problem, reads=_FORMATS[name], writes=_FORMATS[name])
        assert worst is not None
        self._load_timed(self.problem.reads)
        self._use(timer)
        parts: list[Any] = [
            name,
            self._uneven and "a copy padded in each call",
            self.problem.bias and "bias in the same call",
            self.problem.relu and "ReLU as a second kernel",
            self._plan(),
            timer.note,
        ]
        self.note = ", ".join(filter(None, parts))
        if not worst.verdict.passed and worst.verdict.error <= rough(self.problem.dtype):
            self.note += f", error above fp32's tolerance {TOLERANCE['fp32']:.0e}"
            worst = replace(worst, verdict=replace(worst.verdict, passed=True))
        self._checked = worst
        return worst

    def recheck(self) -> Checked:
        """Judge one more call in the chosen format."""
        assert self._checked is not None, "checked first"
        self._load_timed(self.problem.reads)
        self._call()
        checked = self._case.judged(self._found(), "fp32", self._which)
        return self._checked if checked.verdict.error <= rough(self.problem.dtype) else checked

    def _timed(self) -> CallTimer:
        """Return a timer that stays bound to the current format."""
        x, w = self._x, self._w
        self._graph_inputs.append((x, w))  # a graph refers to their addresses only

        def call() -> None:
            self._x, self._w = x, w
            self._call()

        call()
        return CallTimer(call, self._case.gpu, self._budget_ms, TorchGraph, self._flush is not None)
