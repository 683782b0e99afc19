"""Algorithms that `best.fp32` can run: their cost by the model, and why one is not supported."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from lenetgpu.dispatch import rounding
from lenetgpu.gpu.machines import Machine
from lenetgpu.problems import Conv
from lenetgpu.stages.conv.tensor import implicit, mma, wgmma
from lenetgpu.stages.conv.tensor.product import Product as TensorProduct
from lenetgpu.stages.conv.tf32 import wgmma as tf32
from lenetgpu.stages.conv.tf32.one_launch import OneLaunch
from lenetgpu.stages.conv.tuned import direct, winograd
from lenetgpu.stages.conv.tuned.product import Product, product_cycles, single_cycles
from lenetgpu.stages.registry import find

AnyProduct = Product | TensorProduct | OneLaunch | None
Cost = tuple[float, AnyProduct]  # cycles by the cost model, and the product that does the work


@dataclass(frozen=True)
class Choice:
    """An algorithm, its cycles by the cost model, and the product that does its work, if any."""

    algorithm: str
    cycles: float
    product: AnyProduct

    def us(self, machine: Machine) -> float:
        """Return the estimated microseconds on `machine` at its highest clock."""
        return self.cycles / machine.clock_mhz


# With fewer channels than this, `direct.tuned` takes _FEW times as long as the cost model says. On
# 14 convolutions with 1 and 3 channels on an H200 the factor was 1.4 to 3.0, median 1.75.
_FEW_CHANNELS, _FEW = 4, 1.7


def _direct(problem: Conv, batch: int, machine: Machine) -> Cost:
    product = direct.plan(problem, batch, machine)
    more = _FEW if problem.C < _FEW_CHANNELS else 1.0
    return more * product_cycles(product, problem, batch, 1, machine), product


def _winograd(outputs: int, problem: Conv, batch: int, machine: Machine) -> Cost:
    product = winograd.plan(problem, batch, outputs, machine)
    return winograd.cycles(product, problem, batch, outputs, machine), product


def _tensor(kind: implicit.Kind, problem: Conv, batch: int, machine: Machine) -> Cost:
    product = kind.plan(problem, batch, machine)
    return kind.cycles(product, batch, machine), product


def _tf32(problem: Conv, batch: int, machine: Machine) -> Cost:
    launch = tf32.plan(problem, batch, machine)
    return launch.cycles(batch, machine), launch


# Algorithms with tilings that can be selected by name.
KINDS = {"tensor.wgmma_fp16x3": wgmma.FP16X3, "tensor.fp16x3": mma.FP16X3}

WINOGRAD = {"winograd.f2": 2, "winograd.f4": 4}  # outputs of a tile in each dimension

MODELED: dict[str, Callable[[Conv, int, Machine], Cost]] = {
    # before direct.tuned: equal cost if bound by memory
    "direct.tuned_single": lambda *facts: (single_cycles(*facts), None),
    "direct.tuned": _direct,
    **{name: partial(_winograd, outputs) for name, outputs in WINOGRAD.items()},
    **{name: partial(_tensor, kind) for name, kind in KINDS.items()},
    "tensor.wgmma_tf32x3": _tf32,
}
# Tensor-core algorithms, used where their error is at most that of fp32.
TENSOR = tuple(name for name in MODELED if name.startswith("tensor."))

_ANYWHERE = "tensor.fp16x3"  # from sm_80 on, any dtype
MEASURED_ONLY = ("prefetch.stride_fixed", "texture.split")
# All that `best.fp32` can run; MEASURED_ONLY, without a cost model, only where they were measured.
ALGORITHMS = (*MODELED, *MEASURED_ONLY)
# Separates an algorithm's name from a tiling, for measured tilings other than the cost model's.
TILED = "@"
# Products per sum from which three fp16 products have at most the error of sequential fp32 sums:
# emulated, 1.3 to 3.6 times up to 48 products, 0.7 to 1.0 from 64 to 96, 0.2 to 0.3 at 2,304.
EXACT_FROM = 64
# Largest error of shorter sums, over that of sequential fp32. Accepted only if the problem requires
# options (bias, ReLU, fp16, bf16), which no other algorithm supports.
FEW_ERROR = 3.6


def why_not(
    algorithm: str, problem: Conv, machine: Machine, measured: bool = False, images: int = 1
) -> str | None:
    """Return why `best.fp32` cannot run an algorithm on `problem` on `machine`; None if it can.

    With `measured`, the algorithm was measured to have at most the error of fp32. Otherwise
    Winograd's error is the one that `rounding` predicts for up to `images` images.
    """
    name, _, word = algorithm.partition(TILED)
    if name not in ALGORITHMS or (word and name not in KINDS):
        return "it is none that best.fp32 runs"
    variant = find("conv", name, "cuda")
    if not variant.needs.met_by(machine):
        return f"it requires {variant.needs}"
    refusal = variant.refusal(problem)
    if refusal is not None:
        return refusal
    if problem.reads not in variant.reads or problem.writes not in variant.writes:
        return f"supports layouts {', '.join(variant.reads)} to {', '.join(variant.writes)} only"
    if name in WINOGRAD and not measured:
        product = winograd.plan(problem, images, WINOGRAD[name], machine)
        error = rounding.MARGIN * rounding.of_winograd(product, problem, WINOGRAD[name])
        limit = rounding.sequential(problem)
        if error > limit:
            predicted = f"predicted error up to {error:.2e} (root mean square)"
            return f"{predicted}, sequential fp32 sums {limit:.2e}"
    if name in TENSOR and problem.gemm_k < EXACT_FROM and not measured and not problem.requires:
        return f"sums of {problem.gemm_k} products: below {EXACT_FROM} its error exceeds fp32's"
    if word and not replace(KINDS[name], word=word).products(problem, 1, machine):
        return f"it has no tiling {word}"
    return None


def possible(
    algorithm: str, problem: Conv, machine: Machine, measured: bool = False, images: int = 1
) -> bool:
    """Return True if `best.fp32` can run an algorithm."""
    return why_not(algorithm, problem, machine, measured, images) is None


def why_none(problem: Conv, machine: Machine) -> str | None:
    """Return a sentence on why `best.fp32` can run nothing on `problem` on `machine`, or None."""
    reasons = {name: why_not(name, problem, machine) for name in MODELED}
    if not all(reasons.values()):
        return None
    if not problem.requires:
        return reasons["direct.tuned"]
    by = "supports a bias, ReLU, fp16 and bf16 by products on tensor cores alone"
    return f"{by}, and {_ANYWHERE} is refused: {reasons[_ANYWHERE]}"
