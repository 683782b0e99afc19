"""What a job would take on more workers than there are: `lenetgpu classify --predict`."""

from __future__ import annotations

from lenetgpu.commands.classify import ClassifyRequest, job_of
from lenetgpu.shards.costs import costs
from lenetgpu.shards.crew import resolve
from lenetgpu.shards.inputs import gather
from lenetgpu.shards.outcome import Predicted
from lenetgpu.shards.worker import Worker
from lenetgpu.show.progress import Say


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
