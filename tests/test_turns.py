"""Objects that several threads use at once: correct results or a clear refusal, never a mix."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_gpu import PretendedGpu, pinned, pixels, results, streamer_on

from lenetgpu import LeNet, LenetError
from lenetgpu.cpu.turns import Left, Owned, Turn
from lenetgpu.files import assets
from lenetgpu.files.source import load_dataset
from lenetgpu.net.images import accept
from lenetgpu.net.runners import CpuRunner, Pool
from lenetgpu.pipeline import Pipeline
from lenetgpu.plan import resolve

THREADS, CALLS, EACH = 8, 40, 5


@pytest.fixture(scope="module")
def digits():
    held = load_dataset(assets.default_digits()).images[: THREADS * EACH]
    return np.ascontiguousarray(held).reshape(THREADS, EACH, 28, 28, 1)


@pytest.fixture(scope="module")
def labels(digits, shipped_weights):
    pipeline = Pipeline(resolve("fp32", "cpu"), shipped_weights, THREADS * EACH)
    return pipeline.run(digits.reshape(-1, 28, 28, 1)).reshape(THREADS, EACH).copy()


def at_once(call):
    """Run `call(thread)` CALLS times in each of THREADS threads; count right, wrong and refused.

    `call` returns True if its result was right. All threads live until the last one is done.
    """
    found, barrier = {"right": 0, "wrong": 0, "refused": 0}, threading.Barrier(THREADS)
    counting = threading.Lock()

    def work(thread):
        barrier.wait(30)
        for _ in range(CALLS):
            try:
                how = "right" if call(thread) else "wrong"
            except LenetError as error:
                assert "expected one thread, found it in use by another" in str(error)
                how = "refused"
            with counting:
                found[how] += 1
        barrier.wait(30)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert sum(found.values()) == THREADS * CALLS and not found["wrong"], found
    return found


def test_pipeline_belongs_to_one_thread(digits, labels, shipped_weights):
    pipeline = Pipeline(resolve("fp32", "cpu"), shipped_weights, EACH)
    found = at_once(lambda k: np.array_equal(pipeline.run(digits[k]), labels[k]))
    assert found["right"] == CALLS and found["refused"] == (THREADS - 1) * CALLS
    np.testing.assert_array_equal(pipeline.run(digits[0]), labels[0])  # its thread has ended


def test_net_is_correct_in_every_thread(digits, labels):
    with LeNet.load(device="cpu", batch=EACH) as net:
        found = at_once(lambda k: np.array_equal(net(digits[k]), labels[k]))
        assert found["right"] == THREADS * CALLS
        ones = digits[:, 0, :, :, 0].copy()
        found = at_once(lambda k: net(ones[k]) == labels[k, 0])
        assert found["right"] == THREADS * CALLS


def test_runner_serves_threads_in_turn(digits, labels, shipped_weights):
    class Slow(Pipeline):
        """Pipeline whose results are read some time after it ran."""

        def run(self, *asked):
            found = super().run(*asked)
            time.sleep(0.001)
            return found

    pipeline = Slow(resolve("fp32", "cpu"), shipped_weights, EACH)
    pipeline.turn = Turn("plan fp32")
    runner = CpuRunner(pipeline)
    found = at_once(lambda k: np.array_equal(runner.answer(digits[k], False)[0], labels[k]))
    assert found["right"] and found["refused"]


def test_streamer_serves_threads_in_turn(monkeypatch):
    gpu = PretendedGpu()
    streamer = streamer_on(gpu, 4, 2)
    given = [pinned(gpu, pixels(9, seed=k)) for k in range(THREADS)]
    into = [results(gpu, 9) for _ in range(THREADS)]

    def call(k):
        streamer.run(given[k], *into[k])
        return (into[k][0] == given[k][:, 0, 0, 0]).all()

    assert at_once(call)["right"]


def elsewhere(turn, during=None):
    """Enter and leave in another thread; run `during()` meanwhile in this one."""
    with ThreadPoolExecutor(1) as other:
        other.submit(turn.__enter__).result()
        if during:
            during()
        other.submit(turn.__exit__).result()


def refused(turn):
    with pytest.raises(LenetError, match="this: expected one thread, found it in use"), turn:
        pass


def test_turn_may_be_nested_and_ends_on_error():
    turn = Turn("this")
    with pytest.raises(ZeroDivisionError), turn, turn:
        raise ZeroDivisionError
    elsewhere(turn, lambda: refused(turn))
    with turn:
        pass


def test_owned_object_is_free_after_its_thread_ends():
    turn = Owned("this")
    with ThreadPoolExecutor(1) as other:
        for _ in range(2):  # a refused caller holds no lock
            other.submit(turn.__enter__).result()
            other.submit(turn.__exit__).result()
            refused(turn)
    with turn:
        pass


def test_last_result_belongs_to_the_thread_that_made_it():
    turn = Left("this")
    with turn:
        pass
    with turn.last():
        pass
    elsewhere(turn)
    refused(turn.last())
    with turn, turn.last():
        pass


def test_callers_never_share_a_runner(monkeypatch):
    """Another thread may take the last idle runner between the look-up and the taking."""

    class Emptied(list):
        def __bool__(self):
            return True

    pool = Pool(object, 2)
    pool._idle = Emptied()
    for _ in range(2):
        with pool.acquire() as first, pool.acquire() as second:
            assert first is not second


class Interface:
    def __init__(self, interface):
        self.__cuda_array_interface__ = interface


def test_broken_array_interface_is_refused(monkeypatch):
    runtime = SimpleNamespace(pointerGetAttributes=lambda address: known)
    known = SimpleNamespace(type=0, device=-2)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=runtime)))
    unreadable, there = "images: expected an array that can be read, found I", (1 << 40, False)
    unknown = "found an address that no GPU knows"
    for interface, words in (({}, unreadable), (None, unreadable), ({"data": there}, unknown)):
        with pytest.raises(LenetError, match=words):
            accept(Interface(interface), "cuda:0")
    runtime.pointerGetAttributes = lambda address: 1 / 0
    with pytest.raises(LenetError, match=r"can be read, found Interface \(division by zero\)"):
        accept(Interface({"data": there}), "cuda:0")


def test_deleted_array_is_refused(monkeypatch):
    class Array:
        def devices(self):
            raise RuntimeError("Array has been deleted with shape=uint8[4,28,28].")

    jax = SimpleNamespace(Array=Array, core=SimpleNamespace(Tracer=int))
    monkeypatch.setitem(sys.modules, "jax", jax)
    with pytest.raises(LenetError, match=r"found Array \(Array has been deleted"):
        accept(Array(), "cpu")
