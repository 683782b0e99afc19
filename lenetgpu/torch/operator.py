"""`lenetgpu::conv2d`, an operator for autograd, torch.compile and CUDA graphs."""

import itertools
import os
import weakref
from math import isfinite
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.weak import WeakTensorKeyDictionary

from lenetgpu.convolve import Prepared, pair, prepare, sides_of
from lenetgpu.files.convs.described import as_line
from lenetgpu.pipeline import ALIGNED

TRACE = "LENETGPU_TRACE"  # variable that names a file for the convolutions of accelerated models
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "SymInt groups, bool relu, Tensor? add, int handle) -> Tensor"
)  # padding: above, left, below, right
_handles = itertools.count(1)
_traced: dict[str, set[str]] = {}


class Slot:
    """Prepared filters of one layer, in a process-wide table under `handle`.

    They are prepared by the first call, and again after `clear` or if versions or addresses moved.
    `tolerance`: see `accelerate`; `refused` then says what was found, and PyTorch computes the
    layer. `cpu` takes tensors in host memory, `relu` and `note` describe a fused layer. `old` is
    the slot that this one replaces. Copies, by `copy.deepcopy` or pickle, are unprepared.
    """

    def __init__(
        self, tolerance: float | None = None, cpu: bool = False, relu: bool = False,
        note: str = "", old: "Slot | None" = None,
    ) -> None:  # fmt: skip
        self.tolerance, self.cpu, self.relu, self.note = tolerance, cpu, relu, note
        self.handle, self.trace = next(_handles), os.environ.get(TRACE)
        # those whose buffers a CUDA graph uses, by id
        self._recorded: dict[int, Prepared] = old._recorded if old else {}
        self.clear()
        _slots[self.handle] = self

    def __reduce__(self) -> Any:
        return Slot, (self.tolerance, self.cpu, self.relu, self.note)

    def clear(self) -> None:
        """Prepare and compare anew at the next call."""
        self._filters: dict[Any, tuple[Any, Prepared, Any]] = {}
        self._judged, self.refused = set[Any](), ""

    def filters(self, x: Any, weight: Any, bias: Any, args: Any) -> Prepared:
        """Return filters prepared for `args`, from the stride to the ReLU."""
        stamp = _stamp(weight), None if bias is None else _stamp(bias)
        known, made, _ = self._filters.get((args, weight.device), (None, None, None))
        capturing = _capturing(x)
        if made is None or known != stamp:
            if capturing:
                raise RuntimeError("conv2d: expected a call with these filters before the capture")
            stride, (above, left, below, right), *others = args
            padding = (above, below), (left, right)
            bias = None if bias is None else bias.detach()
            made = prepare(weight.detach(), bias, stride, padding, *others)
            # held, so that no other tensor gets their addresses
            held = weight.untyped_storage(), bias if bias is None else bias.untyped_storage()
            self._filters[args, weight.device] = stamp, made, held
            self._judged.clear()
        if capturing:
            self._recorded[id(made)] = made
        return made

    def judge(self, y: Any, tensors: Any, args: Any) -> bool:
        """Return True if the last image of `y` keeps `tolerance`; a shape is compared once."""
        x, weight, bias, add = tensors
        key = args, x.shape, x.device, _form(x), add is None
        if self.tolerance is None or key in self._judged or not y.numel() or _capturing(x):
            return True
        last = x[-1:], weight, bias, None if add is None else add[-1:]
        expected = plain_conv2d(*(None if one is None else one.double() for one in last), *args)
        if not isfinite(most := float(expected.abs().max())):
            return True
        self._judged.add(key)
        error = float((y[-1:].double() - expected).abs().max()) / (most or 1.0)
        if not error <= self.tolerance:
            self.refused = f"error {error:.1e} of the largest value, tolerance {self.tolerance:.1e}"
        return not self.refused


_slots: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()
_of_weights: Any = WeakTensorKeyDictionary()  # slots of calls without a handle


def conv2d(
    x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1, relu: bool = False, add: Any = None,
) -> Any:  # fmt: skip
    """Return the cross-correlation of tensor `x` (N, C, H, W), as `torch.nn.functional.conv2d`.

    Tensors are float32, float16 or bfloat16, all of one dtype on one device. `bias` (M,) is added,
    then `add`, of the shape of the result; `relu` then replaces negative values by zero. `padding`
    may also be "valid", "same" or ((above, below), (left, right)). The result has the memory format
    of `x`. Products and sums are as accurate as fp32's; autocast and TF32 settings have no effect.

    Gradients are PyTorch's; there are no forward-mode ones. Filters are prepared by the first call
    with this tensor `weight`, and again if its version or address changed, or after a call that
    needs its gradient. A change through `weight.data` moves neither and stays unseen: pass a copy.
    Tensors made in inference mode have no version: they are prepared in every call. The first call
    of a shape cannot be captured in a CUDA graph.

    Raises TypeError for other dtypes, ValueError for shapes and numbers that do not fit, and
    RuntimeError for other devices and for anything but tensors. Tensors on "meta" give shapes.
    """
    steps, far = pair("stride", stride, 1), pair("dilation", dilation, 1)
    if padding == "same" and steps == (1, 1):
        high, wide = (d * (k - 1) for d, k in zip(far, weight.shape[-2:], strict=True))
        pads = high // 2, wide // 2, high - high // 2, wide - wide // 2
    elif isinstance(padding, str) and padding != "valid":
        expected = "expected numbers, 'valid', or 'same' with stride 1"
        raise ValueError(f"padding: {expected}, found {padding!r} with stride {steps}")
    else:
        pads = sides_of(0 if padding == "valid" else padding)
    return torch.ops.lenetgpu.conv2d(x, weight, bias, steps, pads, far, groups, relu, add, 0)


