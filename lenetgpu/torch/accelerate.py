"""`accelerate`: convolutions of a PyTorch model by lenetgpu; `report` and `restore`."""

import warnings
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad

from lenetgpu.errors import first_line
from lenetgpu.gpu.device import cupy_installed, driver_gpus
from lenetgpu.torch.fold import Tracer, fused, hooked
from lenetgpu.torch.operator import DTYPES, Slot, plain_conv2d

_LEFT, _NOTE = "_lenetgpu_left", "(model)"  # attribute of a model, and its key for the note
_MISSING = "no NVIDIA GPU with CuPy"
_MOST = 1 << 31  # values of a tensor, as for `lenetgpu.conv2d`


class Row(NamedTuple):
    """A convolution: its name, the shape of its filters, True if lenetgpu takes it, and a note."""

    name: str
    shape: tuple[int, ...]
    taken: bool
    why: str


class Conv2d(nn.Conv2d):  # type: ignore[misc]
    """A `torch.nn.Conv2d` that `accelerate` changed; one of `fold` may add, and apply ReLU."""

    def forward(self, input: Any, add: Any = None) -> Any:
        """Return the convolution of `input`, by PyTorch where lenetgpu does not apply."""
        slot = self._lenetgpu
        args = (self.stride, self.padding * 2, self.dilation, self.groups, slot.relu)
        tensors = input, self.weight, self.bias
        if self._applies(slot, input, add):
            return torch.ops.lenetgpu.conv2d(*tensors, *args, add, slot.handle)
        fuses = slot.relu or add is not None
        return plain_conv2d(*tensors, add, *args) if fuses else super().forward(input)

    def _applies(self, slot: Slot, x: Any, add: Any) -> bool:
        if self.training or torch.jit.is_tracing() or type(x) not in (torch.Tensor, nn.Parameter):
            return False
        if forward_ad._current_level >= 0:  # the operator has no forward derivative
            return False
        if not (x.is_cuda or (slot.cpu and x.is_cpu)) or torch.is_autocast_enabled(x.device.type):
            return False
        if x.dim() != 4 or x.shape[1] != self.in_channels or x.dtype not in DTYPES:
            return False  # one image without a batch, or for PyTorch to refuse
        for one in (x, self.weight, self.bias, add):
            if one is None:
                continue
            if not isinstance(one, torch.Tensor) or one.dtype != x.dtype or one.device != x.device:
                return False
            if one.requires_grad and torch.is_grad_enabled():
                return False
        (n, _, *sides), strides, pads = x.shape, self.stride, self.padding
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size)]  # noqa: B905
        high, wide = [(sides[k] + 2 * pads[k] - spans[k]) // strides[k] + 1 for k in (0, 1)]
        shape = (n, self.out_channels, high, wide)
        sizes = high > 0 and wide > 0 and x.numel() < _MOST and prod(shape) < _MOST
        return sizes and (add is None or add.shape == shape)

    def __setattr__(self, name: str, value: Any) -> None:
        # fused optimizers move no version
        trained = name == "training" and value != self.training
        super().__setattr__(name, value)
        if trained or name in ("weight", "bias"):
            self._lenetgpu.clear()

    def _apply(self, *args: Any, **named: Any) -> Any:
        self._lenetgpu.clear()
        return super()._apply(*args, **named)

    def _load_from_state_dict(self, *args: Any, **named: Any) -> None:
        self._lenetgpu.clear()
        super()._load_from_state_dict(*args, **named)

    def _replicate_for_data_parallel(self) -> Any:
        replica = super()._replicate_for_data_parallel()
        # by PyTorch, as the weights are new in every call
        replica._lenetgpu, replica.training = Slot(relu=self._lenetgpu.relu), True
        return replica


def accelerate(
    model: Any, precision: str = "fp32", tolerance: float | None = None,
    filter: Callable[[str, Any], bool] | None = None, fold: bool = False, verbose: bool = False,
    cpu: bool = False,
) -> Any:  # fmt: skip
    """Let lenetgpu compute the convolutions of `model`, a `torch.nn.Module`.

    Changes the class of `torch.nn.Conv2d` instances for which `filter(name, module)` is true, in
    place, and returns `model`: modules, `state_dict` keys and hooks stay. lenetgpu computes calls
    in eval mode on a GPU, without gradients and autocast; PyTorch computes all others.

    Filters are prepared by the first call, and again after `train`, `load_state_dict`, `to`,
    assignment, or a change of a parameter's version. Changes through `weight.data`, by optimizers
    with `fused=True`, by CUDA graphs, and those of parameters that were created in inference mode,
    move no version: they stay unseen until then.

    With `fold`, `model` must be in eval mode and stays as it is; a `torch.fx.GraphModule` for
    inference is returned, with copies of the filters that have a following BatchNorm folded in, and
    that add and apply ReLU where these follow. If torch.fx cannot trace the model, it is changed in
    place as without `fold`, and `report` says why.

    `precision` "fp32": products and sums are as accurate as fp32's in every dtype, whereas
    PyTorch's default for float32 convolutions is TF32. With `tolerance`, the last image of the
    first call of every shape is compared with float64: a layer whose error is above this share of
    the largest value is left to PyTorch. `verbose` prints a summary; `cpu` also takes tensors in
    host memory, for tests. Without a GPU and CuPy nothing is changed, with a warning.

    Raises TypeError if `model` is no module, and ValueError for other precisions and tolerances.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, found {type(model).__name__}")
    if precision != "fp32":
        raise ValueError(f"precision: expected 'fp32', found {precision!r}")
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance: expected at least 0, found {tolerance!r}")
    if fold and model.training:
        raise ValueError("fold: expected a model in eval mode, found training mode; call eval()")
    if missing := not (cpu or (torch.cuda.is_available() and driver_gpus() and cupy_installed())):
        warnings.warn(f"accelerate: {_MISSING}; the model is unchanged", stacklevel=2)
    modules, left = dict(_convolutions(model)), dict[str, str]()
    for name, module in modules.items():
        wanted = filter is None or filter(name, module)
        if why := _MISSING if missing else _refusal(module) if wanted else "filter returned False":
            left[name] = why
    graph, note = (None, "") if not fold or missing else _traced(model)
    if graph is not None:
        left |= {name: "has hooks" for name, one in modules.items() if hooked(one)}
    taken = {name: one for name, one in modules.items() if name not in left}
    plain = ((one, False, "") for one in taken.values())
    for module, relu, fusion in plain if graph is None else fused(graph, taken):
        if (old := vars(module).get("_lenetgpu")) and old.note:  # fused before
            relu, fusion = old.relu, old.note
        module._lenetgpu = Slot(tolerance, cpu, relu, fusion, old)
        module.__class__ = Conv2d
    changed = model if graph is None else graph
    vars(changed)[_LEFT] = left | ({_NOTE: note} if note else {})
    if verbose:
        print(f"lenetgpu: {len(taken)} of {len(modules)} convolutions taken{note and f'; {note}'}")
    return changed


def report(model: Any) -> list[Row]:
    """Return a row for every `torch.nn.Conv2d` of `model`, after one without a shape for a note."""
    left = dict(vars(model).get(_LEFT, {}))
    rows = [Row("", (), False, left.pop(_NOTE))] if _NOTE in left else []
    for name, one in _convolutions(model):
        slot = vars(one).get("_lenetgpu")
        why = left.get(name, "not accelerated") if slot is None else slot.refused or slot.note
        shape = (one.out_channels, one.in_channels // one.groups, *one.kernel_size)
        rows.append(Row(name, shape, slot is not None and not slot.refused, why))
    return rows


def restore(model: Any) -> Any:
    """Undo `accelerate` in place and return `model`; ValueError if `fold` fused a convolution."""
    ours = [one for _, one in _convolutions(model) if type(one) is Conv2d]
    if any(one._lenetgpu.note for one in ours):
        raise ValueError("model: expected one changed in place, found a graph; use the original")
    for module in ours:
        module.__class__ = nn.Conv2d
        del module._lenetgpu
    model.__dict__.pop(_LEFT, None)
    return model


def _convolutions(model: Any) -> Iterator[tuple[str, Any]]:
    return ((name, one) for name, one in model.named_modules() if isinstance(one, nn.Conv2d))


def _refusal(module: Any) -> str:
    """Return why a convolution is left to PyTorch, or an empty string."""
    if type(module) not in (nn.Conv2d, Conv2d) or "forward" in vars(module):
        return "has a forward of its own"
    if module.padding_mode != "zeros" or isinstance(module.padding, str):
        return f"padding {module.padding!r}, mode {module.padding_mode}"
    if not isinstance(weight := module._parameters.get("weight"), nn.Parameter):
        return "weight is computed, not a parameter"
    return "" if weight.dtype in DTYPES else f"{weight.dtype} filters"


def _traced(model: Any) -> tuple[Any, str]:
    """Return the graph of `model` and no note, or None and why there is none."""
    if isinstance(model, nn.Conv2d):
        return None, ""
    try:
        return torch.fx.GraphModule(model, Tracer().trace(model)), ""
    except Exception as error:  # tracing runs the model's own code
        return None, f"not folded, as torch.fx cannot trace it: {first_line(error)}"
