"""Implementation of `lenetgpu conv`: convolutions checked, timed, explained and simulated."""
