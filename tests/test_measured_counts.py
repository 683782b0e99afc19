"""Sectors measured by Nsight Compute agree with those counted from addresses.

Covers the course's variants in each `counters.json` of docs/measured; rows whose kernels changed
since are skipped.
"""

import json

import pytest
from conftest import ROOT

from lenetgpu.gpu.machines import H200
from lenetgpu.measure.counters.document import efficiencies
from lenetgpu.papers.course_counters import specs, suite_keys

FILES = sorted((ROOT / "docs" / "measured").glob("*/counters.json"))
POINTS = 3.0
RELU_ALONE = ("relu_in_place", "relu2")  # counted with the main kernel


def wanted():
    """Map (stage, variant) of the course's variants to the stage and both counted efficiencies."""
    keys = [key for key in suite_keys() if "+" not in key[0]]
    found = {}
    for key, spec in specs(keys).items():
        bound = spec.bound()
        counted = efficiencies(bound, 10_000, H200)
        if counted and bound.variant.paper.startswith("report "):
            found[key] = bound, counted
    return found


def main_kernel(row):
    """Return the row's only kernel other than a plain ReLU."""
    (found,) = [one for one in row["kernels"] if one["kernel"] not in RELU_ALONE]
    return found


def differing(document, changed):
    """Return the measured values that differ from the counts, and the number of rows compared.

    Differences of up to POINTS percentage points are allowed.
    """
    rows = {(row["stage"], row["variant"]): row for row in document["rows"]}
    lines, compared = [], 0
    for key, (bound, counted) in wanted().items():
        row = rows.get(key)
        sources = {
            str(kernel.source.relative_to(ROOT))
            for kernel in bound.variant.kernels(bound.problem, document["images"])
        }
        if row is None or row["error"] or sources & set(changed):
            continue
        kernel, compared = main_kernel(row), compared + 1
        for what, share in zip(("load", "store"), counted, strict=True):
            found = kernel[f"global_{what}_efficiency"]
            if abs(100 * (found - share)) > POINTS:
                lines.append(f"{' '.join(key)}: {what}s {found:.1%}, counted {share:.1%}")
    return lines, compared


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_measured_sectors_equal_counted_ones(path, script):
    document = json.loads(path.read_text())
    changed = script("measured").changed(document)
    lines, compared = differing(document, changed)
    assert lines == [] and (compared or changed) and len(wanted()) >= 17
