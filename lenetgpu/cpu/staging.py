"""Native threads that copy or read images into page-locked memory during earlier transfers.

A job is divided into chunks, for which the caller waits, and chunks into pieces, which threads and
the waiting caller take in order. A thread runs one native function until it is stopped, without
the GIL. Needs Linux. Importing this module imports llvmlite.
"""

import ctypes
import threading
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from lenetgpu.arrays import Array, np
from lenetgpu.cpu.jit import native
from lenetgpu.cpu.memory import aligned_empty
from lenetgpu.cpu.native import Emitted, Native
from lenetgpu.cpu.threads import core_count
from lenetgpu.cpu.turns import PREPARING, tell_children
from lenetgpu.cpu.vector import WIDTH, Vectors, f32, i64

MOST_THREADS = 8  # default limit; more would not copy faster
_PIECE, _BLOCK = 1 << 16, 1 << 20  # bytes of the source: an array, a file
# 64-bit words of the control block: pieces left, active threads, their semaphore, the job's
# address, 1 to stop, C functions. Words that threads change have cache lines of their own.
_LEFT, _ACTIVE, _WAKE, _JOB, _STOP = 0, 8, 16, 20, 24
_LOOKS, _SLEEP, _TRY, _POST, _YIELD, _COPY, _READ, _WORDS = range(28, 60, 4)
_FUNCTIONS = {_SLEEP: "sem_wait", _TRY: "sem_trywait", _POST: "sem_post", _YIELD: "sched_yield"}
_FUNCTIONS |= {_COPY: "memcpy", _READ: "pread"}
# Words of a job: where the source begins (address, or byte of a file), address of the destination,
# bytes of a source element (0: a file), elements of a piece, pieces, file descriptor; then a row of
# zeros and one row per chunk: ends in elements and pieces, pieces done, 1 if it failed.
_SOURCE, _OUT, _SIZE, _STEP, _PIECES, _FILE, _ROWS = range(7)
_END, _LAST, _DONE, _FAILED, _ROW = range(5)


def _word(v: Vectors, base: Any, number: int) -> Any:
    return v.builder.inttoptr(v.at(base, (number, 8)), i64.as_pointer())


def _get(v: Vectors, base: Any, number: int) -> Any:
    return v.builder.load_atomic(_word(v, base, number), "seq_cst", 8)


def _change(v: Vectors, base: Any, number: int, value: Any, operation: str = "add") -> Any:
    """Change a word by an atomic `operation`; return its old value."""
    return v.builder.atomic_rmw(operation, _word(v, base, number), v.number(value), "seq_cst")


def _call(v: Vectors, state: Any, function: int, *arguments: Any) -> Any:
    kind = ir.FunctionType(ir.IntType(32), [i64] * len(arguments)).as_pointer()
    return v.builder.call(v.builder.inttoptr(_get(v, state, function), kind), arguments)


def _head(v: Vectors) -> Any:
    """Begin a loop whose code is emitted next; `_again` ends it."""
    v.builder.branch(head := v.builder.append_basic_block())
    v.builder.position_at_end(head)
    return head


def _again(v: Vectors, head: Any, condition: Any) -> None:
    v.builder.cbranch(condition, head, after := v.builder.append_basic_block())
    v.builder.position_at_end(after)


