"""Data from the source texts: shapes, figures, ladders."""

import json
from pathlib import Path
from typing import Any


def data_of(text: str) -> Any:
    """Return the contents of this folder's JSON file with the figures and shapes of `text`."""
    return json.loads(Path(__file__).with_name(f"{text}.json").read_text())
