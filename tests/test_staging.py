"""Threads that stage images: exact copies and conversions, abandoned jobs, the process's end."""

import threading
import time

import numpy as np
import pytest
from terminal import python

from lenetgpu.cpu.staging import Staging

ENDS = """
import os, numpy as np
from lenetgpu.cpu.staging import Staging, _ACTIVE
pools, x = [Staging(n) for n in (3, 3, 0)], np.ones((9_000, 784), np.uint8)
outs = [np.zeros_like(x) for _ in pools]
for pool, out in zip(pools, outs): pool.start(x, out, [9_000])
pools[2]._block[_ACTIVE] = 1  # as if a thread copied
child = os.fork()
if child: pools[2]._block[_ACTIVE] = 0; print(os.waitpid(child, 0)[1])
else: pools[2].start(x, outs[0], [9_000]); assert pools[2].wait(0) and not pools[1].wait(0)
"""


@pytest.fixture(scope="module", params=[0, 1, 5])
def staging(request):
    staging = Staging(request.param)
    yield staging
    staging.close()


def staged(staging, source, dtype, sizes):
    """Return the copy and the answers of `wait`; the bytes around the copy must not change."""
    room = np.full(source.size + 128, 77, dtype)
    staging.start(source, out := room[64:-64].reshape(source.shape), sizes)
    found = [staging.wait(chunk) for chunk in range(len(sizes))]
    assert (room[:64] == 77).all() and (room[-64:] == 77).all()
    return out, found


@pytest.mark.parametrize("pixels", [1, 7, 784, 70_001])
def test_copies_and_conversions_are_exact(staging, pixels):
    for sizes in ([1], [9, 0, 1, 17], [3, 256]):
        k = np.resize(np.arange(256, dtype=np.uint8), (sum(sizes), pixels))
        floats = k / np.float32(255)
        for source in (k, floats, floats.astype(np.float64), k / 255.0, floats + np.float32(2)):
            wanted = source if source.max() > 1 else k
            out, found = staged(staging, source, wanted.dtype, sizes)
            assert all(found) and (out == wanted).all()


def test_other_values_end_the_job_in_their_chunk(staging):
    floats = np.arange(1, 256, dtype=np.float32) / np.float32(255)
    odd = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 1e-9, -1 / 255, 256 / 255, 257, 1e38]
    for bad in (*np.nextafter(floats, 0), *np.nextafter(floats, 2), *np.float32(odd)):
        for at in (0, 300, 784):
            source = np.full((785, 99), floats[200])
            source[at, 50] = bad
            for given in (source, source.astype(np.float64)):
                found = staged(staging, given, np.uint8, [300, 484, 1])[1]
                assert found == [at >= 300, at == 784, False], (bad, at)
    tiny = np.ones((300, 99))
    tiny[7, 70] = 1e-50  # 0 as a float32
    assert staged(staging, tiny, np.uint8, [300])[1] == [False]


def test_abandoned_job_touches_nothing_later(staging, monkeypatch):
    monkeypatch.setattr("lenetgpu.cpu.staging._PIECE", 1 << 27)  # a thread is found at work
    old, new = np.ones((20_000, 784)), np.full((50, 784), 3, np.uint8)
    for end in (lambda: None, staging.stop) * 3:
        outs = np.zeros(old.shape, np.uint8), np.zeros_like(new)
        staging.start(old, outs[0], [10_000, 10_000])
        while staging._workers and not outs[0][0, 0]:
            pass
        end()
        staging.start(new, outs[1], [50])
        last = outs[0][9_999, -1], outs[0][-1, -1]
        assert staging.wait(0) and (outs[1] == 3).all()
        time.sleep(0.05)  # as long as a thread would take to go on
        assert last == (outs[0][9_999, -1], outs[0][-1, -1])
    with pytest.raises(ValueError, match="expected contiguous images, int64 as uint8"):
        staging.start(np.ones((2, 3), np.int64), outs[0], [2])


def test_file_is_read_at_any_byte(staging, tmp_path):
    content = np.random.default_rng(0).integers(0, 256, (5 << 20) + 17, np.uint8)
    (path := tmp_path / "bytes").write_bytes(content.tobytes())
    with path.open("rb") as file:
        for at, size in ((0, len(content)), (1, 7), (4_097, (3 << 20) + 5), (len(content) - 9, 9)):
            room = np.full(size + 128, 77, np.uint8)
            staging.read(file.fileno(), at, room[64:-64])
            assert staging.wait(0) and staging.ended(0)
            assert (room[64:-64] == content[at : at + size]).all()
            assert (room[:64] == 77).all() and (room[-64:] == 77).all()
            staging.read(file.fileno(), at + 1, np.empty(len(content) - at, np.uint8))
            assert not staging.wait(0) and staging.ended(0)  # the file ends before


def test_threads_end_with_their_pool():
    before, closed = threading.active_count(), Staging(3)
    Staging(2)  # freed at once
    assert threading.active_count() == before + 3
    closed.close()
    assert threading.active_count() == before


def test_process_and_forked_child_end_while_threads_copy_or_sleep():
    for _ in range(3):
        done = python("-W", "ignore", "-c", ENDS, limit=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
