"""Measure the images per second of `lenetgpu classify` over workers and shards, with the model.

    python scripts/scale.py --workers 0 --workers 2 --shard 100000 --json scale.json

Files of repeated shipped digits are created in --folder, then whole jobs run in interleaved rounds:
0 workers is the command's own process, N are Dask workers, with --device cuda one on each of N
GPUs. The rate covers the time from the first shard, when all workers are ready, to the last line of
the manifest; the model is calibrated by the same workers. Labels of all jobs are compared.
"""

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

from lenetgpu.files.assets import default_digits
from lenetgpu.files.source import load_dataset
from lenetgpu.gpu.software import software
from lenetgpu.store import json_text, write_atomically

FILES = 4


def make(folder: Path, images: int, files: int, digits: Any = None) -> None:
    digits = load_dataset(default_digits()).images[..., 0] if digits is None else digits
    each = images // files
    for number in range(files):
        with open(folder / f"digits-{number}.npy", "wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (each, 28, 28)}
            np.lib.format.write_array_header_1_0(file, header)
            for lo in range(0, each, len(digits)):
                file.write(digits[: each - lo].data)


def command(read: Path, out: Path, workers: int, shard: int, device: str) -> list[str]:
    words = ["classify", str(read), "--out", str(out), "--shard", str(shard), "--no-progress"]
    words += ["--device", device, "--json", "-", "--precision", "fp32"]
    if workers:
        words += ["--workers", "cuda" if device == "cuda" else str(workers)]
    return [sys.executable, "-m", "lenetgpu", *words]


def run(words: list[str], workers: int, device: str) -> dict[str, Any]:
    env = dict(os.environ)
    if device == "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(max(1, workers))))
    done = subprocess.run(words, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        raise click.ClickException(f"{' '.join(words[2:])}: {done.stderr.strip()[-400:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def digest(out: Path) -> str:
    sha = hashlib.sha256()
    for path in sorted(out.glob("part-*.npy")):
        sha.update(np.load(path).tobytes())
    return sha.hexdigest()


@click.command(help=__doc__)
@click.option("--images", default=200_000, show_default=True)
@click.option("--workers", default=(0, 1, 2), type=int, multiple=True, show_default=True)
@click.option("--shard", "shards", default=(10_000, 100_000), type=int, multiple=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--folder", type=click.Path(), default="/dev/shm", show_default=True)
@click.option("--json", "target", type=click.Path(path_type=Path))
def main(
    images: int, workers: tuple[int, ...], shards: tuple[int, ...], rounds: int, device: str,
    folder: str, target: Path | None,
) -> None:  # fmt: skip
    cells = [(count, shard) for shard in shards for count in workers]
    samples: dict[tuple[int, int], list[dict[str, Any]]] = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory(prefix="lenetgpu-scale-", dir=folder) as name:
        scratch, digests = Path(name), set()
        (scratch / "read").mkdir()
        make(scratch / "read", images, FILES)
        for _ in range(rounds):
            for count, shard in cells:
                out = scratch / "out"
                summary = run(command(scratch / "read", out, count, shard, device), count, device)
                samples[count, shard].append(summary["this_run"])
                digests.add(digest(out))
                shutil.rmtree(out)
        if len(digests) != 1:
            raise click.ClickException(
                f"expected the same labels of all jobs, found {len(digests)}"
            )
    rows = []
    for (count, shard), jobs in samples.items():
        rates = [job["images_per_second"] for job in jobs]
        ready = median(job["ready_seconds"] for job in jobs)
        rows.append({"workers": count, "shard": shard, "images_per_second": median(rates),
                     "samples": rates, "ready_seconds": ready})  # fmt: skip
        click.echo(f"{count:3} workers, shards of {shard:9,}: {median(rates):13,.0f} images/s")
    document = {
        "schema": 1, "command": "scale", "date": datetime.date.today().isoformat(),
        **software(None), "images": images, "files": FILES, "rounds": rounds,
        "plan": summary["plan"], "device": summary["device"], "rows": rows,
    }  # fmt: skip
    if target is not None:
        write_atomically(target, (json_text(document, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
