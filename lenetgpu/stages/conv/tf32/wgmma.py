"""Three TF32 products by Hopper's wgmma, with inputs split in registers."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from lenetgpu.gpu import machines
from lenetgpu.gpu.launch import blocks_for
from lenetgpu.gpu.machines import WARP, Machine
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor.product import FIT, HOPPER
from lenetgpu.stages.conv.tf32 import halo, one_launch
from lenetgpu.stages.conv.tf32.one_launch import CHUNK, FLOAT, TF32_FIT, OneLaunch, State, chunks
from lenetgpu.stages.registry import hopper

_ROWS = 128  # outputs per filter and block
_THREADS = 384
_BARRIER_BYTES = 16  # two barriers per stage: full and empty
_HELD_BARRIER = 8  # bytes: one more, for filters held
_TURNS = 4  # sets of factors in shared memory, two per warpgroup
_STAGES = 8
_LEAST_STAGES = 4
_WIDTHS = (64, 128)


@dataclass(frozen=True)
class Product(OneLaunch):
    """A convolution whose blocks compute _ROWS outputs of `width` filters."""

    rows: int = _ROWS
    threads: int = _THREADS
    most: int = _STAGES

    def __str__(self) -> str:
        return super().__str__() + (", filters stay in shared memory" if self.filters_held else "")

    @property
    def _input_bytes(self) -> int:
        if self.problem.reads == "NHWC":
            narrow = self.problem.writes == "NCHW" and not self.wide
            return FLOAT * _ROWS * (CHUNK + (2 if narrow else 4))
        return FLOAT * CHUNK * (_ROWS * (2 if self.skips else 1) + 8)

    def _bytes(self, stages: int, filters_held: bool) -> int:
        factors = FLOAT * _TURNS * self.width + _HELD_BARRIER
        filters = (chunks(self.problem) if filters_held else stages) * self.filter_bytes
        return factors + filters + stages * (self._input_bytes + _BARRIER_BYTES)

    @property
    def filters_held(self) -> bool:
        """True if all of a block's filters fit shared memory with a few stages of inputs."""
        few = self.across <= machines.current().multiprocessors
        return few and self._bytes(_LEAST_STAGES, True) <= machines.SM_90_BLOCK_BYTES

    @property
    def stages(self) -> int:
        """Chunks that fit shared memory, at most `most`."""
        held, capacity = self.filters_held, machines.SM_90_BLOCK_BYTES
        return next((n for n in range(self.most, 0, -1) if self._bytes(n, held) <= capacity), 0)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory per block in bytes."""
        return self._bytes(self.stages, self.filters_held)

    @property
    def skips(self) -> bool:
        """True if only every other copied input is used."""
        problem = self.problem
        aligned = problem.reads == "NCHW" and problem.W % 4 == 0
        return aligned and self.pointwise and problem.stride == 2

    @property
    def wide(self) -> bool:
        """True if inputs are copied four floats at a time."""
        return self.skips or super().wide

    def kernel(self) -> Kernel:
        """Return the kernel `tf32_wgmma`."""
        held = int(self.filters_held)
        return self.built(__file__, HOPPER, BN=self.width, STAGES=self.stages, FILTERS_HELD=held)

    def grid(self, images: int) -> int:
        """Return the number of persistent blocks; with `filters_held` they never change filters."""
        return min(self.tiles(images), self._blocks(machines.current()))

    def _blocks(self, machine: Machine) -> int:
        """Return one block per multiprocessor, or whole sets of filters if these are held."""
        count = machine.multiprocessors
        return count - count % self.across if self.filters_held else count

    def cycles(self, images: int, machine: Machine) -> float:
        """Estimate the cycles of a run of `images` images: products, copies, or memory."""
        multiply = 3 * _ROWS * self.width * CHUNK / TF32_FIT.rate
        filters = 0 if self.filters_held else self.filter_bytes
        moved = (FLOAT * CHUNK * _ROWS + filters) / TF32_FIT.cache_rate
        wide = TF32_FIT.wide_copies / (2 if self.skips else 4)
        copies = CHUNK * _ROWS / WARP * (wide if self.wide else TF32_FIT.copies)
        chunk = max(multiply, moved, copies) + TF32_FIT.chunk
        busiest = blocks_for(self.tiles(images), max(1, self._blocks(machine)))
        tile = chunks(self.problem) * chunk + TF32_FIT.tile + TF32_FIT.filter * self.width
        rate = TF32_FIT.memory_share * machine.bytes_per_clock
        return max(busiest * tile / FIT.clock, images * self.image_bytes() / rate) + TF32_FIT.launch


@cache
def plan(problem: Conv, batch: int, machine: Machine | None = None) -> OneLaunch:
    """Return the fastest product for up to `batch` images by the cost model of `machine`."""
    used = machine or machines.current()
    widths = _WIDTHS if problem.reads == problem.writes else _WIDTHS[:1]  # else registers spill
    products: list[OneLaunch] = [Product(problem, width) for width in widths]
    if halo.Product(problem).supported:
        products.append(halo.Product(problem))
    return min(products, key=lambda product: product.cycles(batch, used))


@one_launch.by_tf32(plan, needs=hopper())
def wgmma_tf32x3(x: Any, w: State, y: Any, problem: Conv) -> None:
    """Implicit product on Hopper's wgmma, operands as TF32 high and low, split in registers."""
    one_launch.run(x, w, y)
