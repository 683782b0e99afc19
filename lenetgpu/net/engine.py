"""The engine: prepares and checks a request's device, plan and weights."""

import threading
from dataclasses import replace
from functools import partial

from lenetgpu.check.fit import fit
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.cpu.turns import PREPARING, Turn, in_turn
from lenetgpu.dispatch.auto import choose
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.weights import Weights, load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import lacks_memory, release, within_memory
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import Phases, clock
from lenetgpu.net.runners import CpuRunner, GpuRunner
from lenetgpu.net.streaming.schedule import Schedule, best_schedule
from lenetgpu.network import FEATURES
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, choose_device, resolve


class Engine:
    """Resolved and checked request: `gpu` (None: the CPU) and its `index`, `plan`, `weights`.

    `why`: reason for the device; `phases`: time of each part; `notes`: sentences about anything
    the user would not expect. An argument `weights` replaces the request's file. Nothing before
    `start` needs a GPU or a compiler. Raises LenetError if the request, device, plan or weights are
    not available. Threads take turns.
    """

    def __init__(
        self, request: Request, phases: Phases | None = None, weights: Weights | None = None
    ) -> None:
        request.check()
        self.request = request
        self.phases = Phases() if phases is None else phases
        self.notes: list[str] = []
        start = clock()
        self.gpu, self.why = choose_device(request.device, request.plan)
        if self.gpu is not None:  # the time until the driver has started
            self.phases["context"] = (clock() - start) * 1e3
        self.index = None if self.gpu is None else self.gpu.index
        streams, threads, overrides = request.streams, request.threads, request.overrides
        if (streams or 1) > 1 and self.gpu is None:
            raise LenetError(f"--streams {streams}: expected a GPU, found device cpu ({self.why})")
        if threads is not None and self.gpu is not None:
            found = f"{self.gpu.name} ({self.why})"
            raise LenetError(f"--threads {threads}: expected device cpu, found {found}")
        self.plan = resolve(request.plan, self.device, overrides, request.precision, self.gpu)
        with self.phases.timed("load"):
            self.weights = weights or load_weights(request.weights or assets.default_weights())
        self._turn = PREPARING if self.gpu is None else threading.RLock()
        self._schedules: dict[str, Schedule] = {}
        self._resolved = False
        self._checked: set[tuple[str, int]] = set()

    @property
    def device(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return "cpu" if self.gpu is None else "cuda"

    def schedule(self, dtype: str) -> Schedule:
        """Return the schedule of images of `dtype` that `start` chose; one stream on a CPU."""
        return self._schedules[dtype]

    @in_turn
    def start(self, dtype: str, images: int) -> None:
        """Prepare runs of `images` images of `dtype` ("uint8", "float32").

        Initialises the device, chooses plan `auto`, streams and chunks, compiles the kernels, and
        compares the plan with float64. Raises LenetError if memory is short or the plan is wrong.
        """
        batch = self.request.images_a_pass(images)
        if self.gpu is not None:
            with self.phases.timed("import"):
                gpu_device.import_cupy()
            with self.phases.timed("context"):
                gpu_device.activate(self.gpu)
        if not self._resolved and self.request.plan == AUTO and not self.request.overrides:
            with self.phases.timed("choose"):
                self.plan = choose(
                    self.gpu, self.plan.precision, batch, self.weights, dtype, self.notes
                )
        self._resolved = True
        schedule = Schedule(1, batch)
        if self.gpu is not None:
            with self.phases.timed("schedule"):
                schedule = self._scheduled(self.gpu, dtype, images)
        self._schedules[dtype] = replace(schedule, chunk=self.check(dtype, schedule.chunk))

    def _scheduled(self, gpu: Gpu, dtype: str, images: int) -> Schedule:
        """Return streams and chunk size: as requested, or by the cost model of this machine."""
        from lenetgpu.net.streaming.costs import costs_of

        request, streams = self.request, self.request.streams or 1
        if request.transfers == "host":
            share = -(-images // streams)
            return Schedule(streams, request.chunk or request.images_a_pass(share))
        if request.streams is not None and request.chunk is not None and not request.timing:
            return Schedule(streams, request.chunk)
        try:
            costs = costs_of(self.plan, self.weights, gpu, dtype)
        except Exception as error:  # too little memory to measure the model's costs
            if not lacks_memory(error):
                raise
            costs = None
        if costs is None:
            release()  # outside the except block, whose traceback holds memory
            return Schedule(streams, request.images_a_pass(request.chunk or images))
        most = request.batch or images
        chunk = None if request.chunk is None else min(request.chunk, most)
        return best_schedule(images, costs, request.streams, chunk, most)

    @in_turn
    def check(self, dtype: str, batch: int) -> int:
        """Compile the plan for passes of `batch` images of `dtype` and compare it with float64.

        Return the batch size, halved until it fits in memory. Raises LenetError if the plan is
        wrong, or breaks the promise of the precision that was requested.
        """
        fused = self.plan.stages[0].variant.kind == FEATURES
        size = min(batch, default_chunk(self.device, fused))
        promised = self.request.precision and self.plan.precision

        def compare(size: int) -> None:
            if (dtype, size) in self._checked:
                return
            if self.gpu is not None:
                from lenetgpu.check.warmup import compile_plan

                with self.phases.timed("compile"):
                    compile_plan(self.plan, size)
            with self.phases.timed("verify"):
                name = cpu_name() if self.gpu is None else self.gpu.name
                fit(self.plan, self.weights, name, dtype, size, promised)
            self._checked.add((dtype, size))

        _, fitting = within_memory(compare, size, f"plan {self.plan.name}")
        return batch if fitting == size else fitting

    def pipeline(
        self, dtype: str, size: int, chunk: int | None = None, scores: bool | None = None
    ) -> Pipeline:
        """Create a pipeline for up to `size` images, whose owner serialises its threads."""
        request = self.request
        pipeline = Pipeline(self.plan, self.weights, size, dtype, chunk, request.transfers)
        pipeline.with_scores = request.scores if scores is None else scores
        pipeline.turn = Turn(f"plan {self.plan.name}")
        return pipeline

    def whole_pipeline(self, dtype: str, images: int, scores: bool | None = None) -> Pipeline:
        """Create and check a pipeline for whole batches on one stream."""
        batch = self.request.images_a_pass(images)
        chunk = self.request.chunk
        requested = min(batch, chunk or batch)
        fitting = self.check(dtype, requested)

        def make(size: int) -> Pipeline:
            return self.pipeline(dtype, batch, chunk if size == requested else size, scores)

        return within_memory(make, fitting, f"plan {self.plan.name}")[0]

    @in_turn
    def runner(
        self, dtype: str, images: int, scores: bool | None = None, one: bool = False
    ) -> CpuRunner | GpuRunner:
        """Create a runner for host images after `start`; `one`: for callers' arrays.

        Such a runner has a path for single images; GPU floats outside 0..1 get label -1.
        """
        if self.gpu is None:
            with self.phases.timed("compile"):
                batch = self.request.images_a_pass(images)
                return CpuRunner(self.pipeline(dtype, batch, self.request.chunk, scores))
        from lenetgpu.net.outside import mark_outside
        from lenetgpu.net.single import one_image

        if one:
            self.check(dtype, 1)

        def make(size: int) -> Pipeline:
            return self.pipeline(dtype, size, None, scores)

        auto = self.request.plan == AUTO
        single = partial(one_image, self.plan, self.weights, dtype, auto, make) if one else None
        after = mark_outside if one and dtype != "uint8" and self.plan.all_on_gpu else None
        with self.phases.timed("load"):
            return GpuRunner(make, self.schedule(dtype), self.gpu.index, single, after)
