"""A request made ready: device, plan, weights. The one place that prepares and checks them."""

from __future__ import annotations

from lenetgpu.check.verify import verify_once
from lenetgpu.device import choose_device
from lenetgpu.errors import LenetError
from lenetgpu.files import assets
from lenetgpu.files.weights import load_weights
from lenetgpu.gpu import device as gpu_device
from lenetgpu.measure.choice import choose
from lenetgpu.measure.outcome import Request
from lenetgpu.measure.timing import Phases
from lenetgpu.pipeline import Pipeline, default_chunk
from lenetgpu.plan import AUTO, Plan, resolve
from lenetgpu.running.runners import CpuRunner, GpuRunner


class Engine:
    """What a request asks for, found and checked: `gpu` (None: the CPU), `plan`, `weights`.

    `why` says why that device; `phases` how long each part took. Nothing that needs a GPU or a
    compiler happens before `start`. Raises LenetError for a request, device, plan or weights that
    cannot be had.
    """

    def __init__(self, request: Request, phases: Phases | None = None) -> None:
        request.check()
        self.request = request
        self.phases = Phases() if phases is None else phases
        self.gpu, self.why = choose_device(request.device, request.plan)
        if request.streams > 1 and self.gpu is None:
            raise LenetError(
                f"--streams {request.streams}: expected a GPU, found device cpu ({self.why})"
            )
        self.plan = resolve(
            request.plan, self.device, request.overrides, request.precision, self.gpu
        )
        with self.phases.timed("load"):
            self.weights = load_weights(request.weights or assets.default_weights())
        self._awake = False
        self._checked: set[tuple[str, int]] = set()

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return "cpu" if self.gpu is None else "cuda"

    def start(self, dtype: str, batch: int) -> None:
        """Make passes of `batch` images of `dtype` ("uint8", "float32") possible.

        On a GPU: its context, plan `auto` chosen, kernels compiled, the plan checked. LenetError
        where memory does not suffice or the plan is wrong on this GPU.
        """
        if self.gpu is None:
            with self.phases.timed("import"):
                import numba  # noqa: F401
            return
        with self.phases.timed("import"):
            import cupy  # noqa: F401

            from lenetgpu.check.warmup import compile_plan
        self._wake(batch)
        _check_memory(batch, self.plan)
        size, chunk = self.sizes(batch)
        passes = {min(images, chunk or default_chunk("cuda")) for images in (size, batch)}
        passes -= {images for images in passes if (dtype, images) in self._checked}
        with self.phases.timed("compile"):
            for images in passes:
                compile_plan(self.plan, images)
        with self.phases.timed("verify"):
            for images in passes:
                verify_once(self.plan, self.gpu.name, dtype, images)
                self._checked.add((dtype, images))

    def _wake(self, batch: int) -> None:
        """Make the GPU current, and the first time let plan `auto` choose on it."""
        assert self.gpu is not None
        with self.phases.timed("context"):
            gpu_device.activate(self.gpu)
        if not self._awake and self.request.plan == AUTO and not self.request.overrides:
            with self.phases.timed("choose"):
                self.plan = choose(self.gpu, self.plan.precision, batch)
        self._awake = True

    def sizes(self, batch: int) -> tuple[int, int | None]:
        """Images of a lane's passes for `batch` images, and the chunk within such a pass."""
        streams, chunk = self.request.streams, self.request.chunk
        if streams == 1:
            return batch, chunk
        return min(batch, chunk or -(-batch // (2 * streams))), None

    def pipeline(
        self, dtype: str, size: int, chunk: int | None = None, scores: bool | None = None
    ) -> Pipeline:
        """For passes of up to `size` images; `scores` as here or, where None, as in the request."""
        request = self.request
        made = Pipeline(self.plan, self.weights, size, dtype, chunk, request.transfers)
        made.with_scores = request.scores if scores is None else scores
        return made

    def whole_pipeline(self, dtype: str, scores: bool | None = None) -> Pipeline:
        """For passes of the request's batch, on one stream."""
        return self.pipeline(dtype, self.request.batch, self.request.chunk, scores)

    def runner(self, dtype: str, batch: int, scores: bool | None = None) -> CpuRunner | GpuRunner:
        """What takes host images of `dtype` to labels in passes of `batch`; `start` comes first."""
        request = self.request
        if self.gpu is None:
            with self.phases.timed("compile"):
                return CpuRunner(self.pipeline(dtype, batch, request.chunk, scores))
        size, chunk = self.sizes(batch)
        with self.phases.timed("load"):
            return GpuRunner(
                lambda images: self.pipeline(dtype, images, chunk, scores),
                size, request.streams, self.gpu.index,
            )  # fmt: skip


def _check_memory(batch: int, plan: Plan) -> None:
    """LenetError where the largest activations of an unfused plan do not fit."""
    if any(slot.variant.raw_images for slot in plan.slots):
        return
    largest = max(
        slot.problem.in_shape[0] * slot.problem.in_shape[1] * slot.problem.in_shape[2]
        for slot in plan.slots
        if len(slot.problem.in_shape) == 3
    )
    needed, free = 2 * 4 * min(batch, default_chunk("cuda")) * largest, gpu_device.free_bytes()
    if needed > free:
        raise LenetError(
            f"--batch {batch}: expected at most {free * batch // needed} images for the GPU's "
            f"{free / 2**30:.1f} GiB of free memory, found {batch}; take a smaller --batch"
        )
