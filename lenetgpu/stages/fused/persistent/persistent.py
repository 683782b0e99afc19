"""One image from host memory to its label without a launch, by a kernel that stays on the GPU.

The host writes an image to page-locked memory; each row of 28 pixels is followed by the image's
tag. The kernel waits for a new tag in every row, computes, and writes scores, label and tag to host
memory, which the host polls. After an idle period the kernel reports that it sleeps, and ends; the
host polls that flag too and launches the kernel again. So the kernel outlives its owner by at most
one idle period.
"""

import platform
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, get_ident
from typing import Any

from lenetgpu.arrays import Array, cupy, np
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import current_arch, require_gpu, usable
from lenetgpu.gpu.faults import lost, note_lost
from lenetgpu.gpu.graph import new_stream
from lenetgpu.gpu.launch import function, launch
from lenetgpu.gpu.nvrtc import Kernel
from lenetgpu.stages.fused.persistent import mailbox
from lenetgpu.stages.fused.persistent.mailbox import ANSWERED, ASLEEP, LABEL, SIDE, Mailbox, pack

_ARCH = "sm_90a"
_THREADS = 384
_LAST_TAG, _LAST_LIFE = 0xFFFFFFFE, 0xFFFFFFFF  # 0 means none
_SPINS = range(200)  # reads of the answer between two checks of the other words
_ROUNDS = 100  # such rounds before the host sleeps between them
_PAUSE_S = 0.001
_NON_PORTABLE_CLUSTER = 14  # CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_PENDING = 600  # cudaErrorNotReady
_FIRST = -1  # stream priority: blocks run before waiting blocks of default streams


@dataclass(frozen=True)
class Design:
    """Kernel design: the number of blocks that share the work, 8 or 16."""

    blocks: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block in bytes."""
        passes, seen = 16 // self.blocks, 10
        mail = 28 * 32 + seen * (32 + 4 * SIDE)
        maps = 32 * (6 * 12 + 4)
        sums = passes * 2 * 64 + self.blocks * 128
        filters = 128 // self.blocks * 28 + 4 * (passes * 4 * 25 * 32 if passes > 1 else 1)
        return -(-(mail + 4 * (maps + sums + filters) + 4 * 8) // 16) * 16

    @property
    def kernel(self) -> Kernel:
        """The kernel of this design."""
        sizes = {"BLOCKS": self.blocks, "THREADS": _THREADS, "WORK_REGISTERS": 192}
        sizes |= {"WATCH_REGISTERS": 120, "WATCHES": 1, "APART": 0}
        sizes |= {"SHARED_BYTES": self.shared_bytes} | mailbox.OFFSETS
        return Kernel.beside(__file__, "persistent", (_ARCH,), **sizes)


DESIGNS = (Design(16), Design(8))  # 8 blocks if 16 do not fit at once


class Cluster:
    """A kernel of `design` on the current GPU, its weights, its stream and the memory it polls."""

    def __init__(self, design: Design, weights: Array) -> None:
        require_gpu()
        if current_arch() != _ARCH:
            raise LenetError(
                "the persistent kernel: expected a GPU of compute capability 9.0, "
                f"found one for {current_arch()}"
            )
        runtime = cupy.cuda.runtime
        self._design, self._runtime, self._device = design, runtime, cupy.cuda.Device()
        self._stream = new_stream(priority=_FIRST)
        self._weights = cupy.asarray(weights)
        cupy.cuda.get_current_stream().synchronize()
        cupy.cuda.driver.funcSetAttribute(function(design.kernel).ptr, _NON_PORTABLE_CLUSTER, 1)
        flags = runtime.hostAllocMapped | runtime.hostAllocPortable
        self.address = runtime.hostAlloc(mailbox.BYTES, flags)
        self._seen = runtime.pointerGetAttributes(self.address).devicePointer

    def start(self, last: int, life: int, idle_ns: int) -> None:
        """Launch the kernel on its own stream; it answers images with tags after `last`."""
        with self._device, self._stream:
            self.queue(last, life, idle_ns)

    def queue(self, last: int, life: int, idle_ns: int, most: int = 0) -> None:
        """Launch the kernel on the current stream for at most `most` images (0: no limit)."""
        first = (np.uint64(self._seen), self._weights, np.uint32(last), np.uint32(life))
        arguments = (*first, np.uint64(idle_ns), np.uint32(most))
        design = self._design
        shared = design.shared_bytes
        launch(design.kernel, (design.blocks,), (_THREADS,), arguments, shared=shared)

    def over(self) -> bool:
        """Return True if no launch is pending or running; raise LenetError if the kernel failed."""
        status = self._runtime.streamQuery(self._stream.ptr)
        if note_lost(status):
            raise LenetError(lost())
        if status not in (0, _PENDING):
            raise LenetError(f"the persistent kernel: the GPU reports CUDA error {status}")
        return bool(status == 0)

    def close(self, timeout_s: float) -> None:
        """Free the polled host memory once the kernel ends; LenetError after `timeout_s`.

        Nothing is freed if the GPU is lost or belongs to another process.
        """
        if not usable():
            return
        for _ in range(max(1, int(timeout_s / _PAUSE_S))):
            if self.over():
                self._runtime.freeHost(self.address)
                return
            Event().wait(_PAUSE_S)
        raise LenetError(
            f"the persistent kernel: expected it to end within {timeout_s:g} s, found it running"
        )


def opened(
    weights: Weights, open_it: Callable[[Cluster], None], design: Design | None = None
) -> tuple[Design, tuple[float, int]]:
    """Return the first design that the GPU supports, and the scale of the scores.

    `open_it` sets up the caller and labels an image. Raises LenetError if no design works, the
    GPU is not of compute capability 9.0, or the host is not x86-64.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise LenetError(
            f"the persistent kernel: expected an x86-64 host, found {platform.machine()}"
        )
    packed, scale = pack(weights)
    refusal = ""
    for candidate in DESIGNS if design is None else (design,):
        try:
            open_it(Cluster(candidate, packed))
            return candidate, scale
        except RuntimeError as error:
            refusal = str(error)
    raise LenetError(f"the persistent kernel: the GPU cannot run it: {refusal}")


