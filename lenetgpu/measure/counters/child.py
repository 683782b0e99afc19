"""Process run under Nsight Compute: each work runs once to warm up and once to be counted.

`python -m lenetgpu.measure.counters.child FOLDER` reads FOLDER/work.json and writes
FOLDER/sections.json: for each section the work, the stage, the variant and our own kernels that it
launched, after a mark. Only counted runs lie between the profiler's start and stop.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lenetgpu.arrays import cupy
from lenetgpu.check.reference import reference_stages
from lenetgpu.errors import LenetError, unexpected
from lenetgpu.files.source import open_source
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu.device import activate, current_arch, driver, require_gpu
from lenetgpu.gpu.launch import Launch, launch, record
from lenetgpu.gpu.nvrtc import Kernel, compile_together
from lenetgpu.measure.bench import input_of, stage_of
from lenetgpu.measure.rounds import BREAKS, why
from lenetgpu.network import STAGE_NAMES
from lenetgpu.pipeline import Pipeline, Step
from lenetgpu.plan import BoundStage, Plan
from lenetgpu.stages import variants
from lenetgpu.stages.prepared import PreparedKernel

WORK, SECTIONS = "work.json", "sections.json"
# Empty kernel that marks the start of a section in the profile: its blocks are the section's
# number, from 1.
MARK = Kernel(Path(__file__).with_suffix(".cu").resolve(), "section_begins")
_FEW = 100


@dataclass(frozen=True)
class StageSpec:
    """A variant on a stage (or a span, written with +), in its layouts."""

    stage: str
    variant: str
    reads: str
    writes: str
    device: str = "cuda"

    @classmethod
    def of(cls, bound: BoundStage) -> "StageSpec":
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
        expected = f"a variant of {self.device}"
        raise unexpected(f"counters, {unit.kind}", expected, repr(self.variant))


@dataclass(frozen=True)
class Work:
    """Stages whose kernels are counted: each alone on its own activations, or chained as a plan."""

    name: str
    specs: tuple[StageSpec, ...]
    chained: bool = False
    device: str = "cuda"

    @classmethod
    def of(cls, plan: Plan) -> "Work":
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


def mark(section: int) -> None:
    """Mark the following launches as those of `section`, numbered from 0."""
    launch(MARK, (section + 1,), (1,), ())


@contextmanager
def _profiled() -> Iterator[list[Launch]]:
    """Profile the block until its launches end, and record our own launches."""
    cupy.cuda.runtime.deviceSynchronize()
    if driver().cuProfilerStart() != 0:
        raise LenetError("counters: expected the profiler to start, found that it does not")
    try:
        with record() as launched:
            yield launched
        cupy.cuda.runtime.deviceSynchronize()
    finally:
        driver().cuProfilerStop()


def _entries(launched: list[Launch]) -> list[str]:
    return [launch.kernel.entry for launch in launched if launch.kernel != MARK]


class _Child:
    def __init__(self, images: Images) -> None:
        self.sections: list[dict[str, Any]] = []
        self._asked = images
        self._weights: Weights = load_weights(images.weights)
        with open_source(images.data, images.skip) as source:
            few = min(len(source), images.count)
        with open_source(images.data, images.skip, few) as source:
            self._images = source.whole().images
        self._stages: dict[str, Any] = {}

    def run(self, index: int, work: Work) -> None:
        """Run `work` and add its sections; a work that fails becomes one section with the error."""
        if work.chained:
            self._guarded(self._plan, index, work, work.name, "")
            return
        for spec in work.specs:
            self._guarded(self._alone, index, spec, spec.stage, spec.variant)

    def _guarded(self, run: Any, index: int, work: Any, name: str, variant: str) -> None:
        before = len(self.sections)
        try:
            run(index, work)
        except BREAKS as error:
            if len(self.sections) == before:
                self._add(index, name, variant)
            for section in self.sections[before:]:  # their marks are in the profile
                section["error"] = why(error)

    def _add(self, index: int, name: str, variant: str) -> dict[str, Any]:
        head = {"work": index, "name": name, "variant": variant}
        self.sections.append(head | {"launched": [], "error": None})
        return self.sections[-1]

    def _alone(self, index: int, spec: StageSpec) -> None:
        bound, n = spec.bound(), self._asked.count
        tensors = [self._weights[name] for name in bound.weights]
        prepared = PreparedKernel(bound.variant, bound.problem, tensors, n)
        few = prepared.input(self._activations(bound.stages[0], bound.problem))
        x = cupy.concatenate([few] * -(-n // len(few)))[:n]
        y = prepared.output(n)
        prepared.run(x, y)
        section = self._add(index, spec.stage, spec.variant)
        with _profiled() as launched:
            mark(len(self.sections) - 1)
            prepared.run(x, y)
        section["launched"] = _entries(launched)

    def _activations(self, stage: str, problem: Any) -> Any:
        """Return the input of `stage` for the first images, from the float64 chain."""
        few = self._images[:_FEW]
        if not self._stages and stage != STAGE_NAMES[0]:
            self._stages = reference_stages(few, self._weights)
        return input_of(stage, few, self._stages, problem)

    def _plan(self, index: int, work: Work) -> None:
        asked, n = self._asked, self._asked.count
        few = cupy.asarray(self._images)
        images = cupy.concatenate([few] * -(-n // len(few)))[:n]
        plan, dtype = work.plan(), str(images.dtype)
        pipeline = Pipeline(plan, self._weights, n, dtype, asked.chunk, asked.transfers)
        pipeline.run(images)
        first, steps = len(self.sections), pipeline.steps
        sections = [self._add(index, step.name, step.label) for step in steps]
        done = seen = 0

        def step_ends(step: Step, output: Any) -> None:
            nonlocal done, seen
            sections[done % len(steps)]["launched"] += _entries(launched[seen:])
            done += 1
            mark(first + done % len(steps))
            seen = len(launched)

        with _profiled() as launched:
            mark(first)
            pipeline.run(images, step_ends)


def main(folder: Path) -> None:
    """Run the works listed in FOLDER/work.json."""
    works, images, device = from_json(json.loads((folder / WORK).read_text()))
    activate(require_gpu(device))
    kernels = [MARK]
    for bound in (spec.bound() for work in works for spec in work.specs):
        if bound.variant.kernels is not None:
            kernels += bound.variant.kernels(bound.problem, images.count)
    compile_together(kernels, current_arch())
    child = _Child(images)
    for index, work in enumerate(works):
        child.run(index, work)
        cupy.get_default_memory_pool().free_all_blocks()
    (folder / SECTIONS).write_text(json.dumps(child.sections))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
