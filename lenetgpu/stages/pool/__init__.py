"""ReLU and 2x2 mean, naive to fast; one file per family."""
