"""The engine: prepares and checks a request's device, plan and weights."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial

from lenetgpu.check.fit import fit
from lenetgpu.cpu.threads import cpu_name
from lenetgpu.cpu.turns import PREPARING, Turn, in_turn
from lenetgpu.dispatch.auto import choose
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import lacks_memory, release, within_memory
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import Phases
from lenetgpu.net.runners import CpuRunner, GpuRunner, InputSchedule
from lenetgpu.network import FEATURES
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, choose_device, resolve


class Engine:
    """Resolved and checked request: `gpu` (None: the CPU) and its `index`, `plan`, `weights`.

    `why`: reason for the device; `phases`: time of each part; `notes`: sentences about anything
    the user would not expect. Nothing before `start` needs a GPU or a compiler. Raises LenetError
    if the request, device, plan or weights are not available. Threads take turns.
    """

    def __init__(self, request: Request, phases: Phases | None = None) -> None:
        request.check()
        self.request = request
        self.phases = Phases() if phases is None else phases
        self.notes: list[str] = []
        self.gpu, self.why = choose_device(request.device, request.plan)
        self.index = None if self.gpu is None else self.gpu.index
        self._require_device()
        self.plan = resolve(
            request.plan, self.device, request.overrides, request.precision, self.gpu
        )
        with self.phases.timed("load"):
            self.weights = load_weights(request.weights or assets.default_weights())
        self._turn = PREPARING if self.gpu is None else threading.RLock()
        self._schedules: dict[str, InputSchedule] = {}
        self._resolved = False
        self._checked: set[tuple[str, int]] = set()

    def _require_device(self) -> None:
        """Raise LenetError if an option belongs to another device."""
        streams, threads = self.request.streams, self.request.threads
        if (streams or 1) > 1 and self.gpu is None:
            raise LenetError(f"--streams {streams}: expected a GPU, found device cpu ({self.why})")
        if threads is not None and self.gpu is not None:
            raise LenetError(
                f"--threads {threads}: expected device cpu, found {self.gpu.name} ({self.why})"
            )

    @property
    def device(self) -> str:
        """The kind of device: "cpu" or "cuda"."""
        return "cpu" if self.gpu is None else "cuda"

    @property
    def _name(self) -> str:
        return cpu_name() if self.gpu is None else self.gpu.name

    def schedule(self, dtype: str) -> InputSchedule:
        """Return the input schedule that the last `start` for `dtype` chose."""
        return self._schedules.get(dtype, InputSchedule(1, self.request.chunk))

    @in_turn
    def start(self, dtype: str, images: int) -> None:
        """Prepare runs of `images` images of `dtype` ("uint8", "float32").

        Initialises the device, chooses plan `auto` for these weights, streams and chunks, compiles
        the kernels, and compares the plan with float64. Raises LenetError if memory is short or the
        plan does not fit the weights or this device.
        """
        with self.phases.timed("import"):
            if self.gpu is not None:
                import cupy  # noqa: F401
        batch = self.request.images_a_pass(images)
        if self.gpu is not None:
            with self.phases.timed("context"):
                gpu_device.activate(self.gpu)
        if not self._resolved and self.request.plan == AUTO and not self.request.overrides:
            with self.phases.timed("choose"):
                self.plan = choose(
                    self.gpu, self.plan.precision, batch, self.weights, dtype, self.notes
                )
        self._resolved = True
        if self.gpu is None:
            self.check(dtype, batch)
            return
        with self.phases.timed("schedule"):
            schedule = self._scheduled(self.gpu, dtype, images)
        self._schedules[dtype] = replace(schedule, chunk=self.check(dtype, schedule.chunk or batch))

    def _scheduled(self, gpu: Gpu, dtype: str, images: int) -> InputSchedule:
        """Return streams and chunk size: as requested, or by the cost model of this machine."""
        request = self.request
        if request.transfers == "host":
            streams = request.streams or 1
            chunk = request.chunk or request.images_a_pass(-(-images // streams))
            return InputSchedule(streams, chunk)
        if request.streams is not None and request.chunk is not None and not request.timing:
            return InputSchedule(request.streams, request.chunk)
        return self._by_model(gpu, dtype, images)

    def _by_model(self, gpu: Gpu, dtype: str, images: int) -> InputSchedule:
        from lenetgpu.net.streaming import best_schedule, costs_of

        request = self.request
        try:
            costs = costs_of(self.plan, self.weights, gpu, dtype)
        except Exception as error:  # too little memory to measure the model's costs
            if not lacks_memory(error):
                raise
            costs = None
        if costs is None:
            release()
            size = request.images_a_pass(request.chunk or images)
            return InputSchedule(request.streams or 1, size)
        most = request.batch or images
        chunk = None if request.chunk is None else min(request.chunk, most)
        found = best_schedule(images, costs, request.streams, chunk, most)
        model = {"predicted": found.predicted_ms, "bare_copy": costs.bare_copy_ms(images)}
        return InputSchedule(found.streams, found.chunk, found.taper, found.zero_copy, model)

    @in_turn
    def check(self, dtype: str, batch: int) -> int:
        """Compile the plan for passes of `batch` images of `dtype` and compare it with float64.

        If memory is short, halve the number until it fits; return the number. Raises LenetError if
        the plan does not fit the weights or is wrong on this GPU.
        """
        fused = self.plan.stages[0].variant.kind == FEATURES
        size = min(batch, default_chunk(self.device, fused))
        _, held = within_memory(partial(self._hold, dtype), size, f"plan {self.plan.name}")
        return batch if held == size else held

    def _hold(self, dtype: str, size: int) -> None:
        """Compile the plan for passes of `size` images and compare it with float64, once."""
        if (dtype, size) in self._checked:
            return
        if self.gpu is not None:
            from lenetgpu.check.warmup import compile_plan

            with self.phases.timed("compile"):
                compile_plan(self.plan, size)
        with self.phases.timed("verify"):
            fit(self.plan, self.weights, self._name, dtype, size)
        self._checked.add((dtype, size))

    def pipeline(
        self, dtype: str, size: int, chunk: int | None = None, scores: bool | None = None
    ) -> Pipeline:
        """Create a pipeline for up to `size` images; `scores` None: as in the request.

        Several threads may run it, one after the other; its owner serialises them.
        """
        request = self.request
        made = Pipeline(self.plan, self.weights, size, dtype, chunk, request.transfers)
        made.with_scores = request.scores if scores is None else scores
        made.turn = Turn(f"plan {self.plan.name}")
        return made

    def whole_pipeline(self, dtype: str, images: int, scores: bool | None = None) -> Pipeline:
        """Create and check a pipeline for whole batches on one stream."""
        batch = self.request.images_a_pass(images)
        chunk = self.request.chunk
        asked = min(batch, chunk or batch)
        held = self.check(dtype, asked)

        def make(size: int) -> Pipeline:
            return self.pipeline(dtype, batch, chunk if size == asked else size, scores)

        return within_memory(make, held, f"plan {self.plan.name}")[0]

    @in_turn
    def runner(
        self, dtype: str, images: int, scores: bool | None = None, one: bool = False
    ) -> CpuRunner | GpuRunner:
        """Create a runner for host images of `dtype`; call `start` for `images` first.

        `one`: prepare a low-latency path for single images.
        """
        if self.gpu is None:
            with self.phases.timed("compile"):
                return CpuRunner(
                    self.pipeline(
                        dtype, self.request.images_a_pass(images), self.request.chunk, scores
                    )
                )
        from lenetgpu.net.single import one_image

        if one:
            self.check(dtype, 1)
        schedule = self.schedule(dtype)
        schedule = replace(schedule, chunk=schedule.chunk or self.request.images_a_pass(images))

        def make(size: int) -> Pipeline:
            return self.pipeline(dtype, size, None, scores)

        auto = self.request.plan == AUTO
        single = partial(one_image, self.plan, self.weights, dtype, auto, make) if one else None
        with self.phases.timed("load"):
            return GpuRunner(make, schedule, self.gpu.index, single)
