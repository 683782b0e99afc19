"""Steps between stages: pixels to floats, one layout to another."""
