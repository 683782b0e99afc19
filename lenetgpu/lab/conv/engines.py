"""What `lenetgpu conv --engines` answers: the convnet2 paper's engines by the timing model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.lab.conv.given import taken
from lenetgpu.lab.show.conv_document import shape_text
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import Say
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_claims import claim_rows
from lenetgpu.papers.convnet2_engines import CHANGED, STEPS, step_rows
from lenetgpu.papers.convnet2_listings import GTX_480
from lenetgpu.stages.wants import untaken


@dataclass(frozen=True)
class EnginesRequest:
    """A convolution to simulate; Table 1's where `shape` is None, with its 128 images."""

    shape: str | None = None
    batch: int | None = None


def run_engines(request: EnginesRequest, say: Say) -> dict[str, Any]:
    """The document: a row a step, a row a figure of the paper. LenetError for bad input."""
    problem, batch = TABLE_1, TABLE_1_BATCH
    if request.shape is not None:
        shape = taken(request.shape)
        problem, batch = shape.problem, shape.batch
        refused = untaken(problem, frozenset())
        if refused is not None:
            raise LenetError(f"--engines, {shape_text(problem)}: {refused}")
    if request.batch is not None:
        batch = request.batch
    if batch < 1:
        raise LenetError(f"--batch: expected at least 1 image, found {batch}")
    say(f"simulating {len(STEPS)} steps")
    steps = step_rows(problem, batch)
    figures = []
    for row in claim_rows(problem, batch):
        figures.append(row)
        say(f"simulating, {row['figure']}")
    return head("engines", None) | {
        "simulated": GTX_480.name,
        "shape": shape_text(problem),
        "images": batch,
        "core": vars(GTX_480),
        "steps": steps,
        "figures": figures,
        "changes": {change.name: change.what for change in CHANGED},
    }
