"""lenetgpu: MNIST LeNet inference with every stage switchable, checked and timed."""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes as long as all that runs before signals are heeded
if TYPE_CHECKING:
    from typing import Any

    from lenetgpu.convolve import conv2d, prepare
    from lenetgpu.errors import LenetError
    from lenetgpu.net.classifier import LeNet

__version__ = "0.1.0"
__all__ = ["LeNet", "LenetError", "__version__", "conv2d", "prepare"]


def __getattr__(name: str) -> Any:
    """The library's face, imported when it is first asked for: `import lenetgpu` stays light."""
    if name == "LeNet":
        from lenetgpu.net.classifier import LeNet

        return LeNet
    if name == "LenetError":
        from lenetgpu.errors import LenetError

        return LenetError
    if name in ("conv2d", "prepare"):
        from lenetgpu import convolve

        return getattr(convolve, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
