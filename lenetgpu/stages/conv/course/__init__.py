"""The course report's convolutions with its own blocks and threads, of the families they belong to.

What is beside them in `direct` and `unrolled` is after the report: other blocks, other launches.
"""
