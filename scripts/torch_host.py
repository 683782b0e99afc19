"""PyTorch from page-locked images to labels in host memory, in one graph with the copies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from contestants import TORCH_TYPES, allow_tf32
from torch_net import Net, own_code

from lenetgpu.files.weights import Weights

_PARTS = 1000
Say = Callable[[str], None]


def true_labels(weights: Weights, images: Any) -> Any:
    """Labels (N,) of `images` (N, 28, 28, 1) uint8 by the network in float64."""
    with torch.inference_mode():
        net = Net(weights).cuda().double()
        x = torch.tensor(images).cuda().permute(0, 3, 1, 2).double() / 255
        parts = [net(x[lo : lo + _PARTS]) for lo in range(0, len(x), _PARTS)]
        return torch.cat(parts).cpu().numpy()


class TorchHost:
    """The network in PyTorch, from `images` (n, 28, 28, 1) uint8 to labels in page-locked memory.

    One CUDA graph holds all of it: `parts` copies to the device on a stream of their own, behind
    each the network on its part and the copy of its labels. `compiled` is torch.compile's mode, or
    None for eager. `copied` False leaves the copies out of the graph, one before and one behind it.
    """

    def __init__(
        self,
        weights: Weights,
        images: Any,
        precision: str,
        parts: int = 1,
        compiled: str | None = None,
        copied: bool = True,
    ) -> None:
        allow_tf32(precision == "tf32")
        self.kind, n = TORCH_TYPES[precision], len(images)
        self.net = Net(weights).cuda().to(self.kind).eval().channels_last()
        self.forward = self.net.forward
        if compiled is not None:
            self.forward = torch.compile(own_code(self.net), mode=compiled)
        self.host = torch.from_numpy(images.reshape(n, 1, 28, 28)).pin_memory()
        self.there = torch.empty_like(self.host, device="cuda")
        self.labels = torch.empty(n, dtype=torch.int64, pin_memory=True)
        self.out = torch.empty(n, dtype=torch.int64, device="cuda")
        step = -(-n // parts)
        self.parts = [slice(lo, lo + step) for lo in range(0, n, step)]
        self.copying, self.copied = torch.cuda.Stream(), copied
        self.graph = self._recorded()

    def _pass(self) -> None:
        here = torch.cuda.current_stream()
        if self.copied:
            self.copying.wait_stream(here)
        for part in self.parts:
            if self.copied:
                with torch.cuda.stream(self.copying):
                    self.there[part].copy_(self.host[part], non_blocking=True)
                here.wait_stream(self.copying)
            x = self.there[part].to(self.kind) / 255
            self.out[part] = self.forward(x.contiguous(memory_format=torch.channels_last))
        if self.copied:
            self.labels.copy_(self.out, non_blocking=True)

    def _recorded(self) -> torch.cuda.CUDAGraph:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self._pass()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._pass()
        torch.cuda.synchronize()
        return graph

    def run(self) -> None:
        """Every label is in host memory when it returns."""
        if not self.copied:
            self.there.copy_(self.host, non_blocking=True)
        self.graph.replay()
        if not self.copied:
            self.labels.copy_(self.out, non_blocking=True)
        torch.cuda.current_stream().synchronize()

    def answer(self) -> Any:
        """A fresh copy of the labels of a pass of its own."""
        self.labels.fill_(-1)
        self.run()
        return self.labels.numpy().copy()

    def label(self, image: Any) -> int:
        """The label of one image (28, 28, 1) uint8, of a network that takes one."""
        np.copyto(self.host.numpy(), image.reshape(self.host.shape))
        self.run()
        return int(self.labels[0])


def ways(n: int, deep: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and how: copies in the graph or around it, in one part or several, compiled or not."""
    modes = ("default", None) if deep else (None,)
    for compiled in modes:
        word = "compile" if compiled else "eager"
        yield f"{word} graph", {"compiled": compiled}
        yield f"{word} graph, copies around it", {"compiled": compiled, "copied": False}
        if n > 1:
            yield f"{word} graph in 4 parts", {"compiled": compiled, "parts": 4}


def contenders(
    weights: Weights, images: Any, precisions: tuple[str, ...], deep: bool, say: Say
) -> Iterator[tuple[str, str, TorchHost]]:
    """(name, precision, network) of every way that runs; those that do not are said."""
    torch.backends.cudnn.benchmark = True
    for precision in precisions:
        for words, how in ways(len(images), deep):
            name = f"torch {words}, {precision}"
            try:
                with torch.no_grad():
                    made = TorchHost(weights, images, precision, **how)
            except Exception as error:  # a peer that cannot run is named, not hidden
                say(f"{name}: cannot run: {str(error).partition(chr(10))[0][:120]}")
                continue
            say(f"{name}: ready")
            yield name, precision, made
