"""Input and output files: images, weights and labels. Only this package opens untrusted files."""
