"""Signals that come while HDF5 is at work: each is heeded, none in its midst and none never."""

from __future__ import annotations

import os
import signal

import pytest

from lenetgpu.files.hdf5 import new as module
from lenetgpu.files.hdf5.new import later

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """What the handlers of these tests raise."""


def ended(number, _):
    raise Ended(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.signal(number, ended) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end_or_for_the_call(number):
    done = []
    with pytest.raises(Ended, match=number.name), later():
        send(number)
        done.append("block")
    with pytest.raises(Ended, match=number.name), later() as interrupt:
        send(number)
        done.append("to the call")
        interrupt()
        done.append("past it")
    assert done == ["block", "to the call"]
    assert [signal.getsignal(n) for n in SIGNALS] == [ended] * 3


@pytest.mark.parametrize("then", SIGNALS)
@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_none_is_swallowed_after_one_that_raises_between_two_handlers(
    monkeypatch, first, then, place
):
    """As handlers are given back: one of the restored raises, the others are still to be."""
    plain, restored = signal.signal, []

    def restoring(number, handler):
        plain(number, handler)
        if handler is ended:
            restored.append(number)
            if len(restored) == place + 1:
                send(first)

    with pytest.raises(Ended, match=first.name), later():
        monkeypatch.setattr(module.signal, "signal", restoring)
    monkeypatch.undo()
    assert len(restored) == place + 1
    with pytest.raises(Ended, match=then.name):
        send(then)


def test_one_that_came_before_does_not_keep_others_from_being_heeded():
    with pytest.raises(Ended, match="SIGINT"), later():
        send(signal.SIGINT)
        send(signal.SIGTERM)
    for number in SIGNALS:
        with pytest.raises(Ended, match=number.name):
            send(number)
