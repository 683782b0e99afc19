"""The device that a variant requires."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lenetgpu.problems import Conv

if TYPE_CHECKING:
    from lenetgpu.gpu.device import Gpu
    from lenetgpu.gpu.machines import Machine


_SAID: dict[str, Callable[[Conv], str]] = {
    "strides": lambda p: "supports rows and columns of one stride, not {}x{}".format(*p.step),
    "pads": lambda p: "supports equal padding on every side, not {},{},{},{}".format(*p.around),
    "dilation": lambda p: "supports no dilation, not {}x{}".format(*p.dilation),
    "groups": lambda p: f"supports one group, not {p.groups}",
    "bias": lambda p: "supports no bias",
    "relu": lambda p: "supports no ReLU",
    "fp16": lambda p: "supports fp32 in and out, not fp16",
    "bf16": lambda p: "supports fp32 in and out, not bf16",
}
OPTIONS = tuple(_SAID)
_BF16 = 80


def require_known(words: str) -> frozenset[str]:
    """Return the options that `words` name; raise ValueError for unknown words."""
    found = frozenset(words.split())
    if not found <= {*OPTIONS}:
        others = ", ".join(sorted(found - {*OPTIONS}))
        raise ValueError(f"expected options of {', '.join(OPTIONS)}, found {others}")
    return found


def dtype_refusal(problem: Any, compute_capability: int) -> str | None:
    """Return a refusal if that compute capability (75 = 7.5) lacks the problem's dtype, or None."""
    if "bf16" in problem.requires and compute_capability < _BF16:
        return f"bf16 needs cuda {_BF16 / 10}, found {compute_capability / 10}"
    return None


def unsupported(problem: Any, options: frozenset[str]) -> str | None:
    """Return a refusal for the first required option that is not in `options`, or None."""
    wanted: frozenset[str] = getattr(problem, "requires", frozenset()) - options
    conv = getattr(problem, "conv", problem)
    return next((_SAID[name](conv) for name in OPTIONS if name in wanted), None)


@dataclass(frozen=True)
class Needs:
    """Required device: "cpu", or "cuda" with a minimum compute capability (75 = 7.5).

    `exact` means that capability only: the kernels use instructions of one architecture.
    """

    device: str
    compute_capability: int = 0
    exact: bool = False

    def met_by(self, gpu: Gpu | Machine) -> bool:
        """Return True if `gpu` meets the requirements."""
        if self.exact:
            return gpu.compute_capability == self.compute_capability
        return gpu.compute_capability >= self.compute_capability

    def __str__(self) -> str:
        if self.device == "cpu":
            return "cpu"
        only = " only" if self.exact else ""
        return f"cuda {self.compute_capability // 10}.{self.compute_capability % 10}{only}"


def cpu() -> Needs:
    """Return the requirements of a variant that runs anywhere."""
    return Needs("cpu")


def cuda(compute_capability: int = 75) -> Needs:
    """Require an NVIDIA GPU of at least this compute capability."""
    return Needs("cuda", compute_capability)


def hopper() -> Needs:
    """Require Hopper (compute capability 9.0) and nothing else: wgmma, setmaxnreg."""
    return Needs("cuda", 90, exact=True)
