"""Convolutions of any program's arrays: `conv2d`, and `prepare` for repeated use."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import index
from typing import Any

from lenetgpu.arrays import Array, cupy, np
from lenetgpu.check.judge import TOLERANCE
from lenetgpu.dispatch.algorithms import EXACT_FROM
from lenetgpu.errors import LenetError
from lenetgpu.files.convs.described import require_countable
from lenetgpu.gpu.device import driver
from lenetgpu.gpu.launch import Repeat
from lenetgpu.layouts import narrowed, physical_shape, to_nhwc, widened
from lenetgpu.net.images import Home, current, home_of, in_order_of, torch_stream
from lenetgpu.pipeline import ALIGNED
from lenetgpu.problems import Conv, Pair, Sides
from lenetgpu.stages.conv.finish import finish
from lenetgpu.stages.prepared import PreparedKernel
from lenetgpu.stages.reference import conv_reference
from lenetgpu.stages.registry import Variant, find

_DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_KEPT = 64  # prepared shapes per filters; the one used least recently is dropped
_SAMPLE = 16  # output positions that are compared with float64
_FASTEST, _DEPTHWISE, _GENERAL = "best.fp32", "direct.depthwise", "direct.grouped"
_ON_CPU = "unrolled.blas"
# half a unit in the last place, as a share of the value
_ROUNDING = {"fp32": 0.0, "fp16": 2.0**-11, "bf16": 2.0**-8}
# families whose runs are launches only, with plain addresses as arguments
_REPEATED = ("tensor", "direct", "winograd", "prefetch")


def conv2d(
    x: Any,
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    relu: bool = False,
    add: Any = None,
    out: Any = None,
) -> Any:
    """Return the cross-correlation of `x` (N, C, H, W) with filters `w` (M, C / groups, R, S).

    Arrays are of NumPy, CuPy, PyTorch or JAX, all on one device, float32 or float16 (PyTorch's also
    bfloat16). The result (N, M, OH, OW) is of the same kind as `x`; if the channels of `x` are
    adjacent in memory (channels_last), so are the result's. `stride` and `dilation` are a number or
    (rows, columns); `padding`, of zeros, is a number, (rows, columns) or
    ((above, below), (left, right)). `bias` (M,) is added, then `add`, an array of the result's
    shape; `relu` then replaces negative values by zero. `out` is an array for the result.

    Products and sums are as accurate as fp32's for every dtype, and rounded once; only `add` to
    float16 or bfloat16 rounds again. Filters are prepared in every call: use `prepare` to call
    more than once. On a GPU the work is queued on the current stream of the array's framework.

    Raises TypeError for other types and dtypes, ValueError for shapes and numbers that do not fit,
    RuntimeError for arrays on different devices or that require gradients, and MemoryError.
    """
    for name, array in (("x", x), ("bias", bias)):
        if array is not None and _home(name, array).index != _home("w", w).index:
            raise RuntimeError(f"{name}: expected the device of w, found another")
    return prepare(w, bias, stride, padding, dilation, groups, relu)(x, add, out)


def prepare(
    w: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    relu: bool = False,
) -> Prepared:
    """Return filters `w` and `bias` prepared for repeated calls; for arguments see `conv2d`.

    Both are copied: later changes have no effect.
    """
    return Prepared(w, bias, stride, padding, dilation, groups, relu)


@dataclass
class _Run:
    """A prepared convolution of one shape, and its launches, if it queues nothing else.

    `relu` and `bias`, or None, are left to `finish`.
    """

    kernel: PreparedKernel
    bias: Any
    relu: bool
    shape: tuple[int, ...]  # of the result, (N, M, OH, OW)
    strides: tuple[int, ...]  # of the result, in elements
    repeat: Repeat | None = None


class Prepared:
    """Filters of a convolution, ready for inputs of any size and device: call it with `x`.

    Threads may share it. Calls on different streams wait for each other, as they share buffers;
    a CUDA graph that recorded a call must not run at the same time as other calls.
    """

    def __init__(
        self, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, relu: bool
    ) -> None:
        self._dtype, self._w = _on_host("w", w, 4)
        self._bias = None
        if bias is not None:
            dtype, self._bias = _on_host("bias", bias, 1)
            if dtype != self._dtype:
                raise TypeError(f"bias: expected {self._dtype} like w, found {dtype}")
        maps, channels, rows, columns = self._w.shape
        if not min(self._w.shape):
            raise ValueError(f"w: expected at least one filter element, found {self._w.shape}")
        if self._bias is not None and self._bias.shape != (maps,):
            raise ValueError(f"bias: expected shape {(maps,)}, found {self._bias.shape}")
        self._groups = _whole("groups", groups, 1)
        if maps % self._groups:
            raise ValueError(f"w: expected filters in {self._groups} groups, found {maps}")
        self._strides, self._dilation = pair("stride", stride, 1), pair("dilation", dilation, 1)
        self._pads = sides_of(padding)
        self._relu = bool(relu)
        self._channels = channels * self._groups
        self._sizes = maps, rows, columns
        self._runs: OrderedDict[Any, _Run] = OrderedDict()
        self._lock = threading.Lock()
        self._after: dict[int, Any] = {}  # by GPU, the event after the last call
        self._streams: set[int] = set()  # handles
        self._recorded: dict[int, _Run] = {}  # those whose buffers a CUDA graph uses, by id

    def __repr__(self) -> str:
        return f"<lenetgpu filters {self._w.shape} {self._dtype}>"

    def __call__(self, x: Any, add: Any = None, out: Any = None) -> Any:
        """Return the convolution of `x` (N, C, H, W); for `add` and `out` see `conv2d`."""
        quick = self._repeated(x, add) if out is None else None
        return self._general(x, add, out) if quick is None else quick

    def _repeated(self, x: Any, add: Any) -> Any:
        """Queue recorded launches on plain arrays of CuPy or PyTorch; None if there are none."""
        place = _placed(x)
        if place is None:
            return None
        with self._lock:
            run = self._known((place.key, add is not None))
        if run is None:
            return None
        repeat, at = run.repeat, 0
        if repeat is None or cupy.cuda.runtime.getDevice() != place.index:
            return None
        if add is not None:
            other = _placed(add)
            if other is None or other.key != (run.shape, run.strides, place.key[2], place.index):
                return None
            at = other.address
        result, address = place.empty(run.shape, run.strides)
        with self._lock:
            self._queue(
                run, lambda: repeat.run((place.address, address, at), place.stream), place.stream
            )
        return result

    def _queue(self, run: _Run, work: Callable[[], object], stream: int) -> None:
        """Queue `work` of `run` on `stream` after the previous call, which used the same buffers.

        The stream's device is current.
        """
        runtime = cupy.cuda.runtime
        if runtime.streamIsCapturing(stream):
            self._recorded[id(run)] = run
            work()
            return
        index = runtime.getDevice()
        if (event := self._after.get(index)) is None:
            event = self._after[index] = cupy.cuda.Event(disable_timing=True)
        else:  # also on the same stream: a handle may be of another one by now
            runtime.streamWaitEvent(stream, event.ptr)
        self._streams.add(stream)
        try:
            work()
        finally:
            runtime.eventRecord(event.ptr, stream)

    def _general(self, x: Any, add: Any, out: Any) -> Any:
        home, last, problem = _home("x", x), False, self.problem(x)
        shape = (len(x), problem.M, problem.OH, problem.OW)
        for name, array in (("add", add), ("out", out)):
            if array is not None:
                self._check(name, array, shape, home)
        with ExitStack() as stack:
            stack.enter_context(current(home.index))
            stack.enter_context(in_order_of(home.stream()))
            pixels = _viewed(x, home)
            last = _is_last(pixels)
            layout = "NHWC" if last or home.index is None else "NCHW"
            if 0 not in shape:
                self._check_size(problem, len(x))
            given = _empty(x, pixels, shape, last) if out is None else out
            y, residual = _viewed(given, home), None if add is None else _viewed(add, home)
            if not (y.flags.c_contiguous or _is_last(y)):
                raise ValueError("out: expected a contiguous or channels_last array, found another")
            if y.size:
                problem = replace(problem, reads=layout, writes=layout)
                self._compute(problem, pixels, y, residual, _placed(x))
            if home.in_other_order:  # its owner may reuse the memory
                cupy.cuda.get_current_stream().synchronize()
            return home.give(given) if given is y else given

    def problem(self, x: Any) -> Conv:
        """Return the problem for one image of `x`; ValueError or TypeError if it does not fit."""
        found = tuple(x.shape)
        if len(found) != 4 or found[1] != self._channels:
            raise ValueError(f"x: expected shape (N, {self._channels}, H, W), found {found}")
        if _dtype("x", x) != self._dtype:
            raise TypeError(f"x: expected {self._dtype} like the filters, found {_dtype('x', x)}")
        maps, rows, columns = self._sizes
        problem = Conv(
            *found[2:],
            self._channels,
            maps,
            rows,
            columns,
            stride=self._strides[0],
            pad=self._pads[0],
            strides=self._strides,
            pads=self._pads,
            dilation=self._dilation,
            groups=self._groups,
            dtype=_DTYPES[self._dtype],
        )
        if min(problem.OH, problem.OW) < 1:
            raise ValueError(
                f"x: expected padded maps of at least {problem.span[0]} x {problem.span[1]}, which "
                f"the filters cover, found {problem.padded[0]} x {problem.padded[1]}"
            )
        return problem

    @staticmethod
    def _check_size(problem: Conv, images: int) -> None:
        """Raise ValueError if kernels would need offsets of 64 bits."""
        try:
            require_countable(problem, max(images, 1), "x")
        except LenetError as error:
            raise ValueError(str(error)) from error

    def _check(self, name: str, array: Any, shape: tuple[int, ...], home: Home) -> None:
        if tuple(array.shape) != shape:
            raise ValueError(f"{name}: expected shape {shape}, found {tuple(array.shape)}")
        if _dtype(name, array) != self._dtype:
            raise TypeError(f"{name}: expected {self._dtype} like x, found {_dtype(name, array)}")
        other = _home(name, array)
        if type(other) is not type(home):
            raise TypeError(f"{name}: expected an array like x, found {type(array).__name__}")
        if other.index != home.index:
            raise RuntimeError(f"{name}: expected the device of x, found another")

    def _compute(self, problem: Conv, x: Any, y: Any, add: Any, place: _Placed | None) -> None:
        """Fill `y` from `x`, NumPy or CuPy arrays (N, C, H, W)."""
        arrays = np if isinstance(x, np.ndarray) else cupy
        images = _physical(x, problem.reads, arrays)
        residual = None if add is None else _physical(add, problem.writes, arrays)
        given = [array for array in (images, residual) if array is not None]
        overlap = any(arrays.may_share_memory(y, array) for array in given)
        in_layout = _is_last(y) == (problem.writes == "NHWC")
        direct = in_layout and _address(y) % ALIGNED == 0 and not overlap
        asked = {_address(array) for array in (x, add) if array is not None}
        copies = not direct or any(_address(array) not in asked for array in given)
        if copies and arrays is cupy and _capturing():
            raise RuntimeError(
                "expected contiguous or channels_last arrays, aligned and in one layout, during a "
                "capture: the graph would not own the memory of copies"
            )
        into = _physical(y, problem.writes, arrays) if direct else None
        if into is None:
            into = arrays.empty(physical_shape(problem.writes, len(x), problem.out_shape), y.dtype)
        with self._lock:
            if arrays is np:
                self._on_cpu(problem, images, into, residual)
            else:
                self._on_gpu(problem, images, into, residual, place)
        if not direct:
            y[...] = into.transpose(0, 3, 1, 2) if problem.writes == "NHWC" else into

    def _on_cpu(self, problem: Conv, x: Any, y: Any, add: Any) -> None:
        key = problem, len(x), add is not None, None
        wanted = replace(problem, bias=self._bias is not None, relu=self._relu and add is None)
        run = self._known(key)
        if run is None:
            kernel = self._kernel(find("conv", _ON_CPU, "cpu"), wanted, len(x))
            run = self._keep(key, _Run(kernel, None, False, (), ()))
        run.kernel.run(x, y)
        if add is not None:
            sums = widened(y).astype(np.float32) + widened(add).astype(np.float32)
            y[...] = narrowed(np.maximum(sums, 0) if self._relu else sums, problem.dtype)

    def _on_gpu(self, problem: Conv, x: Any, y: Any, add: Any, place: _Placed | None) -> None:
        runtime, stream = cupy.cuda.runtime, cupy.cuda.get_current_stream().ptr
        key, capturing = (problem, len(x), add is not None, runtime.getDevice()), _capturing()
        run = self._known(key)
        known = run is not None
        if run is None:
            if capturing:
                raise RuntimeError("expected a call with arrays of these shapes before the capture")
            run = self._keep(key, self._prepared(problem, len(x), add is not None))
        made = run

        def work() -> None:
            made.kernel.run(x, y)
            if made.bias is not None or add is not None or made.relu:
                finish(y, problem, made.bias, add, made.relu)

        self._queue(made, work, stream)
        if not known and not self._is_right(problem, x, y, add):
            wanted = replace(problem, bias=self._bias is not None, relu=self._relu and add is None)
            general = self._kernel(find("conv", _GENERAL, "cuda"), wanted, len(x))
            made.kernel, made.bias, made.relu = general, None, self._relu and add is not None
            self._queue(made, work, stream)
        if place is None or capturing or place.address != x.data.ptr or not _only_launches(made):
            return
        ranges = [(array.data.ptr, array.nbytes) for array in (x, y, add) if array is not None]
        if (place.key, add is not None) not in self._runs and not _overlap(ranges):
            self._queue(made, lambda: setattr(made, "repeat", Repeat(work, *ranges)), stream)
            self._keep((place.key, add is not None), made)

    def _known(self, key: Any) -> _Run | None:
        run = self._runs.get(key)
        if run is not None:
            self._runs.move_to_end(key)
        return run

    def _keep(self, key: Any, run: _Run) -> _Run:
        self._runs[key] = run
        if len(self._runs) > _KEPT:
            self._wait()
            self._runs.popitem(last=False)
        return run

    def _wait(self) -> None:
        """Wait for all calls: CuPy gives freed memory to its first stream, others may read it."""
        for event in self._after.values() if len(self._streams) > 1 else ():
            event.synchronize()

    def __del__(self) -> None:
        with suppress(Exception):  # the GPU may be gone
            self._wait()

    def _kernel(self, variant: Variant, problem: Conv, images: int) -> PreparedKernel:
        filters = np.ascontiguousarray(self._w.transpose(2, 3, 1, 0))
        weights = (filters, self._bias) if problem.bias else (filters,)
        return PreparedKernel(variant, problem, weights, images)

    def _prepared(self, problem: Conv, images: int, adds: bool) -> _Run:
        """Prepare the fastest variant on the current GPU, with what is left to `finish`."""
        biased, relu = self._bias is not None, self._relu and not adds
        whole = replace(problem, bias=biased, relu=relu)
        options = [whole] if problem.gemm_k >= EXACT_FROM or problem.dtype != "fp32" else []
        best = find("conv", _FASTEST, "cuda")
        for wanted in (*options, problem):
            if best.refusal(wanted) is None:
                kernel = self._kernel(best, wanted, images)
                break
        else:
            depthwise = find("conv", _DEPTHWISE, "cuda")
            general = (
                depthwise if depthwise.refusal(whole) is None else find("conv", _GENERAL, "cuda")
            )
            wanted, kernel = whole, self._kernel(general, whole, images)
        bias = cupy.asarray(self._bias) if biased and not wanted.bias else None
        c, h, w = problem.M, problem.OH, problem.OW
        strides = (c * h * w, h * w, w, 1) if problem.writes == "NCHW" else (c * h * w, 1, w * c, c)
        return _Run(kernel, bias, self._relu and not wanted.relu, (images, c, h, w), strides)

    def _is_right(self, problem: Conv, x: Any, y: Any, add: Any) -> bool:
        """Compare some outputs of the last image with float64; x, y and add are on the GPU."""
        image, found = (
            widened(to_nhwc(array[-1:].get(), problem.reads, shape)[0])
            for array, shape in ((x, problem.in_shape), (y, problem.out_shape))
        )
        above, left, below, right = problem.around
        padded = np.pad(image, ((above, below), (left, right), (0, 0)))
        draw, (down, across), (high, wide) = np.random.default_rng(0), problem.step, problem.span
        at = tuple(draw.integers(most, size=_SAMPLE) for most in (problem.OH, problem.OW))
        windows = np.stack([
            padded[row * down : row * down + high, column * across : column * across + wide]
            for row, column in zip(*at, strict=True)
        ])  # fmt: skip
        one = replace(
            problem, H=high, W=wide, reads="NHWC", writes="NHWC",
            stride=1, pad=0, strides=None, pads=None,
        )  # fmt: skip
        filters = widened(self._w).transpose(2, 3, 1, 0)
        with np.errstate(all="ignore"):
            expected = conv_reference(windows, filters, one)[:, 0, 0]
            size = conv_reference(abs(windows), abs(filters), one)[:, 0, 0]
            if self._bias is not None:
                bias = widened(self._bias)
                expected, size = expected + bias, size + abs(bias)
            rounded = np.zeros(())
            if add is not None:  # to a sum that is rounded already
                residual = to_nhwc(add[-1:].get(), problem.writes, problem.out_shape)
                more = widened(residual[0][at])
                rounded, expected, size = abs(expected), expected + more, size + abs(more)
            expected = np.maximum(expected, 0) if self._relu else expected
            rounded = rounded + abs(expected)
            allowed = TOLERANCE["fp32"] * size + _ROUNDING[problem.dtype] * rounded
            wrong = ~(abs(found[at] - expected) <= allowed) & np.isfinite(size)
        return not wrong.any()


@dataclass
class _Placed:
    """A plain array on a GPU: its address, what identifies its form, its stream's handle."""

    address: int
    key: tuple[Any, ...]  # shape, strides in elements, dtype, device
    stream: int
    empty: Callable[[tuple[int, ...], tuple[int, ...]], tuple[Any, int]]

    @property
    def index(self) -> int:
        """Number of the GPU."""
        return int(self.key[3])


