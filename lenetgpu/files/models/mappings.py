"""Weights in dictionaries: a state_dict, a checkpoint that holds one, or arrays by name."""

import sys
from collections.abc import Mapping
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.errors import unexpected
from lenetgpu.files.models import layouts

_UNDER = ("model_state_dict", "state_dict", "model")  # usual names of weights in a checkpoint


def tensors_of(where: object, found: Mapping[Any, Any]) -> dict[str, Array]:
    """Return the four tensors by our names, in our layouts, as floats that NumPy has.

    `found` holds tensors of PyTorch or arrays by name, or one such dictionary (a checkpoint).
    Raises LenetError, which begins with `where`, for anything else.
    """
    held = [found[name] for name in _UNDER if isinstance(found.get(name), Mapping)]
    matching = layouts.Matching(where)
    for name, tensor in (held[0] if len(held) == 1 else found).items():
        shape = getattr(tensor, "shape", None)
        if not isinstance(name, str) or not isinstance(shape, tuple):
            kind = f"{type(tensor).__name__} under {name}; save model.state_dict() alone"
            raise unexpected(where, "a state_dict, tensors by name", kind)
        matching.require(name, tuple(shape))
        matching.add(name, _floats(where, name, tensor))
    return matching.done()


def _floats(where: object, name: str, tensor: Any) -> Array:
    """Return a tensor or array in host memory; a tensor's small types become float32."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_quantized
        plain = plain and tensor.layout == torch.strided and tensor.dtype.is_floating_point
        if not plain or tensor.device.type not in ("cpu", "cuda"):
            found = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
            raise unexpected(where, f"{name} to be a plain tensor of floats", found)
        kind = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        tensor = tensor.detach().to("cpu", kind).numpy()
    of_cupy = hasattr(tensor, "get") and hasattr(tensor, "__cuda_array_interface__")
    array = np.asarray(tensor.get() if of_cupy else tensor)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        raise unexpected(where, f"{name} to hold floats", array.dtype.name)
    return array
