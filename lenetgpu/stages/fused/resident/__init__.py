"""One image at a time: a kernel that stays on the GPU and watches the host's memory."""

from lenetgpu.stages.fused.resident.resident import Resident

__all__ = ["Resident"]
