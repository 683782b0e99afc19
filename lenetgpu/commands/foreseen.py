"""What a job would take on more workers than there are: `lenetgpu classify --predict`."""

from __future__ import annotations

from lenetgpu.commands.classify import ClassifyRequest, job_of
from lenetgpu.shards.crew import crew
from lenetgpu.shards.inputs import gather
from lenetgpu.shards.outcome import Predicted
from lenetgpu.show.progress import Say


def foresee(request: ClassifyRequest, say: Say) -> Predicted:
    """Measure what one worker costs here, for a second or two; nothing is left in the folder."""
    request.check()
    inputs, _ = gather(request.sources, lambda done, of: say("looking at files", done, of))
    run = request.run()
    folder = request.out.absolute()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    with crew(run, request.workers, request.scheduler, request.tries) as found:
        say("making ready")
        resolved = found.resolve(inputs[0].dtype, request.shard)
        job, machine = job_of(request, run, inputs, resolved)
        say("measuring a worker")
        return Predicted(job, found.costs(there, job), machine)
