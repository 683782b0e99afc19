"""The course report's convolutions with its own blocks and threads; each belongs to a family.

The other variants of the `direct` and `unrolled` families follow the report with different blocks
and launches.
"""
