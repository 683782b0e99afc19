"""What `lenetgpu conv --list` answers: the suites, or the convolutions of what is named."""

from __future__ import annotations

from typing import Any

from lenetgpu.lab.conv.again import command_of
from lenetgpu.lab.conv.request import ConvRequest, rows_asked
from lenetgpu.lab.show.conv_document import about_suite, network_json
from lenetgpu.measure.document import SCHEMA
from lenetgpu.papers.shapes import SUITES, Suite


def run_list(request: ConvRequest) -> dict[str, Any]:
    """The document: a row a suite, or a row a convolution; LenetError for bad input.

    Nothing is run, and no device is looked for.
    """
    asked = (request.shape, request.suite, request.lines, request.model)
    if all(way is None for way in asked) and request.batch is None:
        suites = [_suite(suite) for suite in SUITES.values()]
        return {"schema": SCHEMA, "command": "suites", "suites": suites}
    suite, rows = rows_asked(request)
    commands = [command_of(request, row) for row in rows]
    network = network_json(rows, commands, [])
    return {"schema": SCHEMA, "command": "shapes", **about_suite(suite), "network": network}


def _suite(suite: Suite) -> dict[str, Any]:
    return {
        "name": suite.name,
        "title": suite.title,
        "shapes": len(suite.rows),
        "taken": len(suite.shapes),
        "convolutions": sum(row.count for row in suite.rows),
        "images": sorted({shape.batch for shape in suite.shapes}),
        "source": suite.source or None,
    }
