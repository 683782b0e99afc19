"""A person's own pictures: found, read by Pillow, prepared as MNIST was."""
