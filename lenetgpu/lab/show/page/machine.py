"""The machine that figures are of, the files they come from, and the figures to read first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lenetgpu.lab.show.page.blocks import (
    Block,
    Document,
    Facts,
    Section,
    Table,
    Tile,
    Tiles,
    of_command,
    short,
)
from lenetgpu.lab.show.page.plans import named_plans
from lenetgpu.lab.show.page.provenance import device_name, either, of_what, short_commit, where
from lenetgpu.lab.show.tables import Column

_SOFTWARE = {
    "driver": "driver", "cuda_driver": "CUDA of the driver", "cupy": "CuPy", "nvrtc": "NVRTC",
    "python": "Python", "numpy": "NumPy", "numba": "Numba", "torch": "PyTorch", "cudnn": "cuDNN",
}  # fmt: skip
FILE_COLUMNS = (
    Column("file", "label", numeric=False),
    Column("what", "command", numeric=False),
    Column("date", "date", numeric=False),
    Column("commit", "commit", numeric=False),
    Column("data", "data", numeric=False),
    Column("weights", "weights", numeric=False),
    Column("images", "images", "{:,}".format),
)


def _found(documents: Sequence[Document], key: str) -> str:
    return either(str(document[key]) for document in documents if document.get(key))


def _ceilings(documents: Sequence[Document]) -> dict[str, str]:
    """The last measured ones, as facts."""
    limits = latest_ceilings(documents)
    if limits is None:
        return {}
    found = {
        "copy, at most": f"{limits['copy_gbs']:,.0f} GB/s",
        "fp32 multiply-adds, at most": f"{short(limits['fma_tflops'], 3)} TFLOP/s",
    }
    if limits["tensor_tflops"]:
        found["tensor cores (mma.sync), at most"] = f"{limits['tensor_tflops']:,.0f} TFLOP/s"
    return found | {"ceilings measured": limits["date"] or "undated"}


def latest_ceilings(documents: Sequence[Document]) -> Document | None:
    """The ceilings that were measured last, None where no file has any."""
    found = [document["ceilings"] for document in documents if document.get("ceilings")]
    return max(found, key=lambda limits: limits["date"] or "", default=None)


def machine(documents: Sequence[Document]) -> Section:
    """What ran, with which software, in which files."""
    first = documents[0]["device"]
    facts = {"device": device_name(documents[0])}
    if first.get("compute_capability"):
        facts["compute capability"] = first["compute_capability"]
    for key, name in _SOFTWARE.items():
        if _found(documents, key):
            facts[name] = _found(documents, key)
    files = [
        document | {"commit": short_commit(document.get("commit"))}
        for document in documents
    ]  # fmt: skip
    blocks = [Block([Facts("", facts | _ceilings(documents))])]
    if not documents[0].get("fresh"):
        blocks.append(Block([Table("Files that the figures below are read from", FILE_COLUMNS,
                                   files)]))  # fmt: skip
    return Section("machine", "The machine", "", blocks)


def _fastest(rows: Iterable[Document]) -> Document | None:
    ours = [row for row in rows if row["maker"] == "lenetgpu"]
    timed = (row for row in ours if row["median_ms"] > 0)
    return min(timed, key=lambda row: row["median_ms"], default=None)


def _of_peers(document: Document) -> list[Tile]:
    row = _fastest(document["rows"])
    if row is None:
        return []
    source, images = where(document), row["images"] or document["images"] or 0
    took = f"{short(row['median_ms'], 3)} ms"
    tiles = [Tile(took, f"{row['name']}: {images:,} images on the device to labels there", source)]
    rate = images * 1e3 / row["median_ms"]
    tiles.append(Tile(_rate(rate), f"{row['name']}: images a second in that pass", source))
    if row["times_faster"]:
        faster = f"as fast as the best peer of its precision, {row['peer']}"
        tiles.append(Tile(f"{row['times_faster']:.1f}x", faster, source))
    if row["correct"] is not None:
        right = f"labels right: {row['name']}, {of_what(document)}"
        tiles.append(_accuracy(row["correct"], row["judged"] or images, right, source))
    return tiles


def _accuracy(correct: float, judged: float, what: str, source: str) -> Tile:
    shown = f"{correct / judged:.2%}" if judged else f"{correct:,}"
    return Tile(shown, f"{correct:,.0f} of {judged:,.0f} {what}", source)


def _rate(rate: float) -> str:
    return f"{rate / 1e6:,.1f} M/s" if rate >= 1e6 else f"{rate:,.0f}/s"


def _of_a_run(documents: Sequence[Document]) -> list[Tile]:
    """Of the fastest plan of infer's and profile's documents."""
    best = min(documents, key=lambda d: d["timing_ms"]["compute"]["median"], default=None)
    if best is None:
        return []
    source, images, took = where(best), best["images"] or 0, best["timing_ms"]
    plan = f"plan {best['plan_label']}"
    compute = f"{plan}: {images:,} images on the device to labels there"
    whole = f"{plan}: the same from host memory to host memory"
    tiles = [Tile(f"{short(took['compute']['median'], 3)} ms", compute, source)]
    if took["end_to_end"] != took["compute"]:
        tiles.append(Tile(f"{short(took['end_to_end']['median'], 3)} ms", whole, source))
    if best["images_per_second"]:
        tiles.append(Tile(_rate(best["images_per_second"]), "images, host to host", source))
    if best["correct"] is not None:
        right = f"labels right, {of_what(best)}"
        tiles.append(_accuracy(best["correct"], images, right, source))
    return tiles


def _of_one(document: Document) -> list[Tile]:
    row = _fastest(document["rows"])
    if row is None:
        return []
    took = f"{1e3 * row['median_ms']:,.1f} us"
    return [Tile(took, f"one image, host to label: {row['name']}", where(document))]


def _of_host(document: Document) -> list[Tile]:
    row = _fastest(document["rows"])
    if row is None:
        return []
    images = document["images"] or 0
    what = f"{row['name']}: {images:,} images, host memory to labels in it"
    return [Tile(f"{short(row['median_ms'], 3)} ms", what, where(document))]


def _of_course(document: Document) -> list[Tile]:
    for row in document["rows"]:
        if row["stage"] == "all" and row["report_ms"] and row["speedup"]:
            what = f"the course's {row['report_ms']:,.0f} ms of 2016 over {row['variant']} here"
            return [Tile(f"{row['speedup']:,.0f}x", what, where(document))]
    return []


def headline(documents: Sequence[Document]) -> Section:
    """The figures to read first, as far as the files have them."""
    tiles: list[Tile] = []
    for document in of_command(documents, "peers"):
        tiles += _of_peers(document)
    if not tiles:
        tiles += _of_a_run(named_plans(documents))
    for document in of_command(documents, "end-to-end"):
        tiles += _of_host(document)
    for document in of_command(documents, "one"):
        tiles += _of_one(document)
    for document in of_command(documents, "compare"):
        tiles += _of_course(document) if document["rows"] else []
    return Section("first", "In short", "", [Block([Tiles(tiles)])] if tiles else [])
