"""Host and kernel lose no image while the kernel falls asleep, in every interleaving.

The package's host side runs against a model of the kernel, which advances up to three steps between
any two reads of the shared words by the host. All interleavings are tried, up to a depth.
"""

from threading import Event

import numpy as np
import pytest

from lenetgpu.errors import LenetError
from lenetgpu.stages.fused.persistent import persistent
from lenetgpu.stages.fused.persistent.mailbox import ANSWERED, ASLEEP, LABEL
from lenetgpu.stages.fused.persistent.persistent import Persistent

BLANK = np.zeros((28, 28), np.uint8)
IMAGES, LOOKS = 3, 300


class HangError(AssertionError):
    """The host waits for an answer that no kernel will give."""


class Choices:
    """Enumeration of choices: `skip` usual ones, `depth` with every option, then usual ones.

    `advance` moves to the next combination and returns False after the last."""

    def __init__(self, depth, skip=0):
        self.depth, self.skip, self.way, self.options, self.at = depth, skip, [], [], -skip

    def choose(self, options, usual):
        self.at += 1
        if not 0 < self.at <= self.depth:
            return usual
        if self.at > len(self.way):
            self.way.append(0)
            self.options.append(options)
        return self.way[self.at - 1]

    def advance(self):
        self.at = -self.skip
        while self.way and self.way[-1] + 1 == self.options[-1]:
            self.way.pop()
            self.options.pop()
        if self.way:
            self.way[-1] += 1
        return bool(self.way)


class Life:
    def __init__(self, last, number):
        self.last, self.number, self.doing = last, number, "watch"


class World:
    """Shared words and kernel: `persistent.Cluster` and `persistent.Mailbox` in one."""

    def __init__(self, choices, interrupt=None):
        self.choices, self.interrupt = choices, interrupt
        self.tag = self.looks = 0
        self.said = {ANSWERED: 0, LABEL: 0, ASLEEP: 0}
        self.lives, self.started, self.answers = [], 0, []
        self.pixels, self.tags, self.words = BLANK.copy(), self, self
        self.address = 0

    def move(self):
        if not self.lives:
            return
        life = self.lives[0]
        if life.doing == "end":
            self.said[ASLEEP] = life.number
            self.lives.pop(0)
        elif life.doing == "answer":
            self.said[ANSWERED], self.said[LABEL] = life.last, life.last % 10
            self.answers.append(life.last)
            life.doing = "watch"
        elif self.tag > life.last:
            life.last, life.doing = self.tag, "answer"
        elif self.choices.choose(2, 0):
            life.doing = "end"

    def breathe(self):
        self.looks += 1
        if self.looks == self.interrupt:
            raise KeyboardInterrupt
        if self.looks > LOOKS:
            raise HangError
        for _ in range(self.choices.choose(4, 1)):
            self.move()

    def __getitem__(self, word):
        if word != LABEL:  # LABEL is next to ANSWERED
            self.breathe()
        return self.said[word]

    def fill(self, tag):
        self.breathe()
        self.tag = tag

    def start(self, last, life, idle_ns):
        self.breathe()
        assert self.tag not in self.answers, "launched for an image that is answered"
        self.lives.append(Life(last, life))
        self.started += 1
        self.breathe()

    def over(self):
        return not self.lives

    def close(self, timeout_s):
        pass


@pytest.fixture
def net(monkeypatch):
    """Return a factory of a Persistent in a world; the constructor labels a first image."""
    monkeypatch.setattr(persistent, "_SPINS", range(1))
    monkeypatch.setattr(persistent, "_ROUNDS", LOOKS)
    monkeypatch.setattr(persistent, "pack", lambda weights: (None, (1.0, 0)))

    def make(world, **options):
        monkeypatch.setattr(persistent, "Cluster", lambda design, weights: world)
        monkeypatch.setattr(persistent, "Mailbox", lambda address: world)
        return Persistent(None, **options)

    return make


def test_every_interleaving_answers_each_image_once(net):
    ways, launches = 0, set()
    for skip in range(0, 24, 2):
        choices = Choices(7, skip)
        while True:
            world = World(choices)
            made = net(world)
            for _ in range(IMAGES):
                assert made.label(BLANK) == made._tag % 10
            assert world.answers == [2 * (n + 1) for n in range(IMAGES + 1)]
            launches.add(world.started)
            ways += 1
            if not choices.advance():
                break
    assert ways > 10_000
    assert launches >= {1, 2, 3}


def test_next_image_is_answered_after_any_interruption(net):
    interrupted = 0
    for when in range(1, 40):
        choices = Choices(5, when // 2)
        while True:
            world = World(choices)
            made = net(world)
            world.interrupt = world.looks + when
            try:
                made.label(BLANK)
            except KeyboardInterrupt:
                interrupted += 1
            world.interrupt = None
            for _ in range(2):
                assert made.label(BLANK) == made._tag % 10
            if not choices.advance():
                break
    assert interrupted > 500


def test_silent_kernel_times_out(net, monkeypatch):
    monkeypatch.setattr(persistent, "_ROUNDS", 2)
    waited = []
    monkeypatch.setattr(Event, "wait", lambda self, seconds: waited.append(seconds))
    world = World(Choices(0))
    made = net(world, timeout_s=0.05)
    monkeypatch.setattr(world, "move", lambda: None)
    with pytest.raises(LenetError, match=r"expected an answer within 0\.05 s, found none"):
        made.label(BLANK)
    assert sum(waited) == pytest.approx(0.05, rel=0.1)


def test_tags_and_launch_numbers_wrap_around(net, monkeypatch):
    world = World(Choices(0))
    made = net(world)
    for tag, then in ((2, 4), (5, 6), (0xFFFFFFFC, 0xFFFFFFFE), (0xFFFFFFFE, 2), (0xFFFFFFFF, 2)):
        made._tag, world.tag = tag, 0
        world.lives = [Life(0, made._life)]
        made.label(BLANK)
        assert made._tag == then
    started = []
    monkeypatch.setattr(world, "start", lambda last, life, _: started.append((last, life)))
    made._life = 0xFFFFFFFF
    made._start(7)
    made._start(8)
    assert started == [(5, 1), (7, 2)]
