"""What CPU variants share: threads, compilation, vectors, the register tile, Winograd."""
