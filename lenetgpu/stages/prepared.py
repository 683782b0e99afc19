"""A variant prepared for a problem: weights, buffers, poison, run. The only caller of `prepare`."""

from collections.abc import Sequence
from math import prod
from typing import Any

from lenetgpu.arrays import cupy, np
from lenetgpu.layouts import from_nhwc, held_as, physical_shape, to_nhwc
from lenetgpu.stages.registry import Variant

_FLAT = ("NC", "N")


def array_module(device: str) -> Any:
    """Return CuPy for "cuda", NumPy for "cpu"."""
    return cupy if device == "cuda" else np


class Guarded:
    """Uninitialised `array` between two guard zones that nobody may write.

    `arrays` is the module that allocates it, NumPy or CuPy; the array is aligned to 256 bytes.
    """

    ZONE = 32 << 10
    _ALIGNED = 256
    _PATTERN = 0xA5

    def __init__(self, arrays: Any, shape: Sequence[int], dtype: Any) -> None:
        item = arrays.dtype(dtype).itemsize
        size = item * prod(shape)
        raw = arrays.empty(2 * self.ZONE + self._ALIGNED + size, "uint8")
        interface = getattr(raw, "__cuda_array_interface__", None) or raw.__array_interface__
        start = self.ZONE + -(interface["data"][0] + self.ZONE) % self._ALIGNED
        self._zones = raw[:start], raw[start + size :]
        self.array = raw[start : start + size].view(dtype).reshape(tuple(shape))
        self.repair()

    def repair(self) -> None:
        """Restore the pattern of both guard zones."""
        for zone in self._zones:
            zone.fill(self._PATTERN)

    @property
    def intact(self) -> bool:
        """True if neither guard zone was written."""
        return all(bool((zone == self._PATTERN).all()) for zone in self._zones)


class PreparedKernel:
    """`variant` prepared for up to `batch` images of `problem`, whose layouts are chosen.

    `weights` are float32 host arrays (a convolution's in its own dtype): none, one, those of a
    span in its order, or filters and bias. Inputs and outputs are on the variant's device.
    """

    def __init__(self, variant: Variant, problem: Any, weights: Sequence[Any], batch: int) -> None:
        self.variant, self.problem, self.batch = variant, problem, batch
        self.on_gpu = variant.needs.device == "cuda"
        self.arrays = array_module(variant.needs.device)
        if variant.prepare is None:
            weights = [self.arrays.asarray(tensor) for tensor in weights]
        self.state: Any = tuple(weights) if len(weights) > 1 else next(iter(weights), None)
        if variant.prepare is not None:
            self.state = variant.prepare(self.state, problem, batch)
        self._guarded: list[Guarded] = []

    def run(self, x: Any, y: Any) -> None:
        """Compute `y` from `x`, both of at most `batch` images; a GPU may still be working."""
        self.variant.launch(x, self.state, y, self.problem)

    def run_all(self, x: Any, y: Any) -> None:
        """Call `run` in parts of `batch` images."""
        for lo in range(0, len(x), self.batch):
            self.run(x[lo : lo + self.batch], y[lo : lo + self.batch])

    def input(self, x: Any) -> Any:
        """Return array `x` in NHWC or (N, K), from host or device, as the variant reads it."""
        converted = x if self.problem.reads in _FLAT else from_nhwc(x, self.problem.reads)
        return self.arrays.ascontiguousarray(self.arrays.asarray(converted))

    def output(self, n: int) -> Any:
        """Return a poisoned output buffer between guard zones for `n` images."""
        shape = physical_shape(self.problem.writes, n, self.problem.out_shape)
        return self.attach(Guarded(self.arrays, shape, held_as(self.problem)))

    def attach(self, guarded: Guarded) -> Any:
        """Return a caller's buffer for use as an output, poisoned."""
        self._guarded.append(guarded)
        self.poison(guarded.array)
        return guarded.array

    def wrote_outside(self) -> bool:
        """Return True if a guard zone of an output was written, and restore it."""
        broken = [guarded for guarded in self._guarded if not guarded.intact]
        for guarded in broken:
            guarded.repair()
        return bool(broken)

    @staticmethod
    def poison(buffer: Any) -> None:
        """Fill a buffer with NaN (bfloat16's bits too); a buffer of labels with -1."""
        buffer.fill({"i": -1, "u": 0xFFFF}.get(buffer.dtype.kind, float("nan")))

    def found(self, y: Any) -> Any:
        """Return `y` as a host array in NHWC, (N, K) or (N,)."""
        copied = y.get() if self.on_gpu else y.copy()
        if self.problem.writes in _FLAT:
            return copied
        return to_nhwc(copied, self.problem.writes, self.problem.out_shape)
