"""`lenetgpu conv --shares`: the convnet2 kernels' time shares, tiles and instructions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lenetgpu.errors import LenetError, first_line
from lenetgpu.gpu import device as gpu_device
from lenetgpu.gpu import instructions, latency, machines
from lenetgpu.gpu.device import Gpu
from lenetgpu.gpu.faults import release
from lenetgpu.gpu.nvrtc import compile_together
from lenetgpu.lab import charts
from lenetgpu.lab.compare import CompareOutcome
from lenetgpu.lab.conv.document import shape_text
from lenetgpu.lab.conv.request import ConvRequest, rows_to_run
from lenetgpu.lab.tables import Column, Part, Table, columns, from_file, status_word
from lenetgpu.measure.document import head
from lenetgpu.measure.rounds import Say
from lenetgpu.papers import convnet2_measured
from lenetgpu.papers.convnet2 import TABLE_1, TABLE_1_BATCH
from lenetgpu.papers.convnet2_engines import FIGURE_9, FIGURE_13, line_cycles
from lenetgpu.papers.convnet2_measured import Field
from lenetgpu.papers.shapes import Shape
from lenetgpu.plan import choose_device
from lenetgpu.stages.conv.convnet2.layout import indexable
from lenetgpu.stages.registry import unsupported


def between(cycles: list[float]) -> str:
    """Format a range of cycles, or a single value."""
    return " to ".join(dict.fromkeys(f"{value:,.1f}" for value in cycles))


KERNEL_COLUMNS = from_file("shares")
TILES, INSTRUCTIONS = from_file("tiles"), from_file("instructions", between=between)


def _shapes(request: ConvRequest) -> list[Shape]:
    if request.suite not in (None, "convnet2"):
        raise LenetError(f"--shares: expected --suite convnet2 or none, found {request.suite}")
    if request.shape is None and request.suite is None:
        shapes = [Shape("table 1, filters 5x5", TABLE_1, request.images(TABLE_1_BATCH))]
    else:
        shapes = [row for row in rows_to_run(request)[1] if isinstance(row, Shape)]
    for shape in shapes:
        refused = unsupported(shape.problem, frozenset()) or indexable(shape.problem)
        if refused is not None:
            raise LenetError(f"{shape.label}: {refused}")
    return shapes


def run_shares(request: ConvRequest, say: Say) -> CompareOutcome:
    """Measure shares, tiles and instructions; raise LenetError for bad input or without a GPU."""
    shapes = _shapes(request)
    if request.plot is not None:
        charts.check_plot(request.plot)
    gpu, reason = choose_device(request.device)
    if gpu is None:
        raise LenetError(f"--shares: expected a GPU for its clocks, found device cpu ({reason})")
    gpu_device.activate(gpu)
    document = head("shares", gpu) | {"cases": [], "left_out": [], "interrupted": False}
    kernels = [kernel for chain in instructions.INSTRUCTIONS for kernel in chain.kernels()]
    for shape in shapes:
        kernels += convnet2_measured.kernels(shape.problem, shape.batch)
        kernels += convnet2_measured.tile_kernels(shape.problem, shape.batch)
    say(f"compiling {len(kernels)} kernels")
    compile_together(kernels, gpu_device.current_arch())
    say("latencies of instructions")
    document["instructions"] = instruction_rows(instructions.measured())
    document["not_measured"] = instructions.NOT_MEASURED
    measured = latency.measured(machine := machines.current())
    # Clocks of a load and N_FMA (Pascal paper, section 2.2), measured and planned with
    document["latency"] = {
        **{"machine": machine.name, "load": measured.load, "planned_load": machine.latency},
        **{"fma": measured.fma, "n_fma": measured.n_fma(machine), "planned_n_fma": machine.n_fma},
    }
    for shape in shapes:
        try:
            document["cases"].append(_case(shape, gpu, say))
        except MemoryError as error:
            why = f"requires more memory: {first_line(error)}"
            document["left_out"].append({"label": shape.label, "why": why})
        except KeyboardInterrupt:
            document["interrupted"] = True
            break
        release()

    def draw() -> None:
        if request.plot is not None:
            title = f"{document['device']['name']}, {document['date']}"
            drawn = {case["label"]: charts.parted(case, printed=True) for case in document["cases"]}
            charts.save(request.plot, title, drawn, columns=len(drawn))

    wrong = []
    for case in document["cases"]:
        for row in (*case["kernels"], *case["tiles"]):
            if row["status"] == "wrong":
                name = row.get("kernel", f"a tile of figure {row['figure']}")
                wrong.append(f"{case['label']}: {name}, error {row['relative_error']:.2e}")
    notes = [f"{entry['label']} left out, {entry['why']}" for entry in document["left_out"]]
    return CompareOutcome(document, wrong, notes=notes, draw=draw)


def _case(shape: Shape, gpu: Gpu, say: Say) -> dict[str, Any]:
    def about(line: str) -> None:
        say(f"{shape.label}: {line}")

    field = Field(shape.problem, shape.batch)
    return {
        "label": shape.label,
        "shape": shape_text(shape.problem),
        "images": shape.batch,
        "kernels": convnet2_measured.measure_shares(field, gpu=gpu, say=about),
        "tiles": convnet2_measured.measure_tiles(field, machines.current(), about),
    }


def instruction_rows(clocks: dict[str, float]) -> list[dict[str, Any]]:
    """Return a row per instruction: its clocks here, and the ranges of figures 9 and 13."""
    rows = []
    for chain in instructions.INSTRUCTIONS:
        row: dict[str, Any] = {"ptx": chain.ptx, "sass": chain.sass, "clocks": clocks[chain.ptx]}
        for name, figure in (("figure_9", FIGURE_9), ("figure_13", FIGURE_13)):
            cycles = line_cycles(figure, chain.line) if chain.line else []
            row[name] = [min(cycles), max(cycles)] if cycles else None
        rows.append(row | {"remark": chain.remark})
    return rows


def _rows(case: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row | {"check": status_word(row), "label": case["label"]} for row in case[kind]]


def tile_rows(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per tile with its threads as 16x4, fastest first, those without times last."""
    rows = sorted(_rows(case, "tiles"), key=lambda row: row["median_us"] or float("inf"))
    return [row | {"threads": f"{row['threads_x']}x{row['threads_y']}"} for row in rows]


