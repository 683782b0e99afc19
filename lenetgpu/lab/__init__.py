"""A file a command: what is asked, checked and run."""
