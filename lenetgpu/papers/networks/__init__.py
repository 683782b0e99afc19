"""Networks whose convolutions are suites of `lenetgpu conv`."""