def _convert(v: Vectors, source: Any, out: Any, count: Any, kind: Any, inexact: Any) -> None:
    """Emit out[i] = float32(source[i]) * 255 as bytes, i < count.

    Stores 1 to `inexact` unless every float32(source[i]) is some k/255 to the bit. A sum with
    2^23 has the nearest integer in its low bits.
    """
    b, size, whole = v.builder, 4 if kind is f32 else 8, v.builder.and_(count, v.number(-WIDTH))
    for width, low, high in ((WIDTH, 0, whole), (1, whole, count)):
        floats, words, octets, given = (
            ir.VectorType(one, width) for one in (f32, ir.IntType(32), ir.IntType(8), kind)
        )
        scale, magic = (ir.Constant(floats, [value] * width) for value in (255.0, 2.0**23))
        with b.goto_entry_block():
            differs = b.alloca(words)
        b.store(ir.Constant(words, None), differs)
        with v.steps(low, high, width) as i:
            value = b.load(b.inttoptr(v.at(source, (i, size)), given.as_pointer()), align=1)
            x = value if kind is f32 else b.fptrunc(value, floats)
            sums = b.bitcast(b.fadd(b.fmul(x, scale), magic), words)
            k = b.and_(sums, ir.Constant(words, [255] * width))
            exact = b.bitcast(b.fdiv(b.sitofp(k, floats), scale), words)
            wrong = b.xor(exact, b.bitcast(x, words))
            if kind is not f32:  # a nonzero double that rounds to 0
                none = b.icmp_unsigned("==", k, ir.Constant(words, None))
                some = b.fcmp_unordered("!=", value, ir.Constant(given, None))
                wrong = b.or_(wrong, b.zext(b.and_(none, some), words))
            b.store(b.or_(b.load(differs), wrong), differs)
            b.store(b.trunc(k, octets), b.inttoptr(v.at(out, (i, 1)), octets.as_pointer()), align=1)
        bits = b.bitcast(b.load(differs), ir.IntType(32 * width))
        with b.if_then(b.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))):
            b.store_atomic(v.number(1), inexact, "seq_cst", 8)


def _take(v: Vectors, state: Any) -> Any:
    """Emit the copy of the next piece, if any; return the number of pieces left before."""
    b, left = v.builder, _change(v, state, _LEFT, -1)
    with b.goto_entry_block():
        place = b.alloca(i64)
    with b.if_then(b.icmp_signed(">", left, v.number(0))):
        job = _get(v, state, _JOB)
        size, step, pieces = (_get(v, job, word) for word in (_SIZE, _STEP, _PIECES))
        piece = b.sub(pieces, left)
        b.store(v.at(job, (_ROWS, 8)), place)
        head = _head(v)
        row = v.at(before := b.load(place), (_ROW, 8))
        b.store(row, place)
        _again(v, head, b.icmp_signed(">=", piece, _get(v, row, _LAST)))
        low = v.at(_get(v, before, _END), (b.sub(piece, _get(v, before, _LAST)), step))
        count = b.sub(v.least(_get(v, row, _END), b.add(low, step)), low)
        source, out = v.at(_get(v, job, _SOURCE), (low, size)), b.add(_get(v, job, _OUT), low)
        with b.if_then(b.icmp_signed("==", size, v.number(1))):
            _call(v, state, _COPY, out, source, count)
        for width, kind in ((4, f32), (8, ir.DoubleType())):
            with b.if_then(b.icmp_signed("==", size, v.number(width))):
                _convert(v, source, out, count, kind, _word(v, row, _FAILED))
        with b.if_then(b.icmp_signed("==", size, v.number(0))):
            got = _call(v, state, _READ, _get(v, job, _FILE), out, count, v.at(source, (low, 1)))
            with b.if_then(b.icmp_signed("!=", got, b.trunc(count, got.type))):
                b.store_atomic(v.number(1), _word(v, row, _FAILED), "seq_cst", 8)
        _change(v, row, _DONE, 1)
    return left


def _serve(v: Vectors, state: Any) -> None:
    """Emit a thread's work: wait, take pieces until none is left; return once stopped.

    It looks for work some times before it sleeps: to wake it would take longer than to copy.
    """
    b, serve, wake = v.builder, _head(v), v.at(state, (_WAKE, 8))
    with b.goto_entry_block():
        left = b.alloca(i64)
    b.store(_get(v, state, _LOOKS), left)
    look = _head(v)
    idle = b.icmp_signed("!=", _call(v, state, _TRY, wake), ir.Constant(ir.IntType(32), 0))
    b.store(more := b.sub(b.load(left), v.number(1)), left)
    again = b.and_(idle, b.icmp_signed(">", more, v.number(0)))
    with b.if_then(again):
        _call(v, state, _YIELD)
    _again(v, look, again)
    with b.if_then(idle):
        _call(v, state, _SLEEP, wake)
    _change(v, state, _ACTIVE, 1)
    pieces = _head(v)
    _again(v, pieces, v.builder.icmp_signed(">", _take(v, state), v.number(0)))
    _change(v, state, _ACTIVE, -1)
    _again(v, serve, v.builder.icmp_signed("==", _get(v, state, _STOP), v.number(0)))


