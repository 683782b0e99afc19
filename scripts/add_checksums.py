"""Write HDF5 files anew with the checksums that lenetgpu looks at, their data as they are.

Shapes, types, filters and attributes stay; text of attributes gets a fixed length. Run again, it
writes the same bytes. This is how weights/lenet-mnist.h5 and data/digits-10k.h5 got theirs.
"""

from __future__ import annotations

import io
from pathlib import Path

import click
import h5py

from lenetgpu.files import checksums, hdf5
from lenetgpu.store import write_atomically


def with_checksums(path: Path) -> bytes:
    """The file anew; only data sets of the root group are taken."""
    buffer = io.BytesIO()
    with h5py.File(path) as source, hdf5.new_hdf5(buffer) as (file, check):
        for name, item in source.items():
            if not name.endswith(checksums.OF_BLOCKS):
                _copy(item, file)
                check()
        checksums.describe(file, source.attrs)
        checksums.sum_up(file)
    return buffer.getvalue()


def _copy(item: h5py.Dataset, file: h5py.File) -> None:
    name = item.name.strip("/")
    rows = checksums.Rows(
        file,
        name,
        item.shape,
        item.dtype,
        item.chunks[0] if item.chunks else len(item),
        by_blocks=name == "x",
        compression=item.compression,
        compression_opts=item.compression_opts,
        shuffle=item.shuffle,
    )
    for lo in range(0, len(item), rows.rows):
        rows.add(item[lo : lo + rows.rows])
    checksums.describe(file[name], item.attrs)


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """Write FILES anew with checksums."""
    for path in files:
        write_atomically(path, with_checksums(path))
        click.echo(f"{path}: {checksums.verify(path).said}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
