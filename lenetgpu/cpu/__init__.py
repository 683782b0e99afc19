"""What CPU variants share: threads, lazy compilation, the register-tile microkernel."""
