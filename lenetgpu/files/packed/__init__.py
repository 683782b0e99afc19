"""Packed images, a lossless form of a quarter of the bytes: docs/packed.md has every one."""
