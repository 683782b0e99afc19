"""PyTorch's state_dict in a file of torch.save: read by torch alone, and weights only.

Before torch sees it, the archive is taken apart and put together anew, without what is compressed,
twice there or larger than it may be. No pickle is read by anybody else.
"""

from __future__ import annotations

import importlib.util
import io
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lenetgpu.errors import LenetError
from lenetgpu.files.checksums import Sums
from lenetgpu.files.models import archive, layouts
from lenetgpu.files.models.loaded import ZIP, Model

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

FORM = "PyTorch"
SAFE = (2, 10)
"""The first PyTorch whose `weights_only` nobody is known to get around."""


def require_torch(path: Path) -> None:
    """LenetError unless PyTorch is installed; it is not imported."""
    if importlib.util.find_spec("torch") is None:
        raise LenetError(
            f"{path}: expected PyTorch for a state_dict, found it not installed; pip install torch"
        )


def _torch(path: Path) -> Any:
    """The module; LenetError where it is missing, or older than it is safe to read with."""
    require_torch(path)
    import torch

    version = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if version < SAFE:
        raise LenetError(
            f"{path}: expected PyTorch {'.'.join(map(str, SAFE))} or later, whose weights_only "
            f"runs nothing of a file, found {torch.__version__}"
        )
    return torch


def read(path: Path, data: bytes) -> Model:
    """The weights of a file's bytes; LenetError where it is no state_dict of this network."""
    if not data.startswith(ZIP):
        raise LenetError(
            f"{path}: expected a state_dict in PyTorch's zip archive, found a bare pickle, which "
            "is not read; save it again by torch.save of PyTorch 1.6 or later"
        )
    torch = _torch(path)
    files, _ = archive.members(path, data, FORM)
    state = _state(path, torch, archive.packed(files))
    matching = layouts.Matching(path)
    for name, tensor in state.items():
        if not isinstance(name, str) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            raise LenetError(
                f"{path}: expected a state_dict, tensors by name, found {type(tensor).__name__} "
                f"under {name}; save model.state_dict() alone"
            )
        matching.place(name, tuple(tensor.shape))
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if not plain or tensor.is_quantized or not tensor.dtype.is_floating_point:
            raise LenetError(
                f"{path}: expected {name} to be a plain tensor of floats, found {tensor.dtype}, "
                f"{tensor.layout}, on {tensor.device}"
            )
        matching.add(name, _array(torch, tensor))
    return Model(matching.done(), Sums(str(path), {}), {})


def _state(path: Path, torch: Any, data: bytes) -> Mapping[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as error:  # torch promises none of its own
            reason = " ".join(str(error).split())
            raise LenetError(
                f"{path}: expected a state_dict that torch reads with weights_only, "
                f"found: {reason or type(error).__name__}"
            ) from error
    if not isinstance(found, Mapping):
        raise LenetError(
            f"{path}: expected a state_dict, tensors by name, found {type(found).__name__}"
        )
    return found


def _array(torch: Any, tensor: Any) -> Array:
    """A tensor as a NumPy array: float64 as it is, all else as float32."""
    wide = tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().to(torch.float32)
    found: Array = wide.contiguous().numpy()
    return found


def written(path: Path, tensors: Mapping[str, Array]) -> bytes:
    """A file of torch.save with float32 tensors in PyTorch's layout."""
    require_torch(path)
    import torch

    buffer = io.BytesIO()
    stored = layouts.to_torch(tensors)
    torch.save({name: torch.tensor(tensor) for name, tensor in stored.items()}, buffer)
    return buffer.getvalue()