class Persistent:
    """Labels single images by a kernel that stays on the current GPU, in fp32.

    The kernel ends after `idle_ms` without an image; the next image then costs a launch. While
    it runs, calls that wait for the whole device (`cudaDeviceSynchronize`, `cudaFree`) wait for
    it. Threads may share the object; they take turns. Raises LenetError if there is no GPU of
    compute capability 9.0, if the host is not x86-64 (the protocol relies on its store order),
    and, here and in `label`, if no answer comes within `timeout_s`.
    """

    def __init__(
        self,
        weights: Weights,
        idle_ms: float = 2.0,
        timeout_s: float = 1.0,
        design: Design | None = None,
    ) -> None:
        if not 0.01 <= idle_ms <= 1000:
            raise LenetError(f"idle_ms: expected 0.01 to 1000, found {idle_ms:g}")
        self._turn, self._array, self._uint8 = Lock(), np.ndarray, np.dtype(np.uint8)
        self._idle_ns, self._timeout_s = int(idle_ms * 1e6), timeout_s
        self._tag, self._life, self._closed, self._caller = 0, 0, False, 0
        self.design, self._scale = opened(weights, self._open, design)

    def _open(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._end = weakref.finalize(self, cluster.close, self._timeout_s)
        self._box = Mailbox(cluster.address)
        self._rows, self._tags, self._words = self._box.pixels, self._box.tags, self._box.words
        self.label(np.zeros((SIDE, SIDE), np.uint8))

    def __enter__(self) -> "Persistent":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait until the kernel ends and free its memory; LenetError if it does not end."""
        with self._turn:
            self._closed = True
            self._end()

    def label(self, image: Any) -> int:
        """Return the label of `image` in host memory; for its form see `Mailbox.write`.

        Raises LenetError for any other image, after `close`, and if the GPU does not answer.
        """
        with self._turn:
            if self._closed:
                raise LenetError("the persistent kernel: expected an open one, found a closed one")
            self._caller = get_ident()
            plain = type(image) is self._array and image.dtype is self._uint8
            if plain and image.shape == (SIDE, SIDE):
                self._rows[...] = image
                kind = 0
            else:
                kind = self._box.write(image)
            words = self._words
            self._tag = tag = (self._tag | 1) + 1 + kind if self._tag < _LAST_TAG else 2 + kind
            self._tags.fill(tag)
            if words[ASLEEP] == self._life:
                self._start(tag)
            for _ in _SPINS:
                if words[ANSWERED] == tag:
                    return words[LABEL]
            return self._wait(tag)

    def _start(self, tag: int) -> None:
        life = self._life % _LAST_LIFE + 1
        self._cluster.start((tag & ~1) - 1, life, self._idle_ns)
        self._life = life

    def _wait(self, tag: int) -> int:
        """Return the label of image `tag`, which may have arrived as the kernel fell asleep."""
        words = self._words
        for turn in range(_ROUNDS + max(1, int(self._timeout_s / _PAUSE_S))):
            if words[ASLEEP] == self._life and words[ANSWERED] != tag:
                self._start(tag)
            elif turn >= _ROUNDS:
                self._cluster.over()
                Event().wait(_PAUSE_S)
            for _ in _SPINS:
                if words[ANSWERED] == tag:
                    return words[LABEL]
        raise LenetError(
            f"the persistent kernel: expected an answer within {self._timeout_s:g} s, found none"
        )

    def scores(self) -> Array:
        """Return the ten float32 scores of the image that this thread labelled last.

        Raises LenetError if a score exceeds float32's range or another thread labelled it.
        """
        with self._turn:
            tag, words = self._tag, self._words
            if self._closed or words[ANSWERED] != tag:
                raise LenetError("scores: expected a labelled image, found none; call label first")
            if self._caller != get_ident():
                raise LenetError("scores: expected this thread's image, found another thread's")
            sums = None
            for _ in range(_ROUNDS * len(_SPINS)):
                sums = self._box.sums(tag)
                if sums is not None:
                    break
        if sums is None:
            raise LenetError(f"scores: expected all ten of image {tag}, found some of another")
        return mailbox.scaled(sums, tag, self._scale)
