"""How fast images come out of a file that lies in the page cache, beside `cat FILE > /dev/null`.

Makes a file of uint8 images in a temporary folder, then takes rounds of: cat; `open_source` read by
some threads, each into a buffer of its own; and, with --device, the whole of `lenetgpu infer FILE`
in a process of its own, with the most memory that it had resident. What the threads read is first
compared with what was written. Rates are of pixels, cat's of the file's bytes.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import click

PIXELS = 784
BLOCK = 20_000
"""Images that are written at a time, the same ones again and again."""
FORMS = ("h5", "npy", "idx", "deflate")


def write(path: Path, images: int, form: str) -> bytes:
    """A file of `images` images; returns the block that it repeats."""
    import h5py
    import numpy as np

    block = np.random.default_rng(1).integers(0, 256, (BLOCK, 28, 28), dtype=np.uint8)
    if form in ("h5", "deflate"):
        block[:, ::2] = 0  # about what digits deflate to
        options: dict[str, Any] = {}
        if form == "deflate":
            options = {"chunks": (1_000, 28, 28), "compression": "gzip", "compression_opts": 1}
        with h5py.File(path, "w") as file:
            item = file.create_dataset("x", (images, 28, 28), "u1", **options)
            for lo in range(0, images, BLOCK):
                item[lo : lo + BLOCK] = block[: images - lo]
        return block.tobytes()
    with path.open("wb") as file:
        if form == "npy":
            header = {"descr": "|u1", "fortran_order": False, "shape": (images, 28, 28)}
            np.lib.format.write_array_header_1_0(file, header)
        else:
            file.write(struct.pack(">4I", 2051, images, 28, 28))
        for lo in range(0, images, BLOCK):
            file.write(block[: images - lo].data)
    return block.tobytes()


def cat(path: Path) -> float:
    """Seconds that cat takes to copy a file to nowhere."""
    with open(os.devnull, "wb") as nowhere:
        start = time.perf_counter()
        subprocess.run(["cat", path], stdout=nowhere, check=True)
        return time.perf_counter() - start


class Readers:
    """Threads that read a source from end to end, a part of `part` images at a time."""

    def __init__(self, path: Path, threads: int, part: int) -> None:
        import numpy as np

        from lenetgpu.files.source import open_source

        self.path, self.threads, self.part, self._open = path, threads, part, open_source
        self.buffers = [np.zeros((part, 28, 28, 1), np.uint8) for _ in range(threads)]

    def pass_over(self, look: Any = None) -> float:
        """Seconds from the file's opening to its closing; `look(first image, images)` may look."""
        start = time.perf_counter()
        with self._open(self.path) as source, ThreadPoolExecutor(self.threads) as pool:
            turns = count()  # whose next() is one step for all threads

            def read(buffer: Any) -> None:
                while (lo := next(turns) * self.part) < len(source):
                    out = buffer[: len(source) - lo]
                    source.read(lo, out)
                    if look is not None:
                        look(lo, out)

            for done in [pool.submit(read, buffer) for buffer in self.buffers]:
                done.result()
        return time.perf_counter() - start


def check(readers: Readers, block: bytes) -> None:
    """AssertionError unless every image is the one that was written there."""
    twice = block * 2  # a read may run over its end

    def look(lo: int, out: Any) -> None:
        at = lo % BLOCK * PIXELS
        expected = twice[at : at + out.nbytes]
        assert zlib.crc32(out.data.cast("B")) == zlib.crc32(expected), f"images from {lo} differ"

    readers.pass_over(look)


def infer(path: Path, device: str, more: tuple[str, ...]) -> dict[str, Any]:
    """`lenetgpu infer FILE` in its own process: its seconds, and what it says of itself."""
    command = [sys.executable, "-m", "lenetgpu", "infer", str(path), "--device", device]
    start = time.perf_counter()
    done = subprocess.run(
        [*command, "--no-progress", "--json", "-", *more], capture_output=True, text=True
    )
    took = time.perf_counter() - start
    print(f"infer took {took:.2f} s", file=sys.stderr)
    if done.returncode:
        raise click.ClickException(f"infer: expected labels, found: {done.stderr.strip()[-400:]}")
    found = json.loads(done.stdout)
    return {
        "process_s": took,
        "images": found["images"],
        "pass_s": found["timing_ms"]["first"] / 1e3,
        "resident_kb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
    }


def row(name: str, samples: list[float], size: int, base: list[float]) -> dict[str, Any]:
    """A line of the table, printed: the median's rate, and its share of the base's."""
    middle = median(samples)
    found = {"what": name, "samples_s": samples, "gb_per_s": size / middle / 1e9}
    found["share_of_cat"] = median(base) / middle
    print(f"{name:34} {found['gb_per_s']:7.2f} GB/s  {found['share_of_cat']:7.1%} of cat")
    return found


@click.command()
@click.option("--gb", type=float, default=4.0, help="size of the file, in 10^9 bytes")
@click.option("--form", type=click.Choice(FORMS), default="h5")
@click.option("--threads", default="1,2,4,8", help="numbers of reading threads, by commas")
@click.option("--part", type=int, default=10_000, help="images a read, at most 20,000")
@click.option("--device", help="cuda or cpu: `lenetgpu infer` on it as well")
@click.option("--rounds", type=click.IntRange(1), default=5)
@click.option("--folder", type=click.Path(path_type=Path), help="where the file is made")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="the samples to a file")
@click.argument("more", nargs=-1)
def main(
    gb: float,
    form: str,
    threads: str,
    part: int,
    device: str | None,
    rounds: int,
    folder: Path | None,
    json_file: Path | None,
    more: tuple[str, ...],
) -> None:
    """Options of `lenetgpu infer` may follow after --."""
    images = int(gb * 1e9) // PIXELS
    if not 1 <= part <= BLOCK or images < 1:
        raise click.ClickException("expected 1 to 20,000 images a read, of at least one image")
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "images"
        block = write(path, images, form)
        size = path.stat().st_size
        print(f"{images:,} images, {size:,} bytes, {form}; {os.cpu_count()} cores")
        cat(path)  # into the page cache
        inferred = []
        cats: list[float] = []
        if device is not None:  # first: a child's resident memory is at least its parent's
            infer(path, device, more)
            for _ in range(rounds):
                cats.append(cat(path))
                inferred.append(infer(path, device, more))
        readers = [Readers(path, int(number), part) for number in threads.split(",")]
        check(readers[-1], block)
        reads: list[list[float]] = [[] for _ in readers]
        for _ in range(rounds):
            cats.append(cat(path))
            for reader, samples in zip(readers, reads, strict=True):
                samples.append(reader.pass_over())
    pixels = images * PIXELS
    rows = [row("cat", cats, size, cats)]
    for reader, samples in zip(readers, reads, strict=True):
        rows.append(row(f"open_source, {reader.threads} threads", samples, pixels, cats))
    if inferred:
        assert {found["images"] for found in inferred} == {images}
        passes = [found["pass_s"] for found in inferred]
        processes = [found["process_s"] for found in inferred]
        rows.append(row(f"infer on {device}: the pass", passes, pixels, cats))
        rows.append(row(f"infer on {device}: the process", processes, pixels, cats))
        resident = max(found["resident_kb"] for found in inferred)
        rows[-1]["resident_kb"] = resident
        print(f"infer's memory: at most {resident * 1024 / 1e9:.2f} GB resident")
    if json_file is not None:
        json_file.write_text(json.dumps({"form": form, "bytes": size, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
