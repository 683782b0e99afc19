"""Where no hardware counters are to be had: global efficiencies counted from addresses.

They are those that a variant's own explanation gives (`lenetgpu.stages.sectors`), of some variants
only, and are never called measured.
"""

from __future__ import annotations

import re
from typing import Any

from lenetgpu.gpu.machines import Machine
from lenetgpu.plan import Slot

SOURCE = "counted"
_EFFICIENCY = re.compile(r"([\d.]+)% of loads, ([\d.]+)% of stores")


def efficiencies(slot: Slot, images: int, machine: Machine) -> tuple[float, float] | None:
    """Global load and store efficiency, 0 to 1, of a slot's variant; None where it counts none."""
    if slot.variant.explain is None:
        return None
    for about, found in slot.variant.explain(slot.problem, images, machine):
        shares = _EFFICIENCY.search(found)
        if about == "counted efficiency" and shares:
            return float(shares[1]) / 100, float(shares[2]) / 100
    return None


def row(slot: Slot, images: int, machine: Machine) -> dict[str, Any]:
    """`stage`, `variant` and the two efficiencies, None where they are not counted."""
    loads, stores = efficiencies(slot, images, machine) or (None, None)
    return {
        "stage": slot.name,
        "variant": slot.variant.full_name,
        "error": None,
        "global_load_efficiency": loads,
        "global_store_efficiency": stores,
        "kernels": [],
    }
