"""The matrix of stages and families: the variant of each cell, or the reason why there is none."""

from dataclasses import dataclass, replace

from lenetgpu.errors import LenetError
from lenetgpu.network import STAGES, Stage
from lenetgpu.stages.registry import Variant, find, refused

# Families of every stage; on a GPU, `serial` is the CPU variant with copies around it.
FAMILIES = ("serial", "tiled", "unrolled", "cublas", "fft")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Cell:
    """A stage and a family on a device: the variant and its name there, or a refusal."""

    stage: str
    family: str
    device: str
    name: str | None = None
    variant: Variant | None = None
    refused: str | None = None

    @property
    def copies(self) -> bool:
        """True if the variant runs on the CPU of a GPU's machine."""
        return self.variant is not None and self.variant.needs.device != self.device

    def as_json(self) -> dict[str, str | bool | None]:
        """Return the cell's JSON form; `variant` is null if the cell is refused."""
        cell = {"stage": self.stage, "family": self.family, "device": self.device}
        return cell | {"variant": self.name, "copies": self.copies, "refused": self.refused}


def cells(only: str | None = None) -> list[Cell]:
    """Return every stage and family on both devices, or those of one stage or kind.

    Needs no GPU. Raises LenetError if `only` is neither a stage nor a kind.
    """
    stages = [stage for stage in STAGES if only in (None, stage.name, stage.kind)]
    if not stages:
        names = dict.fromkeys([s.name for s in STAGES] + [s.kind for s in STAGES])
        expected = f"the matrix has a row a stage: expected one of {', '.join(names)}"
        raise LenetError(f"{expected}, found {only!r}")
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
