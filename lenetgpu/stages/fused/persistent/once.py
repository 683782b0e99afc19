"""One image from host memory to its label by one graph launch of the persistent kernel."""

import weakref
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.cpu.turns import Left, in_turn
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import usable
from lenetgpu.gpu.graph import Graph
from lenetgpu.stages.fused.persistent.mailbox import ANSWERED, LABEL, SIDE, Mailbox, scaled
from lenetgpu.stages.fused.persistent.persistent import Cluster, Design, opened

_IDLE_NS = 1_000_000_000  # ns; never reached, because the image is written before the launch
_LAST_TAG = 0x7FFFFFFE  # a launch answers any tag that is positive as int32
_LOOKS = 1 << 13
_TIMEOUT_S = 1.0


class Once:
    """Labels single images on the current GPU in fp32, one launch per image.

    No kernel stays on the GPU. Raises LenetError if there is no GPU of compute capability 9.0
    or the host is not x86-64, if two threads call it at once, and if a thread asks for the
    scores of another thread's image.
    """

    def __init__(self, weights: Weights, design: Design | None = None) -> None:
        self._tag, self._turn = 0, Left("one image")
        self.design, self._scale = opened(weights, self._open, design)

    def _open(self, cluster: Cluster) -> None:
        launched: list[Graph] = []
        self._end = weakref.finalize(self, _close, launched, cluster)
        self._box = Mailbox(cluster.address)
        self._words = self._box.words
        self._graph = Graph(lambda: cluster.queue(0, 1, _IDLE_NS, most=1), 1)
        launched.append(self._graph)
        self.label(np.zeros((SIDE, SIDE), np.uint8))

    @in_turn
    def label(self, image: Any) -> int:
        """Return the label of `image` in host memory; for its form see `Mailbox.write`.

        Raises LenetError for any other image, and if the GPU does not answer.
        """
        kind = self._box.write(image)
        self._tag = tag = (self._tag | 1) + 1 + kind if self._tag < _LAST_TAG else 2 + kind
        self._box.tags.fill(tag)
        self._graph.launch_alone()
        words, looks = self._words, _LOOKS
        while looks and words[ANSWERED] != tag:
            looks -= 1
        if not looks:
            self._graph.stream.synchronize()
        if words[ANSWERED] != tag:
            raise LenetError("one image: expected a label from the GPU, found none")
        return words[LABEL]

    def scores(self) -> Array:
        """Return the ten float32 scores of the image that was labelled last.

        Raises LenetError if a score exceeds float32's range.
        """
        with self._turn.last():
            self._graph.stream.synchronize()
            sums, tag = self._box.sums(self._tag), self._tag
        if sums is None:
            raise LenetError("scores: expected a labelled image, found none; call label first")
        return scaled(sums, tag, self._scale)


def _close(launched: list[Graph], cluster: Cluster) -> None:
    if usable():
        for graph in launched:
            graph.stream.synchronize()
    cluster.close(_TIMEOUT_S)
