"""Errors that lose a process its GPU: one message, exit code 2, and an immediate end."""

import gc
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest
from terminal import python

from lenetgpu import LeNet, LenetError
from lenetgpu.gpu import faults
from lenetgpu.gpu.faults import loses_context, lost, note_lost
from lenetgpu.gpu.graph import Graph, new_stream
from lenetgpu.measure import rounds
from lenetgpu.measure.rounds import Candidate
from lenetgpu.net.runners import CpuRunner
from lenetgpu.net.streaming.cuda import Cuda


class CUDARuntimeError(RuntimeError):
    """Stand-in for CuPy's error, by name and status."""

    def __init__(self, status=719, text="cudaErrorLaunchFailure: unspecified launch failure"):
        super().__init__(text)
        self.status = status


CUDADriverError = type("CUDADriverError", (CUDARuntimeError,), {})
CUBLASError = type("CUBLASError", (CUDARuntimeError,), {})


@pytest.fixture(autouse=True)
def nothing_is_lost(monkeypatch):
    """Reset the recorded error before and after each test."""
    monkeypatch.setattr(faults, "_lost_message", [])
    monkeypatch.setattr(faults, "last_queued", type(faults.last_queued)(maxlen=1))
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


def caused(cause):
    error = LenetError("a graph: expected it to be recorded")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (CUDARuntimeError(700), True),
        (caused(CUDADriverError(716)), True),
        (CUDARuntimeError(701), False),  # too many resources: the launch alone is refused
        (CUBLASError(700), False),
        (MemoryError(), False),
    ],
)
def test_lost_context_errors_are_recognized(error, is_lost):
    assert loses_context(error) == is_lost
    assert bool(lost()) == is_lost
    assert faults.sentence(error).startswith("GPU: expected its kernels to end") == is_lost


def test_first_error_names_the_last_queued_kernel():
    faults.last_queued.append(SimpleNamespace(entry="features"))
    assert note_lost(700)
    assert note_lost(719) and not note_lost(0) and not note_lost(600)
    assert lost() == (
        "GPU: expected its kernels to end, found CUDA_ERROR_ILLEGAL_ADDRESS (700), the kernel "
        "queued last was features; nothing more can run on it in this process, start another"
    )


def test_net_raises_lenet_error_for_gpu_errors(monkeypatch):
    with LeNet.load(device="cpu", batch=9) as net:
        images = np.zeros((2, 28, 28), np.uint8)
        for error, said in (
            (CUDARuntimeError(719), "GPU: expected its kernels to end, found CUDA_ERROR_LAUNCH_F"),
            (MemoryError("no room"), "memory: expected enough for this job, found: no room"),
        ):

            def broken(*asked, error=error):
                raise error

            faults._lost_message.clear()
            monkeypatch.setattr(CpuRunner, "answer", broken)
            for call in (net, net.scores, net.probabilities, lambda images: net(images[0])):
                with pytest.raises(LenetError, match=said):
                    call(images)
            with pytest.raises(LenetError, match=said):
                list(net.stream([images]))


def test_comparison_ends_when_the_gpu_is_lost():
    candidate = Candidate("broken", lambda: None, "fp32")
    rounds.fail(candidate, CUDARuntimeError(1))
    assert candidate.status == "failed"
    rounds.fail(candidate, CUBLASError(3))
    assert candidate.status == "skipped"
    with pytest.raises(LenetError, match="GPU: expected its kernels to end"):
        rounds.fail(candidate, CUDARuntimeError(700))


class Plain:
    """CuPy 13's stream: its constructor and its destructor, in CuPy's order of operations."""

    def __init__(self, non_blocking=False):
        assert non_blocking
        if Plain.lost:
            raise CUDARuntimeError(716)
        self.ptr = 7

    def __del__(self):
        if self.ptr != 0:
            self.freed.append(self.ptr)


def test_closing_streams_of_a_lost_gpu_is_harmless(monkeypatch):
    said, freed = [], []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(Plain, "freed", freed, raising=False)
    cuda = SimpleNamespace(Stream=Plain, runtime=None)
    cupy = SimpleNamespace(cuda=cuda, __version__="13.6.0")
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(Plain, "lost", False, raising=False)
    assert isinstance(new_stream(), Plain)
    assert (said, freed) == ([], [7])
    monkeypatch.setattr(Plain, "lost", True)
    for make in (new_stream, Cuda().stream, lambda: Graph(lambda: None, 1)):
        with pytest.raises(CUDARuntimeError):
            make()
    gc.collect()
    assert (said, freed) == ([], [7])


def test_process_with_lost_gpu_exits_immediately():
    """Nothing is freed, exit handlers do not run, and printed output is complete."""
    program = """
    import atexit, sys

    class CUDARuntimeError(RuntimeError):
        status = 700

    class Memory:
        "Cannot be freed once the GPU is lost."
        def __del__(self):
            raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")

    memory = Memory()
    atexit.register(lambda: print("at the end", flush=True))
    from lenetgpu import __main__
    from lenetgpu.lab import infer

    def broken(*asked):
        held = Memory()
        sys.stdout.write("before")
        raise CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access")

    infer.open_source = broken
    sys.argv = ["lenetgpu", "infer", "--device", "cpu"]
    __main__.main()
    """
    done = python("-c", textwrap.dedent(program), PYTHONUNBUFFERED="")
    assert (done.returncode, done.stdout) == (2, "before")
    said = "lenetgpu: error: GPU: expected its kernels to end, found CUDA_ER"
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
