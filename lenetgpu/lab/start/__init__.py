"""What `lenetgpu variants --new` writes: a kind a pair of files, copied and never imported here."""
