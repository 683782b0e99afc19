"""`lenetgpu conv --engines`: the convnet2 paper's engines in the timing model."""

from collections.abc import Iterator, Mapping
from typing import Any

from lenetgpu.errors import LenetError
from lenetgpu.lab.compare import CompareOutcome
from lenetgpu.lab.conv.document import shape_text
from lenetgpu.lab.conv.request import ConvRequest, shape_of
from lenetgpu.lab.tables import Column, Part, Table, columns, from_file
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import Say
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_engines import CHANGED, GTX_480, PARTS, STEPS, claim_rows, step_rows
from lenetgpu.stages.registry import unsupported


def rounded(value: float) -> str:
    """Format cycles as whole numbers, shares and times with three digits."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


STEP_COLUMNS = columns("section, step", ("cycles", rounded), (", ".join(PARTS), rounded))
FIGURES = from_file(
    "engine figures", rounded=rounded, yes_or_no=lambda agrees: "yes" if agrees else "no"
)
_CHANGES = [Column(change.name, f"changed.{change.name}", rounded) for change in CHANGED]


def run_engines(request: ConvRequest, say: Say) -> CompareOutcome:
    """Simulate the steps and figures, by default of Table 1; raise LenetError for bad input."""
    problem, batch = TABLE_1, TABLE_1_BATCH
    if request.shape is not None:
        shape = shape_of(request.shape)
        problem, batch = shape.problem, shape.batch
        why = unsupported(problem, frozenset())
        if why is not None:
            raise LenetError(f"--engines, {shape_text(problem)}: {why}")
    batch = request.images(batch)
    say(f"simulating {len(STEPS)} steps")
    steps, figures = step_rows(problem, batch), []
    for row in claim_rows(problem, batch):
        figures.append(row)
        say(f"simulating, {row['figure']}")
    document = head("engines", None) | {
        "simulated": GTX_480.name,
        "shape": shape_text(problem),
        "images": batch,
        "core": vars(GTX_480),
        "steps": steps,
        "figures": figures,
        "changes": {change.name: change.what for change in CHANGED},
    }
    return CompareOutcome(document, wrong=[])


def table(document: Mapping[str, Any]) -> Table:
    """Return the paper's figures, the model's, and the model's under each change."""
    return Table([*FIGURES, *_CHANGES, *columns("remark")], document["figures"])


def parts(document: Mapping[str, Any]) -> Iterator[Part]:
    """Yield the steps' cycles, then the paper's figures with the model's, then each change."""
    rows = document["figures"]
    of = f"{document['simulated']}, simulated: {document['shape']}, batch {document['images']:,}"
    title = f"{of}; cycles in total, and mean cycles of a warp in each part"
    yield Table(STEP_COLUMNS, document["steps"], title)
    yield Table(FIGURES, rows, "the paper's figures and the model's")
    title = "the model's figures with one assumption changed"
    yield Table([*columns("figure"), *_CHANGES], rows, title)
    for name, change in document["changes"].items():
        yield f"{name}: {change}"
