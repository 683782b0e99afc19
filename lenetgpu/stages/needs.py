"""The device that a variant asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lenetgpu.gpu.device import Gpu
    from lenetgpu.gpu.machines import Machine


@dataclass(frozen=True)
class Needs:
    """The device a variant runs on: "cpu", or "cuda" with a least compute capability (75 = 7.5).

    `exact` means that capability and no later one: instructions of one architecture only.
    """

    device: str
    compute_capability: int = 0
    exact: bool = False

    def met_by(self, gpu: Gpu | Machine) -> bool:
        """Whether `gpu` will do."""
        if self.exact:
            return gpu.compute_capability == self.compute_capability
        return gpu.compute_capability >= self.compute_capability

    def __str__(self) -> str:
        if self.device == "cpu":
            return "cpu"
        only = " only" if self.exact else ""
        return f"cuda {self.compute_capability // 10}.{self.compute_capability % 10}{only}"


def cpu() -> Needs:
    """Runs anywhere."""
    return Needs("cpu")


def cuda(compute_capability: int = 75) -> Needs:
    """Runs on an NVIDIA GPU of at least this compute capability."""
    return Needs("cuda", compute_capability)


def hopper() -> Needs:
    """Runs on Hopper (compute capability 9.0) and nothing else: wgmma, setmaxnreg."""
    return Needs("cuda", 90, exact=True)
