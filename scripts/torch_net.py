"""The network in PyTorch, for peers on a GPU and on a CPU."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
import torch.nn.functional as F
from beside import planar
from torch import nn

from lenetgpu.files.weights import Weights


class Net(nn.Module):
    """The network in NCHW, without biases; `flatten` order folded into fc1."""

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        tensors = {name: torch.tensor(array) for name, array in planar(weights).items()}
        self.conv1 = nn.Parameter(tensors["conv1"], False)
        self.conv2 = nn.Parameter(tensors["conv2"], False)
        self.fc1 = nn.Parameter(tensors["fc1"].t().contiguous(), False)
        self.fc2 = nn.Parameter(tensors["fc2"].t().contiguous(), False)

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Scores (N, 10) of images (N, 1, 28, 28)."""
        x = F.avg_pool2d(F.relu(F.conv2d(x, self.conv1)), 2)
        x = F.avg_pool2d(F.relu(F.conv2d(x, self.conv2)), 2)
        return F.linear(F.relu(F.linear(x.flatten(1), self.fc1)), self.fc2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Labels (N,) of images (N, 1, 28, 28)."""
        return self.scores(x).argmax(1)

    def channels_last(self) -> Net:
        """Itself, with filters in the order that channels_last images want."""
        for name in ("conv1", "conv2"):
            kernel = getattr(self, name)
            kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)
        return self


def own_code(net: Net) -> Callable[[torch.Tensor], torch.Tensor]:
    """`net.forward` with a code object of its own: torch.compile limits recompilations per code."""
    plain = Net.forward
    own = types.FunctionType(plain.__code__.replace(), plain.__globals__, plain.__name__)
    return types.MethodType(own, net)
