"""Shared parts of the CPU variants: threads, compilation, vectors, the register tile, Winograd."""
