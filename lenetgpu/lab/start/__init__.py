"""Templates for `lenetgpu variants --new`: two files per kind, copied and never imported here."""
