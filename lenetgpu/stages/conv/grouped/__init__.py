"""Convolutions of any strides, padding, dilation and groups on a GPU, so far only naive ones."""
