"""Work for the counter process, stages alone or whole plans, passed to it as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.measure.bench import stage_of
from lenetgpu.plan import BoundStage, Plan
from lenetgpu.stages import variants


@dataclass(frozen=True)
class StageSpec:
    """A variant on a stage (or a span, written with +), in its layouts."""

    stage: str
    variant: str
    reads: str
    writes: str
    device: str = "cuda"

    @classmethod
    def of(cls, bound: BoundStage) -> StageSpec:
        """Return the specification of a plan's stage."""
        problem, variant = bound.problem, bound.variant
        device = variant.needs.device
        return cls(bound.name, variant.full_name, problem.reads, problem.writes, device)

    def bound(self) -> BoundStage:
        """Return the plan's stage; raise LenetError if there is no such variant."""
        unit = stage_of(self.stage)
        problem: Any = replace(unit.problem, reads=self.reads, writes=self.writes)
        for variant in variants(unit.kind, self.device):
            if variant.full_name == self.variant:
                return BoundStage(tuple(self.stage.split("+")), variant, problem, unit.weights)
        expected = f"expected a variant of {self.device}, found {self.variant!r}"
        raise LenetError(f"counters, {unit.kind}: {expected}")


@dataclass(frozen=True)
class Work:
    """Stages whose kernels are counted: each alone on its own activations, or chained as a plan."""

    name: str
    specs: tuple[StageSpec, ...]
    chained: bool = False
    device: str = "cuda"

    @classmethod
    def of(cls, plan: Plan) -> Work:
        """Return the work of a plan: its stages and conversions, from images to labels."""
        return cls(plan.name, tuple(map(StageSpec.of, plan.stages)), True, plan.device)

    def plan(self) -> Plan:
        """Return its stages as a plan."""
        return Plan(self.name, self.device, tuple(spec.bound() for spec in self.specs))


@dataclass(frozen=True)
class Images:
    """Images for the work, `count` per pass, and weights; `chunk` and `transfers` of a plan."""

    data: Path
    weights: Path
    count: int
    skip: int = 0
    chunk: int | None = None
    transfers: str = "device"


def as_json(works: Sequence[Work], images: Images, device: int) -> dict[str, Any]:
    """Return everything the process needs; `device` is the GPU's index."""
    return {
        "works": [asdict(work) for work in works],
        "images": asdict(images) | {"data": str(images.data), "weights": str(images.weights)},
        "device": device,
    }


def from_json(loaded: dict[str, Any]) -> tuple[list[Work], Images, int]:
    """Return the arguments of `as_json` from its result."""
    for work in loaded["works"]:
        work["specs"] = tuple(StageSpec(**spec) for spec in work["specs"])
    for name in ("data", "weights"):
        loaded["images"][name] = Path(loaded["images"][name])
    return [Work(**work) for work in loaded["works"]], Images(**loaded["images"]), loaded["device"]
