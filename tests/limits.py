"""How far each precision may be off, for tests: written down here, not read from what they test.

fp32, fp16x3 and tf32x3: docs/weights.md and docs/convolutions.md say 1e-5; int8 and int8s:
docs/weights.md says 4e-2 and 6e-2 of the largest logit; fp16: a rounding is 2**-11, and 4 of them
are allowed; fp16w, where maps are transformed and then rounded: 8.
"""

from __future__ import annotations

import numpy as np

LIMITS = {"fp32": 1e-5, "fp16x3": 1e-5, "tf32x3": 1e-5, "fp16": 2e-3, "fp16w": 4e-3}
LIMITS |= {"int8": 4e-2, "int8s": 6e-2}


def excused(scores, precision):
    """Images whose two best scores lie within twice the limit: another label is no error there.

    With fp32's accuracy none is.
    """
    if LIMITS[precision] == 1e-5:
        return np.zeros(len(scores), bool)
    second, first = np.partition(scores, -2, axis=1)[:, -2:].T
    return first - second <= 2 * LIMITS[precision] * np.abs(scores).max()
