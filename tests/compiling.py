"""Whether kernels can be compiled here: NVRTC needs no GPU, and is not everywhere."""

from __future__ import annotations

import pytest

from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvrtc


def nvrtc_missing() -> str | None:
    """Why no kernel can be compiled here, None where one can."""
    try:
        nvrtc.version()
    except LenetError as error:
        return str(error)
    return None


compiles = pytest.mark.skipif(nvrtc_missing() is not None, reason=str(nvrtc_missing()))
"""For tests that compile a kernel."""
