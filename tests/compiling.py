"""Availability of NVRTC, which compiles kernels without a GPU."""

import pytest

from lenetgpu.errors import LenetError
from lenetgpu.gpu import nvrtc


def nvrtc_missing() -> str | None:
    """Return the reason why kernels cannot be compiled here, or None if they can."""
    try:
        nvrtc.version()
    except LenetError as error:
        return str(error)
    return None


# for tests that compile a kernel
compiles = pytest.mark.skipif(nvrtc_missing() is not None, reason=str(nvrtc_missing()))
