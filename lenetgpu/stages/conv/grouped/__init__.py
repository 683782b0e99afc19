"""Convolutions of any strides, padding, dilation and groups on a GPU: naive, as yet."""