def _begin(v: Vectors, state: Any, job: Any, pieces: Any, wakes: Any) -> None:
    """Emit: wait until no thread works on the previous job, then start `job` and wake threads."""
    _change(v, state, _LEFT, 0, "xchg")
    head = _head(v)  # a thread is counted in _ACTIVE from before it takes a piece
    busy = v.builder.icmp_signed("!=", _get(v, state, _ACTIVE), v.number(0))
    with v.builder.if_then(busy):
        _call(v, state, _YIELD)
    _again(v, head, busy)
    _change(v, state, _JOB, job, "xchg")
    _change(v, state, _LEFT, pieces, "xchg")
    with v.loop(wakes):
        _call(v, state, _POST, v.at(state, (_WAKE, 8)))


def _help(v: Vectors, state: Any, row: Any, pieces: Any) -> None:
    """Emit the caller's part: take pieces until the chunk at `row` is complete or fails."""
    b, head = v.builder, _head(v)
    with b.if_then(b.icmp_signed("<=", _take(v, state), v.number(0))):
        _call(v, state, _YIELD)
    undone = b.icmp_signed("<", _get(v, row, _DONE), pieces)
    _again(v, head, b.and_(undone, b.icmp_signed("==", _get(v, row, _FAILED), v.number(0))))


_SERVE = Emitted("staging_serve", 1, _serve)
_BEGIN = Emitted("staging_begin", 4, _begin)
_HELP = Emitted("staging_help", 3, _help)
# bytes of a source element, by the types of source and destination; 1 to copy bytes
_SIZES = {"|u1|u1": 1, "<f4<f4": 1, "<f4|u1": 4, "<f8|u1": 8}


def _address(of: Any) -> int:
    """Return a contiguous array's address; `ctypes.data` takes a microsecond."""
    fast = of.size and of.flags.writeable
    return ctypes.addressof(ctypes.c_char.from_buffer(of)) if fast else int(of.ctypes.data)


def _end(begin: Native, state: Array, workers: list[threading.Thread]) -> None:
    state[_STOP] = 1
    begin(state.ctypes.data, 0, 0, len(workers))
    for worker in workers:
        worker.join(timeout=1)
    workers.clear()


