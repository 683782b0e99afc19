"""One image from host memory to its label by one recorded launch of the resident kernel."""

from __future__ import annotations

import weakref
from typing import Any

from lenetgpu.arrays import Array, np
from lenetgpu.cpu.turns import Left, in_turn
from lenetgpu.errors import LenetError
from lenetgpu.files.weights import Weights
from lenetgpu.gpu.device import usable
from lenetgpu.gpu.graph import Graph
from lenetgpu.stages.fused.resident.mailbox import ANSWERED, LABEL, SIDE, Mailbox, scaled
from lenetgpu.stages.fused.resident.resident import Cluster, Design, opened

_IDLE_NS = 1_000_000_000  # the image is there when it starts
_LAST_TAG = 0x7FFFFFFE  # a launch answers any tag from 1 on, as a signed number
_LOOKS = 1 << 13
_TIMEOUT_S = 1.0


class Once:
    """Labels single images on the current GPU in fp32, a launch an image; nothing stays behind.

    Raises LenetError where there is no GPU of compute capability 9.0 or the host is no x86-64,
    for a thread that comes while another is inside, and for scores of another thread's image.
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
        """The label of `image`: (28, 28) or (784,), uint8 or float32 in 0..1, in host memory.

        Raises LenetError for another image, and where no answer comes.
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
        """The ten scores of the image that was labelled last, float32.

        Raises LenetError where they are beyond float32's range.
        """
        with self._turn.last():
            self._graph.stream.synchronize()
            sums, tag = self._box.sums(self._tag), self._tag
        if sums is None:
            raise LenetError("scores: expected a label before, found none")
        return scaled(sums, tag, self._scale)


def _close(launched: list[Graph], cluster: Cluster) -> None:
    if usable():
        for graph in launched:
            graph.stream.synchronize()
    cluster.close(_TIMEOUT_S)
