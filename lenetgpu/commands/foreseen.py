"""What a job would take on more workers than there are: `lenetgpu classify --predict`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lenetgpu.commands.classify import ClassifyRequest, job_of
from lenetgpu.shards.costs import costs
from lenetgpu.shards.crew import resolve
from lenetgpu.shards.inputs import gather
from lenetgpu.shards.job import Job
from lenetgpu.shards.model import WORKERS, Costs, Prediction, predict
from lenetgpu.shards.worker import Worker
from lenetgpu.show.progress import Say


@dataclass(frozen=True)
class Predicted:
    """What one worker costs here, and what several come to: nothing of the job is done."""

    job: Job
    costs: Costs
    machine: dict[str, Any]

    def rows(self) -> list[Prediction]:
        """By workers."""
        return [predict(self.costs, self.job.size, workers) for workers in WORKERS]

    def document(self) -> dict[str, Any]:
        """The prediction as JSON, rates in images/s and times in seconds."""
        return {
            "schema": 1,
            "command": "classify --predict",
            "device": self.machine,
            "plan": self.job.plan,
            "images": self.job.images,
            "shard": self.job.size,
            "costs": asdict(self.costs),
            "predicted": [asdict(row) for row in self.rows()],
        }


def foresee(request: ClassifyRequest, say: Say) -> Predicted:
    """Measure what one worker costs here, for a second or two; nothing is left in the folder."""
    request.check()
    inputs, _ = gather(request.sources, lambda done, of: say("looking at files", done, of))
    run = request.run()
    say("making ready")
    job, machine = job_of(request, run, inputs, resolve(run, inputs[0].dtype, request.shard))
    say("measuring a worker")
    folder = request.out.absolute()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    worker = Worker(there, job, run)
    return Predicted(job, costs(worker, there), machine)
