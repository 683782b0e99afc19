"""Thread counts: affinity, the cgroup's quota, --threads; and the work that justifies a thread."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import terminal
from threadpoolctl import threadpool_info

from lenetgpu.cpu import blas, threads
from lenetgpu.lab.infer import infer
from lenetgpu.measure.outcome import Request


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setattr(threads, "core_count", lambda: 3)
    yield
    threads.set_threads(None)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


V1 = {"proc/self/cgroup": "9:cpuset:/set\n1:cpuacct,cpu:/a/b\n0::/\n"}
V2 = {"proc/self/cgroup": "0::/a/b\n"}
GROUPS = [
    ({}, None),
    (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, None),
    (V2 | {"sys/fs/cgroup/a/b/cpu.max": "150000 100000\n"}, 2),
    (V2 | {"sys/fs/cgroup/a/b/cpu.max": "1000 100000\n"}, 1),
    # an ancestor with a smaller quota, and one that the container sees as the root
    (V2 | {"sys/fs/cgroup/a/b/cpu.max": "max 100000\n", "sys/fs/cgroup/a/cpu.max": "300000 100000"},
     3),
    (V2 | {"sys/fs/cgroup/cpu.max": "nonsense\n"}, None),
    (V1 | {"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "-1\n",
           "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n"}, None),
    (V1 | {"sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us": "250000\n",
           "sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us": "100000\n"}, 3),
    (V1 | {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
           "sys/fs/cgroup/cpu/cpu.cfs_period_us": "25000\n"}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("files", "cpus"), GROUPS)
def test_cgroup_quota_is_read(files, cpus, tmp_path):
    assert threads._quota(tree(tmp_path, files)) == cpus


@pytest.mark.parametrize(("quota", "cores"), [(None, 5), (2, 2), (9, 5)])
def test_core_count_respects_affinity_and_quota(quota, cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
    monkeypatch.setattr(threads, "_quota", lambda: quota)
    assert threads.core_count() == cores


def split(n: int, least: int = 1) -> list[tuple[int, int, str]]:
    found = []
    threads.parallel_ranges(
        n, lambda lo, hi: found.append((lo, hi, threading.current_thread().name)), least
    )
    return sorted(found)


def test_requested_number_of_threads_is_used(asked):
    assert threads.thread_count() == 3
    assert [(lo, hi) for lo, hi, _ in split(9)] == [(0, 3), (3, 6), (6, 9)]
    threads.set_threads(1)
    assert threads.thread_count() == 1
    assert split(9) == [(0, 9, "MainThread")]
    threads.set_threads(5)
    assert [(lo, hi) for lo, hi, _ in split(10)] == [(i, i + 2) for i in range(0, 10, 2)]
    threads.set_threads(None)
    assert len(split(9)) == 3


def test_invalid_thread_counts_are_refused(asked):
    for count, words in ((0, "least 1, found 0"), (1_025, "most 1,024, found 1,025")):
        with pytest.raises(ValueError, match=f"threads: expected at {words}"):
            threads.set_threads(count)
    assert threads.thread_count() == 3


@pytest.mark.parametrize(("n", "parts"), [(0, 1), (7, 1), (8, 2), (12, 3)])
def test_parts_have_a_minimum_size(n, parts, asked):
    found = split(n, least=4)
    assert len(found) == parts
    assert [lo for lo, _, _ in found[1:]] == [hi for _, hi, _ in found[:-1]]
    assert (found[0][0], found[-1][1]) == (0, n)
    assert parts == 1 or all(hi - lo >= 4 for lo, hi, _ in found)


INTERRUPTED = """
import os, signal, sys, threading, time
from lenetgpu.cpu import threads
threads.set_threads(3)
threads.parallel_ranges(3, lambda lo, hi: None)
signal.signal(signal.SIGINT, signal.default_int_handler)
ended, begun = [], threading.Barrier(3)
def again():
    for _ in range(int(sys.argv[1])):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
def body(lo, hi):
    begun.wait()
    if lo == 0:
        threading.Thread(target=again).start()
        raise KeyboardInterrupt
    time.sleep(1)
    ended.append(lo)
try:
    threads.parallel_ranges(3, body)
except KeyboardInterrupt:
    print(sorted(ended))
"""


@pytest.mark.parametrize("times", ["0", "4"])
def test_repeated_ctrl_c_waits_for_running_parts(times):
    """Threads that continued would write to arrays that the caller has released."""
    done = terminal.python("-c", INTERRUPTED, times, limit=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[1, 2]\n", done.stderr


def test_ctrl_c_while_submitting_waits_for_running_parts(asked, monkeypatch):
    """The pool already runs the part although `submit` raised in the caller."""
    begun, ended, pool = threading.Event(), [], threads._pool(3)

    class Stopped:
        def submit(self, *call):
            pool.submit(*call)
            begun.wait()
            raise KeyboardInterrupt

    def body(lo, hi):
        begun.set()
        time.sleep(0.3)
        ended.append(lo)

    monkeypatch.setattr(threads, "_pool", lambda count: Stopped())
    with pytest.raises(KeyboardInterrupt):
        threads.parallel_ranges(3, body)
    assert ended == [1]


@pytest.mark.parametrize("plan", ["unrolled", "fft"])
def test_products_of_blas_run_on_the_requested_threads_only(plan, asked, monkeypatch):
    """BLAS's own threads wait for each other in small products of a batch, ten times too long."""
    earlier, product, seen = blas_threads(), blas.np.matmul, set()

    def watched(*arrays, **how):
        seen.add((*blas_threads(), threading.get_ident()))
        return product(*arrays, **how)

    monkeypatch.setattr(blas.np, "matmul", watched)
    monkeypatch.setattr(blas, "_LEAST_FLOP", 1)
    for count in (1, 2):
        seen.clear()
        infer(Request(plan=plan, device="cpu", limit=40, threads=count))
        assert {number for number, _ in seen} == {1}
        assert len({thread for _, thread in seen}) == count
    assert blas_threads() == earlier


def blas_threads():
    return [part["num_threads"] for part in threadpool_info() if part["user_api"] == "blas"]


@pytest.mark.parametrize("shape", [(5, 7, 3), (1, 7, 9), (9, 2, 1), (0, 3, 2)])
@pytest.mark.parametrize("batch", [(), (11,), (2,)])
def test_products_in_parts_are_those_of_numpy(shape, batch, asked, monkeypatch, rng):
    monkeypatch.setattr(blas, "_LEAST_FLOP", 1)
    rows, inner, columns = shape
    a, b = (rng.integers(-9, 9, (*batch, *ends)) for ends in ((rows, inner), (inner, columns)))
    a, out = a.astype(np.float32), np.full((*batch, rows, columns), np.nan)
    np.testing.assert_array_equal(blas.matmul(a, b, out), a @ b)
    np.testing.assert_array_equal(blas.matmul(a, b), out)
