"""One module per command: its options, their checks, and the run."""
