"""Read hardware counters of the course's variants and two plans with Nsight Compute, as JSON.

Rows are keyed by `stage` and `variant`; `plans` has each plan's rows by name. The exit code is 1
without Nsight Compute. Counts derived from addresses need no GPU and are not stored.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.gpu.device import Gpu
from lenetgpu.measure.counters import document as counters
from lenetgpu.measure.counters.child import Images, Work
from lenetgpu.measure.document import head, plan_json
from lenetgpu.measure.outcome import Request
from lenetgpu.net.engine import Engine
from lenetgpu.papers.course import IMAGES
from lenetgpu.papers.course_counters import kernels_of_rows, specs, suite_keys
from lenetgpu.plan import Plan, choose_device

PLANS = ("course", "auto")


def selected(gpu: Gpu, images: int) -> dict[str, Plan]:
    """Return the plans by requested name, `auto` resolved for this GPU; each is verified."""
    plans = {}
    for name in PLANS:
        engine = Engine(Request(plan=name, batch=images, device=f"cuda:{gpu.index}"))
        engine.start("uint8", images)
        plans[name] = engine.plan
    return plans


def measured(gpu: Gpu, plans: Mapping[str, Plan], images: int) -> dict[str, Any]:
    keys, own = suite_keys(), specs(suite_keys())
    works = [Work("suite", tuple(own.values())), *map(Work.of, plans.values())]
    inputs = Images(assets.default_digits(), assets.default_weights(), images)
    about, (suite, *others) = counters.find(works, inputs, gpu)
    if about["source"] != counters.SOURCE:
        raise LenetError(about["note"])
    by_key = dict(zip(own, suite, strict=True))
    rows = [kernels_of_rows(stage, variant, by_key) for stage, variant in keys]
    return head("counters", gpu) | about | {
        "rows": [row for row in rows if row is not None],
        "plans": {
            name: {"name": plan.name, "plan": plan_json(plan), "rows": counted}
            for (name, plan), counted in zip(plans.items(), others, strict=True)
        },
    }  # fmt: skip


@click.command()
@click.option("--images", default=IMAGES, show_default=True, help="images of a pass")
@click.option("--json", "target", type=click.Path(path_type=Path), required=True, help="the file")
def main(images: int, target: Path) -> None:
    """Count what every variant of the course's suite and two plans do on this GPU."""
    try:
        gpu = counters.require_gpu(*choose_device("auto"))
        document = measured(gpu, selected(gpu, images), images)
    except LenetError as error:
        click.echo(f"counters: error: {error}", err=True)
        sys.exit(1)
    target.write_text(json.dumps(document, indent=1) + "\n")
    failed = [row for row in document["rows"] if row["error"]]
    for row in failed:
        click.echo(f"{row['stage']} {row['variant']}: {row['error']}", err=True)
    click.echo(f"{len(document['rows'])} rows by ncu {document['version']}, {len(failed)} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
