"""The matrix of stages and families: which variant each cell is, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lenetgpu.errors import LenetError
from lenetgpu.network import STAGES, Stage
from lenetgpu.stages.registry import Variant, find, refused

FAMILIES = ("serial", "tiled", "unrolled", "cublas", "fft")
"""Families that every stage takes; on a GPU `serial` is a CPU's, with copies around it."""
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Cell:
    """A stage by a family on a device: its variant and that one's name there, or a refusal."""

    stage: str
    family: str
    device: str
    name: str | None = None
    variant: Variant | None = None
    refused: str | None = None

    @property
    def copies(self) -> bool:
        """True if its variant runs on the CPU of a GPU's machine."""
        return self.variant is not None and self.variant.needs.device != self.device

    def as_json(self) -> dict[str, str | bool | None]:
        """The cell as JSON has it; `variant` is null where it is refused."""
        return {
            "stage": self.stage,
            "family": self.family,
            "device": self.device,
            "variant": self.name,
            "copies": self.copies,
            "refused": self.refused,
        }


def cells(only: str | None = None) -> list[Cell]:
    """Every stage by every family on both devices, or those of one stage or kind.

    Needs no GPU. Raises LenetError where `only` is neither.
    """
    stages = [stage for stage in STAGES if only in (None, stage.name, stage.kind)]
    if not stages:
        names = dict.fromkeys([s.name for s in STAGES] + [s.kind for s in STAGES])
        said = "the matrix has a row a stage: expected one of"
        raise LenetError(f"{said} {', '.join(names)}, found {only!r}")
    return [_cell(s, family, on) for on in DEVICES for s in stages for family in FAMILIES]


def _cell(stage: Stage, family: str, device: str) -> Cell:
    cell = Cell(stage.name, family, device, refused=refused(stage.kind, family))
    if cell.refused is not None:
        return cell
    try:
        variant = find(stage.kind, family, device, stage.name)
    except LenetError as error:
        return replace(cell, refused=str(error))
    laid_out = variant.laid_out(stage.problem)
    if isinstance(laid_out, str):
        return replace(cell, refused=f"{variant.full_name} {laid_out}")
    name = next(name for name in variant.names if name.startswith(f"{family}."))
    return replace(cell, name=name, variant=variant)