def _placed(x: Any) -> _Placed | None:
    """View a plain PyTorch or CuPy array on a GPU; None for other arrays."""
    torch, kind = sys.modules.get("torch"), type(x)
    if torch is not None and kind in (torch.Tensor, torch.nn.Parameter):
        if not x.is_cuda or x.layout is not torch.strided or _needs_gradient(x):
            return None
        index, dtype, device = x.get_device(), x.dtype, x.device
        try:
            address = x.data_ptr()
        except RuntimeError:  # it is being traced
            return None

        def empty(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, int]:
            made = torch.empty_strided(shape, strides, dtype=dtype, device=device)
            return made, made.data_ptr()

        key = (tuple(x.shape), x.stride(), str(dtype), index)
        return (
            _Placed(address, key, torch_stream(torch, index), empty)
            if address % ALIGNED == 0
            else None
        )
    module = sys.modules.get("cupy")
    if module is None or kind is not module.ndarray or x.data.ptr % ALIGNED:
        return None

    def empty_here(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Any, int]:
        made = _strided(module, shape, strides[1] == 1, x.dtype)
        return made, made.data.ptr

    strides = tuple(step // x.itemsize for step in x.strides)
    key = (x.shape, strides, x.dtype.str, x.device.id)
    return _Placed(x.data.ptr, key, module.cuda.get_current_stream().ptr, empty_here)


def _strided(arrays: Any, shape: tuple[int, ...], last: bool, dtype: Any) -> Any:
    """Return a new array (N, C, H, W) whose channels are adjacent if `last`."""
    if not last:
        return arrays.empty(shape, dtype)
    n, c, h, w = shape
    return arrays.empty((n, h, w, c), dtype).transpose(0, 3, 1, 2)


def _home(name: str, array: Any) -> Home:
    """Return the adapter of an array; TypeError if it is none, RuntimeError if out of reach."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype") or hasattr(array, "mask"):
        raise TypeError(f"{name}: expected an array, found {type(array).__name__}")
    if _needs_gradient(array):
        raise RuntimeError(
            f"{name}: expected an array that needs no gradient; use torch.no_grad() or detach()"
        )
    try:
        return home_of(array)
    except LenetError as error:
        raise RuntimeError(f"{name}: {error}".replace(": images:", ":")) from error


def _needs_gradient(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return bool(getattr(array, "requires_grad", False) and torch and torch.is_grad_enabled())


def _dtype(name: str, array: Any) -> str:
    """Return a key of _DTYPES; TypeError for other dtypes."""
    dtype = str(array.dtype).rpartition(".")[2]
    if dtype not in _DTYPES:
        raise TypeError(f"{name}: expected {', '.join(_DTYPES)}, found {dtype}")
    return dtype


def _viewed(array: Any, home: Home) -> Any:
    """View an array as NumPy's or CuPy's; bfloat16 as its bits, uint16."""
    if _dtype("array", array) != "bfloat16":
        return home.view(array)
    return home.view(array.view(sys.modules["torch"].int16)).view(np.uint16)


def _on_host(name: str, array: Any, dims: int) -> tuple[str, Array]:
    """Return the dtype of filters or a bias, and a contiguous copy in host memory."""
    home, dtype = _home(name, array), _dtype(name, array)
    if len(array.shape) != dims:
        raise ValueError(f"{name}: expected {dims} dimensions, found shape {tuple(array.shape)}")
    with current(home.index), in_order_of(home.stream()):
        view = _viewed(array, home)
        host = view.get() if home.on_gpu else view
    return dtype, np.array(host, order="C")


def _empty(x: Any, view: Any, shape: tuple[int, ...], last: bool) -> Any:
    """Return a new array of the kind of `x`; for JAX, NumPy's or CuPy's."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        form = torch.channels_last if last else torch.contiguous_format
        return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=form)
    return _strided(np if isinstance(view, np.ndarray) else cupy, shape, last, view.dtype)


