"""What is read and written: images, weights, labels; the one place that opens untrusted files."""
