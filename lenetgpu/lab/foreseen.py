"""What a job would take on more workers than there are: `lenetgpu classify --predict`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from lenetgpu.jobs.costs import Predicted
from lenetgpu.jobs.crew import crew
from lenetgpu.jobs.pictures import keep
from lenetgpu.lab.classify import ClassifyRequest, job_of, look
from lenetgpu.lab.console import Say


def foresee(request: ClassifyRequest, say: Say) -> Predicted:
    """Measure what one worker costs here, for a second or two; nothing is left in the folder."""
    request.check()
    read = look(request, say)
    run = request.run()
    folder = request.out.absolute()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    with crew(run, request.workers, request.scheduler, request.tries) as found:
        say("making ready")
        job, machine = job_of(request, run, read, found)
        say("measuring a worker")
        with TemporaryDirectory(prefix=".lenetgpu-", dir=there) as place:
            keep(Path(place), read.listed)
            return Predicted(job, found.costs(Path(place), job), machine)
