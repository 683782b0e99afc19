"""The Pascal paper: its sections, figures, tables and equations."""

from __future__ import annotations

from lenetgpu.papers.contents import EQUATION, FIGURE, SECTION, TABLE, Item, Text

_PLAN = "stages/conv/prefetch/single_plan.py:plan_single"
_STRICT_PLAN = "stages/conv/prefetch/strict_plan.py:strict_plan"
_AGAIN = "stages/conv/prefetch/single_strict_plan.py:strict_single"
_MACHINE = "gpu/machines.py:Machine"
_SINGLE_TABLE = "docs/measured.md#pascal-one-channel"
_MULTI_TABLE = "docs/measured.md#pascal-many-channels"
_ANEW = (("prefetch.single_strict", "step 4, dividing anew until V_s is met, is not built"),)
_DIVISIONS = (("prefetch.strict", "of many channels only division (e) of figure 2 is built"),)
_SINGLE = (("prefetch.single_strict", "blocks are rectangles of rows and filters"),)
_STRICT = (("prefetch.strict", "M' and W'x are upper limits, and filters are packed anew"),)

TEXT = Text(
    "Pascal",
    "Fast Convolution Kernels on Pascal GPU with High Memory Efficiency (Chang and others)",
    ("Pascal", "Chang"),
    (
        Item(SECTION, "1", "Introduction", why="other work"),
        Item(SECTION, "2", "Optimization methods", why="a heading"),
        Item(SECTION, "2.1", "The convolution models", ("stages/reference.py",)),
        Item(SECTION, "2.2", "Acceleration models on GPU", (_MACHINE, _PLAN, _AGAIN), gaps=_ANEW),
        Item(SECTION, "2.3", "Data mapping", (_AGAIN, _STRICT_PLAN), gaps=_DIVISIONS),
        Item(SECTION, "3", "GPU implementation", why="a heading"),
        Item(SECTION, "3.1", "Single-channel convolution", (_PLAN, _AGAIN), gaps=_SINGLE),
        Item(SECTION, "3.2", "Multi-channel convolution", (_STRICT_PLAN,), gaps=_STRICT),
        Item(
            SECTION, "4", "Experimental analysis",
            ("papers/shapes.py:SUITES", _SINGLE_TABLE, _MULTI_TABLE),
            "its GPUs, a GTX 1080 Ti and a GTX Titan X, are planned for, not measured on",
        ),
        Item(SECTION, "5", "Conclusions", why="sums up section 4"),
        Item(FIGURE, "1", "Memory storage form of the filter", ("stages/conv/prefetch/strict.cu",)),
        Item(FIGURE, "2", "Assignment of the input data", (_AGAIN, _STRICT_PLAN), gaps=_DIVISIONS),
        Item(FIGURE, "3", "Multi-channel kernel", ("stages/conv/prefetch/strict.cu",)),
        Item(FIGURE, "4", "Performance, single channel", (_SINGLE_TABLE,)),
        Item(FIGURE, "5", "Performance, many channels", (_MULTI_TABLE,)),
        Item(
            TABLE, "1", "Parameters of a GTX 1080Ti",
            ("gpu/machines.py:GTX_1080_TI", "tests/test_prefetch.py"),
        ),
        Item(EQUATION, "1", "Convolution of many channels", ("stages/reference.py",)),
        Item(EQUATION, "2", "Convolution of one", ("stages/reference.py",)),
        Item(EQUATION, "3", "D_input", (_PLAN,)),
        Item(EQUATION, "4", "D_1 with the map whole", (_PLAN,), "as equation (5) with P = 1"),
        Item(EQUATION, "5", "D_1", (_PLAN,)),
        Item(EQUATION, "6", "Th_1", (_PLAN,)),
        Item(EQUATION, "7", "D_2 with the filters whole", (_PLAN,), "as equation (8) with Q = 1"),
        Item(EQUATION, "8", "D_2", (_PLAN,)),
        Item(EQUATION, "9", "Th_2", (_PLAN,)),
    ),
)  # fmt: skip