def plain_conv2d(
    x: Any, weight: Any, bias: Any, add: Any, stride: Any, padding: Any, *args: Any
) -> Any:
    """Return the result as PyTorch computes it, in any dtype; `add` may have any shape."""
    (above, left, below, right), (dilation, groups, relu) = padding, args
    if (above, left) != (below, right):
        x, above, left = F.pad(x, (left, right, above, below)), 0, 0
    y = F.conv2d(x, weight, bias, stride, (above, left), dilation, groups)
    y = y if add is None else y + add
    return F.relu(y) if relu else y


def _check_devices(x: Any, weight: Any, bias: Any, add: Any) -> None:
    for name, one in (("weight", weight), ("bias", bias), ("add", add)):
        if one is not None and one.device != x.device:
            raise RuntimeError(f"{name}: expected {x.device} like x, found {one.device}")


def _form(x: Any) -> Any:
    """Return the memory format of the result: channels_last if `x` has it, and no other."""
    last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if last else torch.contiguous_format


def _fake(x: Any, weight: Any, bias: Any, *args: Any) -> Any:
    *numbers, relu, add, _ = args
    _check_devices(x, weight, bias, add)
    shape = plain_conv2d(x, weight, bias, None, *numbers, relu).shape
    if add is not None and (add.shape != shape or add.dtype != x.dtype):
        found = f"found {tuple(add.shape)} {add.dtype}"
        raise ValueError(f"add: expected {tuple(shape)} {x.dtype}, {found}")
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=_form(x))


def _run(x: Any, weight: Any, bias: Any, *args: Any) -> Any:
    stride, padding, dilation, *others, add, handle = args
    settled, form = (tuple(stride), tuple(padding), tuple(dilation), *others), _form(x)
    _check_devices(x, weight, bias, add)
    slot = _slots.get(handle) or _slot_of(weight, bias)
    filters = slot.filters(x, weight, bias, settled)
    if slot.trace and handle:
        _write(slot.trace, x, filters, bias is not None, others[-1] and add is None)
    if not slot.refused:
        y = filters(_aligned(x, form), None if add is None else _aligned(add, form))
        if slot.judge(y, (x, weight, bias, add), settled):
            return y
    return plain_conv2d(x, weight, bias, add, *settled).contiguous(memory_format=form)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, bias, *ctx.numbers, relu, _, _ = inputs
    ctx.save_for_backward(x, weight, *((output,) if relu else ()))
    ctx.maps = None if bias is None else [weight.shape[0]]
    if weight.requires_grad:  # fused optimizers move no version
        _of_weights.pop(weight, None)


def _backward(ctx: Any, grad: Any) -> Any:
    x, weight, *result = ctx.saved_tensors
    stride, (above, left, below, right), dilation, groups = ctx.numbers
    needed, pads, aten = ctx.needs_input_grad, [above, left], torch.ops.aten
    if result:
        grad = aten.threshold_backward(grad, result[0], 0)
    if uneven := pads != [below, right]:
        x, pads = F.pad(x, (left, right, above, below)), [0, 0]
    numbers = stride, pads, dilation, False, [0, 0], groups
    ours = aten.convolution_backward(grad, x, weight, ctx.maps, *numbers, needed[:3])
    if uneven and ours[0] is not None:
        ours = (F.pad(ours[0], (-left, -right, -above, -below)), *ours[1:])
    return *ours, *[None] * 5, grad if needed[8] else None, None


def _aligned(tensor: Any, form: Any) -> Any:
    """Return a tensor aligned and in a memory format; a CUDA graph owns copies made here."""
    made = tensor.contiguous(memory_format=form)
    return made.clone() if made.data_ptr() % ALIGNED else made


def _capturing(x: Any) -> bool:
    return bool(x.is_cuda and torch.cuda.is_current_stream_capturing())


def _stamp(tensor: Any) -> tuple[int, int]:
    """Return address and version, which move when PyTorch changes values."""
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


def _slot_of(weight: Any, bias: Any) -> Any:
    """Return the slot of filters without a handle; for inference tensors one for this call."""
    once = weight.is_inference() or (bias is not None and bias.is_inference())
    slots = {} if once else _of_weights
    return slots.get(weight) or slots.setdefault(weight, Slot())


def _write(path: str, x: Any, filters: Prepared, bias: bool, relu: bool) -> None:
    """Add the convolution to a file, once, as a line that `lenetgpu conv --from` reads."""
    knobs = f"--dt={DTYPES[x.dtype]} --dir={'FWD_B' if bias else 'FWD_D'}"
    line = f"{knobs}{' --attr-post-ops=relu' * relu} mb{len(x)}{as_line(filters.problem(x))}"
    if path not in _traced:
        _traced[path] = set(Path(path).read_text().split("\n") if Path(path).exists() else ())
    if line not in _traced[path]:
        _traced[path].add(line)
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


_STRIDES = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
_NAME, _TAGS = "lenetgpu::conv2d", (torch.Tag.pt2_compliant_tag, _STRIDES)
torch.library.define(_NAME, _SCHEMA, tags=_TAGS)
torch.library.impl(_NAME, ("cpu", "cuda"), _run)
torch.library.register_fake(_NAME, _fake)
torch.library.register_autograd(_NAME, _backward, setup_context=_setup)
