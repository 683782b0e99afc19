"""Images to pool2's features on a CPU: Winograd transforms around the register tile."""

from lenetgpu.stages.fused.winograd import features

__all__ = ["features"]
