"""How many threads of a kernel a multiprocessor holds at once."""

from __future__ import annotations

from lenetgpu.gpu.launch import Launch, function


def occupancy(launched: Launch) -> float:
    """Resident threads over the multiprocessor's limit for a recorded launch, 0 to 1."""
    import cupy
    from cupy.cuda import driver

    threads = 1
    for extent in launched.block:
        threads *= extent
    blocks = driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function(launched.kernel).ptr, threads, launched.shared
    )
    limit = cupy.cuda.Device().attributes["MaxThreadsPerMultiProcessor"]
    share: float = blocks * threads / limit
    return share