def table(document: Mapping[str, Any]) -> Table:
    """Return the kernels, then the tiles of every shape."""
    rows = [row for case in document["cases"] for row in _rows(case, "kernels")]
    rows += [row for case in document["cases"] for row in tile_rows(case)]
    every = columns("shape=label", *KERNEL_COLUMNS, *TILES, "note")
    return Table([*{column.key: column for column in every}.values()], rows)


def parts(document: Mapping[str, Any]) -> Iterator[Part]:
    """Yield per shape a table of time shares and one of tiles, then the instructions' clocks."""
    for case in document["cases"]:
        where = f"{case['label']} ({case['shape']}, batch {case['images']:,})"
        title = f"{where}: parts of a warp's time"
        yield from _table_and_notes(KERNEL_COLUMNS, _rows(case, "kernels"), title)
        title = f"{where}: tiles of the unrolled kernel"
        yield from _table_and_notes(TILES, tile_rows(case), title)
    title = "clocks until the warp's next, dependent instruction"
    yield Table(INSTRUCTIONS, document["instructions"], title)
    for instruction, why in document["not_measured"].items():
        yield f"{instruction}: not measured, {why}"


def _table_and_notes(
    columns: Sequence[Column], rows: list[dict[str, Any]], title: str
) -> Iterator[Part]:
    """Yield a table of the rows that were not refused, then each note once with its rows' names."""
    yield Table(columns, [row for row in rows if row["status"] != "refused"], title)
    names: dict[str, list[str]] = {}
    for row in rows:
        if note := row.get("note") or row.get("remark"):
            refused = "refused, " if row["status"] == "refused" else ""
            name = row.get("kernel") or (
                f"{row['threads']}, {row['images_per_thread']} x {row['filters_per_thread']} "
                f"outputs, {row['cached_pixels']} pixels"
            )
            names.setdefault(refused + note, []).append(name)
    for note, having in names.items():
        yield f"{', '.join(having)}: {note}"
