"""How a call is sampled: the ways to time it, and images that change between samples."""
