"""Implementations of every stage. Importing this package registers all variants and is cheap."""

import json
from pathlib import Path

from lenetgpu.stages.registry import Variant, choices, families, find, offer, variants

__all__ = ["Variant", "choices", "families", "find", "variants"]

_HERE = Path(__file__).parent
# The kinds of each folder's variants, and the families of its modules, naive to fast.
for _name, _offered in json.loads((_HERE / "families.json").read_text()).items():
    offer(f"{__name__}.{_name}", _HERE / _name, _offered["kinds"], _offered["modules"])
