"""Children forked while their parent computes: they work, or fail at once with a reason."""

import os
import sys
import textwrap

import pytest
from terminal import python

from lenetgpu import LenetError
from lenetgpu.gpu import device

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
FORKS, LIMIT_S = 20, 120


def ran(program):
    """Run COMMON and `program` in a process of its own with this tree; return its output."""
    done = python("-c", textwrap.dedent(COMMON + program), limit=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


COMMON = """
    import os, signal, threading, time
    import numpy as np
    from lenetgpu import LeNet, LenetError

    images = np.random.default_rng(0).integers(0, 256, (300, 28, 28), dtype=np.uint8)

    def ended(pid):
        "The child's exit code; killed, and None, where it has not ended after 20 seconds."
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def child(work):
        pid = os.fork()
        if not pid:
            try:
                os._exit(0 if work() else 3)
            except BaseException as error:
                print(repr(error), flush=True)
            os._exit(4)
        return pid
"""


def test_child_forked_during_a_call_has_a_working_net():
    out, _ = ran(f"""
    net = LeNet.load(device="cpu", batch=128)
    expected, running = net(images), True

    def call():
        while running:
            assert (net(images) == expected).all()

    thread = threading.Thread(target=call)
    thread.start()
    works = lambda: (net(images) == expected).all() and net(images[7]) == expected[7]
    codes = []
    for at in range({FORKS}):
        time.sleep(0.001 * at)
        codes.append(ended(child(works)))
    running = False
    thread.join()
    making = threading.Thread(target=net._making.acquire)  # as during a first call
    making.start()
    making.join()
    codes.append(ended(child(works)))
    net._making.release()
    assert (net(images) == expected).all()
    print(codes)
    """)
    assert out.strip() == str([0] * (FORKS + 1))


def test_fork_waits_for_preparation():
    """Compilers hold locks of their own, which nothing would release in the child."""
    out, _ = ran("""
    from lenetgpu.net.engine import Engine
    begun, order = threading.Event(), []
    held, plain = threading.Lock(), Engine.check

    def slowly(self, *asked):
        with held:
            begun.set()
            time.sleep(0.5)
            order.append("prepared")
            return plain(self, *asked)

    Engine.check = slowly
    loading = threading.Thread(target=LeNet.load, kwargs={"device": "cpu", "batch": 9})
    loading.start()
    begun.wait(30)

    def loads():
        return LeNet.load(device="cpu", batch=9)(images[:3]).shape == (3,) and not held.locked()

    pid = child(loads)
    order.append("forked")
    print(order, ended(pid))
    loading.join()
    """)
    assert out.strip() == "['prepared', 'forked'] 0"


def test_forked_process_is_refused_cuda(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(device, "_here", device._Process())
    device._here.forked()
    assert not device.usable()
    for ask in (device.driver_gpus, device.require_gpu):
        with pytest.raises(LenetError, match=r"forked from one that uses it.*spawn, or take devic"):
            ask()
    device.begin("cuda:0")
    device._contexts.pop().join()