def _is_last(array: Any) -> bool:
    """Return True if (N, C, H, W) is contiguous as (N, H, W, C), and not as it is."""
    return bool(array.transpose(0, 2, 3, 1).flags.c_contiguous and not array.flags.c_contiguous)


def _physical(array: Any, layout: str, arrays: Any) -> Any:
    """Return (N, C, H, W) as it lies in `layout`, aligned, copied only if it does not lie so."""
    ordered = array if layout == "NCHW" else array.transpose(0, 2, 3, 1)
    made = arrays.ascontiguousarray(ordered)
    return made if _address(made) % ALIGNED == 0 else made.copy()


def _capturing() -> bool:
    return bool(cupy.cuda.runtime.streamIsCapturing(cupy.cuda.get_current_stream().ptr))


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _only_launches(run: _Run) -> bool:
    """Return True if a call makes only launches, whose arguments are plain addresses."""
    variant = getattr(run.kernel.state, "variant", run.kernel.variant)
    return variant.family in _REPEATED and hasattr(driver(), "cuLaunchKernelEx")


def _overlap(ranges: list[tuple[int, int]]) -> bool:
    """Return True if two of (address, bytes) have bytes in common."""
    ordered = sorted(ranges)
    return any(at + size > after for (at, size), (after, _) in pairwise(ordered))