class Staging:
    """Pool of threads that copy or read, for one caller at a time; its owner serialises the calls.

    With `threads` 0, in a forked child and after `close`, the caller copies alone, in `wait`.
    The default is one thread per core except one, at most MOST_THREADS. A thread without work
    looks for it `looks` times, about half a microsecond each, before it sleeps.
    """

    def __init__(self, threads: int | None = None, looks: int = 0) -> None:
        count = min(MOST_THREADS, core_count() - 1) if threads is None else threads
        library, state = ctypes.CDLL(None), aligned_empty((_WORDS,), np.int64)
        state[:] = 0
        state[_LOOKS] = looks
        for word, name in _FUNCTIONS.items():
            state[word] = ctypes.cast(library[name], ctypes.c_void_p).value
        with PREPARING:
            serve, self._begin, self._help = map(native, (_SERVE, _BEGIN, _HELP))
        self._block, self._state = state, state.ctypes.data
        library.sem_init(ctypes.c_void_p(self._state + 8 * _WAKE), 0, 0)
        self._job, self._unwaited = array("q"), set[int]()
        self._held: tuple[Any, ...] = ()  # what threads may read or write
        self._workers: list[threading.Thread] = []
        # also at exit: a thread must not wake while the interpreter unloads its code
        self._finalizer = weakref.finalize(self, _end, self._begin, state, self._workers)
        for _ in range(count):
            worker = threading.Thread(target=serve, args=(self._state,), daemon=True)
            worker.start()
            self._workers.append(worker)
        tell_children(self)

    def forked(self) -> None:
        """Forget the threads and the job, in a forked child, which has neither."""
        self._workers.clear()
        self._block[_ACTIVE] = 0
        self.stop()

    def start(self, source: Array, out: Array, sizes: Sequence[int]) -> None:
        """Begin to copy `source` to `out`: n images each, in chunks of `sizes` images.

        Copies uint8 or float32, or converts float32 or float64 to uint8 k if each, as float32, is
        k/255. Neither array may change until all chunks are waited for, or `stop` is called. A
        previous job is abandoned. Raises ValueError for other types, for arrays that differ in
        size or are not contiguous, and unless `sizes` add up to n.
        """
        size = _SIZES.get(source.dtype.str + out.dtype.str)
        whole = source.flags.c_contiguous and out.flags.c_contiguous and source.size == out.size
        if size is None or not whole or sum(sizes) != len(source):
            raise ValueError(f"expected contiguous images, {source.dtype} as {out.dtype}: {sizes}")
        pixels, step, end, last = source.nbytes // size // (len(source) or 1), _PIECE // size, 0, 0
        job = array("q", (_address(source), _address(out), size, step, 0, 0, 0, 0, 0, 0))
        for images in sizes:
            end, last = end + images * pixels, last - -images * pixels // step
            job.extend((end, last, 0, 0))
        job[_PIECES] = last
        self._start(job, last - 1, (source, out))

    def read(self, file: int, at: int, out: Array) -> None:
        """Begin to fill contiguous `out`, as chunk 0, from byte `at` on of an open file."""
        pieces = -(-out.nbytes // _BLOCK)
        job = (at, _address(out), 0, _BLOCK, pieces, file, 0, 0, 0, 0, out.nbytes, pieces, 0, 0)
        self._start(array("q", job), pieces, (out,))

    def _start(self, job: "array[int]", wakes: int, arrays: tuple[Array, ...]) -> None:
        self._held = (self._held, arrays, job)
        wakes = min(len(self._workers), wakes)
        self._begin(self._state, job.buffer_info()[0], job[_PIECES], wakes)
        self._job, self._held = job, (arrays, job)
        self._unwaited = set(range((len(job) - _ROWS) // _ROW - 1))

    def ended(self, chunk: int) -> bool:
        """Return True if `chunk` is complete or failed."""
        job, row = self._job, _ROWS + _ROW * (chunk + 1)
        done = job and job[row + _DONE] >= job[row + _LAST] - job[row - _ROW + _LAST]
        return bool(not job or done or job[row + _FAILED])

    def wait(self, chunk: int) -> bool:
        """Help until `chunk` is complete; return False if a value is not some k/255.

        NaN, -0.0 and values outside 0..1 are not. Returns False too if the file could not be read,
        or ended before. False ends the job, as `stop` does.
        """
        job, row = self._job, _ROWS + _ROW * (chunk + 1)
        if not job:
            return False
        pieces = job[row + _LAST] - job[row - _ROW + _LAST]
        if job[row + _DONE] < pieces:
            self._help(self._state, job.buffer_info()[0] + 8 * row, pieces)
        if job[row + _FAILED]:
            self.stop()
            return False
        self._unwaited.discard(chunk)
        if not self._unwaited:
            self._held = ()
        return True

    def stop(self) -> None:
        """Abandon the job; afterwards no thread reads or writes its arrays."""
        self._begin(self._state, 0, 0, 0)
        self._job, self._held = array("q"), ()

    def close(self) -> None:
        """Abandon the job and end the threads."""
        self.stop()
        self._finalizer()