def _whole(name: str, value: Any, least: int) -> int:
    """Return `value` as an int; TypeError or ValueError if it is none or less than `least`."""
    whole = isinstance(value, int)  # as PyTorch's compiler calls its symbols
    if isinstance(value, bool) or not (whole or hasattr(value, "__index__")):
        raise TypeError(f"{name}: expected a whole number, found {value!r}")
    number: int = value if whole else index(value)
    if number < least:
        raise ValueError(f"{name}: expected at least {least}, found {number}")
    return number


def pair(name: str, value: Any, least: int) -> Pair:
    """Return a number, or two for rows and columns, as two."""
    values = tuple(value) if isinstance(value, Iterable) else (value, value)
    if len(values) != 2:
        raise ValueError(f"{name}: expected a number or (rows, columns), found {value!r}")
    rows, columns = (_whole(name, number, least) for number in values)
    return rows, columns


def sides_of(value: Any) -> Sides:
    """Return padding as above, left, below, right."""
    if isinstance(value, Iterable):
        ways = tuple(value)
        if len(ways) == 2 and all(isinstance(way, Iterable) for way in ways):
            (above, below), (left, right) = (pair("padding", way, 0) for way in ways)
            return above, left, below, right
    rows, columns = pair("padding", value, 0)
    return rows, columns, rows, columns
